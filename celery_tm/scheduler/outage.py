"""Telling about outages once, trying again with patience, and leaving running work alone after one.

While the database was away no worker could renew a lease, so leases that have ended say nothing of their workers. A beat
believes them only if it has been in touch with the database for as long as a lease lasts, and the server has been there.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from .. import clock, events

FIRST_WAIT, LONGEST_WAIT = 0.5, 2.0  # work goes on within five seconds of a return; see the guarantees


@dataclass(slots=True)
class _Outage:
    since: datetime
    wait: float
    try_at: float
    error: str = ""


class Outages:
    """What is away at the moment, as seen by one beat."""

    def __init__(self, app: Any) -> None:
        self.app = app
        self._away: dict[str, _Outage] = {}

    def begun(self, what: str, error: str, *, anew: bool = False) -> float:
        """Note that something does not answer; return the seconds to wait before it is tried again.

        `anew`: another error than the last is told too, for it is another thing that somebody has to do.
        """
        known = self._away.get(what)
        if known is None:
            events.emit(self.app, events.OutageBegan(what=what, error=error))
            known = self._away[what] = _Outage(clock.now(), FIRST_WAIT, 0.0)
        else:
            known.wait = min(known.wait * 2, LONGEST_WAIT)
            if anew and error != known.error:
                events.emit(self.app, events.OutageBegan(what=what, error=error))
        known.error = error
        known.try_at = time.monotonic() + known.wait
        return known.wait

    def over(self, what: str) -> None:
        """Note that something answers."""
        known = self._away.pop(what, None)
        if known is not None:
            events.emit(self.app, events.OutageEnded(what=what, since=known.since))

    def pause(self, what: str) -> float:
        """Return the seconds until something that is away is to be tried again; 0 if it is not away."""
        known = self._away.get(what)
        return max(known.try_at - time.monotonic(), 0.0) if known else 0.0


class Contact:
    """For how long one beat has been in touch with the database without a gap, and whether it may believe ended leases."""

    def __init__(self, *, lease: float, gap: float) -> None:
        self._lease, self._gap = lease, gap
        self._last: float | None = None
        self._broken = False
        self._spare_until = 0.0

    def made(self) -> None:
        """Note that the database has answered; after an outage, or a time in which this process was stopped, begin anew."""
        now = time.monotonic()
        if self._broken or (self._last is not None and now - self._last > self._gap):
            self.spare_for(self._lease)
        self._last, self._broken = now, False

    def broke(self) -> None:
        """Note that the database did not answer."""
        self._broken = True

    def spare_for(self, seconds: float) -> None:
        """Take nobody for dead for so long."""
        self._spare_until = max(self._spare_until, time.monotonic() + seconds)

    @property
    def spares_running(self) -> bool:
        """Say whether running attempts are left alone although their leases have ended."""
        return time.monotonic() < self._spare_until
