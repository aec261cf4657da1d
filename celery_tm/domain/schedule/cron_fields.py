"""The fields of a cron expression: each is read strictly and becomes the numbers it stands for.

Nothing is guessed: a value out of range, a step larger than its field, a range that goes backwards or a digit of another
script is refused, and the error names the field and the item and says what is allowed there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b

from ...errors import InvalidValue, shown

EXAMPLE = "use five fields like '*/5 * * * *', or six with the seconds first"
_NUMBER = re.compile(r"[0-9]{1,2}")
_ITEM = re.compile(r"(?P<low>\*|\w+)(?:-(?P<high>\w+))?(?:/(?P<step>\w+))?", re.ASCII)
_HASHED = re.compile(r"h(?:\((?P<low>\w+)-(?P<high>\w+)\))?(?:/(?P<step>\w+))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Range:
    """What one field may hold: numbers from low to high, and names for them."""

    name: str
    low: int
    high: int
    example: str
    names: tuple[str, ...] = ()
    hash_high: int = 0  # how far `H` goes where that is less: the 28th, which every month has

    @property
    def allowed(self) -> str:
        """Say which values it takes."""
        return f"{self.low}-{self.high}" + (f" or {self.names[0]}-{self.names[-1]}" if self.names else "")


SECOND = Range("second", 0, 59, "0, */10 or 0-30/5")
MINUTE = Range("minute", 0, 59, "0, */5, 0,30 or H")
HOUR = Range("hour", 0, 23, "9, */2, 8-18/2 or H(0-6)")
DAY = Range("day of month", 1, 31, "1, 1,15, L (the last), LW (the last weekday), 15W or *", hash_high=28)
MONTH = Range(
    "month", 1, 12, "1, jan, 3-5 or */3",
    ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"),
)  # fmt: skip
# 7 is Sunday too, as in every crontab; `H` goes to 6.
WEEKDAY = Range(
    "day of week", 0, 7, "1, mon-fri, 5#3 (the third Friday), L5 (the last) or *",
    ("sun", "mon", "tue", "wed", "thu", "fri", "sat"), hash_high=6,
)  # fmt: skip
FIELDS = (SECOND, MINUTE, HOUR, DAY, MONTH, WEEKDAY)


@dataclass(frozen=True, slots=True)
class Days:
    """Which days of a month the day of month allows. `free`: any, written as `*` or `?`."""

    numbers: frozenset[int]
    last: frozenset[int] = frozenset()  # days before the last one
    nearest: frozenset[int] = frozenset()  # the weekday nearest to this day
    last_weekday: bool = False
    free: bool = False


@dataclass(frozen=True, slots=True)
class Weekdays:
    """Which days of a week the day of week allows, Sunday being 0."""

    numbers: frozenset[int]
    nth: frozenset[tuple[int, int]] = frozenset()  # a day of week and which of them in the month
    last: frozenset[int] = frozenset()
    free: bool = False


@dataclass(frozen=True, slots=True)
class Fields:
    """A cron expression, read. `both`: the day of month and the day of week must match, else one of them is enough."""

    seconds: tuple[int, ...]
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: Days
    months: tuple[int, ...]
    weekdays: Weekdays
    both: bool
    is_interval_like: bool
    is_hashed: bool


def read_fields(parts: list[str], *, name: str, both: bool) -> Fields:
    """Return what six fields mean for the definition `name`; `both`: as Celery, where both days must match always."""
    seconds, minutes, hours, months = (tuple(sorted(_numbers(parts[index], FIELDS[index], name))) for index in (0, 1, 2, 4))
    days, weekdays = _days(parts[3], name), _weekdays(parts[5], name)
    if (days.nearest or days.last_weekday) and not weekdays.free:
        raise refusal(DAY, parts[3], f"cannot be combined with the day of week {parts[5]!r}", "write * there")
    return Fields(
        seconds, minutes, hours, days, months, weekdays,
        # Vixie's rule, as Debian's crontab(5) words it: a day field that begins with * narrows the other one.
        both=both or any(part[0] in "*?" for part in (parts[3], parts[5])),
        is_interval_like=any(_repeats(item) for part in parts[:3] for item in part.split(",")),
        is_hashed=any(_HASHED.fullmatch(item) for part in parts for item in part.lower().split(",")),
    )  # fmt: skip


def _repeats(item: str) -> bool:
    """Say whether an item has `*`, a range or a step: such a job runs in both passes of a fold. `H(0-29)` is one time."""
    return "/" in item if item[0] in "Hh" else any(mark in item for mark in "*-/")


def refusal(field: Range, item: str, problem: str, remedy: str | None = None) -> InvalidValue:
    """Return the error that names the field and the item."""
    return InvalidValue("schedule", f"{field.name} {shown(item)} {problem}", remedy or f"use e.g. {field.example}")


def _numbers(part: str, field: Range, name: str) -> set[int]:
    return {number for item in part.split(",") for number in _item(item, part, field, name)}


def _item(item: str, part: str, field: Range, name: str) -> Iterable[int]:
    """Return the numbers of `*`, `5`, `1-5`, each perhaps with a step, or of `H`."""
    if not item:
        raise refusal(field, part, "has an empty item")
    if hashed := _HASHED.fullmatch(item.lower()):
        return _spread(item, hashed, field, name)
    match = _ITEM.fullmatch(item.lower())
    if not match or (match["low"] == "*" and match["high"]):
        raise refusal(field, item, "is not understood")
    step = _step(item, match["step"], field)
    top = 6 if field is WEEKDAY else field.high
    if match["low"] == "*":
        return range(field.low, top + 1, step)
    low = _value(match["low"], item, field)
    if not match["high"]:
        return range(_wrapped(low, field), top + 1, step) if match["step"] else [_wrapped(low, field)]
    high = _value(match["high"], item, field, last=match["high"] != match["low"])
    if high < low:
        raise refusal(field, item, "goes backwards", f"write it as a list of two, e.g. {_unwrapped(low, high, field)!r}")
    return [_wrapped(number, field) for number in range(low, high + 1, step)]


def _unwrapped(low: int, high: int, field: Range) -> str:
    top = 6 if field is WEEKDAY else field.high
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in ((field.low, high), (low, top)))


def _wrapped(number: int, field: Range) -> int:
    return number % 7 if field is WEEKDAY else number


def _value(text: str, item: str, field: Range, *, last: bool = False) -> int:
    """Return the number that a number or a name means; `last`: it ends a range, where Sunday is 7."""
    if text in field.names:
        number = field.names.index(text) + field.low
        return 7 if last and field is WEEKDAY and number == 0 else number
    number = int(text) if _NUMBER.fullmatch(text) else -1
    if not field.low <= number <= field.high:
        where = "" if text == item.lower() else f"has {shown(text)}, which "
        raise refusal(field, item, f"{where}is not in {field.allowed}")
    return number


def _step(item: str, text: str | None, field: Range) -> int:
    if text is None:
        return 1
    if not _NUMBER.fullmatch(text) or not 1 <= int(text) <= field.high:
        raise refusal(field, item, f"has a step that is not in 1-{field.high}")
    return int(text)


def _spread(item: str, match: re.Match[str], field: Range, name: str) -> Iterable[int]:
    """Return the numbers of `H`: the same for one definition always, spread evenly over many."""
    if not name:
        raise refusal(field, item, "is spread by the definition's name, and there is none", "give name=, or a number")
    low, high = field.low, field.hash_high or field.high
    if match["low"]:
        low, high = _value(match["low"], item, field), _value(match["high"], item, field)
        if high < low:
            raise refusal(field, item, "goes backwards", "write the lower number first, e.g. H(0-29)")
    # Frozen: another hash would move every such job. The digest, because hash() differs between processes.
    digest = int.from_bytes(blake2b(f"{name}\0{field.name}".encode(), digest_size=8).digest(), "big")
    if match["step"] is None:
        return [_wrapped(low + digest % (high - low + 1), field)]
    step = _step(item, match["step"], field)
    first = low + digest % min(step, high - low + 1)
    return [_wrapped(number, field) for number in range(first, high + 1, step)]


def _days(part: str, name: str) -> Days:
    numbers: set[int] = set()
    last: set[int] = set()
    nearest: set[int] = set()
    for item in part.split(","):
        text = item.lower()
        if text == "l":
            last.add(0)
        elif match := re.fullmatch(r"l-([0-9]+)", text):
            last.add(_bounded(match[1], item, 1, 30))
        elif match := re.fullmatch(r"([0-9]+)w", text):
            nearest.add(_bounded(match[1], item, 1, 31))
        elif text != "lw" and part != "?":
            numbers.update(_item(item, part, DAY, name))
    free = part in ("*", "?")
    return Days(
        frozenset(range(1, 32) if free else numbers),
        frozenset(last),
        frozenset(nearest),
        "lw" in part.lower().split(","),
        free,
    )


def _bounded(text: str, item: str, low: int, high: int) -> int:
    if not _NUMBER.fullmatch(text) or not low <= int(text) <= high:
        raise refusal(DAY, item, f"has {shown(text)}, which is not in {low}-{high}")
    return int(text)


def _weekdays(part: str, name: str) -> Weekdays:
    numbers: set[int] = set()
    nth: set[tuple[int, int]] = set()
    last: set[int] = set()
    value: Callable[[str, str], int] = partial(_value, field=WEEKDAY)
    for item in part.split(","):
        text = item.lower()
        if text == "l":
            raise refusal(WEEKDAY, item, "does not say which day", "use e.g. L5 for the last Friday, or 6 for Saturday")
        if match := re.fullmatch(r"(\w+)#(\w+)", text, re.ASCII):
            if match[2] not in ("1", "2", "3", "4", "5"):
                raise refusal(WEEKDAY, item, f"asks for number {match[2]}, and a month has 1-5 of each day of week")
            nth.add((value(match[1], item) % 7, int(match[2])))
        elif match := re.fullmatch(r"l([0-9]+|[a-z]{3})|([0-9]+|[a-z]{3})l", text):
            last.add(value(match[1] or match[2], item) % 7)
        elif part != "?":
            numbers.update(_item(item, part, WEEKDAY, name))
    free = part in ("*", "?")
    return Weekdays(frozenset(range(7) if free else numbers), frozenset(nth), frozenset(last), free)
