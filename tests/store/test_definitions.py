"""Adding, editing and loading definitions on every database: checked, versioned, audited, all or nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from celery_tm import TimeManagement
from celery_tm.errors import (
    DefinitionExists,
    DefinitionNotFound,
    InvalidValue,
    StaleVersion,
    TmError,
    UnknownOption,
    UnknownTimeZone,
)
from celery_tm.store import audit
from celery_tm.store.database import Database

TOML = """
[[definitions]]
name = "nightly"
task = "effect"
args = [1]
schedule = "30 2 * * *"
timezone = "Europe/Warsaw"

[[definitions]]
name = "often"
task = "effect"
schedule = "every 10s"
"""


def add(tm: TimeManagement, **values: Any) -> Any:
    return tm.definitions.add(**({"name": "tick", "task": "effect", "schedule": "* * * * *"} | values))


def audited(database: Database, name: str = "tick") -> list[tuple[str, str, Any]]:
    with database.transaction(write=False) as tx:
        return [(line["action"], line["actor"], line["after"]) for line in audit.lines(tx, f"definition:{name}")]


def test_what_was_stated_is_kept(tm: TimeManagement) -> None:
    stated = {"kwargs": {"a": 1}, "queue": "q", "priority": 3, "retry": {"kind": "linear", "base": "5s"}, "group": "g"}
    add(tm, timezone="Europe/Warsaw", task_timeout="5m", overlap="allow", recovery="all", gap="skip", fold="both", **stated)
    kept = tm.definitions.get("tick")
    assert (kept.kwargs, kept.queue, kept.priority, kept.group) == ('{"a": 1}', "q", 3, "g")
    assert (kept.timezone, kept.overlap, kept.recovery, kept.gap, kept.fold) == (
        "Europe/Warsaw",
        "allow",
        "all",
        "skip",
        "both",
    )
    assert kept.retry == {"kind": "linear", "base": "5s", "cap": "1d"}
    assert [definition.name for definition in tm.definitions.list(group="g")] == ["tick"]
    assert tm.definitions.list(group="h") == []


def test_a_name_is_there_once(tm: TimeManagement) -> None:
    add(tm)
    with pytest.raises(DefinitionExists, match="tick"):
        add(tm)
    assert add(tm, name="Tick").name == "Tick"


def test_an_edit_makes_a_version_and_an_audit_line(tm: TimeManagement, database: Database) -> None:
    first = add(tm, actor="ann")
    assert (first.created_by, first.updated_by, first.updated_at) == ("ann", "ann", first.created_at)
    edited = tm.definitions.update("tick", version=1, schedule="every 10s", max_retries=1, actor="bob")
    assert (edited.version, edited.schedule_kind, edited.schedule, edited.updated_by) == (2, "interval", "every 10s", "bob")
    assert (edited.created_by, edited.created_at) == ("ann", first.created_at)
    assert edited.updated_at > first.updated_at
    assert tm.definitions.get("tick") == edited
    [edit, added] = audited(database)
    assert edit[:2] == ("edit", "bob")
    assert edit[2] == {"schedule": "every 10s", "max_retries": 1, "version": 2}
    assert added[:2] == ("add", "ann")


def test_an_edit_of_nothing_changes_nothing(tm: TimeManagement, database: Database) -> None:
    before = add(tm)
    assert tm.definitions.update("tick", schedule="* * * * *", version=1) == before
    assert len(audited(database)) == 1


def test_a_stale_edit_is_refused_with_both_versions(tm: TimeManagement) -> None:
    add(tm)
    tm.definitions.update("tick", max_retries=1)
    tm.definitions.update("tick", schedule="*/2 * * * *", actor="alice")
    with pytest.raises(StaleVersion) as refused:
        tm.definitions.update("tick", version=1, max_retries=2, schedule="*/5 * * * *")
    text = str(refused.value)
    assert "is at version 3 by alice, the edit was made on version 1" in text
    assert "max_retries: yours 2, there 1" in text
    assert "schedule: yours '*/5 * * * *', there '*/2 * * * *'" in text
    assert tm.definitions.get("tick").max_retries == 1


def test_an_unknown_name_is_refused_with_the_nearest(tm: TimeManagement) -> None:
    add(tm, name="nightly")
    for action in (tm.definitions.get, tm.trigger, tm.pause, tm.definitions.remove, tm.history):
        with pytest.raises(DefinitionNotFound, match="did you mean 'nightly'"):
            action("nightyl")


@pytest.mark.parametrize(
    ("values", "error", "words"),
    [
        ({"name": ""}, InvalidValue, "name: it is empty"),
        ({"name": "x" * 101}, InvalidValue, "name: 101 characters"),
        ({"schedule": "61 * * * *"}, InvalidValue, "minute"),
        ({"schedule": "0 0 30 2 *"}, InvalidValue, "never fires"),
        ({"timezone": "Europe/Warsow"}, UnknownTimeZone, "did you mean 'Europe/Warsaw'"),
        ({"overlap": "sometimes"}, InvalidValue, "overlap"),
        ({"recovery": "perhaps"}, InvalidValue, "recovery"),
        ({"max_retrys": 2}, UnknownOption, "did you mean 'max_retries'"),
        ({"args": {1}}, InvalidValue, "args"),
        ({"args": [object()]}, InvalidValue, r"args\[0\]"),
        ({"priority": 300}, InvalidValue, "priority"),
        ({"task_timeout": 0}, InvalidValue, "task_timeout"),
        ({"retry": {"kind": "fixed", "dealy": 3}}, UnknownOption, "did you mean 'delay'"),
        ({"starts_at": "2026-01-02T00:00:00Z", "ends_at": "2026-01-01T00:00:00Z"}, InvalidValue, "ends_at"),
    ],
)
def test_bad_input_is_refused_and_writes_nothing(
    tm: TimeManagement, database: Database, values: dict[str, Any], error: type[TmError], words: str
) -> None:
    with pytest.raises(error, match=words):
        add(tm, **values)
    assert tm.definitions.list() == []
    assert audited(database) == []


def test_a_task_nobody_has_is_kept_and_warned_about(tm: TimeManagement, caplog: pytest.LogCaptureFixture) -> None:
    assert add(tm, name="ghost of " + str(id(tm)), task="no.such.task").task == "no.such.task"
    assert "TaskUnknown task=no.such.task" in caplog.text


def test_a_file_is_loaded_idempotently(tm: TimeManagement, tmp_path: Path) -> None:
    file = tmp_path / "definitions.toml"
    file.write_text(TOML)
    first = tm.definitions.load(file, actor="deploy")
    assert (first.added, first.changed, first.unchanged) == (["nightly", "often"], [], [])
    again = tm.definitions.load(file)
    assert (again.added, again.changed, again.unchanged) == ([], [], ["nightly", "often"])
    tm.pause("often")
    file.write_text(TOML.replace("every 10s", "every 20s"))
    third = tm.definitions.load(file)
    assert (third.changed, third.unchanged) == (["often"], ["nightly"])
    often = tm.definitions.get("often")
    assert (often.schedule, often.paused) == ("every 20s", True), "what the file does not state stays"


def test_yaml_is_read_too(tm: TimeManagement, tmp_path: Path) -> None:
    file = tmp_path / "definitions.yaml"
    file.write_text('definitions:\n- {name: nightly, task: effect, schedule: "30 2 * * *"}\n')
    assert tm.definitions.load(file).added == ["nightly"]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("d.toml", TOML.replace("every 10s", "every blue moon"), "'often'.*nothing of .*d.toml was loaded"),
        ("d.toml", TOML + TOML.split("\n\n")[0], "'nightly' is there twice"),
        ("d.toml", TOML.replace('name = "often"\n', ""), "has no name"),
        ("d.toml", TOML.replace("schedule", "shedule"), "did you mean 'schedule'"),
        ("d.toml", "[[definitions]\n", "not TOML"),
        ("d.toml", "", "no list of definitions"),
        ("d.yaml", "definitions: [", "not YAML"),
        ("d.yaml", "definitions: !!python/object:os.system []", "not YAML"),
        ("d.json", "{]", "it is not JSON"),
        ("d.txt", "{}", "none of .toml, .yaml and .json"),
    ],
)
def test_a_bad_file_changes_nothing(tm: TimeManagement, tmp_path: Path, name: str, content: str, words: str) -> None:
    file = tmp_path / name
    file.write_text(content)
    with pytest.raises(InvalidValue, match=f"(?s){words}"):
        tm.definitions.load(file)
    assert tm.definitions.list() == []


def test_a_missing_file_is_said_to_be_missing(tm: TimeManagement, tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match="cannot be read"):
        tm.definitions.load(tmp_path / "none.toml")
