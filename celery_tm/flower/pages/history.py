"""What ended: executions with filters, a page at a time, and the audit of who changed what."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...domain.execution import Outcome
from ...domain.job import Source
from ...domain.scope import read_refs
from ...management import TimeManagement
from ...presentation import Rows
from .common import PAGE, Page
from .reading import present
from .words import Change, changes

FILTERS = ("name", "task", "outcome", "source", "entity_id", "scope", "worker")


class HistoryPage(Page):
    """Every attempt that ended, newest first."""

    template = "tm_history.html"
    section = "history"

    def gather(self, tm: TimeManagement, *_path: str) -> Mapping[str, Any]:
        """Return the executions that the filters leave."""
        given, typed = self.filters(*FILTERS), self.filters("since", "until")
        before, now = self.query("before"), present(tm)
        wanted = given | ({"scope": read_refs(given["scope"].split())} if "scope" in given else {})
        found = tm.history(**wanted, **self.span(), before=before, limit=PAGE)
        steps = tm.step_names(found)
        return {
            "lines": [
                {
                    "one": one,
                    "step": steps.get(one.job),
                    "href": self.address("tm_job", one.job),
                    "run": self.address("tm_run", one.occurrence) if one.occurrence else None,
                    "definition": self.to_definition(one.definition) if one.definition else None,
                    "ended": self.at(one.completed_at, now),
                }
                for one in found
            ],
            "unreadable": found.unreadable,
            "given": given | typed,
            "outcomes": [str(outcome) for outcome in Outcome],
            "sources": [str(source) for source in Source],
            "following": self.address("tm_history", **given, **typed, before=found.next) if found.next else None,
            "first": self.address("tm_history", **given, **typed) if before else None,
        }


class AuditPage(Page):
    """Who changed what, newest first."""

    template = "tm_audit.html"
    section = "audit"

    def gather(self, tm: TimeManagement, *_path: str) -> Mapping[str, Any]:
        """Return the lines that the filters leave."""
        given, before, now = self.filters("object", "actor", "action"), self.query("before"), present(tm)
        rows = Rows(tm)
        found = tm.audit(**given, before=before, limit=PAGE)
        return {
            "lines": [
                {
                    "line": line,
                    "at": self.at(line.at, now),
                    "href": self.place_of(line.object),
                    "kind": line.object.partition(":")[0],
                    "name": line.object.partition(":")[2],
                    "changes": _changes(rows.audit_line(line)),
                }
                for line in found
            ],
            "unreadable": found.unreadable,
            "given": given,
            "following": self.address("tm_audit", **given, before=found.next) if found.next else None,
            "first": self.address("tm_audit", **given) if before else None,
        }

    def place_of(self, what: str) -> str | None:
        """Return the page of what was changed, if it has one."""
        kind, _, name = what.partition(":")
        pages = {"definition": "tm_definition", "job": "tm_job", "occurrence": "tm_run"}
        return self.address(pages[kind], name) if kind in pages and name else None


def _changes(row: Mapping[str, Any]) -> list[Change]:
    """Return what was and what is, field by field, without the version that every change has."""
    return [one for one in changes(row["before"] or {}, row["after"] or {}) if one[0] not in ("version", "id")]
