"""What is kept of a result or an error: text that fits its column."""

from __future__ import annotations

import traceback

from ..domain.codec import encode
from ..domain.execution import MAX_ERROR, MAX_FRAMES, MAX_SHOWN_RESULT, MAX_TRACEBACK, Failure, Outcome, cut
from ..errors import InvalidValue, said
from ..store.keys import NOT_WHOLE


def failure_of(error: BaseException, *, outcome: Outcome = Outcome.FAILED) -> Failure:
    """Return an exception as the failure it means, no longer than what is kept of it, whatever it is."""
    told = cut(f"{type(error).__name__}: {said(error)}", MAX_ERROR)
    return Failure(error=told, traceback=cut(_lines_of(error), MAX_TRACEBACK), outcome=outcome)


def _lines_of(error: BaseException) -> str | None:
    if error.__traceback__ is None:
        return None
    try:
        return "".join(traceback.format_exception(error, limit=-MAX_FRAMES))
    except Exception as broken:  # its end is recorded all the same
        return f"its traceback cannot be shown: {type(broken).__name__}: {said(broken)}"


def step_result(result: object) -> str | None:
    """Return a step's result as JSON for later steps; what is not JSON they cannot read."""
    try:
        return encode(result, field="result")
    except InvalidValue:
        return None


def result_text(result: object) -> str | None:
    """Return a result as JSON for its key; of what is not JSON, or too long for it, as much as shows what it was."""
    try:
        return encode(result, field="result")
    except InvalidValue:
        return encode({NOT_WHOLE: cut(_represented(result), MAX_SHOWN_RESULT)}, field="result")


def _represented(result: object) -> str:
    try:
        return repr(result)
    except Exception:  # it is done all the same
        return f"<{type(result).__name__}>"
