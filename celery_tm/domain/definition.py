"""A definition: a recurring rule, as it is kept in `tm_definition`, and how it is made and edited.

What people state is checked in `domain.stating`; here stands what a definition is and what an edit means.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from typing import Any
from zoneinfo import ZoneInfo

from ..errors import InvalidValue, NoInstantLeft, nearest
from .calendar import closures_of
from .codec import decode, dumped
from .contradictions import refuse_contradictions
from .dst import Fold, Gap, wall_to_utc
from .job import MAX_NAME, checked_actor, checked_text
from .overlap import Overlap
from .recovery import CatchUp, Recovery
from .schedule import Schedule, Zone, load_schedule
from .stating import FIELDS, check_values, write_fields, write_schedule, write_value
from .timeline import INSTANT, Timeline
from .workflow import Mode, Strategy


class Standing(StrEnum):
    """Whether a definition fires; where several words fit, the one that comes last here."""

    ON = "on"
    PAUSED = "paused"
    DISABLED = "disabled"
    RETIRED = "retired"  # what seeded it no longer names it


@dataclass(frozen=True, kw_only=True, slots=True)
class WaitingEdit:
    """An edit that takes over after the run at `after`, or at a given time: then `after` is a microsecond before it."""

    values: Mapping[str, Any]
    after: datetime
    actor: str | None = None
    reason: str | None = None
    parts: Sequence[Mapping[str, Any]] = ()  # who stated which fields and why, where it was joined from several edits

    @property
    def at(self) -> datetime | None:
        """Return the given time; None: it waits for a run."""
        return self.after + INSTANT if self.after.microsecond == 999_999 else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Past:
    """What a definition that comes from elsewhere has behind it. Instants up to `planned_until` are decided."""

    planned_until: datetime
    last_run_at: datetime | None = None
    runs: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Definition:
    """One row of `tm_definition`. `planned_until` is the last instant decided; it only moves forward."""

    id: str
    name: str
    task: str
    args: str = "[]"
    kwargs: str = "{}"
    schedule_kind: str
    schedule: str
    timezone: str = "UTC"
    gap: Gap = Gap.SHIFT
    fold: Fold | None = None
    starts_at: datetime | None = None
    ends_at: datetime | None = None
    excluded: tuple[str, ...] = ()
    calendars: tuple[str, ...] = ()
    jitter: timedelta | None = None
    max_runs: int | None = None
    enabled: bool = True
    paused: bool = False
    group: str | None = None
    queue: str | None = None
    priority: int | None = None
    max_retries: int | None = None  # None: the task's own, and so for retry and task_timeout
    retry: Mapping[str, Any] | None = None
    overlap: Overlap = Overlap.SKIP
    concurrency_key: str | None = None
    concurrency: int | None = None
    recovery: Recovery = Recovery.LAST
    recovery_count: int | None = None
    recovery_within: timedelta | None = None
    recovery_spacing: timedelta | None = None
    execution_timeout: timedelta | None = None
    task_timeout: timedelta | None = None
    expires: timedelta | None = None
    pause_after: int | None = None
    plan_ahead: timedelta | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    steps: Sequence[Any] | None = None  # as they were stated; None: one task
    mode: Mode = Mode.SEQUENTIAL
    failure_strategy: Strategy | None = None
    max_parallel: int | None = None
    terminate: bool = False
    on_start: str | None = None
    on_complete: str | None = None
    origin: str | None = None  # what seeded it, and may retire it
    retired_at: datetime | None = None
    version: int = 1
    next_edit: Mapping[str, Any] | None = None
    runs: int = 0
    planned_until: datetime
    planned_offset: int | None = None  # the zone's offset at `planned_until` as it was known then, in seconds
    catching_up_from: datetime | None = None
    spaced_until: datetime | None = None
    next_run_at: datetime | None = None
    last_run_at: datetime | None = None
    created_at: datetime
    created_by: str | None = None
    updated_at: datetime
    updated_by: str | None = None
    app: str = ""  # the app whose beats plan it
    declared: Mapping[str, Any] | None = None  # what files and code stated last, see `domain.declared`
    groups: tuple[str, ...] = ()  # all of them, where there are several; `group` is the first
    on_start_blocking: bool = False
    # Not a column: what its calendars say, by name, and those that its waiting edit names.
    closed: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    # Not a column either: columns that this release cannot read, and why. They hold what is in the row, or a default.
    unread: Mapping[str, str] = field(default_factory=dict)

    @property
    def problem(self) -> str | None:
        """Return why this process cannot plan the definition; None if it can."""
        if self.unread:
            return "; ".join(f"{column}: {error}" for column, error in self.unread.items())
        try:
            _ = self.waiting_edit, self.following, decode(self.args), decode(self.kwargs)
        except Exception as error:  # a zone, kind or package that this node lacks, or a text that nobody can read
            return str(error) or type(error).__name__
        return None

    @property
    def meaning(self) -> str:
        """Return the schedule in words, also of a definition that cannot be read."""
        try:
            return self.rule.describe()
        except Exception as error:
            return f"cannot be read: {error}"

    @property
    def rule(self) -> Schedule:
        """Return the schedule as a value."""
        hashed = self.name if "h" in self.schedule.lower() else ""  # only `H` goes by the name; the rest is shared
        return _loaded(self.schedule_kind, self.schedule, self.timezone, self.gap, self.fold, hashed)

    @property
    def timeline(self) -> Timeline:
        """Return the instants this definition yields; raise if it cannot be read."""
        if self.unread:
            raise InvalidValue(f"definition {self.name!r}", self.problem or "", "correct it, or remove the definition")
        entries = (*self.excluded, *(entry for name in self.calendars for entry in self.closed[name]))
        closures = closures_of(entries, self.timezone) if entries else None
        return Timeline(rule=self.rule, starts_at=self.starts_at, ends_at=self.ends_at, closures=closures)

    @property
    def is_workflow(self) -> bool:
        """Say whether a run of it is more than one job: it has steps, or hooks."""
        return bool(self.steps or self.on_start or self.on_complete)

    @property
    def catch_up(self) -> CatchUp:
        """Return what happens to missed instants."""
        return CatchUp(
            policy=self.recovery, count=self.recovery_count, within=self.recovery_within, spacing=self.recovery_spacing
        )

    @property
    def waiting_edit(self) -> WaitingEdit | None:
        """Return the edit that waits for its moment."""
        if self.next_edit is None:
            return None
        edit = dict(self.next_edit)
        return WaitingEdit(**edit | {"after": datetime.fromisoformat(edit["after"])})

    @property
    def standing(self) -> Standing:
        """Say whether it fires."""
        if self.retired_at is not None:
            return Standing.RETIRED
        if not self.enabled:
            return Standing.DISABLED
        return Standing.PAUSED if self.paused else Standing.ON

    @property
    def is_spent(self) -> bool:
        """Say whether it has run as often as it may."""
        return self.max_runs is not None and self.runs >= self.max_runs

    @property
    def resumes_after(self) -> datetime:
        """Return the instant after which the next one is looked for.

        A new tz database may give the last decided local time another instant: it is not to fire a second time.
        """
        then = self.planned_offset
        if then is None or then == self.offset_at(self.planned_until) or not self.is_local:
            return self.planned_until
        wall = self.planned_until.replace(tzinfo=None) + timedelta(seconds=then)
        moved = wall_to_utc(wall, zone=ZoneInfo(self.timezone), gap=Gap.SHIFT, fold=Fold.FIRST)
        return max(self.planned_until, moved or self.planned_until)

    @property
    def is_local(self) -> bool:
        """Say whether it fires at local times of its zone, and not at instants that no zone moves, nor every so often."""
        zone, repeats = getattr(self.rule, "zone", None), getattr(self.rule, "is_interval_like", False)
        return isinstance(zone, Zone) and zone.name == self.timezone and not (repeats and self.fold in (None, Fold.BOTH))

    @property
    def following(self) -> datetime | None:
        """Return the next instant to decide, if there is one."""
        return None if self.is_spent or self.retired_at else self.timeline.next_after(self.resumes_after)

    @property
    def looked_at(self) -> datetime | None:
        """Return when a beat has to look at it next: at its next instant, or before that where an edit takes over."""
        edit = None if self.retired_at else self.waiting_edit
        return min((at for at in (self.following, edit.at if edit else None) if at), default=None)

    def next_after(self, instant: datetime) -> datetime | None:
        """Return the first instant strictly later than `instant` within the definition's bounds."""
        return self.timeline.next_after(instant)

    def offset_at(self, instant: datetime) -> int | None:
        """Return the zone's offset from UTC at an instant, in seconds; None where it never changes."""
        if self.timezone == "UTC":
            return None
        try:
            offset = instant.astimezone(ZoneInfo(self.timezone)).utcoffset()
        except OverflowError:
            return None  # its local time lies beyond the calendar
        return None if offset is None else int(offset.total_seconds())


