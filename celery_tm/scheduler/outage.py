"""Telling about outages once, and trying again with patience: a little longer each time, never long."""

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
