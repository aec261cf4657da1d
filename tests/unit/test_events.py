"""Events: each has its signal and its line in the log, and no receiver's error stops the work."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import is_dataclass
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from celery.utils.dispatch import Signal

from celery_tm import events
from celery_tm.domain.execution import Failure, Outcome
from celery_tm.domain.ids import execution_id
from celery_tm.domain.job import Job
from celery_tm.domain.retry import Bury, TryAgain
from celery_tm.events import SIGNALS, emit, emit_failure, emit_seldom

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
APP = object()
BURIED = events.JobBuried(job="j-1", task="shop.pay", attempt=3, reason="failed 3 times")
UNKNOWN = events.TaskUnknown(task="shop.pay", name="sync")
EVENTS = [
    value for _, value in inspect.getmembers(events, inspect.isclass) if value.__module__ == events.__name__ and is_dataclass(value)
]  # fmt: skip


def a_job(**changes: Any) -> Job:
    values: dict[str, Any] = {
        "id": "j-1", "task": "shop.pay", "args": "[]", "kwargs": "{}", "run_at": NOON, "created_at": NOON,
        "original_delay": timedelta(0), "attempt": 2, "occurrence": "o-1",
    }  # fmt: skip
    return Job(**values | changes)


@contextmanager
def received(*signals: Signal) -> Iterator[list[dict[str, Any]]]:
    """Collect what receivers of these signals are told."""
    heard: list[dict[str, Any]] = []

    def receiver(**told: Any) -> None:
        heard.append(told)

    for signal in signals:
        signal.connect(receiver, weak=False)
    try:
        yield heard
    finally:
        for signal in signals:
            signal.disconnect(receiver)


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Seconds that pass only when told, and nothing warned about yet."""
    passed = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(events, "time", SimpleNamespace(monotonic=lambda: passed.now))
    monkeypatch.setattr(events, "_warned", {})
    return passed


def test_every_event_has_a_signal_of_its_own() -> None:
    assert set(SIGNALS) == set(EVENTS)
    assert len(set(map(id, SIGNALS.values()))) == len(EVENTS)


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.__name__)
def test_every_signal_can_be_imported_by_its_name(event: type) -> None:
    assert getattr(events, SIGNALS[event].name) is SIGNALS[event]


def test_receivers_get_the_app_as_sender_and_the_fields_as_keywords() -> None:
    with received(events.job_buried) as heard:
        emit(APP, BURIED)

    assert heard == [
        {"signal": events.job_buried, "sender": APP, "job": "j-1", "task": "shop.pay", "attempt": 3, "reason": "failed 3 times"}
    ]


def test_a_receiver_may_listen_to_one_app_only() -> None:
    heard: list[str] = []

    def receiver(job: str, **_: Any) -> None:
        heard.append(job)

    events.job_buried.connect(receiver, sender=APP, weak=False)
    try:
        emit(object(), BURIED)
        assert heard == []
        emit(APP, BURIED)
    finally:
        events.job_buried.disconnect(receiver, sender=APP)

    assert heard == ["j-1"]


def test_a_receiver_that_raises_stops_neither_the_work_nor_the_others(caplog: pytest.LogCaptureFixture) -> None:
    def broken(**_: Any) -> None:
        raise RuntimeError("a receiver's own bug")

    events.job_buried.connect(broken, weak=False)
    try:
        with received(events.job_buried) as heard, caplog.at_level(logging.DEBUG, "celery_tm"):
            emit(APP, BURIED)
    finally:
        events.job_buried.disconnect(broken)

    assert [told["job"] for told in heard] == ["j-1"]
    assert "JobBuried job=j-1" in caplog.text


def test_an_event_is_one_line_in_the_log_with_its_fields(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "celery_tm"):
        emit(APP, BURIED)

    (record,) = [record for record in caplog.records if record.name == "celery_tm"]
    assert record.getMessage() == "JobBuried job=j-1 task=shop.pay attempt=3 reason=failed 3 times"
    assert record.levelno == logging.ERROR
    assert record.tm == {"job": "j-1", "task": "shop.pay", "attempt": 3, "reason": "failed 3 times"}  # type: ignore[attr-defined]


@pytest.mark.parametrize(("verbose", "level"), [(False, logging.DEBUG), (True, logging.INFO)])
def test_what_goes_well_is_logged_quietly_unless_told_otherwise(
    caplog: pytest.LogCaptureFixture, verbose: bool, level: int
) -> None:
    with caplog.at_level(logging.DEBUG, "celery_tm"):
        emit(APP, events.JobsSwept(redispatched=1, orphaned=0), verbose=verbose)

    assert [record.levelno for record in caplog.records] == [level]


@pytest.mark.parametrize("event", events.LEVELS, ids=lambda event: event.__name__)
def test_what_somebody_should_know_is_logged_as_a_warning_or_an_error(event: type) -> None:
    assert event in EVENTS
    assert events.LEVELS[event] >= logging.WARNING


# Seldom


def test_the_same_event_is_told_seldom_only_once_a_minute(seconds: SimpleNamespace) -> None:
    with received(events.task_unknown) as heard:
        emit_seldom(APP, UNKNOWN)
        seconds.now += events.REPEAT_AFTER - 1
        emit_seldom(APP, UNKNOWN)
        assert len(heard) == 1
        seconds.now += 1
        emit_seldom(APP, UNKNOWN)

    assert len(heard) == 2


def test_an_event_about_something_else_is_told_at_once(seconds: SimpleNamespace) -> None:
    with received(events.task_unknown) as heard:
        emit_seldom(APP, UNKNOWN)
        emit_seldom(APP, events.TaskUnknown(task="shop.other", name="sync"))

    assert [told["task"] for told in heard] == ["shop.pay", "shop.other"]


def test_the_first_event_is_told_even_just_after_the_machine_has_started(seconds: SimpleNamespace) -> None:
    seconds.now = 0.0

    with received(events.task_unknown) as heard:
        emit_seldom(APP, UNKNOWN)

    assert len(heard) == 1


def test_what_was_told_is_not_remembered_without_end(seconds: SimpleNamespace) -> None:
    with received(events.task_unknown) as heard:
        for number in range(10_050):
            emit_seldom(APP, events.TaskUnknown(task=f"t{number}", name="sync"))

    assert len(heard) == 10_050
    assert len(events._warned) <= 10_001


# Failures


def test_a_failure_with_a_try_left_says_when_it_follows() -> None:
    with received(events.execution_failed, events.job_buried) as heard:
        emit_failure(APP, a_job(), Failure(error="ValueError: no"), TryAgain(timedelta(seconds=90)))

    (told,) = heard
    assert told["signal"] is events.execution_failed
    assert (told["job"], told["attempt"], told["execution"]) == ("j-1", 2, execution_id("j-1", 2))
    assert (told["outcome"], told["error"], told["next_delay"]) == ("failed", "ValueError: no", 90.0)
    assert told["occurrence"] == "o-1"


def test_the_last_failure_tells_about_the_dead_letter_too() -> None:
    with received(events.execution_failed, events.job_buried) as heard:
        emit_failure(APP, a_job(), Failure(error="gone", outcome=Outcome.ORPHANED), Bury("failed 2 times"))

    failed, buried = heard
    assert (failed["signal"], failed["outcome"], failed["next_delay"]) == (events.execution_failed, "orphaned", None)
    assert (buried["signal"], buried["reason"], buried["attempt"]) == (events.job_buried, "failed 2 times", 2)