@lru_cache(maxsize=16384)
def _loaded(kind: str, expression: str, zone: str, gap: Gap, fold: Fold | None, name: str) -> Schedule:
    return load_schedule(kind, expression, Zone(name=zone, gap=gap, fold=fold), name=name)


# What decides when it fires: a change of one of these sets the next instant anew.
TIMING = frozenset({
    "schedule_kind", "schedule", "timezone", "gap", "fold", "starts_at", "ends_at", "excluded", "calendars", "max_runs",
})  # fmt: skip
MAX_DEFINITION = 950_000  # characters of JSON, of all that is stated: a version keeps it as one text
COLUMNS = tuple(f.name for f in fields(Definition) if f.name not in ("closed", "unread"))
SWITCHES = frozenset({"enabled", "paused"})  # what can be changed without reading the rest
Calendars = Mapping[str, tuple[str, ...]]


def new_definition(
    *,
    id: str,
    name: str,
    values: Mapping[str, Any],
    now: datetime,
    actor: str | None,
    calendars: Calendars | None = None,
    origin: str | None = None,
    past: Past | None = None,
) -> Definition:
    """Return a checked definition that plans instants later than `now`, or than what its past says is decided."""
    checked_text(name, field="name", limit=MAX_NAME)
    checked_actor(actor)
    columns = check_values(values, zone=Zone(), name=name)
    for needed in ("task", "schedule"):
        if needed not in values and needed not in columns:
            remedy = "add task=…, or steps=[…]" if needed == "task" else f"add {needed}=…"
            raise InvalidValue(needed, f"definition {name!r} has none", remedy)
    past = past or Past(planned_until=now)
    definition = _with_calendars(
        Definition(
            id=id,
            name=name,
            planned_until=past.planned_until,
            last_run_at=past.last_run_at,
            runs=past.runs,
            created_at=now,
            updated_at=now,
            created_by=actor,
            updated_by=actor,
            origin=origin,
            **columns,
        ),
        calendars,
    )
    refuse_contradictions(definition)
    _refuse_length(definition)
    since = past.planned_until
    definition = replace(definition, planned_offset=definition.offset_at(since), next_run_at=definition.following)
    if definition.next_run_at is None:
        raise NoInstantLeft("schedule", f"{definition.schedule!r} has no instant after {since.isoformat()}", _NEVER)
    return definition


