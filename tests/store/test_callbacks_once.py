"""Callbacks that are published again, since their worker died before it could write that they were: each runs once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from celery import Celery, chain, chord, group
from sqlalchemy import update
from tmtest.courier import Courier, owed

from celery_tm import Task, TimeManagement, defer
from celery_tm.recovery.sweeper import sweep
from celery_tm.store import tables
from celery_tm.store.database import Database
from celery_tm.worker import context as contexts


class Killed(BaseException):
    """Represents a worker that is killed: nothing of ours or of Celery's handles it."""


@pytest.fixture
def ran() -> list[str]:
    return []


@pytest.fixture
def courier(tm: TimeManagement, app: Celery, ran: list[str]) -> Courier:
    app.conf.update(result_backend="cache+memory://", result_chord_retry_interval=0.01)
    app.set_current()  # the parts of a group that is a link belong to the current app, as in a worker

    @app.task(base=Task, name="first", shared=False, max_retries=0)
    def first(*_: Any) -> int:
        ran.append("first")
        return 1

    @app.task(base=Task, name="broken", shared=False, max_retries=0)
    def broken(*_: Any) -> None:
        ran.append("broken")
        raise ValueError("no")

    @app.task(base=Task, name="note", shared=False, max_retries=0)
    def note(name: str) -> str:  # takes one argument: Celery calls errbacks that take more in the worker itself
        ran.append(name)
        return name

    return Courier(tm)


def lose_leases(tm: TimeManagement) -> None:
    """Let every lease end, and sweep."""
    with tm.installation.database.transaction() as tx:
        tx.execute(update(tables.job).where(tables.job.c.state != "pending").values(lease_until=tx.now))
    sweep(tm.installation.database, default=tm.installation.default_policy, limit=100)


def dies(*_: Any, **__: Any) -> Any:
    raise Killed


def links(first: Any, note: Any, broken: Any) -> Any:
    return first.s().set(link=[note.si("a"), chain(note.si("b"), note.si("c")), group(note.si("d"), note.si("e"))])


def steps(first: Any, note: Any, broken: Any) -> Any:
    return chain(first.s(), note.si("a").set(link=note.si("b")), note.si("c"))


def chord_body(first: Any, note: Any, broken: Any) -> Any:
    return chord([first.s()], note.si("a").set(link=note.si("b")))


def groups_after_a_step(first: Any, note: Any, broken: Any) -> Any:
    return chain(first.s(), group(note.si("a"), note.si("b")), note.si("c"))


def errbacks(first: Any, note: Any, broken: Any) -> Any:
    return broken.s().set(link_error=[note.si("a"), note.si("b").set(link=note.si("c"))])


def errbacks_of_a_chord(first: Any, note: Any, broken: Any) -> Any:
    return chord([broken.s()], note.si("never").on_error(note.si("a")))


CANVASES = {
    links: "abcde",
    steps: "abc",
    chord_body: "ab",
    groups_after_a_step: "abc",
    errbacks: "abc",
    errbacks_of_a_chord: "a",
}


@pytest.mark.parametrize("is_frozen", [False, True], ids=["new", "frozen"])
@pytest.mark.parametrize("is_early", [False, True], ids=["ran late", "ran early"])
@pytest.mark.parametrize("canvas", CANVASES, ids=lambda one: one.__name__)
def test_callbacks_that_are_published_twice_run_once(
    app: Celery,
    courier: Courier,
    database: Database,
    ran: list[str],
    monkeypatch: pytest.MonkeyPatch,
    canvas: Callable[..., Any],
    is_early: bool,
    is_frozen: bool,
) -> None:
    """They run before they are published again, or both messages are there at once; all of it applied once or twice."""
    sig = canvas(*(app.tasks[name] for name in ("first", "note", "broken")))
    if is_frozen:
        sig.freeze()
    times = 2 if is_frozen else 1
    for _ in range(times):
        sig.apply_async()
        dies_on_every_row(courier, monkeypatch)
        if is_early:
            courier.deliver_all()
        lose_leases(courier.tm)
        courier.deliver_all()
    begun = "broken" if canvas in (errbacks, errbacks_of_a_chord) else "first"
    assert Counter(ran) == {begun: times, **dict.fromkeys(CANVASES[canvas], times)}
    assert owed(database) == []


def dies_on_every_row(courier: Courier, monkeypatch: pytest.MonkeyPatch) -> None:
    """Deliver what is there to workers that die right after they have published the callbacks."""
    messages = courier.collect()
    with monkeypatch.context() as patch:
        patch.setattr("celery_tm.store.following.forget", dies)
        for message in messages:
            with pytest.raises(Killed):
                courier.deliver(message)
            contexts.leave()


@pytest.mark.parametrize("deaths", [1, 3])
def test_callbacks_of_a_deferred_job_run_once_however_often_their_worker_dies(
    app: Celery, courier: Courier, database: Database, ran: list[str], monkeypatch: pytest.MonkeyPatch, deaths: int
) -> None:
    defer(app.tasks["first"].s().set(link=[app.tasks["note"].si("a")]))
    for _ in range(deaths):
        courier.dispatch()
        kept = [one for one in courier.collect() if one.headers["task"] == "first"]
        with monkeypatch.context() as patch:
            patch.setattr("celery_tm.store.following.forget", dies)
            with pytest.raises(Killed):
                courier.deliver(kept[0])
        contexts.leave()
        lose_leases(courier.tm)
    courier.deliver_all()
    assert Counter(ran) == {"first": 1, "a": 1}
    assert owed(database) == []
