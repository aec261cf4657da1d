"""What `doctor` looks at and what it says. The rules are `domain.checkup`; gathering the facts is `management.doctor`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

from ..clock import format_duration
from ..settings import Settings
from .set_aside import BadRow
from .status import SILENT_AFTER, Status


class Level(StrEnum):
    """How bad a finding is."""

    ERROR = "error"  # work is not done
    WARNING = "warning"  # work is at risk, or waits for a person
    NOTE = "note"  # worth knowing
    OK = "ok"


TO_ACT_ON = (Level.ERROR, Level.WARNING)


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """What one check found, what to do about it, and which names or ids it is about."""

    level: Level
    check: str
    text: str
    advice: str | None = None
    objects: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class ShortKey:
    """A task with keys, how long a success of it is kept, and a definition that runs it less often than that."""

    task: str
    kept: timedelta
    definition: str
    period: timedelta


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """All that was gathered. What could not be asked is None, or empty."""

    settings: Settings
    version: str
    database: str
    schema_needed: str
    schema_found: str | None = None
    database_error: str | None = None
    is_server: bool = True
    dialect: str = "postgresql"
    ahead: timedelta | None = None  # this machine's clock against the database's
    statement: timedelta | None = None  # how long the shortest of statements takes
    broker: str | None = None
    broker_error: str | None = None
    visibility: timedelta | None = None  # after which the broker delivers again what was not acknowledged
    late_tasks: Mapping[str, timedelta | None] = field(default_factory=dict)  # acknowledged after the body: their limit
    status: Status | None = None  # None: the tables could not be read
    stated_late: Sequence[str] = ()  # settings that the configuration states otherwise than they were read
    known_tasks: frozenset[str] | None = None  # None: this app has none of its own, and cannot know
    tasks_of_definitions: Mapping[str, Sequence[str]] = field(default_factory=dict)  # of those that are on
    tasks_owed: Mapping[str, int] = field(default_factory=dict)
    short_keys: Sequence[ShortKey] = ()  # keys that are forgotten before the next run that may have the same one
    dispatched_again: Sequence[tuple[str, str, int]] = ()  # job, task, how often
    running_longest: Sequence[tuple[str, str, timedelta, timedelta | None]] = ()  # job, task, how long, usual
    stuck: Sequence[str] = ()  # occurrences that are owed, with nothing left that would end them
    spent: Sequence[str] = ()  # definitions that ran as often as they may
    never_again: Sequence[str] = ()  # others that are on and have no instant left
    paused: Sequence[tuple[str, datetime]] = ()  # since when, those longest first
    orphaned: Mapping[str, int] = field(default_factory=dict)  # of the last day, by task
    longest: Mapping[str, timedelta] = field(default_factory=dict)  # the longest body of the last day, by task
    last_buried_at: datetime | None = None
    oldest: Mapping[str, datetime] = field(default_factory=dict)  # the oldest row that may go, by kind
    unreadable: Sequence[BadRow] = ()  # of the latest rows of each table
    broken: Mapping[str, str] = field(default_factory=dict)  # definitions that cannot be planned, and why
    blocked: Mapping[str, tuple[int, str]] = field(default_factory=dict)  # queues: how many jobs wait, the broker's answer
    overdue: Sequence[tuple[str, datetime]] = ()  # definitions whose instant has come and is not decided, since when
    conflicts: Mapping[str, Sequence[str]] = field(
        default_factory=dict
    )  # definitions: fields that files or code may not set
    app: str = ""
    beats_seen: Mapping[str, datetime] = field(default_factory=dict)  # by app, where several share the tables
    now: datetime | None = None
    strays: Sequence[str] = ()  # apps that have definitions or waiting jobs, and no beat

    @property
    def is_served(self) -> bool:
        """Say whether a beat that runs may be this app's: it is alone on the tables, or its own was seen just now."""
        seen = self.beats_seen.get(self.app)
        is_alone = not self.beats_seen.keys() - {self.app}
        return is_alone or (seen is not None and self.now is not None and self.now - seen <= SILENT_AFTER)


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that is looked at, what is said if all is well, and whether it needs the tables."""

    name: str
    fine: str
    look: Callable[[Facts], Iterable[Finding]]
    needs_tables: bool = True


def examine(facts: Facts, checks: Sequence[Check]) -> list[Finding]:
    """Return what is found, the worst first; a check that finds nothing says that all is well."""
    found = [finding for check in checks if facts.status or not check.needs_tables for finding in _look(check, facts)]
    order = list(Level)
    return sorted(found, key=lambda finding: order.index(finding.level))


def _look(check: Check, facts: Facts) -> Sequence[Finding]:
    return list(check.look(facts)) or [Finding(level=Level.OK, check=check.name, text=check.fine)]


def told(duration: timedelta) -> str:
    """Return a duration as people say it."""
    whole = timedelta(seconds=round(duration.total_seconds())) if duration >= timedelta(seconds=1) else duration
    return format_duration(whole)


def names(found: Sequence[str]) -> str:
    """Return a few names, and how many more there are."""
    more = f" and {len(found) - 3} more" if len(found) > 3 else ""
    return ", ".join(found[:3]) + more
