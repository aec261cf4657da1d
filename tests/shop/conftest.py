"""The shop, tested as a user of celery_tm tests an app: with the fixtures of its pytest plugin.

Each test has a copy of a prepared database (`tm_database`), time that is moved, and what is due run in this process
(`tm_run_due`); the provider does as it is told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from sqlalchemy import select
from tmtest.node import opened_node

from celery_tm.testing import MovableClock, RunDue

ENVIRON = {"TM_BROKER_URL": "memory://", "TM_DEMO_SPEED": "1"}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    """The shop's modules."""
    folder = tmp_path_factory.mktemp("node")
    with opened_node({**ENVIRON, "TM_DATABASE_URL": f"sqlite:///{folder}/shop.db"}) as node:
        yield node


@pytest.fixture
def tm_app(node: SimpleNamespace) -> Celery:
    """The app under test."""
    return node.app


@pytest.fixture(scope="session")
def tm_prepare_database() -> Callable[[str], None]:
    """What makes the shop's own tables beside ours."""

    def prepare(url: str) -> None:
        with opened_node({**ENVIRON, "TM_DATABASE_URL": url}):
            pass  # opening it makes them

    return prepare


@pytest.fixture
def source(node: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The provider."""
    server = node.provider.Provider()
    monkeypatch.setenv("SHOP_PROVIDER_URL", server.start())
    yield server
    server.shutdown()
    server.server_close()


class Shop:
    """One empty shop, from noon of a summer's day on."""

    def __init__(self, node: SimpleNamespace, run_due: RunDue) -> None:
        self.node, self.run_due, self.clock = node, run_due, run_due.clock
        self.tm = node.tm

    @property
    def now(self) -> datetime:
        return self.clock.now

    def do(self, what: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Do something as a request does, in a transaction of its own."""
        with self.node.database.open_session() as session, session.begin():
            session.expire_on_commit = False
            return what(session, *args, **kwargs, now=self.now)

    def webhook(self, reference: str) -> bool:
        return bool(self.do(self.node.payments.settle, reference, by="webhook"))

    def forward(self, duration: str = "0s") -> None:
        """Let time pass and do what is due, until nothing is."""
        self.run_due(forward=duration)

    def row(self, model: str, id: Any) -> Any:
        with self.node.database.open_session() as session:
            return session.get(getattr(self.node.models, model), id)

    def rows(self, model: str) -> list[Any]:
        with self.node.database.open_session() as session:
            return list(session.scalars(select(getattr(self.node.models, model))))

    def ledger(self, what: str) -> list[str]:
        return sorted(entry.subject for entry in self.rows("Entry") if entry.what == what)

    def outcomes(self, task: str) -> list[str]:
        return [run.outcome for run in self.tm.history(task=task)]


@pytest.fixture
def shop(node: SimpleNamespace, source: Any, tm_clock: MovableClock, tm_run_due: RunDue) -> Iterator[Shop]:
    """An empty shop, whose own engine is that of the test's database too."""
    tm_clock.move_to(datetime(2026, 6, 1, 12, tzinfo=UTC))
    node.database.engine.cache_clear()
    yield Shop(node, tm_run_due)
    node.database.engine().dispose()
    node.database.engine.cache_clear()
