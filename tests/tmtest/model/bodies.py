"""What becomes of an attempt that was let in: `worker.recorder`, `worker.lease`, `worker.following`, `store.settlement`.

A worker may die between any two transactions. The answer to a commit may get lost: then the worker tries again, finds that
the row is not its own any more, and its own record.
"""

from __future__ import annotations

from collections.abc import Iterator

from .parts import FAULT, SYSTEM, WISH, Part, Step
from .world import RUNNING, Body, Row, World

HANDING_ON = ("hands on", "forgets")


class Bodies(Part):
    """Workers that are at something."""

    def steps(self, world: World) -> Iterator[Step]:
        """Yield what may become of each body."""
        for body in dict.fromkeys(world.bodies):
            yield from self._body(world, body)

    def _body(self, world: World, body: Body) -> Iterator[Step]:
        idle, row = world.with_body(body, None), world.rows[body.job]
        mine = row if row is not None and self._is_mine(row, body) else None
        if not (body.phase in HANDING_ON and self._is_spared(body)):
            yield Step("a worker dies", FAULT, idle)
        if body.phase == "has asked":
            return
        if self.setting.timed:
            yield from self._lease(world, body, mine)
        if body.phase == "runs":
            yield from self._finish(world, idle, body, mine)
            yield from self._hand_back(idle, body, row)
        elif body.phase in HANDING_ON:
            yield from self._hand_on(world, idle, body, mine)
        else:
            yield from self._second_transaction(idle, body, mine)

    def _is_mine(self, row: Row, body: Body) -> bool:
        """The condition of every statement that ends, renews or moves an attempt."""
        is_attempt = row.attempt == body.attempt or not self.rules.fencing
        return row.state is RUNNING and is_attempt and (row.who == body.who or not self.rules.fenced_by_worker)

    def _is_spared(self, body: Body) -> bool:
        return body.attempt >= self.setting.last_attempt  # handing on has no last attempt of its own

    # The lease

    def _lease(self, world: World, body: Body, mine: Row | None) -> Iterator[Step]:
        """A healthy worker renews in time. One that is cut off may come back, and renew if nobody has put back its job."""
        renewed = world.with_body(body, body._replace(healthy=True, renew=self.setting.renew_every))
        if mine is not None:
            renewed = renewed.with_row(body.job, mine._replace(lease=self.lease()))
        cut_off = world.with_body(body, body._replace(healthy=False, renew=0))
        if body.healthy:
            yield Step("a worker is cut off", FAULT, cut_off)
            if body.renew == 0 and mine is not None:
                yield Step("a lease is renewed", SYSTEM, renewed)
            elif body.renew == 0:
                yield Step("a worker hears that its lease is lost", SYSTEM, cut_off)
        elif mine is not None:
            yield Step("a worker comes back", FAULT, renewed)

    # The end of a body

    def _finish(self, world: World, idle: World, body: Body, mine: Row | None) -> Iterator[Step]:
        """The body returns or raises."""
        if mine is None:
            yield self._lost(idle, body.job)
            return
        if mine.ended and self.rules.finish_needs_owed:
            yield Step("a worker finds its own record", SYSTEM, world.with_body(body, body._replace(phase="hands on")))
            return
        if mine.attempt != body.attempt:
            world, idle = (one.but("a stale worker ended a newer attempt") for one in (world, idle))
        if mine.who != body.who:
            world, idle = (one.but("a worker ended what another was let in for") for one in (world, idle))
        for step in (self._succeed(world, idle, body, mine), self._fail(world, idle, body, mine)):
            yield step
            yield Step("an answer is lost", FAULT, step.world._replace(bodies=world.bodies))
        if mine.stop:
            yield Step("a body stops", SYSTEM, idle.ended(body.job, "cancelled"))

    def _lost(self, idle: World, job: int) -> Step:
        if self.rules.finish_needs_row:
            return Step("a worker finds its lease lost", SYSTEM, idle)
        return Step("a worker succeeds without a row", SYSTEM, self._written(idle, job).recorded(job, "succeeded"))

    def _succeed(self, world: World, idle: World, body: Body, row: Row) -> Step:
        rules = self.rules
        if not rules.effect_with_success:
            wrote = self._written(world, body.job).with_body(body, body._replace(phase="wrote"))
            return Step("a body commits what it did", SYSTEM, wrote)
        if self.setting.next_step and body.job == 0 and not rules.commit_before_send:
            return Step(
                "a body's call is sent", SYSTEM, self.called(world, 1).with_body(body, body._replace(phase="called"))
            )
        if self._is_followed(body.job) and not rules.record_before_hand_on:
            called = self.called(world, 1).with_body(body, body._replace(phase="called"))
            return Step("what follows is handed on", SYSTEM, called)
        return self._commit(world, idle, body, row)

    def _commit(self, world: World, idle: World, body: Body, row: Row) -> Step:
        """One transaction: the row goes, or stays for what follows; its end, key, effect and next step are written."""
        job = body.job
        if self._is_followed(job) and self.rules.record_before_hand_on:
            return Step("a body succeeds", SYSTEM, self._written(self._marked(world, idle, body, row, "succeeded"), job))
        done = self._written(idle, job).ended(job, "succeeded")
        if self.setting.shares_key:
            if not self.rules.key_with_success:
                return Step("a body succeeds", SYSTEM, done.with_body(None, body._replace(phase="keeps key")))
            done = done._replace(key=done.key + 1)
        if self.setting.next_step and job == 0:
            if not self.rules.step_with_success:
                return Step("a body succeeds", SYSTEM, done.with_body(None, body._replace(phase="starts next")))
            done = self.owed(done, 1)
        return Step("a body succeeds", SYSTEM, done)

    def _fail(self, world: World, idle: World, body: Body, row: Row) -> Step:
        if self._is_followed(body.job) and self.is_last_try(row) and not row.stop:
            return Step("a body fails", SYSTEM, self.lettered(self._marked(world, idle, body, row, "buried"), body.job, row))
        return Step("a body fails", SYSTEM, self.failed(idle, body.job, row))

    def _is_followed(self, job: int) -> bool:
        return self.setting.follows and job == 0

    def _marked(self, world: World, idle: World, body: Body, row: Row, how: str) -> World:
        """The end is recorded; the row stays until what follows is handed on."""
        if not self.rules.row_waits_for_hand_on:
            return idle.ended(body.job, how).with_body(None, body._replace(phase="hands on late"))
        kept = world.with_row(body.job, row._replace(ended=True, stop=False)).recorded(body.job, how)
        return kept.with_body(body, body._replace(phase="hands on"))

    def _written(self, world: World, job: int) -> World:
        return world.with_past(job, effects=world.past[job].effects + 1)

    def _second_transaction(self, idle: World, body: Body, mine: Row | None) -> Iterator[Step]:
        """What a broken protocol does apart from the success itself."""
        if body.phase == "keeps key":
            yield Step("the key is kept", SYSTEM, idle._replace(key=idle.key + 1))
        elif body.phase == "starts next":
            yield Step("the next step is inserted", SYSTEM, self.owed(idle, 1))
        elif body.phase == "hands on late":
            yield Step("what follows is handed on", SYSTEM, self.called(idle, 1))
        elif mine is not None:
            yield Step("a body succeeds", SYSTEM, idle.ended(body.job, "succeeded"))
            yield Step("a body fails", SYSTEM, self.failed(idle, body.job, mine))
        else:
            yield Step("a worker finds its lease lost", SYSTEM, idle)

    # What follows, and giving back

    def _hand_on(self, world: World, idle: World, body: Body, mine: Row | None) -> Iterator[Step]:
        """What follows is sent, and then the row goes; a worker that lost it meanwhile sends what another will send too."""
        if body.phase == "hands on":
            sent = self.called(world, 1).with_body(body, body._replace(phase="forgets"))
            yield Step("what follows is handed on", SYSTEM, sent)
            if mine is not None and mine.ended and not self._is_spared(body):
                yield Step("what follows is refused", FAULT, self.carried_on(idle, body.job, mine, wait=1))
        elif mine is not None and mine.ended:
            if (mine.attempt, mine.who) != (body.attempt, body.who):
                idle = idle.but("what another is to hand on was forgotten")
            yield Step("the row goes", SYSTEM, idle.with_row(body.job, None))
        else:
            yield Step("somebody was faster", SYSTEM, idle)

    def _hand_back(self, idle: World, body: Body, row: Row | None) -> Iterator[Step]:
        """A worker that stops gives its attempt back; no try is used."""
        if row is None or row.state is not RUNNING or row.ended or row.tries_from > self.setting.hand_backs:
            return
        if (row.attempt, row.who) != (body.attempt, body.who):
            if self.rules.hand_back_fenced:
                return
            idle = idle.but("a stale worker gave back what is another's")
        if row.stop:
            yield Step("a worker stops", WISH, idle.ended(body.job, "cancelled"))
        else:
            yield Step("a worker stops", WISH, self.again(idle, body.job, row, tries_from=row.tries_from + 1))
