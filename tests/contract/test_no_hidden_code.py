"""The package runs no code but its own and the tasks': nothing is unpickled, evaluated or handed to a shell, and no SQL is
written with values in it."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kombu.exceptions import ContentDisallowed
from kombu.serialization import dumps, loads, prepare_accept_content

import celery_tm
from celery_tm import easy_app
from celery_tm.domain.codec import decode, encode
from celery_tm.errors import InvalidValue

PACKAGE = Path(celery_tm.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))
# Modules that make objects, or run programs, out of what they read.
DANGEROUS = {
    "pickle",
    "cPickle",
    "dill",
    "cloudpickle",
    "marshal",
    "shelve",
    "subprocess",
    "pty",
    "code",
    "codeop",
    "ctypes",
}
CALLS = {"eval", "exec", "compile", "__import__", "input"}
METHODS = {
    ("os", "system"),
    ("os", "popen"),
    ("yaml", "load"),
    ("yaml", "load_all"),
    ("yaml", "unsafe_load"),
    ("json", "load_hook"),
}
# The file that Celery's own beat leaves is a pickle: it is read by a reader that makes nothing of what it names.
READS_PICKLES = "management/importing/beat.py"
# Modules are named by the code itself, never by what somebody stored or sent.
IMPORTED_BY_NAME = {
    "__init__.py", "cli/__init__.py", "cli/flower.py", "testing/__init__.py", "domain/schedule/solar.py",
    "management/importing/sources.py",
}  # fmt: skip
STATEMENTS = {"execute", "exec_driver_sql", "text", "literal_column"}
# Names that an owner states, quoted: of a schema to create, and of a channel to listen to; and states handed over as such.
WRITTEN = {("store/schema.py", "database.schema"), ("store/notifications.py", "database.channel"),
           ("store/given.py", "ord(mark)"), ("store/insertion.py", "text")}  # fmt: skip
WRITTEN |= {("store/dialects.py", ours) for ours in (  # how a session is set up: names and numbers of our own
    "mine", "', '.join(kept)", "_limited('DEFAULT')", "seconds * 1000", "LONGEST_BUSY * 1000",
)}  # fmt: skip
STATE = re.compile(r"[A-Z]\w+\.[A-Z]+\.value|(state|outcome)\.value")  # of an enum, and written out, see docs/adr/0006


def name_of(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


def nodes(path: Path, *kinds: type) -> Iterator[Any]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, kinds):
            yield node


def imported(path: Path) -> set[str]:
    found = {alias.name.partition(".")[0] for node in nodes(path, ast.Import) for alias in node.names}
    return found | {str(node.module).partition(".")[0] for node in nodes(path, ast.ImportFrom) if not node.level}


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_no_module_makes_code_of_data(path: Path) -> None:
    allowed = {"pickle"} if name_of(path) == READS_PICKLES else set()
    assert imported(path) & DANGEROUS <= allowed
    for call in nodes(path, ast.Call):
        function = call.func
        if isinstance(function, ast.Name):
            assert function.id not in CALLS, f"{function.id} in line {call.lineno}"
        if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
            pair = (function.value.id, function.attr)
            assert pair not in METHODS, f"{pair} in line {call.lineno}"
        assert not any(word.arg == "shell" for word in call.keywords), f"a shell in line {call.lineno}"
        if "import_module" in ast.unparse(function):
            assert name_of(path) in IMPORTED_BY_NAME, f"line {call.lineno} imports by name"


def test_what_is_imported_by_name_is_named_in_the_code() -> None:
    for name in IMPORTED_BY_NAME:
        for call in nodes(PACKAGE / name, ast.Call):
            if ast.unparse(call.func) == "import_module":
                said = ast.unparse(call.args[0])
                assert said.startswith(("'", "_PLACES[", "f'.{COMMANDS[")), f"{name}: {said}"


def test_the_one_reader_of_pickles_knows_every_class_it_makes() -> None:
    [reader] = [
        node for node in nodes(PACKAGE / READS_PICKLES, ast.ClassDef) if "pickle.Unpickler" in map(ast.unparse, node.bases)
    ]
    assert [ast.unparse(one.body[-1]) for one in reader.body if isinstance(one, ast.FunctionDef)] == [
        "return _KNOWN.get((module, name), _Ignored)"
    ]
    used = {ast.unparse(node) for node in nodes(PACKAGE / READS_PICKLES, ast.Attribute) if "pickle" in ast.unparse(node)}
    assert used == {"pickle.Unpickler"}


def is_of_migrations(path: Path) -> bool:
    """Say whether a module holds migrations, or their words: what they write is in the code of the package alone."""
    return "versions" in path.parts or name_of(path) == "store/online.py"


@pytest.mark.parametrize("path", [path for path in MODULES if not is_of_migrations(path)], ids=name_of)
def test_no_statement_is_written_with_values_in_it(path: Path) -> None:
    if "store" not in path.parts:
        return  # SQL stays in the store, see test_layers
    for call in nodes(path, ast.Call):
        called = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        if called not in STATEMENTS or not call.args:
            continue
        said = call.args[0]
        assert not (isinstance(said, ast.BinOp) and isinstance(said.op, (ast.Mod, ast.Add))), f"line {call.lineno}"
        for part in ast.walk(said):
            if isinstance(part, ast.FormattedValue):
                value = ast.unparse(part.value)
                assert STATE.fullmatch(value) or (name_of(path), value) in WRITTEN, f"line {call.lineno}: {value}"


# How it behaves


def test_an_easy_app_takes_json_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TM_BROKER_URL", "CELERY_BROKER_URL", "BROKER_URL", "TM_DATABASE_URL"):
        monkeypatch.delenv(name, raising=False)
    app = easy_app("shop", folder=tmp_path, tm_database_url="sqlite://", set_as_current=False)
    assert (app.conf.accept_content, app.conf.task_serializer, app.conf.result_serializer) == (["json"], "json", "json")
    assert prepare_accept_content(app.conf.result_accept_content or app.conf.accept_content) == {"application/json"}
    kind, encoding, body = dumps({"order": 1}, serializer="pickle")
    with pytest.raises(ContentDisallowed):
        loads(body, kind, encoding, accept=prepare_accept_content(app.conf.accept_content))
    app.close()


class Harmful:
    """Does harm when it is unpickled."""

    def __reduce__(self) -> Any:
        return (Path.touch, (Path("harm"),))


@pytest.mark.parametrize(
    "value", [Harmful(), {"deep": [Harmful()]}, lambda: None, open], ids=["object", "deep", "lambda", "open"]
)
def test_only_plain_values_are_kept(value: Any) -> None:
    with pytest.raises(InvalidValue, match="is not JSON"):
        encode(value, field="args")


@pytest.mark.parametrize("kind", ["os.system", "pickle", "", "set", None, 5, "builtins.eval"])
def test_a_marker_that_celery_does_not_know_makes_nothing(kind: Any) -> None:
    text = json.dumps({"__type__": kind, "__value__": "echo harm"})
    try:
        made = decode(text)
    except Exception:  # refused is as good
        return
    assert isinstance(made, (dict, str))
