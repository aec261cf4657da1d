"""The boundaries of what a process does to the world outside, each with a name, and a way to die at one of them.

A boundary lies before each statement, before and after each commit, message and stored result, and around a body's effect.
It is named after who does it and what is done, e.g. `worker.gate.admit_job | store.admission.admit | before update tm_job`.
Nothing of this is in the product: a forked child puts it around the driver and the broker's channel when it begins, past
SQLAlchemy's events, for where somebody listens to those, statements take another way.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any, NamedTuple

from celery.backends.filesystem import FilesystemBackend
from sqlalchemy.engine import Engine

from celery_tm import embedded
from celery_tm.store import transaction as store_transaction
from celery_tm.store.database import Database
from celery_tm.store.prepared import Bare

WRITES = re.compile(r"(?<!FOR )(?<!DO )(?<!KEY )\b(INSERT INTO|UPDATE|DELETE FROM)\s+(?:\w+\.)?[\"`]?(\w+)", re.IGNORECASE)
READS = re.compile(r"\bFROM\s+(?:\w+\.)?[\"`]?(\w+)", re.IGNORECASE)
PASSED_OVER = ("BEGIN", "SAVEPOINT", "RELEASE", "ROLLBACK", "PRAGMA")
# Modules and functions that only lead from one place to another.
GANGWAY = (
    "store.database", "store.prepared", "store.dialects", "store.given", "store.body", "store.outside", "tracing", "events",
    "embedded", "producer.writing", "worker.recorder._", "publisher.sending._", "answers",
)  # fmt: skip
_inherited: list[Any] = []  # pools of the parent: kept, so that their sockets are not closed here


class Boundary(NamedTuple):
    """One boundary that a process came to: its name, and the how-manieth of this name it is."""

    name: str
    number: int

    def __str__(self) -> str:
        return self.name if self.number == 1 else f"{self.name} ({self.number})"

    @property
    def is_read(self) -> bool:
        """Say whether what comes next changes nothing, so that to die here is the same as to die later."""
        return "| before select" in self.name or "| after select" in self.name

    @property
    def is_durable(self) -> bool:
        """Say whether something was just done that cannot be undone."""
        return "| after " in self.name and not self.is_read


class Seen:
    """Counts the boundaries that a process comes to; dies at one of them, if so told."""

    def __init__(self, *, told: int, last: Boundary | None = None) -> None:
        self._told, self._last = told, last  # a file to write them to
        self._counts: Counter[str] = Counter()

    def come_to(self, when: str, what: str) -> None:
        """Note a boundary, or die there."""
        name = f"{_who()} | {when} {what}"
        self._counts[name] += 1
        here = Boundary(name, self._counts[name])
        if here == self._last:
            os.kill(os.getpid(), signal.SIGKILL)
        os.write(self._told, f"{name}\n".encode())


def _who() -> str:
    """Return who is at it: the nearest function outside the store, and that of the store it asks."""
    places = list(_places())
    store = next((place for place in places if place.startswith("store.")), None)
    outer = next((place for place in places if not place.startswith("store.")), "caller")
    return outer if store is None else f"{outer} | {store}"


def _places() -> Iterator[str]:
    frame: Any = sys._getframe(3)
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module.startswith("celery_tm."):
            place = f"{module.removeprefix('celery_tm.')}.{frame.f_code.co_qualname.split('.<')[0]}"
            if not place.startswith(GANGWAY):
                yield place
        frame = frame.f_back


def _named(statement: str) -> str | None:
    """Return a statement in a few words; None for what only opens or closes a bracket."""
    text = statement.lstrip()
    if text.upper().startswith(PASSED_OVER):
        return None
    if "pg_notify" in text:
        return "wake"
    if found := WRITES.search(text):
        return f"{found[1].split()[0].lower()} {found[2]}"
    found = READS.search(text)
    return f"select {found[1] if found else 'now'}"


def _watch(engine: Engine, seen: Seen) -> None:
    """Put boundaries around what the driver is told, whichever way it comes."""
    driver: Any = engine.dialect
    for name in ("do_execute", "do_executemany", "do_execute_no_params"):
        setattr(driver, name, _watched(getattr(driver, name), seen))
    commit, raw = driver.do_commit, store_transaction.run_raw

    def do_commit(connection: Any) -> None:
        seen.come_to("before", "commit")
        commit(connection)
        seen.come_to("after", "commit")

    def run_raw(connection: Any, text: Any, values: Any) -> Any:
        what = _named(text.text) or "statement"
        seen.come_to("before", what)
        rows = raw(connection, text, values)
        if isinstance(connection, Bare):  # it has committed by itself
            seen.come_to("after", what)
        return rows

    driver.do_commit = do_commit
    store_transaction.run_raw = run_raw  # type: ignore[attr-defined]


def _watched(execute: Callable[..., Any], seen: Seen) -> Callable[..., Any]:
    @wraps(execute)
    def watched(cursor: Any, statement: str, *rest: Any, **named: Any) -> Any:
        what = _named(statement)
        if what is not None:
            seen.come_to("before", what)
        return execute(cursor, statement, *rest, **named)

    return watched


def _around(owner: Any, name: str, what: str, seen: Seen) -> None:
    """Put a boundary before and after a call."""
    plain = getattr(owner, name)

    @wraps(plain)
    def watched(*args: Any, **kwargs: Any) -> Any:
        seen.come_to("before", what)
        result = plain(*args, **kwargs)
        seen.come_to("after", what)
        return result

    setattr(owner, name, watched)


_seen: Seen | None = None


def effect() -> None:
    """Be a boundary inside a body, where it does something that no database sees."""
    if _seen is not None:
        _seen.come_to("at", "effect")


def _begin(database: Database, seen: Seen) -> None:
    """Make a forked child a process of its own: other connections, the same compiled statements, and boundaries."""
    global _seen
    engine = database._engine  # not by its property: that would make another, whose statements are not compiled yet
    assert engine is not None
    _inherited.append(engine.pool)
    engine.dispose(close=False)
    database._pid = os.getpid()
    _watch(engine, seen)
    _around(embedded.Channel, "_put", "message", seen)
    _around(FilesystemBackend, "set", "result", seen)
    _seen = seen


class Died(NamedTuple):
    """How a child ended: the boundaries it passed, and whether it was killed at the last one."""

    passed: list[Boundary]
    killed: bool
    error: str = ""


def run(database: Database, act: Callable[[], Any], *, until: Boundary | None = None) -> Died:
    """Do something in a process of its own; with `until` it is killed when it comes to that boundary."""
    if not database.dialect.is_server:
        database.engine.dispose()  # what SQLite has open must not be carried into another process
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        _live(database, act, Seen(told=writing, last=until), writing)
    os.close(writing)
    with os.fdopen(reading) as told:
        lines = told.read().splitlines()
    _, status = os.waitpid(pid, 0)
    error = next((n for n, line in enumerate(lines) if line == FAILED), len(lines))
    counts: Counter[str] = Counter()
    passed = []
    for name in lines[:error]:
        counts[name] += 1
        passed.append(Boundary(name, counts[name]))
    killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    return Died(passed, killed, "\n".join(lines[error + 1 :]))


FAILED = "failed:"


def _live(database: Database, act: Callable[[], Any], seen: Seen, told: int) -> None:
    try:
        _begin(database, seen)
        act()
    except BaseException:
        os.write(told, f"{FAILED}\n{traceback.format_exc()}\n".encode())
    finally:
        os._exit(0)
