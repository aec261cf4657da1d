"""`TimeManagement`: definitions, dead letters, jobs and history of one app, and one round of everything in this process."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from celery import Celery

from .. import clock
from ..clock import as_utc
from ..domain.definition import Definition, check_values
from ..domain.execution import Execution
from ..domain.occurrence import Occurrence
from ..domain.schedule import Zone, read_schedule
from ..errors import InvalidValue, JobNotFound
from ..installation import Installation
from ..settings import Settings
from ..store import executions, history, jobs, schema
from ..store.history import JobStory
from .dead_letters import DeadLetters
from .definitions import Definitions
from .inline import RunSummary, run_due
from .triggering import trigger

MAX_PREVIEW = 10_000


class TimeManagement:
    """celery_tm for one Celery app. Settings are `tm_…` in `app.conf`, else the environment, else SQLite."""

    def __init__(self, app: Celery) -> None:
        self.app = app
        self.installation = Installation.of(app)
        self.definitions = Definitions(self.installation)
        self.dead_letters = DeadLetters(self.installation)

    @property
    def settings(self) -> Settings:
        """Return the settings in force."""
        return self.installation.settings

    def upgrade(self) -> str:
        """Bring the tables to this release and return their revision."""
        return schema.upgrade(self.installation.database)

    def run_due_jobs(self, now: datetime | None = None, limit: int = 100) -> RunSummary:
        """Sweep, plan, claim up to `limit` due jobs and run them in this process, as if it were `now`."""
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
            raise InvalidValue("limit", f"{limit!r} is not a number of jobs", "give a whole number of one or more")
        return run_due(self.installation, now=None if now is None else as_utc(now, field="now"), limit=limit)

    def job(self, id: str) -> JobStory:
        """Return one job's life so far, also after its row is gone."""
        with self.installation.database.transaction(write=False) as tx:
            found = history.story(tx, id)
        if found is None:
            raise JobNotFound(id)
        return found

    def jobs(self, *, state: str | None = None, task: str | None = None, limit: int = 100) -> Sequence[Any]:
        """Return jobs that are still owed, those due first in front."""
        with self.installation.database.transaction(write=False) as tx:
            return jobs.select_jobs(tx, state=state, task=task, limit=limit)

    def history(self, name: str | None = None, *, task: str | None = None, limit: int = 50) -> Sequence[Execution]:
        """Return the latest executions, of a definition, of a task, or all."""
        definition = self.definitions.get(name).id if name is not None else None
        with self.installation.database.transaction(write=False) as tx:
            return executions.latest(tx, task=task, definition=definition, limit=limit)

    def trigger(self, name: str, *, actor: str | None = None, reason: str | None = None) -> Occurrence:
        """Run a definition now, once, under its own overlap rule; return the occurrence and what was decided."""
        return trigger(self.installation, name, actor=actor, reason=reason)

    def pause(self, name: str, *, actor: str | None = None, reason: str | None = None) -> Definition:
        """Stop a definition for a while; its instants meanwhile are recorded as skipped."""
        return self._switch(name, "pause", actor, reason, paused=True)

    def resume(self, name: str, *, actor: str | None = None, reason: str | None = None) -> Definition:
        """Let a paused definition go on with its next instant."""
        return self._switch(name, "resume", actor, reason, paused=False)

    def enable(self, name: str, *, actor: str | None = None, reason: str | None = None) -> Definition:
        """Switch a definition on."""
        return self._switch(name, "enable", actor, reason, enabled=True)

    def disable(self, name: str, *, actor: str | None = None, reason: str | None = None) -> Definition:
        """Switch a definition off; its instants meanwhile are recorded as skipped."""
        return self._switch(name, "disable", actor, reason, enabled=False)

    def _switch(self, name: str, action: str, actor: str | None, reason: str | None, **values: bool) -> Definition:
        return self.definitions.change(name, values, actor=actor, reason=reason, action=action)

    def preview(
        self,
        *,
        schedule: Any,
        timezone: str = "UTC",
        since: datetime | None = None,
        count: int = 5,
        gap: str = "shift",
        fold: str | None = None,
    ) -> list[datetime]:
        """Return the next instants a schedule would yield, in UTC."""
        if isinstance(count, bool) or not isinstance(count, int) or not 0 < count <= MAX_PREVIEW:
            raise InvalidValue("count", f"{count!r} is not a number of instants", f"give 1 to {MAX_PREVIEW}")
        columns = check_values({"timezone": timezone, "gap": gap, "fold": fold}, zone=Zone())
        rule = read_schedule(schedule, Zone(name=columns["timezone"], gap=columns["gap"], fold=columns["fold"]))
        instant: datetime | None = clock.now() if since is None else as_utc(since, field="since")
        instants: list[datetime] = []
        while len(instants) < count and instant is not None and (instant := rule.next_after(instant)):
            instants.append(instant)
        return instants
