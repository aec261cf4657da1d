"""System health: how the whole stands, which nodes run, and what the doctor found, with what to do about each."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from ...domain.findings import Finding
from ...management import TimeManagement
from .common import Page
from .words import code_in

ORDER = ("error", "warning", "note", "ok")
KEPT = 15  # seconds that findings are kept: the page is live, and the doctor also asks the broker


class HealthPage(Page):
    """How the whole stands."""

    template = "tm_health.html"
    section = "health"

    def gather(self, tm: TimeManagement, *_path: str) -> Mapping[str, Any]:
        """Return the status, the nodes and the findings, the worst first."""
        status = tm.status()
        now = status.now
        findings = sorted(self.findings(tm), key=lambda one: ORDER.index(str(one.level)))
        return {
            "status": status,
            "nodes": [(node, self.at(node.started_at, now), self.at(node.seen_at, now)) for node in status.nodes],
            "beats": [node for node in status.nodes if node.kind == "beat" and not node.is_silent],
            "findings": [one for one in findings if str(one.level) != "ok"],
            "fine": [one for one in findings if str(one.level) == "ok"],
            "next": self.at(status.next_run_at, now),
            "code_in": code_in,
            "oldest": status.oldest_due,
            "oldest_at": self.at(status.oldest_due.run_at, now) if status.oldest_due else None,
            "oldest_href": self.address("tm_job", status.oldest_due.id) if status.oldest_due else None,
        }

    def findings(self, tm: TimeManagement) -> Sequence[Finding]:
        """Return what the doctor found, now or a moment ago."""
        kept: dict[str, Any] = self.application.settings.setdefault("celery_tm_findings", {})
        if time.monotonic() - kept.get("at", -KEPT) >= KEPT:
            kept.update(found=tm.doctor(), at=time.monotonic())
        found: Sequence[Finding] = kept["found"]
        return found
