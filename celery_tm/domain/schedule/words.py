"""Words for people: durations, lists and days in the sentences that `describe` makes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip
_UNITS = (("day", 86_400_000_000), ("hour", 3_600_000_000), ("minute", 60_000_000), ("second", 1_000_000))


def listed(items: Iterable[str], last: str = "and") -> str:
    """Join items as a sentence does: "a, b and c"."""
    *most, final = items
    return f"{', '.join(most)} {last} {final}" if most else final


def counted(count: int, noun: str) -> str:
    """Return "1 day" or "2 days"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def duration_words(duration: timedelta) -> str:
    """Return a duration in words: "1 hour and 30 minutes"."""
    left = duration // timedelta(microseconds=1)
    parts = []
    for noun, size in _UNITS:
        if noun == "second" and left % size:
            parts.append(f"{left / size:.6f}".rstrip("0") + " seconds")
            break
        count, left = divmod(left, size)
        if count:
            parts.append(counted(count, noun))
    return listed(parts or ["0 seconds"])


def every_words(duration: timedelta) -> str:
    """Return "every hour", "every 2 hours", "every 1 hour and 30 minutes"."""
    words = duration_words(duration)
    return f"every {words[2:]}" if words in ("1 day", "1 hour", "1 minute", "1 second") else f"every {words}"


def moment(at: datetime) -> str:
    """Return a date and time without what is zero in it."""
    return f"{at.date()} {at:%H:%M:%S}" if at.second else f"{at.date()} {at:%H:%M}"


def runs(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Return the runs of consecutive numbers in a sorted sequence, each as its first and last."""
    found: list[tuple[int, int]] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return found


def span_words(numbers: Sequence[int], names: Sequence[str]) -> str:
    """Return names with runs of three and more shortened: "Monday to Friday and Sunday"; numbers count from 0."""
    parts: list[str] = []
    for first, last in runs(numbers):
        if last - first >= 2:
            parts.append(f"{names[first]} to {names[last]}")
        else:
            parts.extend(names[number] for number in range(first, last + 1))
    return listed(parts)
