"""Looks at what is next, and keeps that cheap while dead rows lie in the way.

PostgreSQL keeps the index entries of rows that are gone as long as any transaction is open that is older, and whoever looks
for the first entry that lives walks over all of them, again and again. So when a look was slow, the next ones begin where
that one found something, or half a minute ago if that is earlier. What turns up before that place (an attempt that is handed
back, an instant that is caught up) is found by the next whole look, at most `LONGEST` seconds later.
"""

from __future__ import annotations

import time
from datetime import datetime
from functools import partial

from ..installation import Installation
from ..store import agenda
from ..store.agenda import Agenda
from ..store.rows import UNREADABLE

SLOW = 0.03  # seconds; a look at living rows takes a few thousandths
SHARE = 20  # whole looks that are slow take at most one twentieth of the time
LONGEST = 10.0
TABLES = ("tm_definition", "tm_job", "tm_occurrence")


class Outlook:
    """What one beat sees ahead."""

    def __init__(self, installation: Installation) -> None:
        self._installation = installation
        self._seen: Agenda | None = None
        self._whole_again_at = 0.0

    def look(self) -> Agenda:
        """Return what is next."""
        since, started = self._bound, time.monotonic()
        without = {table: ids for table in TABLES if (ids := self._installation.skipped(table))}
        work = partial(agenda.look, since=since, without=without)
        try:
            self._seen = self._installation.database.run(work, alone=not without)
        except UNREADABLE:
            self._seen = self._installation.database.run(partial(agenda.look_apart, without=without))
        took = time.monotonic() - started
        if since is None and took > SLOW:
            self._whole_again_at = time.monotonic() + min(took * SHARE, LONGEST)
        return self._seen

    @property
    def due_since(self) -> datetime | None:
        """Return the instant before which no due job needs to be looked for now; None: from the beginning."""
        bound = self._bound
        return None if bound is None else bound.place_of("due_at")

    @property
    def _bound(self) -> Agenda | None:
        return self._seen if time.monotonic() < self._whole_again_at else None

    def begin_anew(self) -> None:
        """Look from the beginning next time: something has gone back there."""
        self._whole_again_at = 0.0
