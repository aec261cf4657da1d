"""The first page: every definition with its next and last run, and what needs a look."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ...domain.definition import Definition
from ...domain.occurrence import TROUBLED, Occurrence
from ...management import TimeManagement
from ...presentation.rows import standing
from ..charts import Mark, sparkline
from .common import PAGE, Action, Page
from .reading import latest_of, present, success_rate
from .words import When

STANDINGS = ("on", "paused", "disabled", "retired")
LOOKED_AT = 20  # instants of each definition
QUIET = ("completed", "running", "queued", "pending")  # nobody asks why


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """One definition, as a line of the table."""

    definition: Definition
    href: str
    standing: str
    meaning: str
    next: When | None
    is_overdue: bool
    last: Occurrence | None
    last_at: When | None
    why: str | None  # where the question is answered why the last instant was not a success
    spark: str
    completed: int
    ended: int
    actions: Sequence[Action]


class SchedulesPage(Page):
    """Every definition, a page at a time."""

    template = "tm_schedules.html"
    section = "schedules"

    def gather(self, tm: TimeManagement, *_path: str) -> Mapping[str, Any]:
        """Return the definitions that the filters leave, and how the whole stands."""
        given = self.filters("search", "group", "standing")
        after = self.query("after")
        found = tm.definitions.list(**given, after=after, limit=PAGE)
        now = present(tm)
        latest = latest_of(tm, found, count=LOOKED_AT)
        last = found[-1].name if len(found) == PAGE else None
        return {
            "lines": [self.line(one, latest[one.id], now) for one in found],
            "given": given,
            "groups": tm.definitions.groups(),
            "standings": STANDINGS,
            "group_actions": self.group_actions(given.get("group")),
            "status": tm.status(),
            "troubled": [str(state) for state in TROUBLED],
            "following": self.address("tm", **given, after=last) if last else None,
            "first": self.address("tm", **given) if after else None,
        }

    def line(self, definition: Definition, latest: Sequence[Occurrence], now: datetime) -> Line:
        """Return a definition as a line of the table."""
        name, zone = definition.name, definition.timezone
        last = latest[-1] if latest else None
        completed, ended = success_rate([one.state for one in latest])
        asks = last is not None and last.state not in QUIET
        is_overdue = definition.next_run_at is not None and (now - definition.next_run_at).total_seconds() > 60
        return Line(
            definition=definition,
            href=self.to_definition(name),
            standing=standing(definition),
            meaning=definition.meaning,
            next=self.at(definition.next_run_at, now, zone),
            is_overdue=is_overdue and standing(definition).startswith("on"),
            last=last,
            last_at=self.at(last.scheduled_at, now, zone) if last else None,
            why=self.to_definition(name, last.scheduled_at) if last and asks else None,
            spark=sparkline([self.mark(definition, one, now) for one in latest], slots=LOOKED_AT),
            completed=completed,
            ended=ended,
            actions=actions_of(self, definition),
        )

    def mark(self, definition: Definition, one: Occurrence, now: datetime) -> Mark:
        """Return one instant as a bar that leads to its explanation."""
        at = self.at(one.scheduled_at, now, definition.timezone)
        title = f"{at.utc if at else ''}: {one.state}" + (f", {one.reason}" if one.reason else "")
        return Mark(state=str(one.state), title=title, href=self.to_definition(definition.name, one.scheduled_at))

    def group_actions(self, group: str | None) -> list[Action]:
        """Return what can be done to a whole group."""
        if group is None:
            return []
        names = ("pause", "resume", "enable", "disable")
        return [Action(label=f"{name.capitalize()} all", to=self.api("groups", group, name)) for name in names]


def actions_of(page: Page, definition: Definition) -> list[Action]:
    """Return what can be done to a definition as it stands."""
    names = [("Run now", "trigger", "primary")]
    names.append(("Resume", "resume", "success") if definition.paused else ("Pause", "pause", "outline-secondary"))
    if definition.enabled:
        names.append(("Disable", "disable", "outline-danger"))
    else:
        names.append(("Enable", "enable", "success"))
    return [
        Action(label=label, to=page.api("definitions", definition.name, act), style=style) for label, act, style in names
    ]
