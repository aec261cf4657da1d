"""What a delivery meets: `worker.gate` with `store.admission`, for a job's message and for a call that has no row yet."""

from __future__ import annotations

from collections.abc import Iterator

from .parts import LOSS, SYSTEM, Part, Step
from .world import DISPATCHED, PENDING, RUNNING, Body, Row, World


class Gate(Part):
    """Deliveries to workers that have nothing to do."""

    def steps(self, world: World) -> Iterator[Step]:
        """Yield what may come of messages under way."""
        if len(world.bodies) < self.setting.workers:
            for job, attempt in dict.fromkeys(world.messages):
                yield self._deliver(world.without_message((job, attempt)), job, attempt)
        for body in dict.fromkeys(world.bodies):
            if body.phase == "has asked":
                yield self._insert(world.with_body(body, None), body.job)
        yield from self._forget(world)

    def _deliver(self, world: World, job: int, message: int) -> Step:
        row = world.rows[job]
        if row is None:
            is_call = job in self.setting.direct and message == 1  # later attempts are sent as jobs
            return self._call(world, job) if is_call else _refused(world)
        if row.attempt != message and self.rules.attempt_in_gate:
            return _refused(world)
        if row.state is RUNNING:
            return _refused(world) if self.rules.gate_refuses_running else self._let_in(world, job, row, message)
        if self._has_succeeded(world) and not row.ended:
            return Step("its key has succeeded", SYSTEM, world.ended(job, "deduplicated"))
        if row.state is PENDING and row.wait:
            if self.rules.gate_asks_the_time:
                return _refused(world)
            world = world.but("it ran before its time")
        return self._let_in(world, job, row, message)

    def _has_succeeded(self, world: World) -> bool:
        return self.setting.shares_key and bool(world.key) and self.rules.gate_asks_the_key

    def _call(self, world: World, job: int) -> Step:
        """A row is inserted as running; then it is asked whether the call ran before, all in one transaction."""
        if not self._may_call(world, job):
            return _refused(world)
        if self.rules.call_asks_last:
            return self._insert(world, job)
        return Step("a worker asks whether a call ran before", SYSTEM, world.with_body(None, Body(job, 1, "has asked")))

    def _may_call(self, world: World, job: int) -> bool:
        is_recorded = bool(world.past[job].endings) and self.rules.gate_asks_the_record
        return not (is_recorded or self._has_succeeded(world))

    def _insert(self, world: World, job: int) -> Step:
        """Id and key are unique among rows that are owed; an id also among those of which only what follows is left."""
        has_key = self.setting.shares_key and any(row is not None and not row.ended for row in world.rows)
        if has_key or world.rows[job] is not None:
            return _refused(world)
        return self._let_in(world, job, Row(), 1)

    def _let_in(self, world: World, job: int, row: Row, message: int) -> Step:
        attempt = message if self.rules.attempt_in_gate else row.attempt
        past = world.past[job]
        if past.let_in >> attempt & 1 and not row.ended and not (past.lost and self.setting.fails_over):
            world = world.but("two deliveries of one attempt were let in")
        elif message != row.attempt:
            world = world.but("a message started an attempt that it was not sent for")
        if not row.ended:
            world = world.with_past(job, let_in=past.let_in | 1 << attempt)
        who = past.lost + past.revived
        phase = "hands on" if row.ended else "runs"
        body = Body(job, attempt, phase, who, True, self.setting.renew_every if self.setting.timed else 0)
        begun = row._replace(state=RUNNING, lease=self.lease(), who=who)
        return Step("a delivery is let in", SYSTEM, world.with_row(job, begun).with_body(None, body))

    def _forget(self, world: World) -> Iterator[Step]:
        """A start is lost, by a crash if nobody waited for the disk, or by a failover; who was let in goes on."""
        if not (self.setting.fails_over or (self.setting.crashes and not self.rules.gate_waits_for_the_disk)):
            return
        for job, row in enumerate(world.rows):
            if row is not None and row.state is RUNNING and not row.ended and not world.past[job].lost:
                before = row._replace(state=DISPATCHED, lease=self.setting.dispatch_lease, stop=False, who=0)
                rows = (*world.rows[:job], before, *world.rows[job + 1 :])
                yield Step("the database loses a start", LOSS, world._replace(rows=rows).with_past(job, lost=True))


def _refused(world: World) -> Step:
    return Step("a delivery is refused", SYSTEM, world)
