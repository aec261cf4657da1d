"""Checks of single values that people state: each raises with the field, what is wrong with it, and what would be right."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, TypeVar

from ..clock import as_utc, parse_duration, readable_expiry
from ..errors import InvalidValue, nearest, shown
from .codec import encode
from .job import checked_text

E = TypeVar("E", bound=StrEnum)


def choice(enum: type[E], field: str, *, optional: bool = False) -> Any:
    """Return the check of a value that is one of a few words."""

    def check(value: Any) -> E | None:
        if value is None and optional:
            return None
        try:
            return enum(value if isinstance(value, str) else "")  # else the enum itself would show the value
        except ValueError:
            choices = ", ".join(repr(str(member)) for member in enum)
            near = nearest(value, [str(member) for member in enum])
            hint = f"; did you mean {near!r}?" if near else ""
            raise InvalidValue(field, f"{shown(value)} is not one of its values", f"use one of {choices}{hint}") from None

    return check


def text(field: str, limit: int) -> Any:
    """Return the check of a name or key, or of none."""
    return lambda value: None if value is None else checked_text(value, field=field, limit=limit)


def flag(field: str) -> Any:
    """Return the check of True or False."""

    def check(value: Any) -> bool:
        if not isinstance(value, bool):
            raise InvalidValue(field, f"{shown(value)} is not true or false", "give a bool")
        return value

    return check


def json_text(field: str, kind: type, shape: str) -> Any:
    """Return the check of arguments, which makes them JSON text."""

    def check(value: Any) -> str:
        if not isinstance(value, kind if kind is dict else (list, tuple)):
            raise InvalidValue(field, f"{shown(value)} is not a {shape}", f"give a {shape}")
        return encode(value, field=field)

    return check


def checked_options(value: Any) -> dict[str, Any]:
    """Return Celery's options of a message, which are plain JSON."""
    if not isinstance(value, Mapping):
        raise InvalidValue("options", f"{shown(value)} is not a mapping", "give Celery options such as {'headers': {…}}")
    encode(dict(value), field="options")  # says where it is wrong
    if isinstance(value.get("expires"), str) and readable_expiry(value["expires"]) != value["expires"]:
        raise InvalidValue("options", f"Celery reads expires={shown(value['expires'])} as a date", "state expires itself")
    try:
        json.dumps(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidValue(
            "options", f"they are not plain JSON ({error})", "give text, numbers, lists and mappings"
        ) from None
    return dict(value)


def instant(field: str) -> Any:
    """Return the check of a date and time with its offset, or of none."""

    def check(value: Any) -> datetime | None:
        if isinstance(value, str):
            try:
                value = datetime.fromisoformat(value)
            except ValueError:
                raise InvalidValue(field, f"{shown(value)} is not a date and time", _INSTANT) from None
        return None if value is None else as_utc(value, field=field)

    return check


_INSTANT = "use ISO 8601 with an offset, e.g. '2026-12-24T18:00:00+01:00'"


def duration(field: str, example: str, *, zero: bool = False) -> Any:
    """Return the check of a duration, or of none; with `zero`, no time at all means none."""

    def check(value: Any) -> timedelta | None:
        if value is None:
            return None
        duration = parse_duration(value, field=field)
        if duration == timedelta(0):
            if zero:
                return None
            raise InvalidValue(field, f"{shown(value)} leaves no time", f"give a longer duration, e.g. {example!r}")
        return duration

    return check


def count(field: str, limit: int) -> Any:
    """Return the check of a whole number from one up, or of none."""

    def check(value: Any) -> int | None:
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= limit:
            raise InvalidValue(field, f"{shown(value)} is not a count", f"give a whole number from 1 to {limit}")
        return value

    return check


def names(value: Any) -> tuple[str, ...]:
    """Return the names of calendars."""
    if isinstance(value, str) or not isinstance(value, (list, tuple)):
        raise InvalidValue("calendars", f"{shown(value)} is not a list of names", "give e.g. ['holidays']")
    return tuple(checked_text(item, field=f"calendars[{place}]", limit=100) for place, item in enumerate(value))
