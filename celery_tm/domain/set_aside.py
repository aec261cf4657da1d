"""Rows that this process cannot handle: skipped for a while, reported once, and tried again.

A row may be unreadable on one node only, for want of a package or because a newer release wrote it. So the list is kept in
memory and the shared row is not touched: a node that can read it goes on with it. Statements leave out `ids()`.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

FIRST_PAUSE, LONGEST_PAUSE = 5.0, 300.0  # seconds until a row is tried again; doubles each time it fails
HELD_FOR = 1.0  # seconds for which a row is left out that another transaction holds
LONGEST_HELD = 30.0  # the same where each try waits for that transaction: doubles each time
HELD_SHARE = 3  # and at least so many times as long as the try took
FORGET_AFTER = 2 * LONGEST_PAUSE  # seconds after its pause in which a row did not fail again: it was handled, or is gone
CAPACITY = 100_000  # rows of one table that are left out at once; beyond that the oldest entries are tried again first
REPORTED = 1000  # rows of one table that are reported each by itself; a table of bad rows must not fill the log


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that could not be handled, and why; `name` is what people call it."""

    table: str
    id: str
    error: str
    name: str | None = None


@dataclass(slots=True)
class _Entry:
    row: BadRow
    until: float
    pause: float


@dataclass(frozen=True, slots=True)
class _Held:
    until: float
    pause: float


class SetAside:
    """The rows that one process leaves out. Times are `time.monotonic()` seconds, passed in. Safe to use from threads."""

    def __init__(self) -> None:
        self._entries: dict[str, dict[str, _Entry]] = {}  # by table and id, the latest last
        self._held: dict[tuple[str, str], _Held] = {}
        self._lock = threading.Lock()

    def add(self, row: BadRow, *, now: float) -> bool:
        """Leave a row out for a while. True if it is new here or fails for another reason than before: worth an event.

        Not beyond `REPORTED` rows of a table, that is.
        """
        with self._lock:
            entries = self._entries.setdefault(row.table, {})
            before = entries.pop(row.id, None)
            if before is not None and now > before.until + FORGET_AFTER:
                before = None
            pause = FIRST_PAUSE if before is None else min(before.pause * 2, LONGEST_PAUSE)
            _make_room(entries, now)
            entries[row.id] = _Entry(row, now + pause, pause)
            return (before is None or before.row.error != row.error) and len(entries) <= REPORTED

    def hold(self, table: str, id: str, *, now: float, waited: float = 0.0) -> None:
        """Leave a row out for a moment: there is nothing wrong with it, another transaction holds what it needs.

        `waited` is how many seconds that took to find out: what waits again and again is tried more and more seldom.
        """
        with self._lock:
            self._held = {key: one for key, one in self._held.items() if now <= one.until + LONGEST_HELD}
            before = self._held.get((table, id))
            pause = max(HELD_FOR, HELD_SHARE * waited)
            if waited and before is not None:
                pause = max(pause, min(before.pause * 2, LONGEST_HELD))
            self._held[(table, id)] = _Held(now + pause, pause)

    def ids(self, table: str, *, now: float) -> Sequence[str]:
        """Return the rows of a table to leave out at present."""
        with self._lock:
            bad = [id for id, entry in self._entries.get(table, {}).items() if entry.until > now]
            held = [id for (of, id), one in self._held.items() if of == table and one.until > now]
            return list(dict.fromkeys([*bad, *held]))

    def discard(self, table: str, *ids: str) -> None:
        """Forget rows that could be handled after all."""
        with self._lock:
            entries = self._entries.get(table, {})
            for id in ids if entries or self._held else ():
                entries.pop(id, None)
                self._held.pop((table, id), None)

    def rows(self, table: str | None = None) -> Sequence[BadRow]:
        """Return what is set aside, for reports."""
        with self._lock:
            return [one.row for of, entries in self._entries.items() if table in (None, of) for one in entries.values()]

    def count(self, table: str) -> int:
        """Return how many rows of a table are set aside."""
        with self._lock:
            return len(self._entries.get(table, {}))


def _make_room(entries: dict[str, _Entry], now: float) -> None:
    """Drop the oldest entries while they are forgotten, or too many."""
    while entries:
        oldest = next(iter(entries))
        if len(entries) < CAPACITY and now <= entries[oldest].until + FORGET_AFTER:
            return
        del entries[oldest]


class Aside(Protocol):
    """Where rows go that cannot be handled: an installation, which leaves them out for a while and reports them."""

    def skip_row(self, table: str, id: str, error: BaseException | str, *, name: str | None = None) -> object: ...

    def skipped(self, table: str) -> Sequence[str]: ...


class Nowhere:
    """For callers that want to hear of the first row that cannot be handled."""

    def skip_row(self, table: str, id: str, error: BaseException | str, *, name: str | None = None) -> None:  # noqa: ARG002
        """Raise what is wrong with a row."""
        raise error if isinstance(error, BaseException) else ValueError(error)

    def skipped(self, table: str) -> Sequence[str]:  # noqa: ARG002
        """Return nothing: every row is looked at."""
        return ()


NOWHERE: Aside = Nowhere()