_NEVER = "give one that is still to come, or other bounds and exclusions"


def _with_calendars(definition: Definition, calendars: Calendars | None) -> Definition:
    calendars = calendars or {}
    for name in definition.calendars:
        if name not in calendars:
            near = nearest(name, calendars)
            raise InvalidValue(
                "calendars",
                f"there is no calendar {name!r}" + (f", did you mean {near!r}?" if near else ""),
                'add it first with tm.calendars.set(name, ["2026-12-25"]) or [[calendars]] in the file',
            )
    later = {name: definition.closed[name] for name in calendars_later(definition.next_edit) if name in definition.closed}
    return replace(definition, closed={**later, **{name: calendars[name] for name in definition.calendars}})


def calendars_later(edit: Any) -> list[str]:
    """Return the calendars that a waiting edit names, of which nobody knows whether it can be read."""
    values = edit.get("values") if isinstance(edit, Mapping) else None
    named = values.get("calendars") if isinstance(values, Mapping) else None
    return [name for name in named if isinstance(name, str)] if isinstance(named, (list, tuple)) else []


def _refuse_length(definition: Definition) -> None:
    if (size := len(dumped(stated(definition)))) > MAX_DEFINITION:
        problem = f"{definition.name!r} has {size:,} characters of JSON in all"
        raise InvalidValue("definition", problem, f"stay within {MAX_DEFINITION:,}, pass ids that the task looks up")


