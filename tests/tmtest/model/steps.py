"""Everything that may happen next in the model, statement by statement, as the code has it.

A step is of one of five kinds: what the *system* does, what *time* does, a *fault* (a death, a lost or doubled message, a
worker that is cut off), a *loss* of what the database had, and a *wish* of somebody outside.
"""

from __future__ import annotations

from collections.abc import Iterator

from .beats import Beats
from .bodies import Bodies
from .gate import Gate
from .parts import TIME, Part, Step
from .people import People
from .world import Rules, Setting, World


class Time(Part):
    """A clock, or none: then a backoff is over at any moment."""

    def steps(self, world: World) -> Iterator[Step]:
        """Let a moment pass; a healthy worker does not let it pass without a renewal that is due."""
        if not self.setting.timed:
            for job, row in enumerate(world.rows):
                if row is not None and row.wait:
                    yield Step("its time comes", TIME, world.with_row(job, row._replace(wait=0)))
            return
        if any(body.healthy and body.renew == 0 for body in world.bodies):
            return
        rows = tuple(row and row._replace(wait=max(row.wait - 1, 0), lease=max(row.lease - 1, 0)) for row in world.rows)
        bodies = tuple(sorted(body._replace(renew=max(body.renew - 1, 0)) for body in world.bodies))
        after = world._replace(rows=rows, bodies=bodies)
        if after != world:
            yield Step("time passes", TIME, after)


class Protocol:
    """All steps of a world of some size, by some rules."""

    def __init__(self, setting: Setting, rules: Rules) -> None:
        self.parts = [part(setting, rules) for part in (Beats, Gate, Bodies, People, Time)]

    def steps(self, world: World) -> Iterator[Step]:
        """Yield everything that may happen next."""
        for part in self.parts:
            yield from part.steps(world)
