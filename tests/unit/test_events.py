"""What happens, as data: every event has its signal, and nobody's error stops the work."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
from celery.utils.dispatch import Signal

from celery_tm import events

APP = object()
CLASSES = [
    c
    for name, c in vars(events).items()
    if inspect.isclass(c) and c.__module__ == events.__name__ and is_dataclass(c) and not name.startswith("_")
]
Heard = list[tuple[Any, dict[str, Any]]]


def example(kind: type) -> Any:
    return kind(**{field.name: f"{field.name}-value" for field in fields(kind)})


@pytest.fixture
def heard() -> Iterator[Heard]:
    """Everything that any signal of ours sends."""
    found: Heard = []

    def hear(signal: Signal, sender: Any, **values: Any) -> None:
        found.append((signal, {"sender": sender, **values}))

    for signal in events.SIGNALS.values():
        signal.connect(hear, weak=False, dispatch_uid="heard")
    yield found
    for signal in events.SIGNALS.values():
        signal.disconnect(dispatch_uid="heard")


@pytest.fixture
def stopwatch(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A monotonic clock that is moved by hand, and no memory of earlier warnings."""
    watch = SimpleNamespace(seconds=1000.0)
    monkeypatch.setattr(events, "time", SimpleNamespace(monotonic=lambda: watch.seconds))
    monkeypatch.setattr(events, "_warned", {})
    return watch


def test_every_event_has_a_signal_of_its_own() -> None:
    assert set(events.SIGNALS) == set(CLASSES)
    assert len({id(signal) for signal in events.SIGNALS.values()}) == len(CLASSES)


def test_every_signal_can_be_imported_by_its_name() -> None:
    assert [signal.name for signal in events.SIGNALS.values() if getattr(events, signal.name) is not signal] == []


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_an_event_is_sent_with_the_app_as_sender_and_its_fields_as_keywords(kind: type, heard: Heard) -> None:
    event = example(kind)

    events.emit(APP, event)

    values = {field.name: getattr(event, field.name) for field in fields(event)}
    assert heard == [(events.SIGNALS[kind], {"sender": APP, **values})]


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_no_field_of_an_event_is_a_name_that_signals_need_themselves(kind: type) -> None:
    assert {field.name for field in fields(kind)} & {"sender", "signal", "self"} == set()


def test_a_receiver_that_raises_stops_neither_the_others_nor_the_emitter(heard: Heard) -> None:
    def stumble(**_: Any) -> None:
        raise RuntimeError("a receiver's own mistake")

    events.job_buried.connect(stumble, weak=False, dispatch_uid="stumble")
    try:
        events.emit(APP, example(events.JobBuried))
    finally:
        events.job_buried.disconnect(dispatch_uid="stumble")

    assert [signal for signal, _ in heard] == [events.job_buried]


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_an_event_is_logged_once_at_its_level_with_its_fields(kind: type, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="celery_tm"):
        events.emit(APP, example(kind))

    [record] = [record for record in caplog.records if record.name == "celery_tm"]
    assert record.levelno == events.LEVELS.get(kind, logging.DEBUG)
    assert kind.__name__ in record.getMessage()
    assert record.tm == {field.name: f"{field.name}-value" for field in fields(kind)}


def test_a_quiet_event_is_logged_as_information_where_that_is_wanted(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="celery_tm"):
        events.emit(APP, example(events.ExecutionCompleted))
        events.emit(APP, example(events.ExecutionCompleted), verbose=True)

    assert [record.levelno for record in caplog.records if record.name == "celery_tm"] == [logging.INFO]


def test_a_percent_sign_in_a_value_does_not_break_the_log(caplog: pytest.LogCaptureFixture) -> None:
    events.emit(APP, events.OutageBegan(what="broker", error="100%s broken %d"))

    assert "100%s broken %d" in caplog.text


def test_the_same_warning_comes_once_a_minute(heard: Heard, stopwatch: SimpleNamespace) -> None:
    event = events.TaskUnknown(task="t", name="n")
    counts = []
    for seconds in (0.0, 1.0, 59.0, 60.0, 61.0, 119.0, 120.0):
        stopwatch.seconds = 1000.0 + seconds
        events.emit_seldom(APP, event)
        counts.append(len(heard))

    assert counts == [1, 1, 1, 2, 2, 2, 3]


def test_another_warning_is_not_held_back(heard: Heard, stopwatch: SimpleNamespace) -> None:
    event = events.TaskUnknown(task="t", name="n")
    for one in (event, replace(event, name="m"), events.DefinitionBroken(name="n", error="e")):
        events.emit_seldom(APP, one)

    assert len(heard) == 3


def test_a_warning_right_after_the_machine_started_is_not_held_back(heard: Heard, stopwatch: SimpleNamespace) -> None:
    stopwatch.seconds = 0.0
    events.emit_seldom(APP, events.TaskUnknown(task="t", name="n"))

    assert len(heard) == 1


def test_the_memory_of_warnings_stays_small(heard: Heard, stopwatch: SimpleNamespace) -> None:
    for number in range(10_050):
        events.emit_seldom(APP, events.TaskUnknown(task="t", name=str(number)))

    assert len(heard) == 10_050
    assert len(events._warned) < 10_010
