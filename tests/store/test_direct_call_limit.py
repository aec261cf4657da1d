"""`tm_max_in_flight` holds direct calls: one over the limit waits as a row, and runs once when there is room."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from celery import Celery
from sqlalchemy import func, select
from tmtest.app import make_app
from tmtest.ledger import claim, start

from celery_tm import TimeManagement
from celery_tm.domain.job import Job, JobState
from celery_tm.store import admission, jobs, lanes, tables
from celery_tm.worker import gate, recorder
from celery_tm.worker.decision import Call, Decision, Refusal, Verdict

LIMIT, HOUR = 2, timedelta(hours=1)


@pytest.fixture
def limited(database_url: str) -> Iterator[TimeManagement]:
    app: Celery = make_app({"broker_url": "memory://", "tm_database_url": database_url, "tm_max_in_flight": LIMIT})
    tm = TimeManagement(app)
    yield tm
    tm.installation.database.dispose()


def call(id: str, **changes: Any) -> Call:
    values: dict[str, Any] = {"id": id, "task": "effect", "args": [1], "kwargs": {}, "key": None, "keep_key": None}
    return Call(**(values | {"max_retries": 3, "retry": None, "options": {}} | changes))


def admit(tm: TimeManagement, one: Call) -> Decision:
    return gate.admit_call(tm.installation, one, worker="w:1")


def finish(tm: TimeManagement, job: Any) -> None:
    assert job is not None
    recorder.record_success(tm.installation, job, None)


def states(tm: TimeManagement) -> dict[str, str]:
    with tm.installation.database.transaction(write=False) as tx:
        return {job.id: str(job.state) for job in jobs.select_jobs(tx)}


def test_a_direct_call_over_the_limit_waits_as_a_row_and_runs_once(limited: TimeManagement) -> None:
    first, second, third = (admit(limited, call(id)) for id in ("a", "b", "c"))
    assert (first.verdict, second.verdict) == (Verdict.RUN, Verdict.RUN)
    assert (third.verdict, third.refusal) == (Verdict.SKIP, Refusal.LIMIT)  # its message is acknowledged
    assert states(limited) == {"a": "running", "b": "running", "c": "pending"}
    assert admit(limited, call("c")).verdict is Verdict.SKIP, "a copy of its message"
    assert claim(limited) == [], "there is no room yet"
    finish(limited, first.job)
    assert claim(limited) == ["c"]
    held = start(limited, "c")
    assert (held.args, held.state, held.attempt) == ("[1]", JobState.RUNNING, 1)
    finish(limited, held)
    assert admit(limited, call("c")).refusal is Refusal.SETTLED
    assert limited.job("c").attempt_count == 1


def test_dispatched_jobs_count_and_keyed_calls_keep_their_key_while_they_wait(limited: TimeManagement) -> None:
    from celery_tm import defer

    for n in range(2):
        defer(limited.app.tasks["effect"].s(n))
    assert len(claim(limited)) == 2
    assert admit(limited, call("a", key="k")).refusal is Refusal.LIMIT
    assert admit(limited, call("b", key="k")).refusal is Refusal.RUNNING, "its key is that of the call that waits"
    assert {"a": "pending"}.items() <= states(limited).items()
    assert "b" not in states(limited)


def test_a_call_that_no_row_can_keep_goes_back_to_the_broker(limited: TimeManagement) -> None:
    for id in ("a", "b"):
        assert admit(limited, call(id)).verdict is Verdict.RUN
    odd = call("odd", args=[object()])
    back = admit(limited, odd)
    assert (back.verdict, back.refusal) == (Verdict.LATER, Refusal.LIMIT)
    assert "odd" not in states(limited)
    finish(limited, start_of(limited, "a"))
    assert admit(limited, odd).verdict is Verdict.RUN


def test_calls_at_the_same_moment_never_exceed_the_limit(limited: TimeManagement) -> None:
    decisions: list[Decision] = []

    def work(n: int) -> None:
        decisions.append(admit(limited, call(f"call-{n}")))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(one.verdict is Verdict.RUN for one in decisions) == LIMIT
    assert len(decisions) == 8
    with limited.installation.database.transaction(write=False) as tx:
        assert tx.execute(select(func.count()).select_from(tables.job)).scalar_one() == 8, "none is lost"
    assert sorted(states(limited).values()) == ["pending"] * 6 + ["running"] * 2


def test_a_call_waits_for_whoever_fills_the_last_place_at_this_moment(limited: TimeManagement) -> None:
    assert admit(limited, call("a")).verdict is Verdict.RUN
    decisions: list[Decision] = []
    thread = threading.Thread(target=lambda: decisions.append(admit(limited, call("c"))))
    with limited.installation.database.transaction() as tx:
        running = replace(start_of(limited, "a"), id="b")
        assert admission.insert_running(tx, running, lease=HOUR)
        assert not lanes.exceeds(tx, LIMIT)
        thread.start()
        thread.join(0.5)
        assert decisions == [], "it is not decided while somebody else counts"
    thread.join(20)
    assert [one.refusal for one in decisions] == [Refusal.LIMIT]


def start_of(tm: TimeManagement, id: str) -> Job:
    with tm.installation.database.transaction(write=False) as tx:
        found = jobs.find(tx, id)
    assert found is not None
    return found


def test_without_the_setting_nothing_is_counted(tm: TimeManagement) -> None:
    assert [admit(tm, call(f"c{n}")).verdict for n in range(5)] == [Verdict.RUN] * 5
    with tm.installation.database.transaction(write=False) as tx:
        assert tx.execute(select(func.count()).select_from(tables.lane)).scalar_one() == 0
