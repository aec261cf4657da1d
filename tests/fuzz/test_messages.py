"""Forged, truncated, replayed and mutated messages: none runs a body twice, none makes one run with other arguments, and
none brings down the worker that takes it in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from celery import Celery
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from sqlalchemy import select

from celery_tm import TimeManagement, cancel, defer, defer_many, workflow
from celery_tm.errors import TmError
from celery_tm.scheduler.dispatcher import Dispatcher
from celery_tm.store import tables
from celery_tm.worker import gate
from fuzz.forging import GONE, LINK, PICKLE, Edit, IdOf, Raw, edits, forged
from fuzz.inbox import Inbox, collect, complaints

PLAIN, OTHER, CHUNK, KEYED, STEP, DIRECT, LINKING, FAR, DONE, DEAD, CANCELLED, RUNNING = range(12)
KINDS = 12


class World:
    """Jobs of every kind in every state, with the messages that carry them."""

    def __init__(self, inbox: Inbox, effects: Path) -> None:
        self.inbox, self.effects = inbox, effects
        self.app, self.tm = inbox.app, TimeManagement(inbox.app)
        effects.write_text("")
        self.owed: dict[str, tuple[str, str]] = {}  # by id: what body must run, with what
        self.messages: list[Raw] = []
        self._add_owed()
        self._add_direct()
        self._add_over()
        assert len(self.messages) == KINDS

    def _add_owed(self) -> None:
        effect, chunked = self.app.tasks["effect"], self.app.tasks["chunked"]
        for n in (1, 2):
            self.owed[defer(effect.s(n)).id] = ("effect", str(n))
        for n, handle in enumerate(defer_many([chunked.s(n) for n in (3, 4, 5)]), 3):
            self.owed[handle.id] = ("chunked", str(n))
        self.owed[defer(self.app.tasks["keyed"].s(6)).id] = ("keyed", "6")
        defer(workflow([effect.s(7)]))
        dispatcher = Dispatcher(self.tm.installation, "beat")
        dispatcher.dispatch_due()
        dispatcher.dispatch_due()
        self.owed |= {job.id: ("effect", "7") for job in self.tm.jobs() if job.step}
        self.messages += collect(self.app)

    def _add_direct(self) -> None:
        effect = self.app.tasks["effect"]
        effect.delay("direct")
        effect.apply_async(["linking"], link=effect.si("linked"))
        self.app.send_task("effect", ["far"], eta="2999-01-01T00:00:00+00:00")
        self.messages += collect(self.app)

    def _add_over(self) -> None:
        """Add messages of jobs that have succeeded, are dead, are cancelled, and run elsewhere."""
        effect = self.app.tasks["effect"]
        done, dead = defer(effect.s("done")), defer(self.app.tasks["fails"].s("dead"), max_retries=0)
        ended = collect(self.app)
        for raw in ended:
            self.inbox.take(raw)
        assert (done.state, dead.state) == ("SUCCEEDED", "FAILED")
        gone, running = defer(effect.s("gone")), defer(effect.s("elsewhere"))
        left = collect(self.app)
        cancel(id=gone.id, app=self.app)
        assert gate.admit_job(self.tm.installation, running.id, 1, worker="elsewhere:1").job
        self.messages += [*ended, *left]
        self.over = {done.id: "done", dead.id: "dead", gone.id: "gone", running.id: "elsewhere"}
        self.ran = Counter(self.lines())

    def lines(self) -> list[tuple[str, str, str, str]]:
        """Return what bodies wrote: the task, its argument, the job and the attempt."""
        return [self._read(line.split(" ")) for line in self.effects.read_text().split("\n") if line]

    @staticmethod
    def _read(words: list[str]) -> tuple[str, str, str, str]:
        task, *rest = words
        attempt = rest.pop() if task != "keyed" else "1"
        return task, " ".join(rest[:-1]), rest[-1], attempt

    def check(self) -> None:
        """Fail where a body ran twice for an attempt, for a job that was over, or with what is not in its job's row."""
        attempts = Counter(line[2:] for line in self.lines())
        assert [one for one, count in attempts.items() if count > 1] == []
        for task, n, id, *_ in Counter(self.lines()) - self.ran:
            assert id not in self.over, f"{task} {n} ran for the job that was {self.over[id]}"
            assert self.owed.get(id, (task, n)) == (task, n)

    def finish(self) -> None:
        """Deliver what was sent in truth, and fail unless each job then has succeeded by its own one run."""
        for raw in self.messages:
            self.inbox.take(raw)
        self.check()
        ran = Counter(line[2] for line in self.lines())
        assert {id: ran[id] for id in self.owed} == dict.fromkeys(self.owed, 1)
        assert sorted(self.outcomes()) == sorted((id, 1, "succeeded") for id in self.owed)

    def outcomes(self) -> list[tuple[str, int, str]]:
        one = tables.execution.c
        with self.tm.installation.database.transaction(write=False) as tx:
            rows = tx.execute(select(one.job, one.attempt, one.outcome).where(one.job.in_(self.owed)))
            return [(row[0], row[1], row[2]) for row in rows]


Forgery = tuple[int, Sequence[Edit]]
forgeries: st.SearchStrategy[list[Forgery]] = st.lists(
    st.tuples(st.integers(0, KINDS - 1), st.lists(edits(KINDS), max_size=3)), min_size=10, max_size=30
)


