"""One occurrence: what was decided about an instant and why, its attempts, and of a workflow every step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from ...errors import InvalidValue
from ...management import TimeManagement
from .common import Action, Page
from .definition import REPLAYABLE
from .reading import OneRun, one_run, present


class RunPage(Page):
    """One occurrence, which is also one run of a workflow."""

    template = "tm_run.html"
    section = "schedules"

    def gather(self, tm: TimeManagement, *path: str) -> Mapping[str, Any]:
        """Return what became of an instant."""
        found, now = one_run(tm, path[0]), present(tm)
        one, zone = found.occurrence, found.definition.timezone if found.definition else "UTC"
        told = tm.explain(found.name, at=one.scheduled_at) if found.name else None
        report = self.report(tm, one.id)
        return {
            "one": one,
            "name": found.name,
            "definition": self.to_definition(found.name) if found.name else None,
            "why": self.to_definition(found.name, one.scheduled_at) if found.name else None,
            "told": told if told and told.occurrence and told.occurrence.id == one.id else None,
            "at": self.at(one.scheduled_at, now, zone),
            "moments": [
                (word, self.at(at, now, zone))
                for word, at in (("Decided", one.decided_at), ("Started", one.started_at), ("Ended", one.ended_at))
            ],
            "covers": [self.at(at, now, zone) for at in (one.covers_from, one.covers_until) if at],
            "replay_of": self.address("tm_run", one.replay_of) if one.replay_of else None,
            "report": report,
            "steps": self.steps(report, found, now),
            "attempts": [] if report else self.attempts(found, now),
            "owed": [(job, self.address("tm_job", job.id), self.at(job.run_at, now)) for job in found.owed],
            "actions": self.actions(found),
        }

    def report(self, tm: TimeManagement, id: str) -> Mapping[str, Any] | None:
        """Return the report of a workflow's run; None where it is no workflow or has not begun."""
        try:
            return tm.report(id)
        except InvalidValue:
            return None

    def steps(self, report: Mapping[str, Any] | None, found: OneRun, now: datetime) -> Sequence[Mapping[str, Any]]:
        """Return the steps with their jobs and when they started."""
        progress = {job.step: job.progress for job in found.owed}
        return [
            {
                "step": step,
                "href": self.address("tm_job", step["job"]) if step.get("job") else None,
                "started": self.at(_instant(step.get("started_at")), now),
                "progress": progress.get(step["name"]),
                "replay": Action(
                    label=f"Replay from {step['name']}",
                    to=self.api("occurrences", found.occurrence.id, "replay"),
                    fields={"from_step": step["name"]},
                ),
            }
            for step in (report or {}).get("steps", [])
        ]

    def attempts(self, found: OneRun, now: datetime) -> Sequence[Mapping[str, Any]]:
        """Return the attempts of an occurrence that is one job."""
        return [
            {
                "one": one,
                "href": self.address("tm_job", one.job),
                "started": self.at(one.started_at, now),
                "ended": self.at(one.completed_at, now),
            }
            for one in found.attempts
        ]

    def actions(self, found: OneRun) -> Sequence[Action]:
        """Return what can be done to the occurrence now."""
        one = found.occurrence
        if one.state in REPLAYABLE:
            return [Action(label="Replay it", to=self.api("occurrences", one.id, "replay"), style="primary")]
        root = next((job for job in found.owed if not job.is_step), None)
        return [Action(label="Cancel it", to=self.api("jobs", root.id, "cancel"), style="danger")] if root else []


def _instant(text: Any) -> datetime | None:
    return datetime.fromisoformat(text) if isinstance(text, str) else None
