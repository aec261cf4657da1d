"""Live jobs, and one job's story: every attempt, its log, its error, and what can be done about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from ...domain.job import Job, JobState, Slot
from ...domain.queues import publish_error
from ...errors import DeadLetterNotFound
from ...management import TimeManagement
from ...presentation import Rows
from ...store.history import JobStory
from .common import PAGE, Action, Page
from .reading import present
from .words import plainly, share_of

LINES = 200
STATES = tuple(str(state) for state in JobState)
FILTERS = ("state", "task", "definition", "entity_id", "key")


class JobsPage(Page):
    """What is owed: running first, then by when it is due."""

    template = "tm_jobs.html"
    section = "jobs"

    def gather(self, tm: TimeManagement, *_path: str) -> Mapping[str, Any]:
        """Return the jobs that the filters leave."""
        given = self.filters(*FILTERS)
        after, now = self.query("after"), present(tm)
        running = [] if after or "state" in given else tm.jobs(**given, state="running", limit=PAGE)
        found = tm.jobs(**given, after=after, limit=PAGE)
        others = [job for job in found if job.state is not JobState.RUNNING or given.get("state") == "running"]
        return {
            "running": [self.line(job, now) for job in running],
            "others": [self.line(job, now) for job in others],
            "unreadable": found.unreadable,
            "given": given,
            "states": STATES,
            "status": tm.status(),
            "following": self.address("tm_jobs", **given, after=found.next) if found.next else None,
            "first": self.address("tm_jobs", **given) if after else None,
        }

    def line(self, job: Job, now: datetime) -> Mapping[str, Any]:
        """Return a job as a line of the table."""
        return {
            "job": job,
            "href": self.address("tm_job", job.id),
            "definition": self.to_definition(job.definition) if job.definition else None,
            "stands": stands(job, now),
            "run_at": self.at(job.run_at, now),
            "started": self.at(job.claimed_at, now) if job.state is JobState.RUNNING else None,
            "share": share_of(job.progress),
            "cancel": [Action(label="Cancel it", to=self.api("jobs", job.id, "cancel"), style="danger")],
        }


def stands(job: Job, now: datetime) -> str:
    """Say where a job stands, in a word that people use: its state, or what it waits for."""
    if job.state is not JobState.PENDING:
        return str(job.state)
    if publish_error(job) is not None:
        return "not published"
    if job.slot is Slot.HELD:
        return "waits for its turn"
    if job.run_at <= now:
        return "due"
    return "waits to try again" if job.retries else "pending"


class JobPage(Page):
    """One job's life so far."""

    template = "tm_job.html"
    section = "jobs"

    def gather(self, tm: TimeManagement, *path: str) -> Mapping[str, Any]:
        """Return one job's story."""
        story, now, rows = tm.job(path[0]), present(tm), Rows(tm)
        letter = self.letter(tm, story.id)
        lines = tm.log(story.id, after=self.query("after"), limit=LINES)
        return {
            "story": story,
            "letter": letter,
            "stands": "dead letter" if letter else stands(story.job, now) if story.job else str(story.state).lower(),
            "definition": self.to_definition(story.definition) if story.definition else None,
            "run": self.address("tm_run", story.run) if story.run else None,
            "occurrence": self.occurrence(story),
            "of_task": self.address("tm_history", task=story.task),
            "in_flower": self.reverse_url("task", story.id),
            "run_at": self.at(story.run_at, now),
            "buried_at": self.at(letter.buried_at, now) if letter else None,
            "share": share_of(story.progress),
            "attempts": [
                {"one": one, "started": self.at(one.started_at, now), "ended": self.at(one.completed_at, now)}
                for one in story.executions
            ],
            "lines": [(line, self.at(line.at, now)) for line in lines],
            "more_lines": self.address("tm_job", story.id, after=lines.next) if lines.next else None,
            "settings": self.settings_of(rows, story),
            "actions": self.actions(story, is_letter=letter is not None),
            "purge": self.address("tm_dead_letters_preview", action="purge", ids=[story.id]) if letter else None,
        }

    def letter(self, tm: TimeManagement, id: str) -> Any:
        """Return the dead letter that the job became, if it did."""
        try:
            return tm.dead_letters.get(id)
        except DeadLetterNotFound:
            return None

    def occurrence(self, story: JobStory) -> str | None:
        """Return the address of the occurrence that the job is of."""
        ids = [story.job.occurrence if story.job else None, *(one.occurrence for one in story.executions)]
        found = next((id for id in ids if id), None)
        return self.address("tm_run", found) if found else None

    def actions(self, story: JobStory, *, is_letter: bool) -> Sequence[Action]:
        """Return what can be done to the job now."""
        if is_letter:
            return [Action(label="Revive", to=self.api("dead-letters", story.id, "revive"), style="primary")]
        if story.job is not None and not story.job.cancel_requested:
            return [Action(label="Cancel it", to=self.api("jobs", story.id, "cancel"), style="danger")]
        return []

    def settings_of(self, rows: Rows, story: JobStory) -> list[tuple[str, str]]:
        """Return what is known of the job besides: its arguments as they may be shown, and what it goes by."""
        if story.job is None:
            return []
        job = rows.job(story.job)
        names = ("args", "kwargs", "dedupe_key", "entity_id", "scope", "queue", "priority", "max_retries", "retry", "source")
        more = (
            "expires_at",
            "timeout",
            "concurrency_key",
            "lease_until",
            "stuck_at",
            "claimed_by",
            "dispatches",
            "created_at",
        )
        return [(name, plainly(job[name])) for name in (*names, *more) if job[name] not in (None, "", {}, [])]