def edited(
    definition: Definition,
    *,
    values: Mapping[str, Any],
    now: datetime,
    actor: str | None,
    calendars: Calendars | None = None,
) -> Definition:
    """Return the next version of a definition, or the same one if nothing differs."""
    checked_actor(actor)
    zone = Zone(name=definition.timezone, gap=definition.gap, fold=definition.fold)
    columns = check_values(values, zone=zone, name=definition.name, present=definition)
    differs = {name for name, value in columns.items() if getattr(definition, name) != value or name in definition.unread}
    changed = {name: value for name, value in columns.items() if name in differs}
    if not changed:
        return definition
    unread = {column: error for column, error in definition.unread.items() if column not in changed}
    after = replace(definition, **changed, unread=unread, version=definition.version + 1, updated_at=now, updated_by=actor)
    if not changed.keys() - SWITCHES:
        return after
    after = _with_calendars(after, {**definition.closed, **(calendars or {})})
    refuse_contradictions(after)
    _refuse_length(after)
    if TIMING & changed.keys():
        # Instants up to now belong to the rule that was in force, and are decided; the new one begins with the next.
        planned_until = max(definition.planned_until, now)
        after = replace(after, planned_until=planned_until, planned_offset=after.offset_at(planned_until))
        after = replace(after, next_run_at=after.looked_at)
    return after


def retired(definition: Definition, *, now: datetime) -> Definition:
    """Return a definition that what seeded it no longer names: it keeps its history and fires no more."""
    return replace(definition, retired_at=now, next_run_at=None, version=definition.version + 1, updated_at=now)


def unretired(definition: Definition, *, now: datetime) -> Definition:
    """Return a retired definition that is named again; instants meanwhile are not made up for."""
    back = replace(definition, retired_at=None, planned_until=max(now, definition.planned_until), updated_at=now)
    offset = back.offset_at(back.planned_until)
    back = replace(back, version=definition.version + 1, planned_offset=offset, catching_up_from=None)
    return replace(back, next_run_at=back.looked_at)


def stated(definition: Definition) -> dict[str, Any]:
    """Return what a person would write to get this definition, as plain JSON without defaults."""
    values: dict[str, Any] = {}
    for name in FIELDS:
        value = getattr(definition, name)
        default = _DEFAULTS.get(name)
        if value != default and name != "schedule":
            values[name] = write_value(name, value)
    if definition.groups:
        values["group"] = list(definition.groups)
    schedule = write_schedule(definition.schedule_kind, definition.schedule)
    task = {"task": values.pop("task")} if not definition.steps else {}
    values.pop("task", None)
    return {**task, "schedule": schedule, **values}


_DEFAULTS = {f.name: f.default for f in fields(Definition)} | {"options": {}}
# As people state them; a task and a schedule have none.
DEFAULTS = write_fields({name: _DEFAULTS[name] for name in FIELDS if name not in ("task", "schedule")})
