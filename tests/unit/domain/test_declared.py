"""Three-way merge of what a file declared last, what it declares now, and what the database has."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from celery_tm.domain.declared import FILE, Earlier, damaged_fields, declare, dropped, mark, merge, open_conflicts
from celery_tm.domain.definition import Definition, edited, new_definition, stated

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
BOUNDED = [("recovery", "bounded", "all"), ("recovery_count", 3, None)]
THEN = {"task": "effect", "schedule": "0 8 * * *", "queue": "slow"}


def loaded(values: Any = None, **edit: Any) -> Definition:
    """Return a definition that a file has added, and that a person may have edited since."""
    values = THEN if values is None else values
    made = new_definition(id="id", name="sync", values=values, now=NOON, actor=None)
    made = replace(made, declared=declare(values, source=FILE, name="sync"))
    return edited(made, values=edit, now=NOON, actor="ann") if edit else made


@pytest.mark.parametrize(
    ("edit", "now", "changes", "conflicts"),
    [
        ({}, {}, {}, []),
        ({}, {"queue": "fast"}, {"queue": "fast"}, []),
        ({"queue": "hers"}, {}, {}, []),
        ({"queue": "hers"}, {"queue": "fast"}, {}, [("queue", "fast", "hers")]),
        ({"queue": "fast"}, {"queue": "fast"}, {}, []),
        ({"queue": "hers"}, {"schedule": "0 9 * * *"}, {"schedule": "0 9 * * *"}, []),
        # A field that the file did not state was at its default.
        ({}, {"priority": 3}, {"priority": 3}, []),
        ({"priority": 5}, {"priority": 3}, {}, [("priority", 3, 5)]),
        # Fields that belong together change together, or not at all.
        ({"recovery": "all"}, {"recovery": {"policy": "bounded", "count": 3}}, {}, BOUNDED),
        ({"task": "hers"}, {"task": "plain", "args": [2]}, {}, [("task", "plain", "hers"), ("args", [2], [])]),
        ({"kwargs": {"a": 1, "b": 2}}, {"kwargs": {"b": 2, "a": 1}}, {}, []),
        ({"kwargs": {"a": 1}}, {"kwargs": {"a": True}}, {}, [("kwargs", {"a": True}, {"a": 1})]),
    ],
)  # fmt: skip
def test_each_field_is_decided_by_three_values(edit: Any, now: Any, changes: Any, conflicts: Any) -> None:
    merged = merge(loaded(**edit), THEN | now, source=FILE)
    assert merged.values == changes
    assert [(one.field, one.file, one.database) for one in merged.conflicts] == conflicts


def test_with_force_the_file_wins() -> None:
    merged = merge(loaded(queue="hers"), THEN | {"queue": "fast"}, source=FILE, force=True)
    assert (merged.values, merged.conflicts) == ({"queue": "fast"}, [])
    again = merge(loaded(queue="hers"), THEN, source=FILE, force=True)
    assert again.values == {"queue": "slow"}, "also where the file has not changed"


def test_a_conflict_stays_one_until_both_say_the_same() -> None:
    before = loaded(queue="hers")
    first = merge(before, THEN | {"queue": "fast"}, source=FILE)
    before = replace(before, declared=first.declared)
    assert open_conflicts(before) == {"queue": FILE}
    assert merge(before, THEN | {"queue": "fast"}, source=FILE).conflicts == first.conflicts
    assert open_conflicts(edited(before, values={"queue": "fast"}, now=NOON, actor="ann")) == {}
    back = merge(before, THEN, source=FILE)
    assert (back.values, back.conflicts) == ({}, []), "the file says again what it said before the edit"


def test_an_edit_that_waits_counts_as_made() -> None:
    waiting = {"values": {"queue": "hers"}, "after": NOON.isoformat(), "actor": "ann", "reason": None}
    before = replace(loaded(), next_edit=waiting)
    assert merge(before, THEN, source=FILE).values == {}
    assert [one.database for one in merge(before, THEN | {"queue": "fast"}, source=FILE).conflicts] == ["hers"]


def test_what_a_person_added_is_not_taken_over_by_a_file() -> None:
    made = replace(loaded(), declared={})
    merged = merge(made, {"task": "effect", "schedule": "0 9 * * *", "priority": 3}, source=FILE)
    assert (merged.values, [one.field for one in merged.conflicts]) == ({"priority": 3}, ["schedule"])


def test_of_two_sources_the_one_that_changes_its_word_wins() -> None:
    before = loaded()
    code = merge(before, THEN | {"queue": "code"}, source="beat_schedule:shop")
    assert (code.values, code.conflicts) == ({"queue": "code"}, []), "no person has changed it"
    before = edited(replace(before, declared=code.declared), values=code.values, now=NOON, actor=None)
    again = merge(before, THEN, source=FILE)
    assert (again.values, again.conflicts) == ({}, [])


def test_long_values_are_kept_as_digests() -> None:
    long = {**THEN, "args": ["x" * 5000]}
    made = loaded(long)
    assert len(str(made.declared)) < 1000
    assert merge(made, long, source=FILE).values == {}
    assert list(merge(made, {**long, "args": ["y" * 5000]}, source=FILE).values) == ["args"]


def test_a_definition_of_an_earlier_release_goes_by_what_was_loaded_last() -> None:
    before = replace(loaded(queue="hers"), declared=None)
    earlier = Earlier(stated=stated(loaded()))
    assert merge(before, THEN, source=FILE, earlier=earlier).values == {}
    merged = merge(before, THEN | {"queue": "fast", "schedule": "0 9 * * *"}, source=FILE, earlier=earlier)
    assert (merged.values, [one.field for one in merged.conflicts]) == ({"schedule": "0 9 * * *"}, ["queue"])


@pytest.mark.parametrize(("by_person", "changes", "fields"), [(True, {}, ["queue"]), (False, {"queue": "fast"}, [])])
def test_without_versions_the_last_author_decides(by_person: bool, changes: Any, fields: Any) -> None:
    before = replace(loaded(queue="hers"), declared=None)
    merged = merge(before, THEN | {"queue": "fast"}, source=FILE, earlier=Earlier(by_person=by_person))
    assert (merged.values, [one.field for one in merged.conflicts]) == (changes, fields)
    again = merge(replace(before, declared=merged.declared), THEN | {"queue": "fast"}, source=FILE)
    assert [one.field for one in again.conflicts] == fields, "it stays a conflict"


def test_the_derived_task_of_steps_is_not_a_conflict() -> None:
    steps = {"steps": [{"name": "a", "task": "effect"}], "schedule": "0 8 * * *"}
    made = loaded(steps)
    more = {**steps, "steps": [*steps["steps"], {"name": "b", "task": "effect"}]}
    merged = merge(made, more, source=FILE)
    assert (list(merged.values), merged.conflicts) == (["steps"], [])


def test_only_what_the_source_declared_itself_is_dropped_with_it() -> None:
    assert dropped(loaded(), {"task": "effect"}, ["queue", "priority"], source=FILE) == ["queue"]
    assert dropped(loaded(queue="hers"), {"task": "effect"}, ["queue"], source=FILE) == []
    assert dropped(loaded(priority=3), {"task": "effect"}, ["priority"], source=FILE) == []


@pytest.mark.parametrize("kept", [{"file": None}, {"file": []}, {"file": {"values": 3}}, {"other": "x"}])
def test_a_damaged_note_is_no_note(kept: Any) -> None:
    before = replace(loaded(), declared=kept)
    assert merge(before, THEN, source=FILE).values == {}
    assert open_conflicts(before) == {}


def test_a_damaged_field_is_mended_and_an_edit_that_this_node_cannot_read_stays() -> None:
    made = loaded()
    spoilt = replace(made, schedule_kind="moon", schedule="full")
    damaged = damaged_fields(spoilt, stated(made))
    assert damaged == {"schedule"}
    assert merge(spoilt, THEN, source=FILE, damaged=damaged).values == {"schedule": "0 8 * * *"}
    assert damaged_fields(spoilt, stated(spoilt)) == set(), "a person's word, for which this node lacks a package"
    assert damaged_fields(made, None) == set()


def test_marks_tell_values_apart_that_python_calls_equal() -> None:
    assert mark(1) != mark(True)
    assert mark({"a": 1, "b": 2}) == mark({"b": 2, "a": 1})
