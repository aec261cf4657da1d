"""Edits that wait for a given time, restored versions and the default update policy, on every database."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Any

import pytest
from celery import Celery
from sqlalchemy import delete
from tmtest.commands import Cli
from tmtest.ledger import HOUR, MINUTE, NOON, add, plan, rows

from celery_tm import Scheduler, TimeManagement
from celery_tm.errors import InvalidValue
from celery_tm.presentation.rows import Rows, coming_instants
from celery_tm.settings import Settings
from celery_tm.store import tables, versions
from celery_tm.testing import MovableClock

AT = NOON + 15 * MINUTE


@pytest.fixture(autouse=True)
def noon(tm_clock: MovableClock) -> MovableClock:
    tm_clock.move_to(NOON)
    return tm_clock


def decided(tm: TimeManagement) -> list[tuple[float, int]]:
    return [((row.scheduled_at - NOON) / MINUTE, row.version) for row in rows(tm)]


@pytest.mark.parametrize("steps", [30, 1], ids=["in time", "late"])
def test_before_its_time_the_old_values_hold_and_from_it_on_the_new(
    tm: TimeManagement, noon: MovableClock, steps: int
) -> None:
    add(tm, schedule="*/10 * * * *", overlap="allow", recovery="all")
    waiting = tm.definitions.update("tick", schedule="*/5 * * * *", queue="fast", at="2026-06-01T14:15+02:00", actor="ann")
    assert (waiting.version, waiting.schedule, waiting.waiting_edit.at) == (1, "*/10 * * * *", AT)
    for step in range(1, steps + 1):
        noon.move_to(NOON + step * (30 // steps) * MINUTE)
        plan(tm)
    assert decided(tm)[:5] == [(10, 1), (15, 2), (20, 2), (25, 2), (30, 2)]
    queues = {(job.scheduled_at - NOON) / MINUTE: job.queue for job in tm.jobs()}
    assert (queues[10], queues[15]) == (None, "fast")
    after = tm.definitions.get("tick")
    assert (after.version, after.next_edit, after.updated_by) == (2, None, "ann")


def test_it_takes_over_in_time_where_the_old_rule_would_sleep_for_long(tm: TimeManagement, noon: MovableClock) -> None:
    add(tm, schedule="0 0 1 1 *")
    tm.definitions.update("tick", schedule="* * * * *", at=AT)
    assert tm.definitions.get("tick").next_run_at == AT
    noon.move_to(AT)
    plan(tm)
    assert decided(tm) == [(15, 2)]


def test_one_that_has_run_as_often_as_it_may_goes_on_with_the_edit(tm: TimeManagement, noon: MovableClock) -> None:
    add(tm, max_runs=1, overlap="allow")
    noon.forward("1m")
    plan(tm)
    tm.definitions.update("tick", max_runs=3, at=AT)
    noon.move_to(AT + MINUTE)
    plan(tm)
    assert decided(tm) == [(1, 1), (15, 2), (16, 2)]


def test_an_edit_made_meanwhile_comes_first_and_one_made_later_finds_it_applied(
    tm: TimeManagement, noon: MovableClock
) -> None:
    add(tm, schedule="0 0 1 1 *")
    tm.definitions.update("tick", queue="later", at=AT)
    assert tm.definitions.update("tick", priority=3).version == 2
    noon.move_to(AT + MINUTE)  # and no beat has looked
    after = tm.definitions.update("tick", priority=4)
    assert (after.queue, after.priority, after.version) == ("later", 4, 4)


def test_a_field_that_is_stated_again_is_taken_back_from_the_edit(tm: TimeManagement, noon: MovableClock) -> None:
    add(tm, schedule="0 0 1 1 *")
    tm.definitions.update("tick", queue="later", at=AT)
    after = tm.definitions.update("tick", queue="now")
    assert (after.queue, after.next_edit) == ("now", None)
    assert tm.definitions.get("tick").next_run_at > AT


def test_a_second_edit_waits_for_the_same_time_or_is_refused(tm: TimeManagement) -> None:
    add(tm, schedule="*/10 * * * *")
    tm.definitions.update("tick", queue="later", at=AT)
    both = tm.definitions.update("tick", priority=3, at=AT)
    assert both.waiting_edit.values == {"queue": "later", "priority": 3}
    with pytest.raises(InvalidValue, match="takes over at 2026-06-01T12:15"):
        tm.definitions.update("tick", max_retries=1, at=AT + HOUR)
    with pytest.raises(InvalidValue, match="takes over at"):
        tm.definitions.update("tick", max_retries=1, policy="graceful")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"at": NOON}, "is not to come"),
        ({"at": "tomorrow"}, "not a date and time"),
        ({"at": "2027-01-01T00:00"}, "at:"),
        ({"at": AT, "policy": "graceful"}, "leave one of them out"),
    ],
)
def test_a_time_that_is_none_is_refused(tm: TimeManagement, values: Any, words: str) -> None:
    add(tm)
    with pytest.raises(InvalidValue, match=words):
        tm.definitions.update("tick", queue="q", **values)
    assert tm.definitions.get("tick").next_edit is None


def test_a_preview_of_it_keeps_what_comes_before(tm: TimeManagement) -> None:
    add(tm, schedule="*/10 * * * *")
    seen = tm.definitions.preview("tick", schedule="*/15 * * * *", at=AT, within="30m")
    minutes = [[(at - NOON) / MINUTE for at in part] for part in (seen.kept, seen.added, seen.removed)]
    assert minutes == [[10, 30], [15], [20]]


def test_beat_wakes_up_for_it(tm: TimeManagement, app: Celery, noon: MovableClock) -> None:
    scheduler = Scheduler(app)
    scheduler.tick()
    add(tm, schedule="0 0 1 1 *")
    tm.definitions.update("tick", schedule="* * * * *", at=AT)
    noon.move_to(AT)
    scheduler.tick()
    scheduler.close()
    assert tm.definitions.get("tick").version == 2
    assert decided(tm) == [(15, 2)]


def test_a_version_is_restored_and_what_is_on_stays_on(tm: TimeManagement) -> None:
    add(tm, queue="first", kwargs={"a": 1}, timezone="Europe/Warsaw")
    tm.definitions.update("tick", queue=None, schedule="0 3 * * *", priority=3, timezone="UTC", kwargs={})
    tm.pause("tick")
    after = tm.definitions.restore("tick", version=1, actor="ann")
    first = tm.definitions.versions("tick")[-1].stated
    latest = tm.definitions.versions("tick")[0]
    assert (after.version, latest.action, latest.actor) == (4, "restore", "ann")
    assert {**latest.stated, "paused": None} == {**first, "paused": None}
    assert (after.queue, after.priority, after.timezone, after.paused) == ("first", None, "Europe/Warsaw", True)
    with pytest.raises(InvalidValue, match="no version 9"):
        tm.definitions.restore("tick", version=9)


@pytest.mark.parametrize("version", [0, -1, 2**31, 10**21, "1", 1.0, True], ids=repr)
def test_what_is_no_version_is_refused_on_every_database(tm: TimeManagement, app: Celery, version: Any) -> None:
    add(tm)
    tm.definitions.update("tick", queue="second")
    for act in (tm.definitions.restore, partial(tm.definitions.update, queue="third")):
        with pytest.raises(InvalidValue, match=r"version: .* is not a count"):
            act("tick", version=version)
    with pytest.raises(InvalidValue, match=r"limit: .* is not a count"):
        tm.definitions.versions("tick", limit=version)
    if type(version) is int and version > 0:
        told = Cli(app).refused("definitions", "restore", "tick", "--version", str(version))
        assert told.startswith(f"version: {version} is not a count")
    assert tm.definitions.get("tick").version == 2


def test_the_largest_version_that_may_be_is_only_not_kept(tm: TimeManagement) -> None:
    add(tm)
    with pytest.raises(InvalidValue, match="no version 2147483647 of 'tick' is kept"):
        tm.definitions.restore("tick", version=2**31 - 1)
    assert len(tm.definitions.versions("tick", limit=2**31 - 1)) == 1


def test_a_number_that_no_column_holds_is_not_taken_for_a_row_that_cannot_be_read(tm: TimeManagement) -> None:
    id = add(tm).id
    for number in (2**31, 10**30):
        with suppress(InvalidValue), tm.installation.database.transaction(write=False) as tx:  # some hold any number
            assert versions.find(tx, id, number) is None


def test_steps_are_restored_too_and_give_way_to_a_task(tm: TimeManagement) -> None:
    steps = [{"name": "a", "task": "effect", "args": [1]}, {"name": "b", "task": "effect", "args": [2]}]
    tm.definitions.add(name="etl", schedule="@daily", steps=steps, failure_strategy="fail_fast")
    tm.definitions.update("etl", steps=steps[:1], failure_strategy=None)
    after = tm.definitions.restore("etl", version=1)
    assert ([step["name"] for step in after.steps], after.failure_strategy) == (["a", "b"], "fail_fast")


def test_restoring_may_wait_too(tm: TimeManagement, noon: MovableClock) -> None:
    add(tm, queue="first")
    tm.definitions.update("tick", queue="second")
    assert tm.definitions.restore("tick", version=1, at=AT).queue == "second"
    noon.move_to(AT)
    plan(tm)
    assert tm.definitions.get("tick").queue == "first"


def test_the_default_policy_is_a_setting(tm: TimeManagement) -> None:
    from dataclasses import replace

    assert tm.settings.tm_update_policy == "immediate"
    add(tm)
    tm.installation.settings = replace(tm.settings, tm_update_policy="graceful")
    assert tm.definitions.update("tick", queue="q").next_edit is not None
    assert tm.definitions.update("tick", queue="r", policy="immediate").queue == "r"


def test_commands_take_a_time_and_restore(tm: TimeManagement, app: Celery) -> None:
    cli = Cli(app)
    add(tm, queue="first", timezone="Europe/Warsaw")
    told = cli.json("definitions", "edit", "tick", "--queue", "second", "--at", "2026-06-01T14:15")
    assert told["edit_waits_until"] == AT.isoformat()
    assert "at 2026-06-01 12:15:00 UTC: queue=second" in cli.run("definitions", "show", "tick").stdout
    assert "exclude each other" in cli.misused(
        "definitions", "edit", "tick", "--queue", "x", "--at", "2026-06-01T14:15", "--policy", "graceful"
    )
    cli.run("definitions", "edit", "tick", "--queue", "third")
    assert cli.json("definitions", "restore", "tick", "--version", "1")["version"] == 3
    assert tm.definitions.get("tick").queue == "first"
    assert "no version 9" in cli.refused("definitions", "restore", "tick", "--version", "9")


def test_a_default_policy_that_is_none_is_refused() -> None:
    from celery_tm.settings import read_settings

    with pytest.raises(InvalidValue, match="did you mean 'graceful'"):
        read_settings({"tm_update_policy": "gracefull"}, {})
    assert Settings().tm_update_policy == "immediate"


# Edits that wait and do not go together, or not any more


def told(tm: TimeManagement, action: str) -> list[Any]:
    return [line for line in tm.audit(object="definition:tick") if line.action == action][::-1]


def test_an_edit_that_contradicts_the_one_that_waits_is_refused_and_the_other_takes_over(
    tm: TimeManagement, noon: MovableClock
) -> None:
    add(tm, schedule="*/10 * * * *")
    tm.definitions.update("tick", overlap="queue", queue="slow", at=AT, actor="kim")
    for how in ({"at": AT}, {}):
        with pytest.raises(InvalidValue, match=r"together with the edit of .*overlap.* that waits"):
            tm.definitions.update("tick", concurrency_key="x", **how)
    tm.definitions.update("tick", priority=3, at=AT)
    noon.move_to(AT)
    plan(tm)
    after = tm.definitions.get("tick")
    assert (after.overlap, after.queue, after.priority, after.concurrency_key) == ("queue", "slow", 3, None)


def test_an_edit_now_that_the_one_which_waits_does_not_fit_can_take_its_field_back(tm: TimeManagement) -> None:
    add(tm, schedule="*/10 * * * *")
    tm.definitions.update("tick", overlap="queue", queue="slow", at=AT)
    after = tm.definitions.update("tick", concurrency_key="x", overlap="skip")
    assert (after.concurrency_key, dict(after.waiting_edit.values)) == ("x", {"queue": "slow"})


def test_a_calendar_that_a_waiting_edit_names_is_not_removed(tm: TimeManagement, noon: MovableClock) -> None:
    add(tm, schedule="*/10 * * * *")
    tm.calendars.set("days", ["2026-12-25"])
    tm.definitions.update("tick", calendars=["days"], queue="slow", at=AT)
    with pytest.raises(InvalidValue, match="is named by tick; change them first"):
        tm.calendars.remove("days")
    noon.move_to(AT)
    plan(tm)
    assert (tm.definitions.get("tick").calendars, tm.definitions.get("tick").queue) == (("days",), "slow")


def test_an_edit_that_cannot_take_over_is_told_as_dropped_and_makes_no_version(
    tm: TimeManagement, noon: MovableClock
) -> None:
    add(tm, schedule="*/10 * * * *")
    tm.calendars.set("days", ["2026-12-25"])
    tm.definitions.update("tick", calendars=["days"], queue="slow", at=AT, actor="kim")
    tm.installation.database.run(lambda tx: tx.execute(delete(tables.calendar)))
    noon.move_to(AT)
    plan(tm)
    after = tm.definitions.get("tick")
    assert (after.version, after.queue, after.next_edit) == (1, None, None)
    assert after.next_run_at == NOON + 20 * MINUTE
    assert told(tm, "edit takes over") == []
    [line] = told(tm, "edit dropped")
    assert "there is no calendar 'days'" in line.reason
    assert (line.before["values"], line.before["actor"]) == ({"calendars": ["days"], "queue": "slow"}, "kim")


def test_edits_that_wait_for_the_same_time_keep_who_made_them_and_why(tm: TimeManagement, noon: MovableClock) -> None:
    add(tm, schedule="*/10 * * * *")
    tm.definitions.update("tick", queue="slow", priority=1, at=AT, actor="kim", reason="K")
    both = tm.definitions.update("tick", priority=3, at=AT, actor="lee", reason="L")
    assert [(part["fields"], part["actor"]) for part in both.waiting_edit.parts] == [
        (["queue"], "kim"),
        (["priority"], "lee"),
    ]
    noon.move_to(AT)
    plan(tm)
    lines = [(line.actor, line.reason, line.after) for line in told(tm, "edit takes over")]
    assert lines == [
        ("kim", "K", {"queue": "slow", "version": 2}),
        ("lee", "L", {"priority": 3, "version": 2}),
    ]
    made = tm.definitions.versions("tick")[0]
    assert (made.version, made.actor, made.reason) == (2, "lee", "K; L")


def test_what_is_left_of_a_joined_edit_is_of_who_stated_it(tm: TimeManagement) -> None:
    add(tm, schedule="*/10 * * * *")
    tm.definitions.update("tick", queue="slow", at=AT, actor="kim", reason="K")
    tm.definitions.update("tick", priority=3, at=AT, actor="lee", reason="L")
    left = tm.definitions.update("tick", priority=4).waiting_edit
    assert (dict(left.values), left.actor, left.reason, left.parts) == ({"queue": "slow"}, "kim", "K", ())


# What is coming, with the edit that waits


@pytest.fixture
def edited_at_two(tm: TimeManagement) -> TimeManagement:
    """A definition that fires every hour, and from 14:00 on at half past, except on the days of a calendar."""
    add(tm, schedule="0 * * * *")
    tm.calendars.set("days", ["2026-06-02"])
    values = {"schedule": "30 * * * *", "calendars": ["days"], "timezone": "Europe/Warsaw"}
    tm.definitions.update("tick", **values, at=NOON + 2 * HOUR, actor="kim")
    return tm


def clock(instants: Any) -> list[str]:
    return [f"{instant:%d %H:%M}" for instant in instants]


def test_what_is_coming_is_shown_as_the_waiting_edit_will_have_it(edited_at_two: TimeManagement) -> None:
    tm = edited_at_two
    shown = Rows(tm).definition_in_full(tm.definitions.get("tick"), versions=1)["coming"]
    assert [one["utc"][8:16] for one in shown[:3]] == ["01T13:00", "01T14:30", "01T15:30"]
    assert [one["timezone"] for one in shown[:2]] == ["UTC", "Europe/Warsaw"]
    late = coming_instants(tm.definitions.get("tick"), 12)
    assert clock(late)[8:11] == ["01 21:30", "02 22:30", "02 23:30"], "the calendar closes the second, in its zone"


def test_a_preview_of_another_edit_knows_the_one_that_waits(edited_at_two: TimeManagement) -> None:
    tm = edited_at_two

    def seen(**values: Any) -> tuple[list[str], list[str], list[str]]:
        found = tm.definitions.preview("tick", within="5h", **values)
        return clock(found.kept), clock(found.added), clock(found.removed)

    there = ["01 13:00", "01 14:30", "01 15:30", "01 16:30"]
    assert seen(queue="x") == (there, [], [])
    assert seen(ends_at="2026-06-01T15:45Z") == (there[:3], [], there[3:])
    assert seen(schedule="15 * * * *") == ([], ["01 12:15", "01 13:15", "01 14:15", "01 15:15", "01 16:15"], there)
    assert seen(ends_at="2026-06-01T15:45Z", at=NOON + 2 * HOUR) == (there[:3], [], there[3:])
    with pytest.raises(InvalidValue, match="takes over at"):
        seen(queue="x", at=NOON + HOUR)
    assert tm.definitions.get("tick").waiting_edit.values.keys() == {"schedule", "calendars", "timezone"}


def test_explain_tells_of_the_times_that_the_waiting_edit_brings(edited_at_two: TimeManagement) -> None:
    tm = edited_at_two
    told = str(tm.explain("tick", at=NOON + 3.5 * HOUR))
    assert "an edit takes over at 2026-06-01 14:00:00 UTC" in told
    assert "the instant before was 2026-06-01 15:30:00 UTC" in told
    assert "the next instant is 2026-06-01 16:30:00 UTC" in told
    assert "the next run of 'tick' is at 2026-06-01 13:00:00 UTC" in told
    assert "excluded by calendar 'days'" in str(tm.explain("tick", at=NOON + 24.5 * HOUR))
    assert "the instant before was 2026-06-01 13:00:00 UTC" in str(tm.explain("tick", at=NOON + 2.1 * HOUR))


def test_one_that_has_run_as_often_as_it_may_shows_what_the_waiting_edit_brings(
    tm: TimeManagement, noon: MovableClock
) -> None:
    add(tm, max_runs=1, schedule="*/10 * * * *", overlap="allow")
    noon.forward("10m")
    plan(tm)
    tm.definitions.update("tick", max_runs=3, at=AT)
    assert clock(coming_instants(tm.definitions.get("tick"), 2)) == ["01 12:20", "01 12:30"]
