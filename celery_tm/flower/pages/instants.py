"""What was decided, over all definitions: the page of last night's trouble, with a way to each answer."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from ...domain.occurrence import Occurrence, OccurrenceState
from ...management import TimeManagement
from .common import PAGE, Page
from .reading import present

LATELY = timedelta(hours=24)


class InstantsPage(Page):
    """The instants of all definitions that have come, newest first; without a range those of the last day."""

    template = "tm_instants.html"
    section = "instants"

    def gather(self, tm: TimeManagement, *_path: str) -> Mapping[str, Any]:
        """Return the instants that the filters leave."""
        given, typed, now = self.filters("state"), self.filters("since", "until"), present(tm)
        troubled, before = self.query("troubled") is not None and "state" not in given, self.query("before")
        span = self.span() if typed else {"since": now - LATELY}
        found = tm.occurrences(**given, troubled=troubled, **{"until": now, **span}, before=before, limit=PAGE)
        names = tm.names_of(found)
        asked = given | typed | ({"troubled": "1"} if troubled else {})
        return {
            "lines": [self.line(one, names.get(one.definition), now) for one in found],
            "unreadable": found.unreadable,
            "given": asked,
            "lately": not typed,
            "states": [str(state) for state in OccurrenceState],
            "following": self.address("tm_instants", **asked, before=found.next) if found.next else None,
            "first": self.address("tm_instants", **asked) if before else None,
        }

    def line(self, one: Occurrence, name: str | None, now: datetime) -> Mapping[str, Any]:
        """Return an instant as a line of the table."""
        return {
            "one": one,
            "name": name,
            "at": self.at(one.scheduled_at, now),
            "definition": self.to_definition(name) if name else None,
            "run": self.address("tm_run", one.id),
            "why": self.to_definition(name, one.scheduled_at) if name else None,
        }
