"""System health: how the whole stands, which nodes run, and what the doctor found, with what to do about each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...management import TimeManagement
from .common import Page

ORDER = ("error", "warning", "note", "ok")


class HealthPage(Page):
    """How the whole stands."""

    template = "tm_health.html"
    section = "health"

    def gather(self, tm: TimeManagement, *_path: str) -> Mapping[str, Any]:
        """Return the status, the nodes and the findings, the worst first."""
        status = tm.status()
        now = status.now
        findings = sorted(tm.doctor(), key=lambda one: ORDER.index(str(one.level)))
        return {
            "status": status,
            "nodes": [(node, self.at(node.started_at, now), self.at(node.seen_at, now)) for node in status.nodes],
            "beats": [node for node in status.nodes if node.kind == "beat" and not node.is_silent],
            "findings": [one for one in findings if str(one.level) != "ok"],
            "fine": [one for one in findings if str(one.level) == "ok"],
            "next": self.at(status.next_run_at, now),
            "oldest": status.oldest_due,
            "oldest_at": self.at(status.oldest_due.run_at, now) if status.oldest_due else None,
            "oldest_href": self.reverse_url("tm_job", status.oldest_due.id) if status.oldest_due else None,
        }
