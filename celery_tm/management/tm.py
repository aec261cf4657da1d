"""`TimeManagement`: definitions, dead letters, jobs and history of one app, and one round of everything in this process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from celery import Celery

from .. import clock
from ..clock import as_utc
from ..domain.backfill import Backfilled
from ..domain.calendar import closures_of
from ..domain.definition import Definition
from ..domain.execution import Execution
from ..domain.explanation import Explanation
from ..domain.findings import Finding
from ..domain.job import Job, checked_text
from ..domain.occurrence import Occurrence
from ..domain.paging import Page
from ..domain.schedule import Zone, read_schedule
from ..domain.stating import check_values
from ..domain.status import Status
from ..domain.timeline import Timeline
from ..errors import InvalidValue, JobNotFound, shown
from ..installation import Installation
from ..recovery.pruner import Pruned, prune
from ..scheduler.adoption import adopt_all
from ..scheduler.celery_schedules import default_zone
from ..settings import Settings
from ..store import history, occurrences, overview, schema
from ..store import workflows as runs
from ..store.audit import AuditLine
from ..store.history import JobStory
from ..store.logs import LogLine
from ..worker import builtin
from ..worker.control import make_revokes_durable
from ..worker.task import Task
from . import looking, workflows
from .backfilling import backfill
from .calendars import Calendars
from .dead_letters import DeadLetters
from .definitions import Definitions
from .doctor import doctor
from .explaining import explain
from .forecast import HOUR, Forecast, checked_hours, forecast
from .inline import RunSummary, run_due
from .takeover import take_over
from .triggering import replay, trigger

MAX_PREVIEW, MAX_HOOK = 10_000, 100
BEGINNING, END = datetime(1, 1, 2, tzinfo=UTC), datetime(9999, 12, 30, tzinfo=UTC)
AT_A_GLANCE = 50


class TimeManagement:
    """celery_tm for one Celery app. Settings are `tm_…` in `app.conf`, else the environment, else SQLite."""

    def __init__(self, app: Celery) -> None:
        self.app = app
        self.installation = Installation.of(app)
        self.definitions = Definitions(self.installation)
        self.calendars = Calendars(self.installation)
        self.dead_letters = DeadLetters(self.installation)
        builtin.register(app, Task)
        make_revokes_durable(app)

    @property
    def settings(self) -> Settings:
        """Return the settings in force."""
        return self.installation.settings

    def upgrade(self) -> str:
        """Bring the tables to this release and return their revision.

        Definitions and waiting jobs from before there were apps become this app's; where several have a beat, only those
        whose task it has.
        """
        database = self.installation.database
        revision = schema.upgrade(database)
        adopt_all(self.installation)
        return revision

    def take_over(self, app: str, *, actor: str | None = None, reason: str | None = None) -> None:
        """Make the definitions, jobs and dead letters of another app this one's, say after it was renamed.

        No beat of the other app may run. An empty name means rows that name no app.
        """
        take_over(self.installation, app, actor=actor, reason=reason)

    def run_due_jobs(self, now: datetime | None = None, limit: int = 100) -> RunSummary:
        """Sweep, plan, claim up to `limit` due jobs and run them in this process, as if it were `now`."""
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
            raise InvalidValue("limit", f"{shown(limit)} is not a number of jobs", "give a whole number of one or more")
        return run_due(self.installation, now=None if now is None else as_utc(now, field="now"), limit=limit)

    def job(self, id: str) -> JobStory:
        """Return one job's life so far, also after its row is gone."""
        with self.installation.database.transaction(write=False) as tx:
            found = history.story(tx, id)
        if found is None:
            raise JobNotFound(id)
        return found

    def jobs(
        self,
        *,
        state: str | None = None,
        task: str | None = None,
        definition: str | None = None,
        entity_id: str | None = None,
        key: str | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> Page[Job]:
        """Return jobs that are still owed, those due first in front; `after` is the cursor of the page before."""
        wanted = {"task": task, "definition": definition, "entity_id": entity_id, "dedupe_key": key}
        return looking.jobs(self.installation, state=state, after=after, limit=limit, **wanted)

    def history(
        self,
        name: str | None = None,
        *,
        task: str | None = None,
        outcome: str | None = None,
        source: str | None = None,
        entity_id: str | None = None,
        scope: Mapping[str, Any] | None = None,
        worker: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        before: str | None = None,
        limit: int = AT_A_GLANCE,
    ) -> Page[Execution]:
        """Return the latest executions that fit, of a definition also after it was removed.

        They ended in [since, until) and have all references of `scope`; `before` is the cursor of the page before.
        """
        wanted = {"task": task, "outcome": outcome, "source": source, "entity_id": entity_id, "worker": worker}
        also = {"since": since, "until": until, "scope": scope}
        return looking.history(self.installation, name, before=before, limit=limit, **wanted, **also)

    def occurrences(
        self,
        name: str | None = None,
        *,
        state: str | None = None,
        troubled: bool = False,
        since: datetime | None = None,
        until: datetime | None = None,
        before: str | None = None,
        limit: int = AT_A_GLANCE,
    ) -> Page[Occurrence]:
        """Return the latest instants, of a definition or of all, and what was decided, those planned ahead included.

        `troubled`: only those that failed, are stale, or were missed, skipped or cancelled.
        """
        wanted: dict[str, Any] = {"state": state, "troubled": troubled, "since": since, "until": until}
        return looking.occurrences(self.installation, name, before=before, limit=limit, **wanted)

    def names_of(self, found: Sequence[Occurrence]) -> Mapping[str, str]:
        """Return the names of the definitions that occurrences are of, by id; one that was removed is not there."""
        return looking.names_of(self.installation, found)

    def audit(
        self,
        *,
        object: str | None = None,
        actor: str | None = None,
        action: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        before: str | None = None,
        limit: int = AT_A_GLANCE,
    ) -> Page[AuditLine]:
        """Return who changed what, the latest first; an object is e.g. "definition:nightly" or "job:…"."""
        wanted = {"object": object, "actor": actor, "action": action, "since": since, "until": until}
        return looking.audit(self.installation, before=before, limit=limit, **wanted)

    def log(self, id: str, *, after: str | None = None, limit: int = 200) -> Page[LogLine]:
        """Return the log lines of all attempts of a job, or of one execution, in order."""
        return looking.log(self.installation, id, after=after, limit=limit)

    def status(self, at: datetime | None = None) -> Status:
        """Return what is going on, or as if it were `at`; it costs the same however much there is."""
        return overview.status(self.installation.database, at=None if at is None else as_utc(at, field="at"))

    def doctor(self) -> list[Finding]:
        """Look at the tables, clocks, brokers, nodes and work for what is wrong, and say what to do about it."""
        return doctor(self.installation)

    def glance(
        self,
        *,
        group: str | None = None,
        search: str | None = None,
        standing: str | None = None,
        task: str | None = None,
        after: str | None = None,
        limit: int = 100,
        count: int = AT_A_GLANCE,
    ) -> dict[str, list[Occurrence]]:
        """Return the last decided instants of each definition by name, also of those that never ran, a page at a time."""
        wanted = {"search": search, "standing": standing, "task": task}
        page = self.definitions.list(group=group, after=after, limit=limit, **wanted)
        with self.installation.database.transaction(write=False) as tx:
            found = occurrences.latest_of_each(tx, [definition.id for definition in page], count=count)
        return {definition.name: found[definition.id] for definition in page}

    def explain(self, name: str, *, at: datetime | None = None) -> Explanation:
        """Say in plain words why a definition ran, ran late or did not run at an instant (default: its latest)."""
        if at is not None:
            as_utc(at, field="at")
        return explain(self.installation, name, at=at)

    def replay(
        self,
        occurrence: str,
        *,
        step: str | None = None,
        from_step: str | None = None,
        reason: str | None = None,
        actor: str | None = None,
        **values: Any,
    ) -> Occurrence:
        """Run an occurrence that has ended once more, under the same overlap rule; return the new one.

        With `step` only that step of it runs, with `from_step` that one and all that wait for it; the others keep their
        results. `values` are as for `trigger`; those of the original hold where none are given.
        """
        wanted = {"step": step, "from_step": from_step}
        return replay(self.installation, occurrence, wanted=wanted, values=values, actor=actor, reason=reason)

    def report(self, occurrence: str) -> Mapping[str, Any]:
        """Return the report of a run of a workflow: of each step its state, attempts, durations and errors."""
        return workflows.report(self.installation, occurrence)

    def step_names(self, found: Sequence[Execution]) -> Mapping[str, str]:
        """Return the names of the steps that executions are of, by job; those of no step are not there."""
        with self.installation.database.transaction(write=False) as tx:
            return runs.names_of(tx, {one.job: one.occurrence for one in found if one.occurrence})

    def effective(self, name: str, step: str | None = None) -> Any:
        """Return the settings a step of a definition runs with and who states each; without a step, those of all by name."""
        return workflows.effective(self.installation, self.definitions.get(name), step)

    def hook(self, given: Any = None) -> Any:
        """Register a callable for `on_start="hook:name"` and `on_complete`: `@tm.hook`, or `@tm.hook("name")`.

        A worker calls it with the occurrence and the report, each a mapping of plain values.
        """
        if callable(given):
            self.installation.hooks[getattr(given, "__name__", repr(given))] = given
            return given

        def register(function: Any) -> Any:
            self.installation.hooks[checked_text(given, field="hook", limit=MAX_HOOK)] = function
            return function

        return register

    def backfill(
        self,
        name: str,
        *,
        since: datetime,
        until: datetime | None = None,
        overlap: str | None = None,
        again: bool = False,
        dry_run: bool = False,
        reason: str | None = None,
        actor: str | None = None,
        **values: Any,
    ) -> Backfilled:
        """Run the instants in [since, until) that did not run, one after the other; return what runs and what does not.

        `until` is now unless it is given; `overlap` may be "queue" or "allow"; `again` runs what completed or failed too.
        `values` are as for `trigger`.
        """
        return backfill(
            self.installation,
            name,
            since=since,
            until=until,
            overlap=overlap,
            again=again,
            dry_run=dry_run,
            values=values,
            reason=reason,
            actor=actor,
        )

    def prune(self) -> Pruned:
        """Delete what is older than its retention, or beyond `tm_keep_rows`; return how many rows of each kind."""
        return prune(self.installation.database, self.settings)

    def trigger(self, name: str, *, actor: str | None = None, reason: str | None = None, **values: Any) -> Occurrence:
        """Run a definition now, once, under its own overlap rule; return the occurrence and what was decided.

        `values` hold for this run only: args, kwargs, queue, priority, max_retries and timeout (of one attempt).
        """
        return trigger(self.installation, name, values=values, actor=actor, reason=reason)

    def pause(
        self, name: str | None = None, *, group: str | None = None, actor: str | None = None, reason: str | None = None
    ) -> Any:
        """Stop a definition, or a group, for a while; its instants meanwhile are recorded as skipped."""
        return self._switch(name, group, "pause", actor, reason, paused=True)

    def resume(
        self, name: str | None = None, *, group: str | None = None, actor: str | None = None, reason: str | None = None
    ) -> Any:
        """Let a paused definition, or group, go on with its next instant."""
        return self._switch(name, group, "resume", actor, reason, paused=False)

    def enable(
        self, name: str | None = None, *, group: str | None = None, actor: str | None = None, reason: str | None = None
    ) -> Any:
        """Switch a definition, or a group, on."""
        return self._switch(name, group, "enable", actor, reason, enabled=True)

    def disable(
        self, name: str | None = None, *, group: str | None = None, actor: str | None = None, reason: str | None = None
    ) -> Any:
        """Switch a definition, or a group, off; its instants meanwhile are recorded as skipped."""
        return self._switch(name, group, "disable", actor, reason, enabled=False)

    def _switch(
        self, name: str | None, group: str | None, action: str, actor: str | None, reason: str | None, **values: bool
    ) -> Definition | list[Definition]:
        """Return the definition of that name, or all those of the group, as they are then."""
        if (name is None) == (group is None):
            raise InvalidValue(action, "it needs a name or a group", "give one of them")
        if name is not None:
            return self.definitions.change(name, values, actor=actor, reason=reason, action=action)
        return self.definitions.change_group(group or "", values, actor=actor, reason=reason, action=action)

    def forecast(self, since: datetime | None = None, hours: int = 168) -> Forecast:
        """Return how many instants each hour to come has, by definition (default: a week from this full hour on).

        The work is bounded: what fires very often is estimated, and where the counting stops is said.
        """
        start = clock.now().replace(minute=0, second=0, microsecond=0) if since is None else as_utc(since, field="since")
        if not BEGINNING <= start <= END - checked_hours(hours) * HOUR:
            raise InvalidValue("since", f"{start.isoformat()} is at the end of the calendar", "give another instant")
        return forecast(self.definitions.list(), since=start, hours=hours)

    def preview(
        self,
        *,
        schedule: Any,
        timezone: str | None = None,
        since: datetime | None = None,
        count: int = 5,
        gap: str = "shift",
        fold: str | None = None,
        name: str = "",
        excluded: Sequence[Any] = (),
        calendars: Sequence[str] = (),
    ) -> list[datetime]:
        """Return the next instants a schedule would yield, in UTC; its local times are in `timezone`, or the app's.

        `name` is what `H` in a cron expression goes by.
        """
        if isinstance(count, bool) or not isinstance(count, int) or not 0 < count <= MAX_PREVIEW:
            raise InvalidValue("count", f"{shown(count)} is not a number of instants", f"give 1 to {MAX_PREVIEW}")
        timezone = default_zone(self.app) if timezone is None else timezone
        said = {"timezone": timezone, "gap": gap, "fold": fold, "excluded": excluded, "calendars": list(calendars)}
        columns = check_values(said, zone=Zone())
        rule = read_schedule(schedule, Zone(name=columns["timezone"], gap=columns["gap"], fold=columns["fold"]), name=name)
        entries = (*columns["excluded"], *(entry for one in calendars for entry in self.calendars.get(one).entries))
        timeline = Timeline(rule=rule, closures=closures_of(entries, columns["timezone"]) if entries else None)
        instant: datetime | None = clock.now() if since is None else as_utc(since, field="since")
        instants: list[datetime] = []
        while len(instants) < count and instant is not None and (instant := timeline.next_after(instant)):
            instants.append(instant)
        return instants
