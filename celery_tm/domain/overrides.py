"""Values that hold for one occurrence only: other arguments or settings than its definition has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..errors import InvalidValue, UnknownOption, nearest, spelled
from .definition import Definition
from .schedule import Zone
from .stating import check_values, write_fields

FIELDS = {  # as they are given, and the field of the definition that they replace
    "args": "args", "kwargs": "kwargs", "queue": "queue", "priority": "priority", "max_retries": "max_retries",
    "timeout": "task_timeout",
}  # fmt: skip
ARGUMENTS = ("args", "kwargs")
Overrides = Mapping[str, Any]  # plain JSON


def check_overrides(definition: Definition, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that are given, checked and in plain JSON; None is not given."""
    for name in values:
        if name not in FIELDS:
            raise UnknownOption(spelled(name), nearest(name, FIELDS))
    given = {name: value for name, value in values.items() if value is not None}
    if definition.steps and any(name in given for name in ARGUMENTS):
        raise InvalidValue("args", f"{definition.name!r} has steps, which have arguments of their own", "leave args out")
    columns = _columns(given)
    return {name: write_fields(columns)[FIELDS[name]] for name in given}


def overridden(definition: Definition, overrides: Overrides | None) -> Definition:
    """Return a definition with the values of one occurrence."""
    return replace(definition, **_columns(overrides)) if overrides else definition


def stated_with(stated: Mapping[str, Any], overrides: Overrides | None) -> Mapping[str, Any]:
    """Return what a definition states, with the values of one occurrence."""
    return {**stated, **{FIELDS[name]: value for name, value in (overrides or {}).items() if name in FIELDS}}


def describe(overrides: Overrides) -> str:
    """Return overrides in words; arguments only by name, for they may be secret."""
    words = [name if name in ARGUMENTS else f"{name}={value}" for name, value in overrides.items()]
    return ", ".join(words)


def _columns(overrides: Overrides) -> dict[str, Any]:
    return check_values({FIELDS[name]: value for name, value in overrides.items()}, zone=Zone())
