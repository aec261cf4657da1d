"""Explanations: what a person reads who asks why something ran, ran late or did not run, to the letter."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from celery_tm.domain.definition import Definition, new_definition, retired
from celery_tm.domain.execution import Execution, Outcome
from celery_tm.domain.explanation import Explanation, Facts, explained
from celery_tm.domain.job import Job, JobState, Slot, Source
from celery_tm.domain.occurrence import Occurrence, OccurrenceState
from celery_tm.domain.run_explanation import Change, stamp

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
SECOND, MINUTE, HOUR, DAY = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
ONE = NOON + HOUR  # the instant that is asked about
NOW = NOON + 90 * MINUTE
AT_ONE = "2026-01-01 13:00:00 UTC"


def a_definition(**values: Any) -> Definition:
    defaults = {"task": "shop.sync", "schedule": "0 * * * *"}
    made = new_definition(id="id", name="sync", values=defaults | values, now=NOON - DAY, actor="ann")
    return replace(made, planned_until=ONE, next_run_at=NOON + 2 * HOUR)


def an_occurrence(state: OccurrenceState, **values: Any) -> Occurrence:
    defaults = {"id": "o", "definition": "id", "version": 1, "scheduled_at": ONE, "decided_at": ONE}
    return Occurrence(state=state, **{**defaults, **values})


def a_job(**values: Any) -> Job:
    defaults = {"id": "j", "task": "shop.sync", "args": "[]", "kwargs": "{}", "run_at": ONE, "created_at": ONE}
    return Job(original_delay=HOUR, occurrence="o", **{**defaults, **values})


def an_execution(attempt: int, outcome: Outcome, **values: Any) -> Execution:
    begun = ONE + attempt * MINUTE
    defaults: dict[str, Any] = {
        "id": f"e{attempt}",
        "job": "j",
        "task": "shop.sync",
        "source": Source.SCHEDULED,
        "worker": "w1",
    }
    defaults |= {"started_at": begun, "completed_at": begun + 5 * SECOND}
    return Execution(attempt=attempt, outcome=outcome, **{**defaults, **values})


def facts(**values: Any) -> Facts:
    defaults = {"name": "sync", "at": ONE, "now": NOW, "definition": a_definition()}
    return Facts(**{**defaults, **values})


def answer(**values: Any) -> str:
    return explained(facts(**values)).answer


def a_change(action: str, **values: Any) -> Change:
    return Change(**{"at": NOON, "actor": "ann", "action": action, **values})


HOURLY = f"now: {a_definition().rule.describe()}, version 1"


# What became of an instant

DECIDED = f"decided at {AT_ONE} under version 1"
STATES: list[tuple[str, dict[str, Any], str]] = [
    (
        "completed, on time",
        {"occurrence": an_occurrence(OccurrenceState.COMPLETED, started_at=ONE + SECOND, ended_at=ONE + 13 * SECOND)},
        f"'sync' ran on time for {AT_ONE} and took 12s: it completed.",
    ),
    (
        "completed, late",
        {"occurrence": an_occurrence(OccurrenceState.COMPLETED, started_at=ONE + 190 * SECOND, ended_at=ONE + 191 * SECOND)},
        f"'sync' ran 3m 10s late for {AT_ONE} and took 1s: it completed.",
    ),
    (
        "a plain Celery task",
        {"occurrence": an_occurrence(OccurrenceState.COMPLETED, reason="handed to the broker", ended_at=ONE)},
        f"'sync' was due at {AT_ONE} and was handed to the broker.",
    ),
    (
        "failed, by its dead letter",
        {"occurrence": an_occurrence(OccurrenceState.FAILED, started_at=ONE), "letter_error": "ValueError: no such order"},
        f"'sync' ran for {AT_ONE} and failed: ValueError: no such order.",
    ),
    (
        "failed, by its last attempt",
        {
            "occurrence": an_occurrence(OccurrenceState.FAILED, started_at=ONE, reason="failed 2 times, max_retries=1"),
            "executions": [
                an_execution(1, Outcome.FAILED, error="first"),
                an_execution(2, Outcome.TIMEOUT, error="Timeout: after 5s.\nTraceback"),
            ],
        },
        f"'sync' ran for {AT_ONE} and failed: Timeout: after 5s …",
    ),
    (
        "failed, with nothing but a reason",
        {"occurrence": an_occurrence(OccurrenceState.FAILED, reason="failed 4 times, max_retries=3")},
        f"'sync' ran for {AT_ONE} and failed: failed 4 times, max_retries=3.",
    ),
    (
        "failed, with no record",
        {"occurrence": an_occurrence(OccurrenceState.FAILED)},
        f"'sync' ran for {AT_ONE} and failed: no error was recorded.",
    ),
    (
        "stale",
        {"occurrence": an_occurrence(OccurrenceState.STALE, reason="stale: it has run for 1h, execution_timeout is 30m")},
        f"'sync' ran for {AT_ONE} and was given up: it has run for 1h, execution_timeout is 30m.",
    ),
    (
        "stale, without a reason",
        {"occurrence": an_occurrence(OccurrenceState.STALE)},
        f"'sync' ran for {AT_ONE} and was given up: it ran for too long.",
    ),
    (
        "cancelled",
        {"occurrence": an_occurrence(OccurrenceState.CANCELLED, reason="replaced by the one of 14:00; overlap=replace")},
        f"'sync' was due at {AT_ONE} and was cancelled: replaced by the one of 14:00; overlap=replace.",
    ),
    (
        "cancelled, without a reason",
        {"occurrence": an_occurrence(OccurrenceState.CANCELLED)},
        f"'sync' was due at {AT_ONE} and was cancelled: no reason was given.",
    ),
    (
        "running",
        {
            "occurrence": an_occurrence(OccurrenceState.RUNNING, started_at=ONE + SECOND),
            "job": a_job(state=JobState.RUNNING, claimed_by="w1@host"),
        },
        f"'sync' is running for {AT_ONE}, since 2026-01-01 13:00:01 UTC (on time), on w1@host.",
    ),
    (
        "running, late and without a job",
        {"occurrence": an_occurrence(OccurrenceState.RUNNING, started_at=ONE + 10 * MINUTE)},
        f"'sync' is running for {AT_ONE}, since 2026-01-01 13:10:00 UTC (10m late).",
    ),
    (
        "between two tries",
        {
            "occurrence": an_occurrence(OccurrenceState.RUNNING, started_at=ONE),
            "job": a_job(state=JobState.PENDING, attempt=2, run_at=NOW + MINUTE),
        },
        f"'sync' ran for {AT_ONE} and is tried again: attempt 2 is due at 2026-01-01 13:31:00 UTC.",
    ),
    (
        "planned ahead",
        {"occurrence": an_occurrence(OccurrenceState.PENDING, decided_at=None)},
        f"'sync' is planned for {AT_ONE}; nothing is decided until then.",
    ),
    (
        "pending, its job gone",
        {"occurrence": an_occurrence(OccurrenceState.PENDING)},
        f"'sync' was due at {AT_ONE} and is recorded as pending, but its job is gone; a replay runs it.",
    ),
    (
        "held behind an earlier run",
        {
            "occurrence": an_occurrence(OccurrenceState.PENDING),
            "job": a_job(slot=Slot.HELD, concurrency_key="definition:id", concurrency=1),
        },
        f"'sync' was due at {AT_ONE} and waits for its turn: an earlier run of it has not ended.",
    ),
    (
        "held, and not the first in line",
        {
            "occurrence": an_occurrence(OccurrenceState.PENDING),
            "job": a_job(slot=Slot.HELD, concurrency_key="definition:id", concurrency=1),
            "ahead_in_line": 2,
        },
        f"'sync' was due at {AT_ONE} and waits for its turn: an earlier run of it has not ended, and 2 more wait before it.",
    ),
    (
        "held by its key",
        {
            "occurrence": an_occurrence(OccurrenceState.PENDING),
            "job": a_job(slot=Slot.HELD, concurrency_key="db", concurrency=1),
        },
        f"'sync' was due at {AT_ONE} and waits for its turn: the only slot of concurrency_key 'db' is taken.",
    ),
    (
        "held though a slot is free",
        {
            "occurrence": an_occurrence(OccurrenceState.PENDING),
            "job": a_job(slot=Slot.HELD, concurrency_key="db", concurrency=1),
            "slot_is_free": True,
        },
        f"'sync' was due at {AT_ONE} and waits for its turn: a slot is free, and a beat lets the next job go on within some"
        " seconds; no beat was ever seen, start one with `celery -A app beat -S celery_tm.Scheduler`.",
    ),
    (
        "held by its key of three",
        {
            "occurrence": an_occurrence(OccurrenceState.PENDING),
            "job": a_job(slot=Slot.HELD, concurrency_key="db", concurrency=3),
        },
        f"'sync' was due at {AT_ONE} and waits for its turn: all 3 slots of concurrency_key 'db' are taken.",
    ),
    (
        "queued",
        {
            "occurrence": an_occurrence(OccurrenceState.QUEUED),
            "job": a_job(state=JobState.DISPATCHED, dispatches=1),
        },
        f"'sync' was due at {AT_ONE} and waits for a free worker: its message was sent once.",
    ),
    (
        "queued, and sent again",
        {
            "occurrence": an_occurrence(OccurrenceState.QUEUED),
            "job": a_job(state=JobState.DISPATCHED, dispatches=3),
        },
        f"'sync' was due at {AT_ONE} and waits for a free worker: its message was sent 3 times.",
    ),
    (
        "shifted or spaced",
        {"occurrence": an_occurrence(OccurrenceState.PENDING), "job": a_job(run_at=NOW + 20 * SECOND)},
        f"'sync' was due at {AT_ONE} and is to run at 2026-01-01 13:30:20 UTC.",
    ),
    (
        "due, and no beat",
        {"occurrence": an_occurrence(OccurrenceState.PENDING), "job": a_job(), "beat_seen_at": ONE + MINUTE},
        f"'sync' has been due since {AT_ONE} and waits for a beat to send it; "
        "the last beat was seen at 2026-01-01 13:01:00 UTC.",
    ),
    (
        "skipped",
        {"occurrence": an_occurrence(OccurrenceState.SKIPPED, reason="the definition was paused")},
        f"'sync' did not run for {AT_ONE}: the definition was paused.",
    ),
    (
        "missed",
        {"occurrence": an_occurrence(OccurrenceState.MISSED, reason="missed; recovery=bounded goes back 2h")},
        f"'sync' did not run for {AT_ONE}: missed; recovery=bounded goes back 2h.",
    ),
    (
        "coalesced",
        {"occurrence": an_occurrence(OccurrenceState.COALESCED)},
        f"'sync' did not run for {AT_ONE}: coalesced.",
    ),
]


@pytest.mark.parametrize(("values", "sentence"), [line[1:] for line in STATES], ids=[line[0] for line in STATES])
def test_each_state_is_told_in_one_sentence(values: dict[str, Any], sentence: str) -> None:
    assert answer(**values) == sentence


def test_there_is_a_sentence_for_each_state() -> None:
    assert {values["occurrence"].state for _, values, _ in STATES} == set(OccurrenceState)


# What was never decided


SILENCES: list[tuple[str, dict[str, Any], str]] = [
    (
        "before it was added",
        {"at": NOON - 2 * DAY, "created_at": NOON - DAY},
        "'sync' did not run at 2025-12-30 12:00:00 UTC: it was added later, at 2025-12-31 12:00:00 UTC.",
    ),
    (
        "retired",
        {
            "definition": retired(a_definition(), now=NOON),
            "switches": [a_change("retired", actor="SYSTEM", reason="no longer in beat_schedule")],
        },
        f"'sync' did not run at {AT_ONE}: it was retired by SYSTEM at 2026-01-01 12:00:00 UTC (no longer in beat_schedule).",
    ),
    (
        "retired, and paused before",
        {"definition": retired(a_definition(), now=NOON), "switches": [a_change("paused")]},
        f"'sync' did not run at {AT_ONE}: it was retired at 2026-01-01 12:00:00 UTC.",
    ),
    (
        "not started yet",
        {"definition": a_definition(starts_at=NOON + 5 * HOUR)},
        f"'sync' did not run at {AT_ONE}: it starts only at 2026-01-01 17:00:00 UTC.",
    ),
    (
        "ended",
        {"definition": replace(a_definition(), ends_at=NOON)},
        f"'sync' did not run at {AT_ONE}: it ended at 2026-01-01 12:00:00 UTC.",
    ),
    (
        "spent",
        {"definition": replace(a_definition(max_runs=5), runs=5, planned_until=NOON)},
        f"'sync' did not run at {AT_ONE}: it has run 5 times, and max_runs=5 allows no more.",
    ),
    (
        "spent at once",
        {"definition": replace(a_definition(max_runs=1), runs=1, planned_until=NOON)},
        f"'sync' did not run at {AT_ONE}: it has run once, and max_runs=1 allows no more.",
    ),
    (
        "closed by its own exclusions",
        {"closed_by": "its own exclusions"},
        f"'sync' did not run at {AT_ONE}: that time is excluded by its own exclusions.",
    ),
    (
        "closed by a calendar",
        {"closed_by": "calendar 'holidays'", "at": NOW + DAY},
        "'sync' does not run at 2026-01-02 13:30:00 UTC: that time is excluded by calendar 'holidays'.",
    ),
    (
        "no beat",
        {"definition": replace(a_definition(), planned_until=NOON), "before": ONE},
        f"'sync' did not run at {AT_ONE}: its instant {AT_ONE} has come, but no beat has decided it yet; "
        "no beat was ever seen, start one with `celery -A app beat -S celery_tm.Scheduler`.",
    ),
    (
        "no beat for a while",
        {"definition": replace(a_definition(), planned_until=NOON), "before": ONE, "beat_seen_at": NOON},
        f"'sync' did not run at {AT_ONE}: its instant {AT_ONE} has come, but no beat has decided it yet; "
        "the last beat was seen at 2026-01-01 12:00:00 UTC.",
    ),
    (
        "nothing recorded",
        {"before": ONE, "at": ONE + 30 * SECOND},
        f"'sync' did not run at 2026-01-01 13:00:30 UTC: its present schedule yields {AT_ONE}, "
        "but nothing is recorded for it; another version was in force then, or its record was pruned.",
    ),
    (
        "still to come",
        {"at": NOW + DAY},
        "2026-01-02 13:30:00 UTC is still to come; the next run of 'sync' is at 2026-01-01 14:00:00 UTC.",
    ),
    (
        "still to come, in the middle of catching up",
        {"at": NOW + DAY, "definition": replace(a_definition(), planned_until=NOON - HOUR, next_run_at=NOW)},
        "2026-01-02 13:30:00 UTC is still to come; the next run of 'sync' is at 2026-01-01 14:00:00 UTC.",
    ),
    (
        "still to come, but over",
        {"at": NOW + MINUTE, "definition": replace(a_definition(), ends_at=NOW + 5 * MINUTE, next_run_at=None)},
        "2026-01-01 13:31:00 UTC is still to come; no run of 'sync' is planned any more.",
    ),
    (
        "no instant",
        {"at": ONE + 20 * MINUTE, "before": ONE},
        "'sync' had nothing to run at 2026-01-01 13:20:00 UTC: its schedule yields no instant then.",
    ),
]


@pytest.mark.parametrize(("values", "sentence"), [line[1:] for line in SILENCES], ids=[line[0] for line in SILENCES])
def test_each_silence_has_its_reason(values: dict[str, Any], sentence: str) -> None:
    assert answer(**values) == sentence


def test_a_silence_tells_the_instants_around_it() -> None:
    told = explained(facts(at=ONE + 20 * MINUTE, before=ONE, after=NOON + 2 * HOUR))

    assert told.lines[:2] == [
        "the instant before was 2026-01-01 13:00:00 UTC",
        "the next instant is 2026-01-01 14:00:00 UTC",
    ]


def test_an_instant_is_told_in_the_definitions_own_time_too() -> None:
    definition = a_definition(timezone="Asia/Kathmandu")
    skipped = an_occurrence(OccurrenceState.SKIPPED, reason="the definition was paused")

    assert answer(definition=definition, occurrence=skipped) == (
        f"'sync' did not run for {AT_ONE} (18:45:00 in Asia/Kathmandu): the definition was paused."
    )


# What is gone


def test_a_definition_that_was_removed_says_who_did_it_and_why() -> None:
    removed = a_change("removed", reason="not needed")

    assert str(explained(facts(definition=None, removed=removed))) == (
        "'sync' was removed by ann at 2026-01-01 12:00:00 UTC (not needed)."
    )


def test_a_definition_that_never_was_says_so() -> None:
    assert answer(definition=None) == "There is no definition named 'sync', and no record of one."


def test_what_a_removed_definition_did_is_still_told() -> None:
    completed = an_occurrence(OccurrenceState.COMPLETED, started_at=ONE, ended_at=ONE + SECOND)

    assert answer(definition=None, occurrence=completed) == f"'sync' ran on time for {AT_ONE} and took 1s: it completed."


# What it rests on


def lines(**values: Any) -> list[str]:
    return list(explained(facts(**values)).lines)


def test_an_instant_that_was_decided_in_time_says_when_and_by_which_version() -> None:
    assert lines(occurrence=an_occurrence(OccurrenceState.SKIPPED)) == [DECIDED, HOURLY]


def test_an_instant_that_was_decided_late_says_that_no_beat_is_known() -> None:
    late = an_occurrence(OccurrenceState.MISSED, decided_at=ONE + 3 * HOUR, is_recovery=True)

    assert lines(occurrence=late)[0] == (
        "decided at 2026-01-01 16:00:00 UTC under version 1, 3h after its instant: "
        "no beat is known to have been planning before"
    )


@pytest.mark.parametrize(
    ("since", "why"),
    [
        (ONE - HOUR, "a beat was running, but could not read or lock the definition before, or had too much to do"),
        (ONE, "a beat was running, but could not read or lock the definition before, or had too much to do"),
        (ONE + SECOND, "no beat is known to have been planning before"),
        (None, "no beat is known to have been planning before"),
    ],
)
def test_a_beat_that_was_running_is_not_said_to_be_missing(since: datetime | None, why: str) -> None:
    late = an_occurrence(OccurrenceState.MISSED, decided_at=ONE + 3 * HOUR, is_recovery=True)

    assert lines(occurrence=late, beat_since=since)[0].endswith(f"3h after its instant: {why}")


def test_a_recovered_run_says_why_and_what_it_stands_for() -> None:
    recovered = an_occurrence(
        OccurrenceState.COMPLETED, decided_at=ONE, started_at=ONE, ended_at=ONE + SECOND, is_recovery=True,
        reason="recovered 1h after its instant", covers_from=NOON - HOUR, covers_until=NOON + 2 * HOUR,
    )  # fmt: skip

    assert lines(occurrence=recovered)[1:3] == [
        "it stands for all from 2026-01-01 11:00:00 UTC until 2026-01-01 14:00:00 UTC",
        "recovered 1h after its instant",
    ]


def test_a_replay_names_what_it_repeats() -> None:
    assert "it is a replay of occurrence o-1" in lines(occurrence=an_occurrence(OccurrenceState.SKIPPED, replay_of="o-1"))


@pytest.mark.parametrize(
    ("values", "because"),
    [
        ({}, " for a free worker"),
        ({"jitter": "30s"}, " (for jitter of up to 30s or a free worker)"),
        ({"recovery": {"policy": "all", "spacing": "1m"}}, " (for the spacing of recovered runs or a free worker)"),
        ({"overlap": "queue"}, " (for an earlier run or a free worker)"),
        ({"overlap": "queue", "jitter": "30s"}, " (for jitter of up to 30s or an earlier run or a free worker)"),
    ],
)
def test_a_run_that_waited_says_for_how_long_and_for_what(values: dict[str, Any], because: str) -> None:
    waited = an_occurrence(OccurrenceState.COMPLETED, started_at=ONE + 40 * SECOND, ended_at=ONE + MINUTE)

    assert f"started at 2026-01-01 13:00:40 UTC, after 40s of waiting{because}" in lines(
        occurrence=waited, definition=a_definition(**values)
    )


def test_every_attempt_is_told_in_order() -> None:
    failed = an_occurrence(OccurrenceState.FAILED, started_at=ONE)
    tries = [
        an_execution(3, Outcome.CANCELLED, started_at=None, worker=None, message="cancelled by ann"),
        an_execution(2, Outcome.SUCCEEDED),
        an_execution(1, Outcome.FAILED, error="ValueError: 7", next_delay=MINUTE),
    ]

    assert lines(occurrence=failed, executions=tries)[1:4] == [
        "attempt 1 failed after 5s on w1, started at 2026-01-01 13:01:00 UTC, the next one 1m later: ValueError: 7",
        "attempt 2 succeeded after 5s on w1, started at 2026-01-01 13:02:00 UTC",
        "attempt 3 cancelled: cancelled by ann",
    ]


def test_the_version_in_force_says_who_made_it() -> None:
    made = a_change("edited", version=2, stated={"schedule": "*/5 * * * *"}, reason="more often")
    custom = replace(made, stated={"schedule": {"kind": "lunar", "expression": "full moon"}}, reason=None)

    assert "version 2 was in force (schedule '*/5 * * * *'): edited by ann at 2026-01-01 12:00:00 UTC (more often)" in lines(
        version=made
    )
    assert "version 2 was in force (schedule 'full moon'): edited by ann at 2026-01-01 12:00:00 UTC" in lines(version=custom)
    assert "version 2 was in force: edited by ann at 2026-01-01 12:00:00 UTC" in lines(
        version=replace(made, stated=None, reason=None)
    )


def test_an_edit_that_waits_is_told() -> None:
    edit = {"values": {"schedule": "@daily", "queue": None}, "after": ONE.isoformat(), "actor": None, "reason": None}

    assert f"an edit takes over after the run at {AT_ONE}: schedule='@daily', queue=None" in lines(
        definition=replace(a_definition(), next_edit=edit)
    )


@pytest.mark.parametrize(
    ("values", "switch", "line"),
    [
        ({"paused": True}, a_change("paused", reason="too loud"),
         "it is paused now: paused by ann at 2026-01-01 12:00:00 UTC (too loud)"),
        ({"enabled": False}, a_change("disabled"), "it is disabled now: disabled by ann at 2026-01-01 12:00:00 UTC"),
        ({"paused": True}, None, "it is paused now"),
        ({"enabled": False}, a_change("paused"), "it is disabled now"),
    ],
)  # fmt: skip
def test_what_is_off_says_who_switched_it_off(values: dict[str, Any], switch: Change | None, line: str) -> None:
    assert lines(definition=a_definition(**values), switches=[switch] if switch else [])[-1] == line


@pytest.mark.parametrize(
    ("reason", "switch", "last"),
    [
        ("the definition was paused", a_change("paused"),
         "it was paused by ann at 2026-01-01 12:00:00 UTC, and is on again"),
        ("the definition was disabled", a_change("paused"), HOURLY),
        ("an earlier occurrence was still in process; overlap=skip", a_change("paused"), HOURLY),
    ],
)  # fmt: skip
def test_what_was_off_then_says_who_had_switched_it_off(reason: str, switch: Change, last: str) -> None:
    assert lines(occurrence=an_occurrence(OccurrenceState.SKIPPED, reason=reason), switches=[switch])[-1] == last


def test_an_explanation_reads_as_an_answer_and_a_list() -> None:
    told = Explanation(name="sync", at=ONE, answer="It ran.", lines=["in time", "on w1"])

    assert str(told) == "It ran.\n  - in time\n  - on w1"


def test_an_instant_is_stamped_to_the_second_in_utc() -> None:
    assert stamp(NOON + timedelta(microseconds=999_999)) == "2026-01-01 12:00:00 UTC"
