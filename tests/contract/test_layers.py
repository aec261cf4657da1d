"""The shape of the code base: arrows between layers point down, and no module or function grows out of hand."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "celery_tm"
VERSIONS = PACKAGE / "store" / "migrations" / "versions"
LONGEST_MODULE, LONGEST_FUNCTION = 400, 60
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if VERSIONS not in path.parents)


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def functions_of(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def imports_of(path: Path) -> set[str]:
    """Return the top-level packages a module imports by absolute name, anywhere in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.add(node.module.split(".")[0])
    return found


def test_import_linter_finds_every_contract_kept() -> None:
    command = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([command, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)

    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"Contracts: \d+ kept, 0 broken", done.stdout), done.stdout


def test_every_part_of_the_package_has_its_place_in_the_layers() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    placed = {name.strip(" ()") for layer in layers for name in re.split(r"[|:]", layer)}
    parts = {f"celery_tm.{path.stem}" for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}

    assert parts - placed == {"celery_tm.__init__", "celery_tm.version"}


@pytest.mark.parametrize("path", [path for path in MODULES if PACKAGE / "domain" in path.parents], ids=name_of)
def test_a_rule_imports_no_database_no_broker_s_client_and_no_clock(path: Path) -> None:
    assert not imports_of(path) & {"sqlalchemy", "alembic", "celery", "flower", "redis", "psycopg", "pymysql", "socket"}
    calls = {ast.unparse(node.func) for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)}
    assert not calls & {"datetime.now", "datetime.utcnow", "date.today", "time.time", "clock.now"}


@pytest.mark.parametrize("path", [path for path in MODULES if PACKAGE / "store" not in path.parents], ids=name_of)
def test_sql_stays_in_the_store(path: Path) -> None:
    allowed = {"celery_tm/worker/context.py", "celery_tm/producer/writing.py"}  # they hand over the caller's own session

    assert name_of(path) in allowed or not imports_of(path) & {"sqlalchemy", "alembic"}


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_module_says_what_it_is_for_and_stays_short(path: Path) -> None:
    text = path.read_text()

    assert not text.strip() or ast.get_docstring(ast.parse(text)), f"{name_of(path)} has no docstring"
    assert len(text.splitlines()) <= LONGEST_MODULE


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_function_stays_short(path: Path) -> None:
    long = {
        function.name: function.end_lineno - function.lineno + 1
        for function in functions_of(ast.parse(path.read_text()))
        if function.end_lineno and function.end_lineno - function.lineno >= LONGEST_FUNCTION
    }

    assert long == {}


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_public_class_says_what_it_is(path: Path) -> None:
    classes = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef)]

    assert [node.name for node in classes if not node.name.startswith("_") and not ast.get_docstring(node)] == []


def test_the_package_tells_type_checkers_that_it_is_typed() -> None:
    assert (PACKAGE / "py.typed").exists()
