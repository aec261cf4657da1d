"""Writes definitions as TOML: just what they can hold, so that no package is needed for it.

Each list of tables becomes `[[definitions]]`, and steps `[[definitions.steps]]`, or a list with a line for each where some
are groups. What is nested deeper is written inline. TOML has no null, and a value that has one is refused rather than left
out, because a file that says less than the database would change it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import date, datetime, timedelta
from typing import Any

from kombu.utils.json import dumps

from ..errors import InvalidValue

_BARE = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r", "\b": "\\b", "\f": "\\f"}


def plain_values(value: Any, *, dates: bool) -> Any:
    """Return what files can hold: dates as they are where wished, UUIDs and the like as the markers of Celery's own JSON."""
    if isinstance(value, Mapping):
        return {str(key): plain_values(item, dates=dates) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_values(item, dates=dates) for item in value]
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    if dates and isinstance(value, date) and _fits(value):
        return value
    return json.loads(dumps(value))


def _fits(value: date) -> bool:
    """Say whether TOML has this date or time: offsets are in whole minutes there."""
    offset = value.utcoffset() if isinstance(value, datetime) else None
    return offset is None or offset % timedelta(minutes=1) == timedelta(0)


def write_toml(content: Mapping[str, list[Mapping[str, Any]]]) -> str:
    """Return lists of tables as TOML."""
    if not content.get("definitions"):
        return "definitions = []\n"
    return "\n".join(_entry(kind, entry) for kind, entries in content.items() for entry in entries)


def _entry(kind: str, entry: Mapping[str, Any]) -> str:
    """Return an entry as a table, with a table for each of its steps below it."""
    where, steps = f"{entry.get('name')}: ", entry.get("steps")
    if not isinstance(steps, list) or not steps:
        return f"[[{kind}]]\n{_table(entry, where)}"
    rest = {key: value for key, value in entry.items() if key != "steps"}
    if not all(isinstance(step, Mapping) for step in steps):
        return f"[[{kind}]]\n{_table(rest, where)}steps = {_lines(steps, f'{where}steps')}\n"
    tables = (f"\n[[{kind}.steps]]\n{_table(step, f'{where}steps[{place}].')}" for place, step in enumerate(steps))
    return f"[[{kind}]]\n{_table(rest, where)}" + "".join(tables)


def _table(entry: Mapping[str, Any], where: str) -> str:
    return "".join(f"{_key(key)} = {_value(value, f'{where}{key}')}\n" for key, value in entry.items())


def _lines(items: list[Any], where: str, indent: str = "") -> str:
    """Return a list with a line for each of its items, and so for the lists in it."""
    inner = f"{indent}  "
    lines = (
        _lines(item, f"{where}[{place}]", inner) if isinstance(item, list) else _value(item, f"{where}[{place}]")
        for place, item in enumerate(items)
    )
    return "[\n" + "".join(f"{inner}{line},\n" for line in lines) + f"{indent}]"


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else _text(key)


def _value(value: Any, where: str) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, str):
        if any("\ud800" <= c <= "\udfff" for c in value):
            raise InvalidValue("format", f"TOML has only whole characters, and {where} has half of one", _OTHERWISE)
        return _text(value)
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, list):
        return "[" + ", ".join(_value(item, f"{where}[{place}]") for place, item in enumerate(value)) + "]"
    if isinstance(value, Mapping):
        items = (f"{_key(key)} = {_value(item, f'{where}.{key}')}" for key, item in value.items())
        return "{ " + ", ".join(items) + " }" if value else "{}"
    raise InvalidValue("format", f"TOML has no null, and {where} is null", _OTHERWISE)


_OTHERWISE = "use --format yaml or json"


def _text(text: str) -> str:
    return '"' + "".join(_ESCAPES.get(c) or (c if c.isprintable() else _escape(c)) for c in text) + '"'


def _escape(character: str) -> str:
    code = ord(character)
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
