"""Files of definitions that are rubbish, traps, or almost right: all of a file is loaded, or nothing, and nothing is run."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from celery import Celery
from hypothesis import strategies as st
from tmtest.commands import Cli
from tmtest.rows import all_rows

from celery_tm import TimeManagement
from celery_tm.cli.toml import plain_values, write_toml
from celery_tm.errors import InvalidValue, TmError
from fuzz.grammar import CHANGES, STATEMENTS, changed
from fuzz.limits import check_told, limited
from fuzz.values import VALUES

SHOP = (Path(__file__).parents[2] / "beat" / "definitions.toml").read_text()
RICH: dict[str, Any] = {
    "calendars": [{"name": "holidays", "dates": ["2026-12-24", "12-25", "sat", "2026-12-24/2027-01-02"]}],
    "definitions": [
        {"name": "nightly", "task": "effect", "schedule": "30 2 * * *", "timezone": "Europe/Warsaw",
         "args": [1, {"a": None}], "kwargs": {"n": 1},
         "calendars": ["holidays"], "excluded": ["2026-01-01"], "jitter": "5s", "max_retries": 2,
         "retry": {"kind": "fixed", "delay": "10s"}, "recovery": {"policy": "bounded", "count": 3, "within": "2h"},
         "starts_at": "2026-01-01T00:00:00+00:00", "group": "reports", "priority": 3, "options": {"headers": {"a": "b"}}},
        {"name": "windowed", "task": "effect", "overlap": "queue", "plan_ahead": "1d",
         "schedule": {"kind": "window", "every": "2h", "from": "08:00", "until": "18:00", "days": ["mon", "fri"]}},
        {"name": "flow", "schedule": "every 1h", "failure_strategy": "continue", "mode": "sequential", "steps": [
            {"name": "fetch", "task": "effect", "args": [1]},
            [{"name": "left", "task": "effect"}, {"name": "right", "task": "fails", "max_retries": 0}],
            {"name": "clean", "task": "effect", "cleanup": True}]},
    ],
}  # fmt: skip
WITHOUT_NULL = json.loads(json.dumps(RICH).replace('{"a": null}', "{}"))
WRITTEN = {
    "shop.toml": SHOP,
    "rich.toml": write_toml(WITHOUT_NULL),
    "rich.yaml": yaml.safe_dump(RICH),
    "rich.json": json.dumps(RICH, indent=1),
}
LINES = st.lists(st.tuples(st.sampled_from(["twice", "gone", "up", "in"]), st.floats(0, 1)), max_size=3)
BYTES = st.binary(max_size=200) | st.sampled_from(
    [
        b"",
        b"\xef\xbb\xbf",
        b"\xff\xfe",
        b"\x00",
        b"\xed\xa0\x80",
        SHOP.encode("utf-16"),
        b"definitions: \xff",
        os.urandom(4096),
    ]
)


class Desk:
    """Loads files, by call and by command, and holds what became of the tables against what they were."""

    def __init__(self, app: Celery, folder: Path) -> None:
        self.tm, self.cli, self.folder = TimeManagement(app), Cli(app), folder
        self.loaded = self.refused = 0

    def load(self, name: str, content: bytes) -> None:
        """Load a file; one that is refused leaves no trace."""
        path = self.folder / name
        path.write_bytes(content)
        before = all_rows(self.tm)
        with limited(5):
            try:
                self.tm.definitions.load(path)
            except TmError as error:
                check_told(error, lines=12, names=name)
                self.refused += 1
                assert all_rows(self.tm) == before
                assert str(path) in self.cli.refused("definitions", "load", str(path))
                assert all_rows(self.tm) == before
            else:
                self.loaded += 1
                [what] = {type(self.cli.json("definitions", "load", str(path)))}
                assert what is dict
                self.tm.definitions.export()


@pytest.fixture(params=["sqlite", "postgresql", "mysql"])
def desk(request: pytest.FixtureRequest, app_on: Callable[[str], Celery], tmp_path: Path) -> Desk:
    return Desk(app_on(request.param), tmp_path)


@pytest.fixture
def here(app_on: Callable[[str], Celery], tmp_path: Path) -> Desk:
    """What has to do with reading alone is the same on every database."""
    return Desk(app_on("sqlite"), tmp_path)


def test_the_files_are_right_as_they_are(desk: Desk) -> None:
    for name, text in WRITTEN.items():
        desk.load(name, text.encode())
    assert (desk.loaded, desk.refused) == (len(WRITTEN), 0)


def test_a_file_that_was_damaged_is_loaded_or_leaves_no_trace(desk: Desk, tried: Callable[..., Any]) -> None:
    def check(name: str, lines: Any, changes: Any) -> None:
        text = changed(moved(WRITTEN[name], lines), changes)
        desk.load(name, text.encode(errors="surrogatepass"))

    tried(1, name=st.sampled_from(sorted(WRITTEN)), lines=LINES, changes=CHANGES)(check)
    assert desk.refused


def moved(text: str, edits: list[tuple[str, float]]) -> str:
    """Return a text with lines doubled, taken away, swapped or indented."""
    lines = text.splitlines()
    for how, where in edits:
        place = min(int(where * len(lines)), len(lines) - 1)
        if place < 0:
            continue
        if how == "in":
            lines[place] = "  " + lines[place]
            continue
        line = lines.pop(place)
        lines[max(place - 1, 0) : max(place - 1, 0)] = {"twice": [line, line], "gone": [], "up": [line]}[how]
    return "\n".join(lines)


def test_a_value_of_another_kind_is_refused_where_it_is(desk: Desk, tried: Callable[..., Any]) -> None:
    def check(where: float, value: Any, suffix: str) -> None:
        text = written(put(json.loads(json.dumps(WITHOUT_NULL)), where, value), suffix)
        if text is not None:
            desk.load(f"odd{suffix}", text.encode(errors="surrogatepass"))

    tried(2, where=st.floats(0, 1), value=VALUES | STATEMENTS, suffix=st.sampled_from([".toml", ".yaml", ".json"]))(check)
    assert desk.refused


def put(content: Any, where: float, value: Any) -> Any:
    """Return a content with a value at one of all its places."""
    places: list[tuple[Any, Any]] = []

    def walk(part: Any) -> None:
        for key in list(part) if isinstance(part, dict) else range(len(part)):
            places.append((part, key))
            if isinstance(part[key], dict | list):
                walk(part[key])

    walk(content)
    part, key = places[min(int(where * len(places)), len(places) - 1)]
    part[key] = value
    return content


def written(content: Any, suffix: str) -> str | None:
    """Return a file's text, or None where its format has no such value."""
    try:
        if suffix == ".yaml":
            return str(yaml.safe_dump(content, allow_unicode=True))
        if suffix == ".toml":
            return write_toml(plain_values(content, dates=True))
        return json.dumps(content)
    except (TypeError, ValueError, RecursionError, AttributeError, RuntimeError, yaml.YAMLError):
        return None


