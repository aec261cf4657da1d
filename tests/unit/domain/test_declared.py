"""Three-way merge of what a file declared last, what it declares now, and what the database has."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from celery_tm.domain.declared import FILE, Earlier, damaged_fields, declare, dropped, mark, merge, open_conflicts
from celery_tm.domain.definition import Definition, edited, new_definition, stated
from celery_tm.errors import InvalidValue

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


BASE = {"task": "effect", "schedule": "0 8 * * *"}
STEPS = {"steps": [{"name": "a", "task": "effect"}], "schedule": "0 8 * * *"}
LANE = [("concurrency_key", "k", None), ("concurrency", 1, None)]
LATER, LATEST = "2026-12-01T00:00:00+00:00", "2026-12-05T00:00:00+00:00"


def becomes(before: Definition, values: Any, **how: Any) -> tuple[Definition, Any]:
    """Return a definition as a source leaves it, which must not contradict itself, and what was decided."""
    merged = merge(before, values, source=FILE, **how)
    after = edited(before, values=merged.values, now=NOON, actor=None) if merged.values else before
    return replace(after, declared=merged.declared), merged


@pytest.mark.parametrize(
    ("then", "now", "changes"),
    [
        (
            {**BASE, "overlap": "queue"},
            {**BASE, "concurrency_key": "k"},
            {"overlap": "skip", "concurrency_key": "k", "concurrency": 1},
        ),
        (
            {**BASE, "concurrency_key": "k"},
            {**BASE, "overlap": "queue"},
            {"overlap": "queue", "concurrency_key": None, "concurrency": None},
        ),
        (
            {**BASE, "recovery": {"policy": "bounded", "count": 10}},
            {**BASE, "recovery": "last"},
            {"recovery": "last", "recovery_count": None},
        ),
        ({**BASE, "ends_at": LATER}, {**BASE, "starts_at": LATEST}, {"starts_at": LATEST, "ends_at": None}),
        (STEPS, BASE, {"task": "effect", "steps": None}),
        (
            {**STEPS, "mode": "parallel"},
            {**BASE, "args": [1]},
            {"task": "effect", "args": [1], "mode": "sequential", "steps": None},
        ),
        ({**BASE, "args": [1]}, {**BASE, "task": "other"}, {"task": "other", "args": []}),
        ({**BASE, "args": [1]}, BASE, {}),  # nothing that belongs to it has changed
    ],
)
def test_what_a_source_no_longer_declares_does_not_contradict_what_it_declares(then: Any, now: Any, changes: Any) -> None:
    after, merged = becomes(loaded(then), now)
    assert (merged.values, merged.conflicts) == (changes, [])
    again, merged = becomes(after, now)
    assert (merged.values, merged.conflicts, again.declared) == ({}, [], after.declared)
    back, merged = becomes(again, then)
    assert merged.conflicts == []
    assert stated(back) == stated(loaded(then)), "and what it declares again counts again"


@pytest.mark.parametrize(
    ("edit", "now", "conflicts", "reset"),
    [
        ({"overlap": "queue"}, {"concurrency_key": "k"}, LANE, {"overlap": "skip"}),
        ({"concurrency_key": "k"}, {"overlap": "queue"}, [("overlap", "queue", "skip")], {"concurrency_key": None}),
        ({"ends_at": LATER}, {"starts_at": LATEST}, [("starts_at", LATEST, None)], {"ends_at": None}),
        (
            {"recovery": "bounded", "recovery_count": 3},
            {"recovery": "all"},
            [("recovery", "all", "bounded")],
            {"recovery_count": None},
        ),
        ({"steps": STEPS["steps"]}, {"args": [1]}, [("args", [1], [])], {"steps": None}),
    ],
)
def test_an_edit_that_contradicts_a_source_is_a_conflict_and_with_force_the_source_wins(
    edit: Any, now: Any, conflicts: Any, reset: Any
) -> None:
    wanted = {**THEN, **now, "queue": "fast"}
    after, merged = becomes(loaded(**edit), wanted)
    assert merged.values == {"queue": "fast"}, "the rest is changed"
    assert [(one.field, one.file, one.database) for one in merged.conflicts] == conflicts
    again, merged = becomes(after, wanted)
    assert (merged.values, len(merged.conflicts)) == ({}, len(conflicts)), "it stays a conflict"
    forced, merged = becomes(again, wanted, force=True)
    assert (merged.conflicts, reset.items() <= merged.values.items()) == ([], True)
    assert becomes(forced, wanted)[1].conflicts == []
    assert open_conflicts(forced) == {}


def test_an_edit_that_waits_and_contradicts_a_source_is_a_conflict() -> None:
    waiting = {"values": {"overlap": "queue"}, "after": NOON.isoformat(), "actor": "ann", "reason": None}
    before = replace(loaded(), next_edit=waiting)
    merged = merge(before, {**THEN, "concurrency_key": "k", "queue": "fast"}, source=FILE)
    assert (merged.values, [one.field for one in merged.conflicts]) == ({"queue": "fast"}, [one for one, *_ in LANE])
    forced = merge(before, {**THEN, "concurrency_key": "k"}, source=FILE, force=True)
    assert (forced.conflicts, forced.values["overlap"]) == ([], "skip")


def test_a_source_that_contradicts_itself_is_refused_and_not_a_conflict() -> None:
    before = loaded(priority=3)
    merged = merge(before, {**THEN, "overlap": "queue", "concurrency_key": "k"}, source=FILE)
    assert (set(merged.values) >= {"overlap", "concurrency_key"}, merged.conflicts) == (True, [])
    with pytest.raises(InvalidValue, match="a lane of its own"):
        edited(before, values=merged.values, now=NOON, actor=None)
