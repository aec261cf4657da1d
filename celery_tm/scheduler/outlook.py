"""Looks at what is next, and keeps that cheap while dead rows lie in the way.

PostgreSQL keeps the index entries of rows that are gone as long as any transaction is open that is older, and whoever looks
for the first entry that lives walks over all of them, again and again. So when a look was slow, the next ones begin where
that one found something, or half a minute ago if that is earlier. What turns up before that place (an attempt that is handed
back, an instant that is caught up) is found by the next whole look, at most `LONGEST` seconds later.
"""

from __future__ import annotations

import time
from datetime import datetime

from ..store import agenda
from ..store.agenda import Agenda
from ..store.database import Database

SLOW = 0.03  # seconds; a look at living rows takes a few thousandths
SHARE = 20  # whole looks that are slow take at most one twentieth of the time
LONGEST = 10.0


class Outlook:
    """What one beat sees ahead."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._seen: Agenda | None = None
        self._whole_again_at = 0.0

    def look(self) -> Agenda:
        """Return what is next."""
        since, started = self._bound, time.monotonic()
        self._seen = self._database.run(lambda tx: agenda.look(tx, since=since), alone=True)
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
