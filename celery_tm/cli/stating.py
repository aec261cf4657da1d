"""The options by which people state a definition, and how their text becomes the values that the API takes.

What is right and wrong is left to the API, so that a call, a file and a command are refused in the same words. Only what is
no value at all is refused here: a `--set` without `=`, a field stated twice, JSON that is none.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import click

from ..domain.overrides import FIELDS as OVERRIDES
from ..domain.stating import FIELDS
from ..errors import InvalidValue, UnknownOption, nearest, shown
from ..management.files import read_content

JSON = ("args", "kwargs")
SCHEDULE_EXAMPLE = """give e.g. '*/5 * * * *', or '{"kind": "interval", "every": "2h"}'"""
JSON_EXAMPLE = """write text in double quotes, e.g. '["a", 1]' or '{"a": 1}'"""
STEPS_EXAMPLE = "start each one with [[steps]], or write a list"

schedule_option = click.option(
    "--schedule", metavar="RULE", help="""'30 2 * * *', 'every 10s' … or JSON: '{"kind": "window", …}'."""
)
timezone_option = click.option(
    "--timezone", metavar="ZONE", help="Zone of its local times, e.g. Europe/Warsaw; default: the app's."
)
set_option = click.option(
    "--set", "sets", multiple=True, metavar="FIELD=VALUE", help="Any other field; JSON where it is JSON, else text."
)

_OTHERS = (
    set_option,
    click.option("--kwargs", metavar="JSON", help="""Named arguments, e.g. '{"kind": "sales"}'."""),
    click.option("--args", metavar="JSON", help="""Arguments, e.g. '["sales", 3]'."""),
    click.option(
        "--steps",
        metavar="FILE_OR_JSON",
        help="Steps instead of a task: JSON, or a .toml, .yaml or .json file.",
    ),
    click.option("--queue", help="Queue that its jobs go to."),
    click.option("--group", multiple=True, help="Group to list and switch it by; may be given several times."),
    click.option("--recovery", metavar="POLICY", help="Missed instants: all, last, skip, bounded or compressed."),
    click.option("--overlap", metavar="POLICY", help="While one is owed: skip, allow, queue, queue_one or replace."),
    timezone_option,
)


_OF_ONE_RUN = (
    click.option("--timeout", metavar="DURATION", help="For this run only: how long one attempt may take."),
    click.option("--max-retries", type=int, metavar="N", help="For this run only: tries after the first."),
    click.option("--priority", type=int, metavar="N", help="For this run only: the priority of its message."),
    click.option("--queue", help="For this run only: the queue that it goes to."),
    click.option("--kwargs", metavar="JSON", help="""For this run only: named arguments, e.g. '{"kind": "sales"}'."""),
    click.option("--args", metavar="JSON", help="""For this run only: arguments, e.g. '["sales", 3]'."""),
)


def override_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options for values that hold for one run only."""
    for option in _OF_ONE_RUN:
        function = option(function)
    return function


def read_overrides(options: dict[str, Any]) -> dict[str, Any]:
    """Take the values that hold for one run only out of a command's options."""
    given = {field: options.pop(field) for field in OVERRIDES}
    return {
        field: _read_json(field, value) if field in JSON else value for field, value in given.items() if value is not None
    }


def stating_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that state a definition, all but its task and its schedule."""
    for option in _OTHERS:
        function = option(function)
    return function


def read_values(*, sets: Iterable[str] = (), **options: Any) -> dict[str, Any]:
    """Return the values that were stated, by field."""
    values = {field: _value(field, text) for field, text in options.items() if text not in (None, ())}
    for item in sets:
        field, equals, text = item.partition("=")
        field = field.strip()
        if not equals or not field:
            raise click.UsageError(f"--set takes FIELD=VALUE, e.g. --set max_retries=5, not {item!r}")
        if field not in FIELDS:  # said here, since "actor" or "version" would be a keyword of the call
            raise UnknownOption(field, nearest(field, FIELDS))
        if field in values:
            raise click.UsageError(f"{field} is stated twice")
        values[field] = read_json_or_text(field, text)
    return values


def _value(field: str, text: Any) -> Any:
    if field == "group":
        return text[0] if len(text) == 1 else list(text)
    if field in JSON:
        return _read_json(field, text)
    if field == "schedule":
        return _read_json(field, text, remedy=SCHEDULE_EXAMPLE) if text.lstrip()[:1] in ("{", "[") else text
    return _read_steps(text) if field == "steps" else text


def _read_steps(text: str) -> Any:
    """Return steps from JSON text or, where it is none, from the file of that name: a list, or a mapping that has one."""
    if text.lstrip()[:1] in ("[", "{") or text.strip() == "null":
        return _read_json("steps", text)
    found = read_content(Path(text))
    if isinstance(found, Mapping):
        if list(found) != ["steps"]:
            raise InvalidValue(text, "it has no list of steps, or more than that", STEPS_EXAMPLE)
        found = found["steps"]
    return found


def read_json_or_text(field: str, text: str) -> Any:
    """Return what JSON means, and anything else as the text it is; what only looks like JSON is refused."""
    if text.lstrip()[:1] in ("{", "[", '"'):
        return _read_json(field, text)
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return text


def _read_json(field: str, text: str, *, remedy: str = JSON_EXAMPLE) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise InvalidValue(field, f"{shown(text)} is not JSON ({error})", remedy) from None


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")
