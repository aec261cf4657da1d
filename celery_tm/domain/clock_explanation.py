"""What an explanation says about times: which schedule gave one, and what a local time means where clocks are changed."""

from __future__ import annotations

from datetime import datetime

from .definition import Definition
from .dst import Transition
from .occurrence import Occurrence
from .run_explanation import stamp
from .schedule import rules_at


def no_such_time(wall: datetime | None, change: Transition | None) -> str:
    """Say that clocks skip a local time."""
    if wall is None or change is None:
        return ""
    jump = f"from {change.wall(change.before):%H:%M} to {change.wall(change.after):%H:%M}"
    return f"{wall:%H:%M:%S} does not exist on {wall:%Y-%m-%d}: clocks go forward {jump}"


def clock_lines(wall: datetime | None, change: Transition | None, at: datetime) -> list[str]:
    """Say what the local time that was asked about means; nothing where no clocks are changed then."""
    if wall is None or change is None:
        return []
    if change.is_gap:
        return [no_such_time(wall, change)]
    first, second = map(stamp, change.readings(wall))
    which = "first" if stamp(at) == first else "second"
    return [f"{wall:%H:%M:%S} comes twice on {wall:%Y-%m-%d}, at {first} and {second}: this is about the {which}"]


def given_by(definition: Definition | None, occurrence: Occurrence) -> list[str]:
    """Say which of several schedules gave a scheduled time; nothing where there is one, or another version had others."""
    if definition is None or definition.problem is not None or definition.version != occurrence.version:
        return []
    rules = rules_at(definition.rule, occurrence.scheduled_at)
    return [f"given by the schedule {' and by '.join(map(repr, rules))}"] if rules else []