@pytest.fixture(params=["sqlite", "postgresql"])
def begin(request: pytest.FixtureRequest, effects: Path, app_on: Callable[[str], Celery]) -> Callable[[], World]:
    """Return how to begin with a world of its own, on each of two databases."""
    inbox = Inbox(app_on(request.param))

    def anew() -> World:
        app_on(request.param)
        return World(inbox, effects)

    return anew


def test_no_forgery_runs_a_body_twice_or_with_other_arguments(
    begin: Callable[[], World], examples: int, thorough: bool
) -> None:
    # Without shrinking: an example holds megabytes. The short run tries the same ones each time, the thorough one others.
    @settings(
        max_examples=examples,
        phases=[Phase.generate],
        derandomize=not thorough,
        suppress_health_check=list(HealthCheck),
        database=None,
    )
    @given(sent=forgeries)
    def taken_in(sent: list[Forgery]) -> None:
        take_in(begin(), sent)

    taken_in()


def take_in(world: World, sent: Sequence[Forgery]) -> None:
    """Let a worker take forgeries in, then what was sent in truth."""
    with complaints() as errors:
        for number, changes in sent:
            world.inbox.take(forged(world.messages, number, changes))
            world.check()
        world.finish()
    assert [error for error in errors if not is_stated(error)] == []


def is_stated(error: BaseException) -> bool:
    """Say whether an error is one of ours, or of a body that was called, by a call that nobody can tell from others."""
    return (
        isinstance(error, TmError) or str(error).startswith("no ") or "argument" in str(error) or "surrogates" in str(error)
    )


def head(name: str, value: object) -> Edit:
    """Another header."""
    return Edit(("headers", name), value)


def tm(name: str, value: object) -> Edit:
    """Another part of the header `tm`."""
    return Edit(("headers", "tm", name), value)


def part(number: int, value: object) -> Edit:
    """Other arguments, keyword arguments, or what follows."""
    return Edit(("body", number), value)


BOTH = [[IdOf(PLAIN), 1], [IdOf(OTHER), 1]]
LONG_AGO = "2000-01-01T00:00:00+00:00"
ENDS_OF_TIME = [
    ("eta", "9999-12-31T23:59:59-12:00"),
    ("expires", "9999-12-31T23:59:59-12:00"),
    ("eta", "0001-01-01T00:00:00+14:00"),
]
# Each of these brought a worker down, or got past the gate, once.
KNOWN: dict[str, list[Forgery]] = {
    "without an id": [(PLAIN, [Edit(("headers",), {"task": "effect"})])],
    "an id that is no text": [(PLAIN, [head("id", [])]), (DIRECT, [head("id", {})])],
    "a task that is no text": [(PLAIN, [head("task", ["effect"])])],
    "a task that is no text, and no body": [(PLAIN, [Edit(("headers",), {"task": {}}), Edit(("raw",), b"\xd3")])],
    "limits that are none": [(PLAIN, [head("timelimit", "12")]), (PLAIN, [head("timelimit", -5)])],
    "a body that is none": [(PLAIN, [Edit(("body",), body)]) for body in (0, [], [[], {}, "{0}"])],
    "a time at the end of time": [(n, [head(name, at)]) for n in (PLAIN, DIRECT) for name, at in ENDS_OF_TIME],
    "a priority beyond all numbers": [(n, [Edit(("properties", "priority"), 10**30)]) for n in (PLAIN, DIRECT, FAR)],
    "no time": [(PLAIN, [head("eta", 0)]), (PLAIN, [head("expires", "")])],
    "an attempt out of range": [(PLAIN, [tm("attempt", 2**63)]), (CHUNK, [tm("chunk", [["x", 2**31]])])],
    "NUL and halves": [(DIRECT, [head("id", "a\x00b")]), (DIRECT, [head("id", "\ud800")])],
    "a key with NUL": [(DIRECT, [head("task", "keyed"), part(0, ["a\x00b"])])],
    "another task's job": [(PLAIN, [head("task", "fails")]), (PLAIN, [head("task", "no.such.task")])],
    "another task's job in a chunk": [(CHUNK, [tm("chunk", BOTH)])],
    "other arguments": [(PLAIN, [part(0, ["forged"])]), (OTHER, [part(1, {"n": "forged"}), part(0, [])])],
    "an end of its own": [(PLAIN, [head("expires", LONG_AGO)])],
    "many at once with an end": [
        (CHUNK, [tm("chunk", BOTH), head("expires", LONG_AGO)])
    ],
    "in the place of a success": [(DONE, [head("tm", GONE), head("tm_replaces", n)]) for n in (1, 7)],
    "links that are none": [(PLAIN, [Edit(("body", 2, "callbacks"), 5)]), (PLAIN, [Edit(("body", 2, "chord"), [LINK])])],
    "as a plain call": [(n, [head("tm", GONE)]) for n in (PLAIN, STEP, DONE, DEAD, CANCELLED, RUNNING)],
    "again": [(n, []) for n in (PLAIN, PLAIN, CHUNK, CHUNK, STEP, STEP, DIRECT, DIRECT, DONE, DEAD, CANCELLED, RUNNING)],
    "a later attempt": [(n, [tm("attempt", 2)]) for n in (PLAIN, STEP, DONE, DEAD, CANCELLED, RUNNING)],
    "pickled": [(PLAIN, [Edit(("content-type",), "application/x-python-serialize"), Edit(("raw",), PICKLE)])],
}  # fmt: skip


@pytest.mark.parametrize("name", KNOWN)
def test_what_once_got_through_does_not_any_more(begin: Callable[[], World], name: str) -> None:
    take_in(begin(), KNOWN[name])
