"""The shop on an SQLite database of its own, with a provider that does as it is told, and time that is moved."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import delete, select
from tmtest.node import opened_node

from celery_tm.store import tables
from celery_tm.testing import MovableClock


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    """The shop's modules."""
    folder = tmp_path_factory.mktemp("node")
    environ = {"TM_DATABASE_URL": f"sqlite:///{folder}/shop.db", "TM_BROKER_URL": "memory://", "TM_DEMO_SPEED": "1"}
    with opened_node(environ) as node:
        yield node


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

    def __init__(self, node: SimpleNamespace, clock: MovableClock) -> None:
        self.node, self.clock = node, clock
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
        self.clock.forward(duration)
        while self.tm.run_due_jobs().claimed:
            pass

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
def shop(node: SimpleNamespace, source: Any, tm_clock: MovableClock) -> Shop:
    """An empty shop."""
    tm_clock.move_to(datetime(2026, 6, 1, 12, tzinfo=UTC))
    with node.database.engine().begin() as connection:
        for table in (*reversed(node.models.Base.metadata.sorted_tables), *tables.metadata.sorted_tables):
            connection.execute(delete(table))
    return Shop(node, tm_clock)
