"""What beats do: `scheduler.dispatcher` (claim, send, give back) and `recovery.sweeper`, and the broker in between."""

from __future__ import annotations

from collections.abc import Iterator

from .parts import FAULT, SYSTEM, Part, Step
from .world import DISPATCHED, PENDING, RUNNING, Beat, Row, World


class Beats(Part):
    """Beats and broker."""

    def steps(self, world: World) -> Iterator[Step]:
        """Yield what beats and broker may do next."""
        for beat in dict.fromkeys(world.beats):
            idle = world.with_beat(beat, None)
            yield from DOES[beat.what](self, idle, beat)
            yield Step("a beat dies", FAULT, idle)
        for job, row in enumerate(world.rows):
            if row is None:
                continue
            if len(world.beats) < self.setting.beats:
                yield from self._look(world, job, row)
            if row.state is DISPATCHED and self.rules.dispatch_lease and self.is_over(row.lease):
                yield Step("a message counts as lost", SYSTEM, world.with_row(job, row._replace(state=PENDING, lease=0)))
        for message in dict.fromkeys(world.messages):
            yield Step("a message is lost", FAULT, world.without_message(message))
            if self.has_room(world):
                yield Step("a message comes twice", FAULT, world.with_message(*message))

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
        return self.is_over(row.lease) or not self.rules.sweep_asks_the_lease

    def _send(self, idle: World, beat: Beat) -> Iterator[Step]:
        """A message leaves, or the broker refuses it: then what is still dispatched at that attempt is given back."""
        row = idle.rows[beat.job]
        has_it = row is not None and row.attempt == beat.attempt
        if not self.rules.state_before_send:
            yield from self._send_first(idle, beat, row if has_it else None)
            return
        if self.has_room(idle):
            yield Step("a beat sends", SYSTEM, self._sent(idle, beat))
        if has_it and row is not None and row.state is DISPATCHED:
            idle = idle.with_row(beat.job, row._replace(state=PENDING, lease=0))
        yield Step("the broker refuses", FAULT, idle)

    def _sent(self, world: World, beat: Beat) -> World:
        sent, this = world.past[beat.job].sent, 1 << beat.attempt
        if self.setting.calm:
            world = world.with_past(beat.job, sent=sent | this)
        return (world.but("one attempt was sent twice") if sent & this else world).with_message(beat.job, beat.attempt)

    def _send_first(self, idle: World, beat: Beat, row: Row | None) -> Iterator[Step]:
        """What a broken protocol does: the message leaves before it is written that it has."""
        if not self.has_room(idle):
            return
        sent = self._sent(idle, beat)
        if row is not None and row.state is PENDING:
            sent = sent.with_row(beat.job, row._replace(state=DISPATCHED, lease=self.setting.dispatch_lease))
        yield Step("a beat sends, then claims", SYSTEM, sent)

    def _put_back(self, idle: World, beat: Beat) -> Iterator[Step]:
        """What was seen overdue is looked at again under a lock, in the transaction that puts it back."""
        row = idle.rows[beat.job]
        is_same = row is not None and row.attempt == beat.attempt and self._may_sweep(row)
        if row is None or row.state is not RUNNING or not (is_same or not self.rules.sweep_asks_again):
            yield Step("somebody was faster", SYSTEM, idle)
            return
        at_it = (body for body in idle.bodies if (body.job, body.attempt, body.who) == (beat.job, row.attempt, row.who))
        if self.setting.timed and any(body.healthy for body in at_it):
            idle = idle.but("a healthy worker lost its job")
        if row.attempt != beat.attempt:
            idle = idle.but("an attempt was put back that nobody saw overdue")
        if row.ended:
            yield Step("another is to hand on", SYSTEM, self.carried_on(idle, beat.job, row))
        else:
            yield Step("an orphan is put back", SYSTEM, self._orphaned(idle, beat.job, row))

    def _revoke(self, idle: World, beat: Beat) -> Iterator[Step]:
        """Somebody who saw no row records that a call is cancelled: a step of its own only in a broken protocol."""
        yield Step("it is revoked before it is seen", SYSTEM, idle.recorded(beat.job, "cancelled"))

    def _orphaned(self, world: World, job: int, row: Row) -> World:
        """As a failure; but nobody is there to hand on what follows a burial, so some worker is to: a row stays for it."""
        after = self.failed(world, job, row)
        is_buried = after.rows[job] is None and after.past[job].endings[-1] == "buried"
        if not (is_buried and self.setting.follows and job == 0 and self.rules.row_waits_for_hand_on):
            return after
        put = Row(attempt=row.attempt + 1, tries_from=row.tries_from + 1, ended=True)
        return after.with_row(job, put)


DOES = {"sends": Beats._send, "puts back": Beats._put_back, "revokes": Beats._revoke}
