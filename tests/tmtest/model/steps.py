"""Everything that may happen next in the model, statement by statement, as the code has it.

A step is of one of four kinds: what the *system* does, what *time* does, a *fault* (a death, a lost or doubled message, a
worker that is cut off), and a *wish* of somebody outside.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from .world import DISPATCHED, PENDING, RUNNING, Beat, Body, Row, Rules, Setting, World, is_last_try

SYSTEM, TIME, FAULT, WISH = "system", "time", "fault", "wish"


class Step(NamedTuple):
    """One thing that happens, and the world after it."""

    name: str
    kind: str
    world: World


class Protocol:
    """The steps of a world of some size, by some rules."""

    def __init__(self, setting: Setting, rules: Rules) -> None:
        self.setting, self.rules = setting, rules

    def steps(self, world: World) -> Iterator[Step]:
        """Yield everything that may happen next."""
        yield from self._beats(world)
        yield from self._broker(world)
        for body in set(world.bodies):
            yield from self._body(world, body)
        yield from self._people(world)
        yield from self._time(world)

    # Beats

    def _beats(self, world: World) -> Iterator[Step]:
        for beat in set(world.beats):
            idle = world.with_beat(beat, None)
            yield from self._send(idle, beat) if beat.what == "sends" else self._put_back(idle, beat)
            yield Step("a beat dies", FAULT, idle)
        for job, row in enumerate(world.rows):
            if row is None:
                continue
            if len(world.beats) < self.setting.beats:
                yield from self._look(world, job, row)
            if row.state is DISPATCHED and self.rules.dispatch_lease and self._is_over(row.lease):
                yield Step("a message counts as lost", SYSTEM, world.with_row(job, row._replace(state=PENDING, lease=0)))

    def _look(self, world: World, job: int, row: Row) -> Iterator[Step]:
        """A beat that has nothing in mind claims what is due, or sees what is overdue."""
        mind = Beat("sends", job, row.attempt)
        if row.state is PENDING and not row.wait:
            if self.rules.state_before_send:
                claimed = row._replace(state=DISPATCHED, lease=self.setting.dispatch_lease)
                yield Step("a beat claims", SYSTEM, world.with_row(job, claimed).with_beat(None, mind))
            else:
                yield Step("a beat means to claim", SYSTEM, world.with_beat(None, mind))
        is_spared = row.ended and row.attempt >= self.setting.last_attempt  # handing on has no last attempt of its own
        if row.state is RUNNING and self.rules.sweeper and self._may_sweep(row) and not is_spared:
            seen = Beat("puts back", job, row.attempt)
            yield Step("a beat sees an ended lease", SYSTEM, world.with_beat(None, seen))

    def _may_sweep(self, row: Row) -> bool:
        return self._is_over(row.lease) or not self.rules.sweep_asks_the_lease

    def _is_over(self, left: int) -> bool:
        return left == 0 or not self.setting.timed

    def _send(self, idle: World, beat: Beat) -> Iterator[Step]:
        row = idle.rows[beat.job]
        has_it = row is not None and row.attempt == beat.attempt
        if not self.rules.state_before_send:
            sent = idle if has_it and row.state is PENDING else idle.but("a message was sent for what is not owed any more")
            if has_it and row.state is PENDING:
                sent = sent.with_row(beat.job, row._replace(state=DISPATCHED, lease=self.setting.dispatch_lease))
            if len(idle.messages) < self.setting.in_broker:
                yield Step("a beat sends, then claims", SYSTEM, sent.with_message(beat.job, beat.attempt))
            return
        if len(idle.messages) < self.setting.in_broker:
            yield Step("a beat sends", SYSTEM, idle.with_message(beat.job, beat.attempt))
        if has_it and row.state is DISPATCHED:
            idle = idle.with_row(beat.job, row._replace(state=PENDING, lease=0))
        yield Step("the broker refuses", FAULT, idle)

    def _put_back(self, idle: World, beat: Beat) -> Iterator[Step]:
        row = idle.rows[beat.job]
        is_same = row is not None and row.attempt == beat.attempt and self._may_sweep(row)
        if row is None or row.state is not RUNNING or not (is_same or not self.rules.sweep_asks_again):
            yield Step("somebody was faster", SYSTEM, idle)
            return
        at_it = (body for body in idle.bodies if (body.job, body.attempt) == (beat.job, row.attempt))
        if self.setting.timed and any(body.healthy for body in at_it):
            idle = idle.but("a healthy worker lost its job")
        if row.attempt != beat.attempt:
            idle = idle.but("an attempt was put back that nobody saw overdue")
        if row.ended:
            yield Step("another is to hand on", SYSTEM, self._again(idle, beat.job, row, tries_from=row.tries_from + 1))
        else:
            yield Step("an orphan is put back", SYSTEM, self._failed(idle, beat.job, row))

    # Broker

    def _broker(self, world: World) -> Iterator[Step]:
        for message in set(world.messages):
            taken = world.without_message(message)
            yield Step("a message is lost", FAULT, taken)
            if len(world.messages) < self.setting.in_broker:
                yield Step("a message comes twice", FAULT, world.with_message(*message))
            if len(world.bodies) < self.setting.workers:
                yield self._gate(taken, *message)

    # Gate

    def _gate(self, world: World, job: int, message: int) -> Step:
        row = world.rows[job]
        if row is None:
            if job in self.setting.direct and self._may_call(world, job):
                return Step("a call is let in", SYSTEM, self._let_in(world, job, Row(), message))
            return Step("a message is refused", SYSTEM, world)
        if row.attempt != message and self.rules.attempt_in_gate:
            return Step("a message is refused", SYSTEM, world)
        if row.state is RUNNING:
            if self.rules.gate_refuses_running:
                return Step("a message is refused", SYSTEM, world)
            return Step("a message is let in", SYSTEM, self._let_in(world, job, row, message))
        if world.key and self.setting.shares_key and not row.ended and self.rules.gate_asks_the_key:
            return Step("its key has succeeded", SYSTEM, world.ended(job, "deduplicated"))
        if row.state is PENDING and row.wait:
            if self.rules.gate_asks_the_time:
                return Step("a message is refused", SYSTEM, world)
            world = world.but("it ran before its time")
        return Step("a message is let in", SYSTEM, self._let_in(world, job, row, message))

    def _may_call(self, world: World, job: int) -> bool:
        return not world.past[job].endings or not self.rules.gate_asks_the_record

    def _let_in(self, world: World, job: int, row: Row, message: int) -> World:
        """The attempt begins; by a worker's own clock, which is behind, its lease is over at once."""
        lease = self.setting.lease if self.rules.database_clock else 0
        attempt = message if self.rules.attempt_in_gate else row.attempt
        past = world.past[job]
        if past.let_in >> attempt & 1:
            world = world.but("two deliveries of one attempt were let in")
        elif message != row.attempt:
            world = world.but("a message started an attempt that it was not sent for")
        begun = row._replace(state=RUNNING, lease=lease)
        if world.rows[job] is None:  # a call: its row is made here
            world = world._replace(rows=(*world.rows[:job], begun, *world.rows[job + 1 :]))
        else:
            world = world.with_row(job, begun)
        phase = "hands on" if row.ended else "runs"
        body = Body(job, attempt, phase, True, self.setting.renew_every if self.setting.timed else 0)
        return world.with_past(job, let_in=past.let_in | 1 << attempt).with_body(None, body)

    # Bodies

    def _body(self, world: World, body: Body) -> Iterator[Step]:
        idle, row = world.with_body(body, None), world.rows[body.job]
        is_mine = row is not None and row.state is RUNNING and (row.attempt == body.attempt or not self.rules.fencing)
        if self._may_die(body):
            yield Step("a worker dies", FAULT, idle)
        if self.setting.timed:
            yield from self._lease(world, body, row, is_mine)
        if body.phase == "runs":
            yield from self._finish(world, idle, body, row if is_mine and not row.ended else None)
            yield from self._hand_back(idle, body, row)
        elif body.phase in ("hands on", "forgets"):
            yield from self._hand_on(world, idle, body, row if is_mine and row.ended else None)
        else:
            yield from self._second_transaction(idle, body)

    def _may_die(self, body: Body) -> bool:
        return not (body.phase in ("hands on", "forgets") and body.attempt >= self.setting.last_attempt)

    def _lease(self, world: World, body: Body, row: Row | None, is_mine: bool) -> Iterator[Step]:
        if body.healthy:
            yield Step("a worker is cut off", FAULT, world.with_body(body, body._replace(healthy=False, renew=0)))
            if body.renew == 0:
                after = world.with_body(body, body._replace(renew=self.setting.renew_every))
                if is_mine and row is not None:
                    lease = self.setting.lease if self.rules.database_clock else 0
                    yield Step("a lease is renewed", SYSTEM, after.with_row(body.job, row._replace(lease=lease)))
                else:
                    yield Step("a worker hears that its lease is lost", SYSTEM, world.with_body(body, None))

    def _finish(self, world: World, idle: World, body: Body, row: Row | None) -> Iterator[Step]:
        """The body returns or raises. `row` is None if it is not its own any more."""
        job = body.job
        if row is None:
            if self.rules.finish_needs_row:
                yield Step("a worker finds its lease lost", SYSTEM, idle)
            else:
                yield Step("a worker succeeds without a row", SYSTEM, self._written(idle, job).recorded(job, "succeeded"))
            return
        if row.attempt != body.attempt:
            idle = idle.but("a stale worker ended a newer attempt")
        yield from self._succeed(world, idle, body, row)
        yield Step("a body fails", SYSTEM, self._failed(idle, job, row))
        if row.stop:
            yield Step("a body stops", SYSTEM, idle.ended(job, "cancelled"))

    def _succeed(self, world: World, idle: World, body: Body, row: Row) -> Iterator[Step]:
        """One transaction: the row goes, or stays for what follows; its end, key, effect and next step are written."""
        job, setting, rules = body.job, self.setting, self.rules
        if not rules.effect_with_success:
            yield Step(
                "a body commits what it did", SYSTEM, self._written(world, job).with_body(body, body._replace(phase="wrote"))
            )
            return
        if not rules.commit_before_send and job == 0:
            sent = world if len(world.messages) >= setting.in_broker else world.with_message(1, 1)
            sent = sent.with_past(1, is_asked=True)
            yield Step("a body's call is sent", SYSTEM, sent.with_body(body, body._replace(phase="called")))
            return
        if setting.follows and job == 0 and not rules.record_before_hand_on:
            yield Step(
                "what follows is handed on", SYSTEM, self._handed(world).with_body(body, body._replace(phase="called"))
            )
            return
        yield self._commit(world, idle, body, row)

    def _commit(self, world: World, idle: World, body: Body, row: Row) -> Step:
        job, setting, rules = body.job, self.setting, self.rules
        follows = setting.follows and job == 0 and rules.record_before_hand_on
        if follows and rules.row_waits_for_hand_on:
            kept = world.with_row(job, row._replace(ended=True, stop=False)).recorded(job, "succeeded")
            return Step("a body succeeds", SYSTEM, self._written(kept, job).with_body(body, body._replace(phase="hands on")))
        done = self._written(idle, job) if rules.effect_with_success else idle
        done = done.ended(job, "succeeded")
        if follows:
            return Step("a body succeeds", SYSTEM, done.with_body(None, body._replace(phase="hands on late")))
        if setting.shares_key:
            if not rules.key_with_success:
                return Step("a body succeeds", SYSTEM, done.with_body(None, body._replace(phase="keeps key")))
            done = done._replace(key=done.key + 1)
        if setting.next_step and job == 0:
            if not rules.step_with_success:
                return Step("a body succeeds", SYSTEM, done.with_body(None, body._replace(phase="starts next")))
            done = self._owed(done, 1)
        return Step("a body succeeds", SYSTEM, done)

    def _second_transaction(self, idle: World, body: Body) -> Iterator[Step]:
        """What a broken protocol does apart from the success itself."""
        row = idle.rows[body.job]
        is_mine = row is not None and row.state is RUNNING and row.attempt == body.attempt
        if body.phase == "keeps key":
            yield Step("the key is kept", SYSTEM, idle._replace(key=idle.key + 1))
        elif body.phase == "starts next":
            yield Step("the next step is inserted", SYSTEM, self._owed(idle, 1))
        elif body.phase == "hands on late":
            yield Step("what follows is handed on", SYSTEM, self._handed(idle))
        elif is_mine and row is not None:
            yield Step("a body succeeds", SYSTEM, idle.ended(body.job, "succeeded"))
            yield Step("a body fails", SYSTEM, self._failed(idle, body.job, row))
        else:
            yield Step("a worker finds its lease lost", SYSTEM, idle)

    def _hand_on(self, world: World, idle: World, body: Body, row: Row | None) -> Iterator[Step]:
        """What follows is sent, and then the row goes; a worker that lost it meanwhile sends what another will send too."""
        if body.phase == "hands on":
            sent = self._handed(world).with_body(body, body._replace(phase="forgets"))
            yield Step("what follows is handed on", SYSTEM, sent)
        else:
            yield Step("the row goes", SYSTEM, idle if row is None else idle.with_row(body.job, None))

    def _handed(self, world: World) -> World:
        if len(world.messages) < self.setting.in_broker:
            world = world.with_message(1, 1)
        return world.with_past(1, is_asked=True)

    def _hand_back(self, idle: World, body: Body, row: Row | None) -> Iterator[Step]:
        """A worker that stops gives its attempt back; no try is used."""
        if row is None or row.state is not RUNNING or row.ended or row.tries_from > self.setting.hand_backs:
            return
        if row.attempt != body.attempt:
            if self.rules.hand_back_fenced:
                return
            idle = idle.but("a stale worker ended a newer attempt")
        if row.stop:
            yield Step("a worker stops", WISH, idle.ended(body.job, "cancelled"))
        else:
            again = self._again(idle, body.job, row, tries_from=row.tries_from + 1)
            yield Step("a worker stops", WISH, again)

    def _failed(self, world: World, job: int, row: Row) -> World:
        """The tries are used up: buried; asked to stop: cancelled; else it gets its next try."""
        if is_last_try(row.attempt, row.tries_from, self.setting.tries):
            return world.ended(job, "buried")
        if row.stop:
            if self.rules.retry_asks_for_a_cancel:
                return world.ended(job, "cancelled")
            world = world.but("it was asked to stop and is tried again")
        return self._again(world, job, row, tries_from=row.tries_from, wait=1)

    def _again(self, world: World, job: int, row: Row, *, tries_from: int, wait: int = 0) -> World:
        attempt = row.attempt + 1 if self.rules.retry_counts else row.attempt
        again = row._replace(state=PENDING, attempt=attempt, tries_from=tries_from, wait=wait, lease=0)
        return world.with_row(job, again)

    def _written(self, world: World, job: int) -> World:
        return world.with_past(job, effects=world.past[job].effects + 1)

    def _owed(self, world: World, job: int) -> World:
        return world.with_past(job, is_asked=True).with_row(job, Row())

    # Time and people

    def _time(self, world: World) -> Iterator[Step]:
        """A moment passes; a healthy worker does not let it pass without a renewal that is due."""
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

    def _people(self, world: World) -> Iterator[Step]:
        if self.setting.cancels:
            for job, row in enumerate(world.rows):
                if row is not None and not row.ended:
                    yield from self._cancel(world, job, row)
        if self.setting.shares_key:
            yield from self._share(world)

    def _cancel(self, world: World, job: int, row: Row) -> Iterator[Step]:
        if row.state is PENDING and not row.wait:
            yield Step("it is replaced by a later one", WISH, world.with_row(job, row._replace(wait=1)))
        if row.state is not RUNNING:
            yield Step("it is cancelled", WISH, world.ended(job, "cancelled"))
        elif self.rules.cancel_spares_what_runs:
            yield Step("it is asked to stop", WISH, world.with_row(job, row._replace(stop=True)))
        else:
            runs = any((body.job, body.attempt) == (job, row.attempt) for body in world.bodies)
            after = world.but("it was cancelled as if it had not started") if runs else world
            yield Step("it is cancelled", WISH, after.ended(job, "cancelled"))

    def _share(self, world: World) -> Iterator[Step]:
        """Another job with the key is deferred, or one that was buried is revived: only while none with it is owed."""
        if any(row is not None and not row.ended for row in world.rows):
            return
        for job, past in enumerate(world.past):
            if not past.is_asked and not world.key:  # with a key that has succeeded nothing is created
                yield Step("another with its key is deferred", WISH, self._owed(world, job))
            if past.endings and past.endings[-1] == "buried" and not past.revived:
                attempt = past.let_in.bit_length()
                revived = world.with_past(job, revived=True, endings=past.endings[:-1])
                row = Row(attempt=attempt, tries_from=attempt)
                yield Step("a dead letter is revived", WISH, revived.with_row(job, row))
