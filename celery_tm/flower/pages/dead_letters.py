"""Dead letters: what was given up, found by filters, and revived or purged in bulk after a look at what that affects."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from ...errors import InvalidValue, shown
from ...management import TimeManagement
from ...management.dead_letters import refuse_unselected
from ...store.dead_letters import DeadLetter
from .common import PAGE, Action, Page
from .reading import present

FILTERS = ("task", "definition", "error")
SPAN = ("since", "until")
MOST_CHOSEN = 200


class DeadLettersPage(Page):
    """What will not be tried again by itself, newest first."""

    template = "tm_dead_letters.html"
    section = "dead-letters"

    def gather(self, tm: TimeManagement, *_path: str) -> Mapping[str, Any]:
        """Return the dead letters that the filters leave, and how many there are."""
        given, typed = self.filters(*FILTERS), self.filters(*SPAN)
        before, now = self.query("before"), present(tm)
        found = tm.dead_letters.list(**given, **self.span(), before=before, limit=PAGE)
        return {
            "lines": [self.line(letter, now) for letter in found],
            "unreadable": found.unreadable,
            "given": given | typed,
            "count": tm.dead_letters.count(**given, **self.span()),
            "preview": self.reverse_url("tm_dead_letters_preview"),
            "all": given | typed or {"all": "true"},
            "following": self.address("tm_dead_letters", **given, **typed, before=found.next) if found.next else None,
            "first": self.address("tm_dead_letters", **given, **typed) if before else None,
        }

    def line(self, letter: DeadLetter, now: datetime) -> Mapping[str, Any]:
        """Return a dead letter as a line of the table."""
        job = letter.job
        return {
            "letter": letter,
            "job": job,
            "href": self.address("tm_job", letter.id),
            "definition": self.to_definition(job.definition) if job.definition else None,
            "buried_at": self.at(letter.buried_at, now),
            "actions": [Action(label="Revive", to=self.api("dead-letters", letter.id, "revive"), style="primary")],
        }


class PreviewPage(Page):
    """What reviving or purging some dead letters would affect, and the button that does it to exactly those."""

    template = "tm_dead_letters_preview.html"
    section = "dead-letters"

    def gather(self, tm: TimeManagement, *_path: str) -> Mapping[str, Any]:
        """Return how many letters are affected, of which tasks, and some of them."""
        action = self.query("action") or ""
        if action not in ("revive", "purge"):
            raise InvalidValue("action", f"{shown(action)} is unknown", "use revive or purge")
        ids = [id for id in self.get_query_arguments("ids") if id]
        if len(ids) > MOST_CHOSEN:
            raise InvalidValue("ids", f"{len(ids)} are too many to tick", "use the filters instead")
        every = not ids and self.query("all") == "true"
        wanted = {"ids": ids} if ids else self.filters(*FILTERS) | self.span()
        refuse_unselected(wanted, all=every)
        affected, now = tm.dead_letters.preview(**wanted), present(tm)
        return {
            "affected": affected,
            "action": action,
            "wanted": {} if ids else self.filters(*FILTERS, *SPAN),
            "fields": [*_fields(wanted | ({"all": "true"} if every else {})), ("expected", str(affected.count))],
            "to": self.api("dead-letters", action),
            "back": self.reverse_url("tm_dead_letters"),
            "oldest": self.at(affected.oldest, now),
            "newest": self.at(affected.newest, now),
            "sample": [
                (letter, self.address("tm_job", letter.id), self.at(letter.buried_at, now)) for letter in affected.sample
            ],
        }


def _fields(wanted: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return what is wanted as the fields of a form."""
    lists = {name: value if isinstance(value, list) else [value] for name, value in wanted.items()}
    return [
        (name, one.isoformat() if isinstance(one, datetime) else str(one)) for name, some in lists.items() for one in some
    ]
