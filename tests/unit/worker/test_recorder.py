"""An exception becomes a failure, however long, deep or broken it is."""

from __future__ import annotations

import time
import types

import pytest

from celery_tm.domain.execution import MAX_ERROR, MAX_TRACEBACK
from celery_tm.worker.outcome_texts import failure_of


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as found:
        return found


def deep(frames: int) -> BaseException:
    """Return an error with so many frames, each at another place."""
    error = raised(ValueError("deep"))
    last = error.__traceback__
    assert last is not None
    places = len(last.tb_frame.f_code.co_code)
    for number in range(frames):
        last = types.TracebackType(last, last.tb_frame, number * 2 % places, 1)
    return error.with_traceback(last)


def caused(causes: int) -> BaseException:
    error: BaseException = ValueError("the first cause")
    for number in range(causes):
        cause, error = error, ValueError(f"effect {number}")
        error.__cause__ = cause
    return raised(error)


def repeated(depth: int) -> BaseException:
    return repeated(depth - 1) if depth else raised(ValueError("shallow"))


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Treacherous(SyntaxError):
    """An error that breaks whoever writes its traceback."""

    @property
    def filename(self) -> str:  # type: ignore[override]
        raise RuntimeError("no file")


@pytest.mark.parametrize(
    ("error", "told", "line"),
    [
        (deep(100_000), "ValueError: deep", "more …"),
        (deep(10), "ValueError: deep", "ValueError: deep"),
        (caused(5000), "ValueError: effect 4999", "the first cause"),
        (raised(Unspeakable()), "Unspeakable: <Unspeakable>", "Unspeakable: <exception str() failed>"),
        (raised(Treacherous("odd")), "Treacherous: ", "its traceback cannot be shown: RuntimeError: no file"),
        (raised(ValueError("x" * 5_000_000)), "ValueError: xxx", "more …"),
        (raised(ValueError("line\n" * 100_000)), "ValueError: line", "more …"),
        (raised(ValueError("a\x00\ud800")), "ValueError: a\ufffd?", "ValueError: a\ufffd?"),
        (raised(KeyboardInterrupt()), "KeyboardInterrupt: ", "KeyboardInterrupt"),
    ],
    ids=["100,000 frames", "10 frames", "causes", "no words", "no traceback", "5 MB", "lines", "NUL", "no text"],
)
def test_any_error_becomes_a_failure_that_can_be_kept(error: BaseException, told: str, line: str) -> None:
    began = time.monotonic()
    failure = failure_of(error)
    assert time.monotonic() - began < 5
    assert failure.error.startswith(told)
    assert line in (failure.traceback or "")
    assert len(failure.error) <= MAX_ERROR
    assert len(failure.traceback or "") <= MAX_TRACEBACK


def test_an_error_that_was_never_raised_has_no_traceback() -> None:
    assert failure_of(ValueError("no")).traceback is None
