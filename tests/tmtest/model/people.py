"""What people wish: `producer.cancelling`, `producer.inserting` with its keys, and `store.dead_letters.revive`."""

from __future__ import annotations

from collections.abc import Iterator

from .parts import WISH, Part, Step
from .world import PENDING, RUNNING, Beat, Row, World


class People(Part):
    """Callers and operators."""

    def steps(self, world: World) -> Iterator[Step]:
        """Yield what people may do next."""
        for job, row in enumerate(world.rows):
            if self.setting.cancels:
                yield from self._revoke(world, job) if row is None else self._cancel(world, job, row)
            if self.setting.revives:
                yield from self._revive(world, job)
            if self.setting.shares_key and not self._is_key_taken(world):
                yield from self._defer(world, job)

    def _cancel(self, world: World, job: int, row: Row) -> Iterator[Step]:
        """What waits goes, and is recorded; what runs is asked to stop; what has ended is nobody's to cancel."""
        if row.ended:
            return
        if row.state is PENDING and row.attempt <= self.setting.tries:
            later = row._replace(wait=1, tries_from=row.attempt)
            yield Step("it is replaced by a later one", WISH, world.with_row(job, later))
        if row.state is not RUNNING:
            yield Step("it is cancelled", WISH, world.ended(job, "cancelled"))
        elif self.rules.cancel_spares_what_runs:
            yield Step("it is asked to stop", WISH, world.with_row(job, row._replace(stop=True)))
        else:
            runs = any((body.job, body.attempt) == (job, row.attempt) for body in world.bodies)
            after = world.but("it was cancelled as if it had not started") if runs else world
            yield Step("it is cancelled", WISH, after.ended(job, "cancelled"))

    def _revoke(self, world: World, job: int) -> Iterator[Step]:
        """A call that no worker has seen is recorded as cancelled, and refused when it comes."""
        past = world.past[job]
        if job not in self.setting.direct or not past.is_asked or past.endings:
            return
        if self.rules.revoke_holds_the_id:
            yield Step("it is revoked before it is seen", WISH, world.recorded(job, "cancelled"))
        elif not world.beats:
            yield Step("somebody sees no row to cancel", WISH, world.with_beat(None, Beat("revokes", job, 1)))

    def _is_key_taken(self, world: World) -> bool:
        """Say whether a row that is owed has the key, or one that succeeded."""
        return bool(world.key) or any(row is not None and not row.ended for row in world.rows)

    def _defer(self, world: World, job: int) -> Iterator[Step]:
        if world.past[job].is_asked:
            return
        if job in self.setting.direct:
            yield Step("another with its key is called", WISH, self.called(world, job))
        else:
            yield Step("another with its key is deferred", WISH, self.owed(world, job))

    def _revive(self, world: World, job: int) -> Iterator[Step]:
        """A dead letter gets its tries again; a row that would tell of its failure goes. Not while its key is another's."""
        past, row = world.past[job], world.rows[job]
        has_key = self.setting.shares_key and any(other is not None and not other.ended for other in world.rows)
        if not past.letter or past.revived or has_key or (row is not None and not row.ended):
            return
        again = Row(attempt=past.letter + 1, tries_from=past.letter + 1)
        gone = world if row is None else world.with_row(job, None)
        endings = past.endings[:-1]
        yield Step("it is revived", WISH, gone.with_past(job, revived=True, letter=0, endings=endings).with_row(job, again))
