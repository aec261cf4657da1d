"""RedBeat's rrule, which is dateutil's with a start at an offset from UTC, written as iCalendar text in a zone."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from ...domain.schedule.rrule_text import FREQUENCIES, WEEKDAYS
from ...errors import InvalidValue, shown

HOUR = timedelta(hours=1)
LISTS: Mapping[str, str] = {
    "bysetpos": "BYSETPOS", "bymonth": "BYMONTH", "bymonthday": "BYMONTHDAY", "byyearday": "BYYEARDAY",
    "byweekno": "BYWEEKNO", "byhour": "BYHOUR", "byminute": "BYMINUTE", "bysecond": "BYSECOND",
}  # fmt: skip


def rrule_text(said: Mapping[str, Any], *, app_zone: str) -> tuple[str, str, list[str]]:
    """Return a rule's text, the zone of its local times, and what is to be said about it."""
    start = said.get("dtstart")
    if not isinstance(start, (int, float)):
        raise InvalidValue("schedule", "the rrule has no dtstart", "save it again with RedBeat, which adds one")
    if said.get("byeaster") not in (None, []):
        raise InvalidValue("schedule", "the rrule has byeaster, which iCalendar has not", "state its dates as an RDATE")
    began = datetime.fromtimestamp(start, UTC)
    offset = timedelta(minutes=float(said.get("dtstart_tz") or 0))
    zone, notes = _zone(began, offset, app_zone)
    parts = [f"FREQ={_frequency(said.get('freq'))}"]
    for key, value in (("INTERVAL", said.get("interval")), ("COUNT", said.get("count"))):
        if value not in (None, 1) or (key == "COUNT" and value is not None):
            parts.append(f"{key}={int(value)}")
    if said.get("until") is not None:
        parts.append(f"UNTIL={_local(datetime.fromtimestamp(said['until'], UTC), offset)}")
    if said.get("wkst") is not None:
        parts.append(f"WKST={_weekday(said['wkst'])}")
    for name, key in LISTS.items():
        if said.get(name) not in (None, []):
            parts.append(f"{key}={','.join(str(int(number)) for number in _listed(said[name]))}")
    if said.get("byweekday") not in (None, []):
        parts.append(f"BYDAY={','.join(_weekday(day) for day in _listed(said['byweekday']))}")
    return f"DTSTART:{_local(began, offset)}\nRRULE:{';'.join(parts)}", zone, notes


def _zone(began: datetime, offset: timedelta, app_zone: str) -> tuple[str, list[str]]:
    """Return a zone that has this offset always, as RedBeat has it."""
    if not offset:
        return "UTC", []
    words = f"{'+' if offset > timedelta(0) else '-'}{str(abs(offset)).rpartition(':')[0]:0>5}"
    if offset % HOUR == timedelta(0) and timedelta(hours=-12) <= offset <= timedelta(hours=14):
        hours = offset // HOUR  # the tz database names them the other way round
        note = (
            f"RedBeat keeps the offset {words} and no zone, so it does not follow the clocks; state timezone= if it should"
        )
        return f"Etc/GMT{-hours:+d}", [note]
    if began.astimezone(ZoneInfo(app_zone)).utcoffset() == offset:
        return app_zone, [f"RedBeat keeps the offset {words} and no zone; it now follows the clocks of {app_zone}"]
    raise InvalidValue("schedule", f"the rrule starts at the offset {words}, which no zone has for good", "add it by hand")


def _local(instant: datetime, offset: timedelta) -> str:
    return (instant + offset).strftime("%Y%m%dT%H%M%S")


def _frequency(value: Any) -> str:
    if isinstance(value, int) and 0 <= value < len(FREQUENCIES):
        return FREQUENCIES[value]
    if isinstance(value, str) and value.upper() in FREQUENCIES:
        return value.upper()
    raise InvalidValue("schedule", f"unknown freq {shown(value)} in the rrule", f"use one of {', '.join(FREQUENCIES)}")


def _weekday(value: Any) -> str:
    number = value.get("wkday") if isinstance(value, Mapping) else value
    if not isinstance(number, int) or not 0 <= number < len(WEEKDAYS):
        raise InvalidValue("schedule", f"unknown day of week {shown(value)} in the rrule", "use 0 (Monday) to 6")
    nth = value.get("n") if isinstance(value, Mapping) else None
    return f"{nth or ''}{WEEKDAYS[number]}"


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]
