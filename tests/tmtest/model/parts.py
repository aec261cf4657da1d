"""What the parts of the protocol share: a step, and the endings that worker and sweeper write alike."""

from __future__ import annotations

from typing import NamedTuple

from .world import PENDING, Row, Rules, Setting, World, is_last_try

SYSTEM, TIME, FAULT, WISH, LOSS = "system", "time", "fault", "wish", "loss"


class Step(NamedTuple):
    """One thing that happens, and the world after it."""

    name: str
    kind: str
    world: World


class Part:
    """Some of the steps of a world of some size, by some rules."""

    def __init__(self, setting: Setting, rules: Rules) -> None:
        self.setting, self.rules = setting, rules

    def is_over(self, left: int) -> bool:
        """Say whether a lease has ended; without a clock it may have at any moment."""
        return left == 0 or not self.setting.timed

    def has_room(self, world: World) -> bool:
        """Say whether the broker takes another message."""
        return len(world.messages) < self.setting.in_broker

    def lease(self) -> int:
        """Return a new lease; by a worker's own clock, which is behind, it is over at once."""
        return self.setting.lease if self.rules.database_clock else 0

    def failed(self, world: World, job: int, row: Row) -> World:
        """Asked to stop: cancelled; the tries are used up: buried; else it gets its next try."""
        if row.stop and self.rules.retry_asks_for_a_cancel:
            return world.ended(job, "cancelled")
        if self.is_last_try(row):
            return self.lettered(world.ended(job, "buried"), job, row)
        if row.stop:
            world = world.but("it was asked to stop and is tried again")
        return self.again(world, job, row, tries_from=row.tries_from, wait=1)

    def is_last_try(self, row: Row) -> bool:
        """Say whether a job whose present attempt fails is buried."""
        return is_last_try(row.attempt, row.tries_from, self.setting.tries)

    def lettered(self, world: World, job: int, row: Row) -> World:
        """Keep the attempt at which a job was buried, where somebody may revive it."""
        return world.with_past(job, letter=row.attempt) if self.setting.revives else world

    def again(self, world: World, job: int, row: Row, *, tries_from: int, wait: int = 0) -> World:
        """Let a job wait for its next attempt."""
        attempt = row.attempt + 1 if self.rules.retry_counts else row.attempt
        again = row._replace(state=PENDING, attempt=attempt, tries_from=tries_from, wait=wait, lease=0, who=0)
        return world.with_row(job, again)

    def carried_on(self, world: World, job: int, row: Row, *, wait: int = 0) -> World:
        """Let another worker hand on what follows."""
        return self.again(world, job, row, tries_from=row.tries_from + 1, wait=wait)

    def called(self, world: World, job: int) -> World:
        """Send a call; a broker that is full loses it, as it may lose any message."""
        return (world.with_message(job, 1) if self.has_room(world) else world).with_past(job, is_asked=True)

    def owed(self, world: World, job: int) -> World:
        """Insert a job."""
        return world.with_past(job, is_asked=True).with_row(job, Row())