def test_rubbish_is_refused(here: Desk, tried: Callable[..., Any]) -> None:
    def check(content: bytes, suffix: str) -> None:
        here.load(f"rubbish{suffix}", content)

    tried(4, content=BYTES, suffix=st.sampled_from([".toml", ".yaml", ".yml", ".json"]))(check)
    assert here.loaded == 0


# Traps. Each is refused, by an error that says so.

LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 10)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)
MERGES = "a: &a {x: 1}\n" + "".join(
    f"{new}: &{new} {{<<: [{', '.join([f'*{old}'] * 10)}]}}\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)
WITHIN = "definitions:\n- name: a\n  task: effect\n  schedule: '@daily'\n  args: "
ONE = '[[definitions]]\nname = "a"\ntask = "effect"\nschedule = "@daily"\n'
DEEP = 2_000
TRAPS: dict[str, tuple[str, str, str]] = {
    "many laughs": ("laughs.yaml", LAUGHS + "definitions: [{name: *i}]", "1,000,000 values"),
    "laughs in arguments": (
        "laughs.yaml",
        f"{LAUGHS}\ndefinitions: [{{name: a, task: effect, args: *i}}]",
        "1,000,000 values",
    ),
    "merged laughs": ("merges.yaml", MERGES + "definitions: [*i]", "1,000,000 values"),
    "itself": ("itself.yaml", WITHIN + "&a [*a]", "within itself"),
    "itself as a key": ("itself.yaml", "&a {? *a : 1}", "within itself"),
    "code": ("code.yaml", WITHIN + '!!python/object/apply:os.system ["touch {ran}"]', "constructor for the tag"),
    "a module": ("code.yaml", WITHIN + "!!python/module:antigravity ''", "constructor for the tag"),
    "an object": ("code.yaml", "!!python/object/new:subprocess.Popen [touch, {ran}]", "constructor for the tag"),
    "a name": ("code.yaml", WITHIN + "!!python/name:os.system ''", "constructor for the tag"),
    "deep YAML": ("deep.yaml", WITHIN + "[" * DEEP, "nested too deeply"),
    "deep JSON": ("deep.json", '{"definitions": ' + "[" * DEEP, "nested too deeply"),
    "deep TOML": ("deep.toml", "definitions = " + "[" * DEEP, "nested too deeply"),
    "deep tables": ("deep.toml", "definitions" + ".a" * 500 + " = 1", "deep.toml"),
    "a long number in TOML": ("long.toml", ONE + "priority = " + "9" * 5_000, "not TOML"),
    "a long number in YAML": ("long.yaml", WITHIN + "[" + "9" * 5_000 + "]", "not YAML"),
    "a long number in JSON": ("long.json", '{"definitions": [' + "9" * 5_000 + "]}", "not JSON"),
    "a long number by the hour": ("long.yaml", WITHIN + "[" + "9:" * 5_000 + "9]", "long.yaml"),
    "no such date": ("date.yaml", WITHIN + "[2026-02-30]", "not YAML"),
    "bytes that are none": ("bytes.yaml", WITHIN + "[!!binary 'é']", "not YAML"),
    "a key twice in TOML": ("twice.toml", ONE + 'task = "fails"', "not TOML"),
    "a key twice in YAML": ("twice.yaml", "definitions: [{name: a, task: effect, task: fails}]", "the key 'task' twice"),
    "a key twice in JSON": ("twice.json", '{"definitions": [], "definitions": []}', "'definitions' is there twice"),
    "a key that is no text": ("key.yaml", "definitions: [{name: a, task: effect, 5: 6}]", "states 5"),
    "a list as a key": ("key.yaml", "definitions: [{name: a, ? [1] : 2}]", "not YAML"),
    "many documents": ("many.yaml", "definitions: []\n---\ndefinitions: []", "not YAML"),
    "a long name": ("name.json", json.dumps({"definitions": [{"name": "x" * 100_000}]}), "100000 characters"),
    "a long name of a list": ("name.json", json.dumps({"definitions": [], "x" * 100_000: 1}), "name.json"),
    "colours": ("colours.json", json.dumps({"definitions": [{"name": "\x1b[31m", "task": "effect"}]}), "\\x1b[31m"),
    "half a character": ("half.json", '{"definitions": [{"name": "a", "task": "\\ud800", "schedule": "@daily"}]}', "task"),
    "a number without end": ("nan.json", '{"definitions": [{"name": "a", "task": "effect", "args": [NaN]}]}', "nan"),
    "nothing": ("nothing.yaml", "", "no list of definitions"),
    "null": ("null.json", "null", "no list of definitions"),
    "another ending": ("definitions.txt", "", "ends in none of"),
    "no ending": ("zero", "", "ends in none of"),
}


@pytest.mark.parametrize("name", TRAPS)
def test_a_trap_is_refused_and_nothing_is_run(here: Desk, name: str) -> None:
    file, text, words = TRAPS[name]
    ran = here.folder / "ran"
    here.load(file, text.replace("{ran}", str(ran)).encode())
    assert (here.loaded, here.refused) == (0, 1)
    with pytest.raises(TmError) as refused:
        here.tm.definitions.load(here.folder / file)
    assert words in str(refused.value)
    assert not ran.exists()


def test_aliases_and_merges_that_people_write_are_understood(here: Desk) -> None:
    text = """
definitions:
- &first {name: first, task: effect, schedule: '@daily', args: &both [1, 2]}
- {<<: *first, name: second, kwargs: {n: *both}, args: []}
"""
    here.load("shared.yaml", text.encode())
    assert [(one.name, one.task, one.args) for one in here.tm.definitions.list()] == [
        ("first", "effect", "[1, 2]"), ("second", "effect", "[]"),
    ]  # fmt: skip


def test_a_file_without_end_is_not_read_to_its_end(here: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("celery_tm.management.files.MAX_BYTES", 1000)
    here.load("long.toml", ("#" * 1001).encode())
    assert here.refused == 1
    for path in ("/dev/zero", "a\x00b.toml", "", ".", "/", "x" * 5_000 + ".toml"):
        with limited(), pytest.raises(InvalidValue) as refused:
            here.tm.definitions.load(path)
        check_told(refused.value)


DATES = """
[[definitions]]
name = "a"
task = "effect"
schedule = { kind = "window", every = "1h", from = 08:00:00, until = 18:00:00 }
starts_at = 2026-01-01T00:00:00+00:00
excluded = [2026-01-01]
"""


def test_dates_and_times_of_a_format_are_read_as_text_would_be(here: Desk) -> None:
    here.load("dates.toml", DATES.encode())
    made = here.tm.definitions.get("a")
    assert made.starts_at == datetime(2026, 1, 1, tzinfo=UTC)
    assert (made.excluded, made.schedule) == (("2026-01-01",), "every 1h from 08:00 until 18:00")
