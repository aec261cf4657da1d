"""What goes wrong, as HTTP says it: a status, a code for programs and the words that the error has for people.

Every error keeps its own text, which says what to do next; this module only decides the status.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from tornado.web import HTTPError, MissingArgumentError

from .. import errors
from ..errors import TmError

# The first that fits counts, so the narrower kinds stand above the wider ones.
STATUSES: tuple[tuple[type[Exception], int], ...] = (
    (errors.StaleVersion, 409),
    (errors.CountChanged, 409),
    (errors.DefinitionExists, 409),
    (errors.DuplicateKey, 409),
    (errors.RowUnreadable, 409),
    (errors.DefinitionNotFound, 404),
    (errors.JobNotFound, 404),
    (errors.OccurrenceNotFound, 404),
    (errors.DeadLetterNotFound, 404),
    (errors.SchemaMissing, 503),
    (errors.SchemaOutdated, 503),
    (errors.DatabaseUnavailable, 503),
    (errors.RightMissing, 503),
    (errors.DriverMissing, 503),
    (errors.UnknownSetting, 503),
    (errors.InvalidValue, 400),
    (errors.UnknownName, 400),
)
HEADINGS: Mapping[int, str] = {
    400: "That cannot be used",
    403: "Not allowed",
    404: "Not there",
    405: "Not like this",
    409: "It has changed meanwhile",
    413: "Too large",
    415: "Not like this",
    500: "Something went wrong here",
    503: "The jobs cannot be reached",
}
UNEXPECTED = "something went wrong that nobody foresaw; Flower's log has the details"


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """One refusal, as it is told."""

    status: int
    code: str
    message: str
    hint: str | None = None
    facts: Mapping[str, Any] | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the body of the answer to a program."""
        said: dict[str, Any] = {"code": self.code, "message": self.message}
        if self.hint:
            said["hint"] = self.hint
        return {"error": said | dict(self.facts or {})}

    @property
    def heading(self) -> str:
        """Return a few words for the top of a page."""
        return HEADINGS.get(self.status, "It was refused")


class Refused(HTTPError):
    """One of our errors on its way out through Tornado, which logs it in a line and not as a crash."""

    def __init__(self, error: TmError) -> None:
        super().__init__(status_of(error), "%s", error)
        self.error = error


class Refusal(HTTPError):
    """A refusal by who or where the request comes from, with a code of its own."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(status, "%s", message)
        self.code, self.message = code, message


def status_of(error: TmError) -> int:
    """Return the HTTP status that an error means."""
    return next((status for kind, status in STATUSES if isinstance(error, kind)), 400)


def failure_of(error: BaseException | None, status: int) -> Failure:
    """Return what is told about an error; what nobody foresaw is not shown, for it may hold anything."""
    if isinstance(error, Refused):
        return _told(error.error)
    if isinstance(error, Refusal):
        return Failure(status=error.status_code, code=error.code, message=error.message)
    if isinstance(error, HTTPError) and error.status_code < 500:
        return Failure(status=error.status_code, code=_words(_phrase(error.status_code)), message=_message(error))
    return Failure(status=status, code="unexpected", message=UNEXPECTED)


def _told(error: TmError) -> Failure:
    facts: dict[str, Any] | None = None
    if isinstance(error, errors.StaleVersion):
        facts = {"version": error.current}
    elif isinstance(error, errors.CountChanged):
        facts = {"count": error.found}
    return Failure(
        status=status_of(error),
        code=_words(type(error).__name__),
        message=str(error),
        hint=getattr(error, "suggestion", None),
        facts=facts,
    )


def _message(error: HTTPError) -> str:
    if isinstance(error, MissingArgumentError):
        return f"{error.arg_name} is missing"
    said = error.log_message % error.args if error.log_message and error.args else error.log_message
    return said or error.reason or _phrase(error.status_code)


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Refused"


def _words(name: str) -> str:
    """Return `DefinitionNotFound` or `Not Found` as `definition_not_found`, `not_found`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])|\s+", "_", name).lower()
