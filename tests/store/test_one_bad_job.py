"""One job that cannot be settled stops nobody: the others are swept, reaped, handed over and dropped."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from celery import Celery
from sqlalchemy import column, delete, event, insert, select, table, text, update
from tmtest.ledger import NOON, claim, start

from celery_tm import Task, TimeManagement, cancel, defer, events
from celery_tm.domain.execution import Failure
from celery_tm.errors import RowUnreadable
from celery_tm.recovery.sweeper import sweep
from celery_tm.scheduler import Scheduler, dispatcher
from celery_tm.scheduler.dispatcher import Dispatcher
from celery_tm.store import jobs, lanes, tables
from celery_tm.store.agenda import Agenda
from celery_tm.worker import recorder

SOON = timedelta(milliseconds=1)


def let_leases_end(tm: TimeManagement, **values: Any) -> None:
    with tm.installation.database.transaction() as tx:
        ended = {"lease_until": tx.later(-timedelta(minutes=1)), **values}
        tx.execute(update(tables.job).where(tables.job.c.state == "running").values(ended))


def bury(tm: TimeManagement, id: str) -> None:
    """Let there be a dead letter of this id, of an earlier call."""
    with tm.installation.database.transaction() as tx:
        row = jobs.columns_of(jobs.find(tx, id))  # type: ignore[arg-type]
        old = {"reason": "long ago", "buried_at": tx.now, "traceback": None, "state": "running"}
        tx.execute(insert(tables.dead_letter).values({**row, **old}))


def sweep_all(tm: TimeManagement) -> Any:
    installation = tm.installation
    return sweep(installation.database, default=installation.default_policy, limit=100, aside=installation)


def test_a_job_whose_id_has_a_dead_letter_already_is_buried_in_its_place(app: Celery, tm: TimeManagement) -> None:
    id = defer(app.tasks["effect"].s(1), delay=SOON, max_retries=0).id
    claim(tm)
    running = start(tm, id)
    bury(tm, id)
    recorder.record_failure(tm.installation, running, Failure(error="ValueError: again"))
    [letter] = tm.dead_letters.list()
    assert (letter.id, letter.last_error) == (id, "ValueError: again")
    assert letter.reason != "long ago"


def test_a_sweep_goes_on_past_a_job_that_cannot_be_settled(app: Celery, tm: TimeManagement) -> None:
    ids = [defer(app.tasks["effect"].s(n), delay=SOON, max_retries=0).id for n in range(5)]
    claim(tm)
    for id in ids:
        start(tm, id)
    let_leases_end(tm)
    bad = ids[2]
    with tm.installation.database.transaction() as tx:
        tx.execute(update(tables.job).where(tables.job.c.id == bad).values(retry={"kind": "nobody knows"}, max_retries=3))
    heard: list[str] = []
    events.row_set_aside.connect(receiver := (lambda **values: heard.append(values["row"])))
    swept = [orphan for _ in range(5) for orphan in sweep_all(tm).orphaned]  # a pass has a limited time on a busy machine
    events.row_set_aside.disconnect(receiver)
    assert {job.id for job, _, _ in swept} == {*ids} - {bad}
    assert heard == [bad]
    assert {letter.id for letter in tm.dead_letters.list()} == {*ids} - {bad}
    assert len(sweep_all(tm)) == 0, "what is set aside is not tried again at once"
    with tm.installation.database.transaction(write=False) as tx:
        left = select(tables.job.c.id).where(tables.job.c.ended.is_(None))
        assert tx.execute(left).scalars().all() == [bad]


@contextmanager
def statements(tm: TimeManagement) -> Iterator[list[str]]:
    """Collect the statements that are sent meanwhile."""
    sent: list[str] = []

    def note(_conn: Any, _cursor: Any, statement: str, *_: Any) -> None:
        sent.append(statement)

    engine = tm.installation.database.engine
    event.listen(engine, "before_cursor_execute", note)
    try:
        yield sent
    finally:
        event.remove(engine, "before_cursor_execute", note)


def make_unreadable(tm: TimeManagement, id: str) -> None:
    with tm.installation.database.transaction() as tx:
        tx.execute(text("UPDATE tm_job SET source = 'moon' WHERE id = :id"), {"id": id})


def test_a_sweep_of_many_does_not_pay_for_each_because_one_is_bad(app: Celery, tm: TimeManagement) -> None:
    ids = [defer(app.tasks["effect"].s(n), delay=SOON).id for n in range(300)]
    assert len(claim(tm, limit=300)) == 300
    with tm.installation.database.transaction() as tx:
        tx.execute(update(tables.job).values(lease_until=tx.later(-timedelta(minutes=1))))
    make_unreadable(tm, ids[150])
    with statements(tm) as sent:
        done = 0
        for _ in range(20):  # each pass takes a fifth of a second at most
            installation = tm.installation
            swept = sweep(installation.database, default=installation.default_policy, limit=500, aside=installation)
            done += len(swept.redispatched)
            if done == 299:
                break
    assert done == 299
    assert len(tm.installation.skipped("tm_job")) == 1
    assert len(sent) < 200, "halves of halves, not 300 transactions of several statements"


def test_a_claim_of_many_does_not_read_each_because_one_is_bad(app: Celery, tm: TimeManagement) -> None:
    ids = [defer(app.tasks["effect"].s(n), delay=SOON).id for n in range(300)]
    make_unreadable(tm, ids[150])
    with statements(tm) as sent:
        claimed, _ = Dispatcher(tm.installation, "beat").claim(500)
    assert claimed == 299
    assert len(sent) < 60


def test_a_job_that_cannot_be_read_does_not_stop_cancel_for_the_others(app: Celery, tm: TimeManagement) -> None:
    effect = app.tasks["effect"]
    bad, good = (defer(effect.s(n), delay="1h", entity_id="E", key=f"k{n}") for n in range(2))
    with tm.installation.database.transaction() as tx:
        tx.execute(update(tables.job).where(tables.job.c.id == bad.id).values(source="martian"))
    assert cancel(entity_id="E", app=app)
    assert str(good.state) == "CANCELED"
    for ask in (
        lambda: cancel(id=bad.id, app=app),
        lambda: defer(effect.s(2), delay="2h", key="k0"),
        lambda: defer(effect.s(2), delay="2h", key="k0", on_duplicate="replace"),
    ):
        with pytest.raises(RowUnreadable, match=f"rows remove tm_job {bad.id}"):
            ask()


def test_a_result_backend_that_fails_does_not_hide_the_cancel_of_other_tasks(app: Celery, tm: TimeManagement) -> None:
    app.conf.result_backend = "cache+memory://"

    @app.task(base=Task, name="broken.backend", shared=False)
    def broken() -> None:
        """Do nothing."""

    broken.backend = type("Broken", (), {"mark_as_revoked": lambda *_, **__: 1 / 0})()
    defer(broken.s(), delay="10m", entity_id="E")
    others = [defer(app.tasks["effect"].s(n), delay="1h", entity_id="E") for n in range(2)]
    assert cancel(entity_id="E", app=app)
    assert [app.AsyncResult(one.id).state for one in others] == ["REVOKED", "REVOKED"]


NO_INSTANT = {"postgresql": "infinity", "sqlite": "~"}  # MySQL keeps no instant that cannot be read


def spoil(tm: TimeManagement, id: str, **values: Any) -> None:
    """Write what the columns hold as the driver takes it, past their types."""
    plain = table("tm_job", column("id"), *(column(name) for name in values))
    with tm.installation.database.transaction() as tx:
        tx.execute(update(plain).where(plain.c.id == id).values(values))


def states(tm: TimeManagement) -> dict[str, str]:
    with tm.installation.database.transaction(write=False) as tx:
        return {row.id: row.state for row in tx.execute(select(tables.job.c.id, tables.job.c.state))}


def test_a_running_job_that_cannot_be_read_counts_as_in_use_and_stops_nobody(app: Celery, tm: TimeManagement) -> None:
    effect, kind = app.tasks["effect"], tm.installation.database.dialect.name
    if kind not in NO_INSTANT:
        pytest.skip("this database keeps no such instant")
    bad = defer(effect.s(1), delay=SOON, concurrency_key="k").id
    assert claim(tm) == [bad]
    start(tm, bad)
    spoil(tm, bad, created_at=NO_INSTANT[kind])
    waits = defer(effect.s(2), delay=SOON, concurrency_key="k").id
    others = [defer(effect.s(3), delay=SOON).id, defer(effect.s(4), delay=SOON, concurrency_key="other").id]
    assert sorted(claim(tm)) == sorted(others)
    assert states(tm)[waits] == "pending"


def test_a_part_of_a_round_that_fails_does_not_stop_the_others(
    app: Celery, tm: TimeManagement, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    beat = Scheduler(app, max_interval=5)
    monkeypatch.setattr(beat.planner, "plan_due", lambda: 1 / 0)
    monkeypatch.setattr(beat, "_sweep", lambda: 1 / 0)
    tm.definitions.add(name="each", task="effect", schedule="every 1s")
    lost, *ids = [defer(app.tasks["effect"].s(n), delay=SOON).id for n in range(3)]
    with tm.installation.database.transaction() as tx:
        ended = {"state": "dispatched", "lease_until": tx.later(-timedelta(minutes=1))}
        tx.execute(update(tables.job).where(tables.job.c.id == lost).values(ended))
        tx.execute(update(tables.definition).values(next_run_at=tx.later(-timedelta(minutes=1))))
    for _ in range(3):
        assert beat.work() < 1
    assert {states(tm)[id] for id in ids} == {"dispatched"}
    failed = [record.getMessage() for record in caplog.records if "failed" in record.getMessage()]
    assert failed == ["planning failed; beat goes on", "sweeping failed; beat goes on"], "each is left out for a while"
    beat.close()


def held_though_free(app: Celery, tm: TimeManagement, keys: list[str]) -> list[str]:
    """Let a job of each key wait for a slot that is free, as after a caller that died right after its commit."""
    ids = [defer(app.tasks["effect"].s(1), delay=SOON, concurrency_key=key).id for key in keys]
    with tm.installation.database.transaction() as tx:
        tx.execute(insert(tables.lane), [{"key": key} for key in keys])
        tx.execute(update(tables.job).values(slot="held"))
    return ids


def test_a_held_job_without_a_limit_does_not_keep_others_waiting(app: Celery, tm: TimeManagement) -> None:
    ids = held_though_free(app, tm, ["a", "b"])
    spoil(tm, ids[0], concurrency=None)
    Dispatcher(tm.installation, "beat").relieve(at_once=True)
    assert sorted(claim(tm)) == sorted(ids)


@pytest.mark.parametrize("bad", [{"options": "[1]"}, {"app": "one without a beat"}], ids=["unreadable", "another app's"])
def test_a_job_that_no_claim_takes_does_not_keep_the_others_of_its_key_waiting(
    app: Celery, tm: TimeManagement, bad: dict[str, Any]
) -> None:
    ids = [defer(app.tasks["effect"].s(n), delay=n * SOON, concurrency_key="k").id for n in range(4)]
    time.sleep(0.01)
    beat = Dispatcher(tm.installation, "beat")
    assert [job.id for job in beat.claim(10)[1]] == ids[:1]
    spoil(tm, ids[1], **bad)
    for ended, following in pairwise([ids[0], *ids[2:]]):
        recorder.record_success(tm.installation, start(tm, ended), None)
        claimed = [job.id for job in beat.claim(10)[1]]  # finds the bad one
        beat.relieve(at_once=True)
        claimed += [job.id for job in beat.claim(10)[1]]
        assert claimed == [following]
    recorder.record_success(tm.installation, start(tm, ids[3]), None)


def test_many_jobs_of_an_app_without_a_beat_do_not_keep_the_others_of_their_key_waiting(
    app: Celery, tm: TimeManagement
) -> None:
    first = defer(app.tasks["effect"].s(1), concurrency_key="k").id
    assert claim(tm) == [first]
    strays = [defer(app.tasks["effect"].s(1), delay=SOON, concurrency_key="k").id for _ in range(lanes.LOOK + 1)]
    own = [defer(app.tasks["effect"].s(n), delay=SOON, concurrency_key="k").id for n in (1, 2)]
    claim(tm)
    with tm.installation.database.transaction() as tx:
        tx.execute(update(tables.job).where(tables.job.c.id.in_(strays)).values(app="one without a beat", slot="held"))
    recorder.record_success(tm.installation, start(tm, first), None)
    assert claim(tm) == own[:1]
    recorder.record_success(tm.installation, start(tm, own[0]), None)
    assert claim(tm) == own[1:]


def test_a_key_that_cannot_be_looked_at_does_not_keep_others_waiting(
    app: Celery, tm: TimeManagement, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = [f"k{n}" for n in range(6)]
    ids = held_though_free(app, tm, keys)
    opening = lanes._open
    monkeypatch.setattr(lanes, "_open", lambda tx, key, *of, **how: 1 / 0 if key == "k2" else opening(tx, key, *of, **how))
    monkeypatch.setattr(dispatcher, "KEYS", 4)
    monkeypatch.setattr(dispatcher, "RELIEVE_FOR", 60.0)
    beat = Dispatcher(tm.installation, "beat")
    beat.relieve(at_once=True)
    beat.relieve()  # the next keys, at once
    assert sorted(claim(tm)) == sorted({*ids} - {ids[2]})


FAR_OFF = {
    "a job": ("tm_job", "run_at", {"state": "pending"}),
    "a job that takes turns": ("tm_job", "run_at", {"state": "pending", "slot": "open"}),
    "a message": ("tm_job", "lease_until", {"state": "dispatched"}),
    "an attempt": ("tm_job", "lease_until", {"state": "running"}),
    "a definition": ("tm_definition", "next_run_at", {}),
    "a deadline": ("tm_occurrence", "deadline_at", {"state": "running"}),
}


@pytest.mark.parametrize("what", FAR_OFF)
def test_beat_sleeps_beside_an_instant_that_never_comes(app: Celery, tm: TimeManagement, what: str) -> None:
    kind, (name, instant, values) = tm.installation.database.dialect.name, FAR_OFF[what]
    if kind not in NO_INSTANT:
        pytest.skip("this database keeps no such instant")
    beat = Scheduler(app, max_interval=5)
    beat.work()  # seeds definitions
    tm.definitions.add(name="yearly", task="effect", schedule="0 0 1 1 *")
    tm.trigger("yearly")
    changed = values | {instant: NO_INSTANT[kind]}
    plain = table(name, *(column(each) for each in changed))
    with tm.installation.database.transaction() as tx:
        tx.execute(update(plain).values(changed))
        if name != "tm_job":
            tx.execute(delete(tables.job))
    assert [beat.work() for _ in range(2)] == [beat.poll_interval] * 2
    id = defer(app.tasks["effect"].s(1), delay=SOON).id
    time.sleep(0.01)
    beat.work()
    assert states(tm)[id] == "dispatched"
    beat.close()


def test_beat_pauses_beside_an_unreadable_row_that_somebody_holds() -> None:
    first, second = (Agenda(now=NOON + n * SOON, due_at=NOON + n * SOON, unread=frozenset({"due_at"})) for n in range(2))
    assert second.same_due(first)
    assert not second.same_due(replace(first, unread=frozenset()))
