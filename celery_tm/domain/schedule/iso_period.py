"""The period of an ISO 8601 interval: `P1M`, `P1Y2M`, `P2W`, `P1DT12H`, `PT90M`, `PT1.5S`."""

from __future__ import annotations

import re
from calendar import monthrange
from dataclasses import dataclass
from datetime import MAXYEAR, date, datetime, timedelta
from decimal import Decimal

from ...errors import InvalidValue, shown
from .words import counted, duration_words, listed

SECOND = timedelta(seconds=1)
CALENDAR = date.max - date.min
_NUMBER = r"[0-9]{1,9}(?:[.,][0-9]{1,9})?"
_PERIOD = re.compile(
    rf"P(?:(?P<years>{_NUMBER})Y)?(?:(?P<months>{_NUMBER})M)?(?:(?P<weeks>{_NUMBER})W)?(?:(?P<days>{_NUMBER})D)?"
    rf"(?:T(?:(?P<hours>{_NUMBER})H)?(?:(?P<minutes>{_NUMBER})M)?(?:(?P<seconds>{_NUMBER})S)?)?",
    re.ASCII,
)
_MICROSECONDS = {
    "weeks": 604_800_000_000, "days": 86_400_000_000, "hours": 3_600_000_000, "minutes": 60_000_000, "seconds": 1_000_000,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Period:
    """Months and what is no whole month. `is_dated`: it has years, months, weeks or days, so it steps on the wall clock."""

    months: int
    rest: timedelta
    is_dated: bool

    def add(self, start: datetime, times: int) -> datetime | None:
        """Return `start` and that many periods, the day held at the month's end; None outside the calendar."""
        index = start.year * 12 + start.month - 1 + times * self.months
        year, month = index // 12, index % 12 + 1
        if not 1 <= year <= MAXYEAR:
            return None
        day = min(start.day, monthrange(year, month)[1])
        try:
            return start.replace(year=year, month=month, day=day) + times * self.rest
        except OverflowError:
            return None

    def words(self) -> str:
        """Return "month", "2 weeks" or "1 year and 6 months", for use after "every"."""
        years, months = divmod(self.months, 12)
        parts = [counted(count, noun) for count, noun in ((years, "year"), (months, "month")) if count]
        if self.rest:
            parts.append(duration_words(self.rest))
        words = listed(parts)
        return words[2:] if words.startswith("1 ") and words.count(" ") == 1 else words


def read_period(text: str, *, example: str) -> Period:
    """Return what text like "P1M" means; refuse fractions of what has no fixed length, and less than a second."""
    match = _PERIOD.fullmatch(text)
    given = {unit: number.replace(",", ".") for unit, number in match.groupdict().items() if number} if match else {}
    if not given or text.endswith("T"):
        raise InvalidValue("schedule", f"{shown(text)} is not a period such as P1M, P1DT12H or PT90M", example)
    fractions = [unit for unit, number in given.items() if "." in number]
    if fractions and fractions != [list(given)[-1]]:
        raise InvalidValue("schedule", f"the period {text!r} has a fraction before its smallest unit", example)
    if fractions and fractions[0] in ("years", "months"):
        raise InvalidValue("schedule", f"the period {text!r} has a fraction of {fractions[0]}", "give whole months, or days")
    amounts = {unit: Decimal(number) for unit, number in given.items()}
    months = int(amounts.get("years", 0) * 12 + amounts.get("months", 0))
    try:
        rest = timedelta(microseconds=int(sum(amounts.get(unit, 0) * size for unit, size in _MICROSECONDS.items())))
        if months > 12 * MAXYEAR or rest > CALENDAR:
            raise OverflowError
    except OverflowError:
        raise InvalidValue("schedule", f"the period {text!r} is longer than the calendar", example) from None
    is_dated = any(amounts.get(unit) for unit in ("years", "months", "weeks", "days"))
    return checked_period(Period(months, rest, is_dated), text)


def checked_period(period: Period, text: str) -> Period:
    """Return a period that can be stepped by."""
    if not period.months and period.rest < SECOND:
        raise InvalidValue("schedule", f"the period of {text!r} is too short", "use one second or more, e.g. PT1S")
    if period.is_dated and period.rest % SECOND:
        raise InvalidValue("schedule", f"the period of {text!r} has days and part of a second", "use whole seconds")
    return period
