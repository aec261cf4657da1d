"""The protocol, statement by statement, on every database: claim, release, admit, renew, finish, sweep.

Then as a state machine: random claims, deaths, renewals, duplicates and endings must never let two bodies into one attempt,
never run anything after success, and never lose the job.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from celery_tm import clock
from celery_tm.domain.execution import Execution, Failure, Outcome
from celery_tm.domain.ids import new_id
from celery_tm.domain.job import Job, JobState, Source
from celery_tm.domain.retry import Bury, Fixed, TryAgain, after_failure
from celery_tm.errors import LeaseLost
from celery_tm.recovery.sweeper import sweep
from celery_tm.store import admission, claims, dead_letters, executions, following, jobs, keys, settlement, tables
from celery_tm.store.database import Database, Transaction

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)
LEASE = timedelta(seconds=30)
POLICY = Fixed(delay=MINUTE)


@pytest.fixture(autouse=True)
def noon() -> Iterator[None]:
    with clock.moved_to(NOON):
        yield


def make_job(**changes: Any) -> Job:
    values: dict[str, Any] = {
        "id": new_id(), "task": "t", "args": "[]", "kwargs": "{}", "run_at": NOON, "created_at": NOON,
        "original_delay": MINUTE, "max_retries": 2,
    }  # fmt: skip
    return Job(**(values | changes))


def add_job(database: Database, **changes: Any) -> Job:
    job = make_job(**changes)
    with database.transaction() as tx:
        jobs.insert_many(tx, [job])
    return job


def claim(database: Database, node: str = "beat", *, limit: int = 10) -> list[str]:
    with database.transaction() as tx:
        return [job.task for job in claims.claim_due(tx, node=node, lease=LEASE, limit=limit)]


def admit(database: Database, job: Job, attempt: int = 1, worker: str = "w") -> Job | None:
    with database.transaction() as tx:
        return admission.admit(tx, job.id, attempt, worker=worker, lease=LEASE)


def find(database: Database, job: Job) -> Job | None:
    with database.transaction(write=False) as tx:
        return jobs.find(tx, job.id)


def test_two_nodes_never_claim_the_same_job(database: Database) -> None:
    add_job(database, task="older", run_at=NOON - MINUTE)
    add_job(database, task="newer", run_at=NOON)

    assert claim(database, "node-a", limit=1) == ["older"]
    assert claim(database, "node-b") == ["newer"]
    assert claim(database, "node-a") == []


def test_rows_that_another_beat_is_claiming_are_passed_over(database: Database) -> None:
    if not database.dialect.skips_locked:
        pytest.skip("SQLite has one writer at a time: a second claim waits instead")
    add_job(database, task="older", run_at=NOON - MINUTE)
    add_job(database, task="newer", run_at=NOON)
    with database.transaction() as tx:
        first = claims.claim_due(tx, node="a", lease=LEASE, limit=1)
        assert claim(database, "b") == ["newer"]
    assert [job.task for job in first] == ["older"]


def test_a_job_is_claimed_when_it_is_due_and_not_before(database: Database) -> None:
    add_job(database, run_at=NOON + MINUTE)
    with clock.moved_to(NOON + MINUTE - timedelta(microseconds=1)):
        assert claim(database) == []
    with clock.moved_to(NOON + MINUTE):
        assert claim(database) == ["t"]


def test_a_claim_leases_and_names_its_node(database: Database) -> None:
    job = add_job(database)
    claim(database, "beat@a")
    found = find(database, job)
    assert found is not None
    assert (found.state, found.claimed_by, found.dispatches, found.attempt) == (JobState.DISPATCHED, "beat@a", 1, 1)
    assert found.lease_until == NOON + LEASE


def test_what_the_broker_refuses_is_pending_again_without_a_try(database: Database) -> None:
    job = add_job(database)
    with database.transaction() as tx:
        claimed = claims.claim_due(tx, node="a", lease=LEASE, limit=1)
        assert claims.release(tx, claimed) == 1
    found = find(database, job)
    assert found == replace(job, app=database.app)


def test_a_release_does_not_touch_a_job_that_has_started(database: Database) -> None:
    job = add_job(database)
    with database.transaction() as tx:
        claimed = claims.claim_due(tx, node="a", lease=LEASE, limit=1)
    assert admit(database, job)
    with database.transaction() as tx:
        assert claims.release(tx, claimed) == 0
    found = find(database, job)
    assert found is not None
    assert found.state is JobState.RUNNING


def test_the_gate_lets_one_delivery_in(database: Database) -> None:
    job = add_job(database)
    claim(database)
    admitted = admit(database, job, worker="w1")
    assert admitted is not None
    assert (admitted.state, admitted.claimed_by, admitted.lease_until) == (JobState.RUNNING, "w1", NOON + LEASE)
    assert admit(database, job, worker="w2") is None


@pytest.mark.parametrize("attempt", [0, 2])
def test_the_gate_refuses_another_attempt(database: Database, attempt: int) -> None:
    job = add_job(database)
    claim(database)
    assert admit(database, job, attempt) is None


def test_a_late_delivery_of_a_job_put_back_runs_only_when_it_is_due(database: Database) -> None:
    due, waiting = add_job(database), add_job(database, run_at=NOON + MINUTE)
    assert admit(database, due) is not None
    assert admit(database, waiting) is None


def test_the_gate_refuses_what_has_expired(database: Database) -> None:
    job = add_job(database, expires_at=NOON)
    assert admit(database, job) is None


def test_the_gate_refuses_a_key_that_has_succeeded(database: Database) -> None:
    job = add_job(database, dedupe_key="k")
    with database.transaction() as tx:
        keys.keep(tx, task="t", key_text="k", job="other", execution="e", result="1", keep=MINUTE)
    assert admit(database, job) is None
    with clock.moved_to(NOON + MINUTE + SECOND):
        assert admit(database, job) is not None


def test_renewal_lengthens_what_is_held_and_tells_what_is_lost(database: Database) -> None:
    held, lost, asked = add_job(database), add_job(database), add_job(database)
    running = [admit(database, held), admit(database, asked)]
    with database.transaction() as tx:
        jobs.request_cancel(tx, asked.id, 1)
    with clock.moved_to(NOON + 10 * SECOND), database.transaction() as tx:
        renewed = jobs.renew(tx, [lost, *(job for job in running if job)], lease=LEASE).held
    assert renewed == {(held.id, 1): False, (asked.id, 1): True}
    found = find(database, held)
    assert found is not None
    assert found.lease_until == NOON + 10 * SECOND + LEASE


def test_success_leaves_an_execution_and_no_row(database: Database) -> None:
    job = admit(database, add_job(database, dedupe_key="k", entity_id="42"))
    assert job is not None
    with clock.moved_to(NOON + SECOND), database.transaction() as tx:
        settlement.succeed(tx, job, result='"done"', message="fine", keep_key=MINUTE)
    with database.transaction(write=False) as tx:
        [record] = executions.of_job(tx, job.id)
        done = keys.find_kept(tx, "t", "k")
        assert jobs.find(tx, job.id) is None
    assert (record.outcome, record.message, record.attempt, record.worker) == (Outcome.SUCCEEDED, "fine", 1, "w")
    assert (record.started_at, record.completed_at, record.entity_id) == (NOON, NOON + SECOND, "42")
    assert done is not None
    assert (done.job, done.result, done.kept_until) == (job.id, '"done"', NOON + SECOND + MINUTE)


def test_failure_gives_the_next_try_its_time(database: Database) -> None:
    job = admit(database, add_job(database))
    assert job is not None
    with database.transaction() as tx:
        settlement.fail(tx, job, Failure(error="E: no", traceback="tb"), TryAgain(MINUTE))
    found = find(database, job)
    assert found is not None
    assert (found.state, found.attempt, found.run_at, found.last_error) == (JobState.PENDING, 2, NOON + MINUTE, "E: no")
    assert (found.lease_until, found.claimed_by, found.dispatches) == (None, None, 0)


@pytest.mark.parametrize("source", list(Source))
def test_a_record_names_its_source_and_is_never_changed(database: Database, source: Source) -> None:
    job = admit(database, add_job(database, source=source))
    assert job is not None
    with database.transaction() as tx:
        settlement.fail(tx, job, Failure(error="E: no", traceback="tb"), TryAgain(MINUTE))
        [failed] = executions.of_job(tx, job.id)
    assert (failed.outcome, failed.error, failed.source, failed.attempt) == (Outcome.FAILED, "E: no", source, 1)

    with clock.moved_to(NOON + MINUTE):
        again = admit(database, job, 2)
        assert again is not None
        with database.transaction() as tx:
            settlement.succeed(tx, again, result=None, message="fine", keep_key=MINUTE)
            executions.record(tx, again, Outcome.FAILED, failure=Failure(error="E: late"))  # a record that is there stays
    with database.transaction(write=False) as tx:
        succeeded, before = executions.of_job(tx, job.id)
    assert before == failed
    assert (succeeded.outcome, succeeded.message, succeeded.error) == (Outcome.SUCCEEDED, "fine", None)
    assert (succeeded.source, succeeded.attempt) == (source, 2)


def test_exhaustion_moves_the_job_to_the_dead_letters(database: Database) -> None:
    own = {"args": "[1]", "kwargs": "{}", "entity_id": "42", "scope": {"tenant_id": 7}, "dedupe_key": "k", "queue": "q"}
    job = admit(database, add_job(database, max_retries=0, **own))
    assert job is not None
    then = after_failure(job, default=POLICY)
    assert isinstance(then, Bury)
    with database.transaction() as tx:
        settlement.fail(tx, job, Failure(error="E: no", traceback="tb"), then)
    with database.transaction(write=False) as tx:
        letter = dead_letters.find(tx, job.id)
        assert jobs.find(tx, job.id) is None
    assert letter is not None
    assert (letter.last_error, letter.traceback, letter.buried_at, letter.attempts) == ("E: no", "tb", NOON, 1)
    assert "max_retries=0" in letter.reason
    assert letter.job == replace(job, last_error="E: no", lease_until=None), "it has all that the job had"


@pytest.mark.parametrize("ending", ["success", "failure", "burial", "stop"])
def test_a_stale_worker_changes_nothing(database: Database, ending: str) -> None:
    stale = admit(database, add_job(database))
    assert stale is not None
    with clock.moved_to(NOON + LEASE):
        sweep(database, default=Fixed(delay=timedelta(0)), limit=10)
        fresh = admit(database, stale, 2, worker="w2")
    assert fresh is not None
    endings = {
        "success": lambda tx: settlement.succeed(tx, stale, result=None, message=None, keep_key=MINUTE),
        "failure": lambda tx: settlement.fail(tx, stale, Failure(error="late"), TryAgain(MINUTE)),
        "burial": lambda tx: settlement.fail(tx, stale, Failure(error="late"), Bury("late")),
        "stop": lambda tx: settlement.stop(tx, stale),
    }
    with pytest.raises(LeaseLost), database.transaction() as tx:
        endings[ending](tx)
    assert find(database, stale) == fresh
    with database.transaction(write=False) as tx:
        assert [record.outcome for record in executions.of_job(tx, stale.id)] == [Outcome.ORPHANED]


def test_a_lost_message_is_dispatched_again_with_a_longer_lease_each_time(database: Database) -> None:
    job = add_job(database)
    now, leases = NOON, []
    for _ in range(4):
        with clock.moved_to(now):
            assert claim(database) == ["t"]
            found = find(database, job)
            assert found is not None
            assert found.lease_until is not None
            leases.append(found.lease_until - now)
            now = found.lease_until
        with clock.moved_to(now):
            swept = sweep(database, default=POLICY, limit=10)
            assert [one.id for one in swept.redispatched] == [job.id]
    assert leases == [LEASE, 2 * LEASE, 4 * LEASE, 8 * LEASE]
    found = find(database, job)
    assert found is not None
    assert found.attempt == 1


def test_an_orphan_is_recorded_and_tried_again_after_its_backoff(database: Database) -> None:
    job = admit(database, add_job(database))
    assert job is not None
    with clock.moved_to(NOON + LEASE - SECOND):
        assert len(sweep(database, default=POLICY, limit=10)) == 0
    with clock.moved_to(NOON + LEASE):
        [(orphan, _, then)] = sweep(database, default=POLICY, limit=10).orphaned
    assert (orphan.id, then) == (job.id, TryAgain(MINUTE))
    found = find(database, job)
    assert found is not None
    assert (found.state, found.attempt, found.run_at) == (JobState.PENDING, 2, NOON + LEASE + MINUTE)
    with database.transaction(write=False) as tx:
        [record] = executions.of_job(tx, job.id)
    assert (record.outcome, record.worker, record.started_at) == (Outcome.ORPHANED, "w", NOON)


def test_an_orphan_with_no_tries_left_is_buried(database: Database) -> None:
    job = admit(database, add_job(database, max_retries=0))
    assert job is not None
    with clock.moved_to(NOON + LEASE):
        sweep(database, default=POLICY, limit=10)
    with database.transaction(write=False) as tx:
        assert dead_letters.find(tx, job.id) is not None


def test_an_orphan_that_was_cancelled_is_not_tried_again(database: Database) -> None:
    job = admit(database, add_job(database))
    assert job is not None
    with database.transaction() as tx:
        jobs.request_cancel(tx, job.id, 1)
    with clock.moved_to(NOON + LEASE):
        sweep(database, default=POLICY, limit=10)
    with database.transaction(write=False) as tx:
        left = jobs.find(tx, job.id)
        assert left is not None
        assert left.ended == {"revoked": "revoked", "attempt": 1}  # a worker tells who waits for it; no body runs
        assert [record.outcome for record in executions.of_job(tx, job.id)] == [Outcome.CANCELLED]


class JobLife(RuleBasedStateMachine):
    """One job, a broker that duplicates and loses, workers that die or finish late, and time that passes."""

    database: Database
    deliveries = Bundle("deliveries")
    bodies = Bundle("bodies")

    @initialize()
    def begin(self) -> None:
        self.now = NOON
        self.in_body: dict[int, int] = {}  # attempt → how often it was let in
        self.recorded: dict[str, Execution] = {}  # as it was seen first
        self.succeeded = self.buried = 0
        with self.database.transaction() as tx:  # what the example before left
            for table in tables.metadata.sorted_tables:
                tx.execute(table.delete())
        self.job = add_job(self.database)

    def _do(self, work: Any) -> Any:
        with clock.moved_to(self.now):
            return self.database.run(work)

    @rule(target=deliveries)
    def claim_and_publish(self) -> Any:
        claimed = self._do(lambda tx: claims.claim_due(tx, node="b", lease=LEASE, limit=5))
        return claimed[0].attempt if claimed else 0

    @rule(delivery=deliveries)  # not consumed: a broker may deliver it again
    def redeliver_and_die(self, delivery: int) -> None:
        self._deliver(delivery)

    @rule(target=bodies, delivery=deliveries)
    def deliver(self, delivery: int) -> Any:
        job = self._deliver(delivery)
        if job is None or job.ended is None:
            return job
        self._do(lambda tx: following.forget(tx, job))  # whoever waits is told that it has failed
        return None

    def _deliver(self, attempt: int) -> Job | None:
        row = self._row()
        job: Job | None = self._do(lambda tx: admission.admit(tx, self.job.id, attempt, worker="w", lease=LEASE))
        if job is not None and job.ended is not None:
            assert self.buried, "there is an end to tell of, and none was recorded"
        elif job is not None:
            assert row is not None, "let in after the end"
            assert not (row.state is JobState.PENDING and row.run_at > self.now), "let in before it was due"
            self.in_body[attempt] = self.in_body.get(attempt, 0) + 1
        return job

    @rule(body=consumes(bodies))
    def finish(self, body: Job | None) -> None:
        if body is not None and self._ends(
            lambda tx: settlement.succeed(tx, body, result=None, message=None, keep_key=MINUTE)
        ):
            self.succeeded += 1

    @rule(body=consumes(bodies))
    def fail(self, body: Job | None) -> None:
        if body is None:
            return
        then = after_failure(body, default=POLICY)
        if self._ends(lambda tx: settlement.fail(tx, body, Failure(error="E"), then)):
            self.buried += isinstance(then, Bury)

    def _ends(self, work: Any) -> bool:
        try:
            self._do(work)
        except LeaseLost:
            return False
        return True

    @rule(body=bodies)
    def renew(self, body: Job | None) -> None:
        if body is not None:
            held = self._do(lambda tx: jobs.renew(tx, [body], lease=LEASE)).held
            row = self._kept()
            mine = row is not None and row.state is JobState.RUNNING and row.attempt == body.attempt
            assert bool(held) == mine

    @rule()
    def time_passes(self) -> None:
        self.now += LEASE + MINUTE

    @rule()
    def sweep(self) -> None:
        with clock.moved_to(self.now):
            swept = sweep(self.database, default=POLICY, limit=10)
        self.buried += sum(isinstance(then, Bury) for _, _, then in swept.orphaned)

    @precondition(lambda self: self.buried == 1 and self._kept() is None and not self.succeeded)
    @rule()
    def revive(self) -> None:
        letter = self._do(lambda tx: dead_letters.find(tx, self.job.id))
        assert letter is not None, "neither owed nor buried: lost"
        assert self._do(lambda tx: dead_letters.revive(tx, letter)) is not None
        self.buried = 0

    def _row(self) -> Job | None:
        """Return the job if it is owed. What is kept after an orphan was buried, until somebody has been told, is not."""
        row = self._kept()
        return None if row is None or row.ended is not None else row

    def _kept(self) -> Job | None:
        with self.database.transaction(write=False) as tx:
            return jobs.find(tx, self.job.id)

    @invariant()
    def promises_hold(self) -> None:
        row = self._row()
        assert all(count == 1 for count in self.in_body.values()), "two bodies in one attempt"
        assert self.succeeded <= 1
        assert self.succeeded + self.buried <= 1
        assert (row is None) == bool(self.succeeded or self.buried), "lost, or owed after its end"
        with self.database.transaction(write=False) as tx:
            records = executions.of_job(tx, self.job.id)
        assert sum(record.outcome is Outcome.SUCCEEDED for record in records) == self.succeeded
        assert len({record.attempt for record in records}) == len(records)
        assert all(record.source is self.job.source for record in records)
        now = {record.id: record for record in records}
        assert now == now | self.recorded, "a record was changed or removed"
        self.recorded = now


def test_the_promises_hold_whatever_happens(database: Database, thorough: bool) -> None:
    machine: Any = type("JobLifeHere", (JobLife,), {"database": database})
    examples = {"sqlite": 40, "postgresql": 20, "mysql": 8}[database.dialect.name] * (10 if thorough else 1)
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_a_broken_gate_is_caught_by_the_state_machine(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine can fail: a gate that lets running attempts in again must not pass."""
    if database.dialect.name != "sqlite":
        pytest.skip("once is enough to show that the machine can fail")

    def careless(tx: Transaction, id: str, attempt: int, *, worker: str, lease: timedelta) -> Job | None:
        return jobs.find(tx, id)

    monkeypatch.setattr("celery_tm.store.admission.admit", careless)
    machine: Any = type("JobLifeHere", (JobLife,), {"database": database})
    with pytest.raises(BaseException, match=r"two bodies|before it was due|let in|lost"):
        run_state_machine_as_test(
            machine,
            settings=settings(
                max_examples=50,
                stateful_step_count=20,
                deadline=None,
                suppress_health_check=list(HealthCheck),
                phases=[Phase.generate],  # that it is found is enough, it need not be made small
            ),
        )
