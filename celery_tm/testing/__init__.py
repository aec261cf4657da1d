"""A pytest plugin for the tests of apps that use celery_tm.

`tm_clock` freezes its time, `tm_database` gives the app a database for one test, `tm_run_due` runs what is due in this
process, `tm_deferred` tells what is deferred, and `tm_worker` starts a real worker and beat in threads.

pytest imports this in every run, also of suites that use none of it: so the fixtures load what they need when asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from celery import Celery

    from .databases import TestDatabase
    from .deferred import Deferred, DeferredJob
    from .movable import MovableClock
    from .rounds import RunDue
    from .working import EmbeddedWorker

_PLACES = {
    "Deferred": ".deferred",
    "DeferredJob": ".deferred",
    "EmbeddedWorker": ".working",
    "MovableClock": ".movable",
    "RunDue": ".rounds",
    "TestDatabase": ".databases",
}

__all__ = ["Deferred", "DeferredJob", "EmbeddedWorker", "MovableClock", "RunDue", "TestDatabase"]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'celery_tm.testing' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_PLACES[name], __name__), name)
    return value


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let a suite name its app."""
    parser.addini("tm_app", "the Celery app under test, as `celery -A` takes it, e.g. shop:app", default="")


@pytest.fixture
def tm_clock() -> Iterator[MovableClock]:
    """Freeze celery_tm's time for a test."""
    from .. import clock
    from .movable import MovableClock

    movable = MovableClock(clock.now().replace(microsecond=0))
    yield movable
    movable.release()


@pytest.fixture
def tm_app(pytestconfig: pytest.Config) -> Celery:
    """Return the app under test: `tm_app` in pytest's settings, else Celery's current app. Override it to name another."""
    from .apps import find

    return find(pytestconfig.getini("tm_app"))


@pytest.fixture(scope="session")
def tm_database_url() -> str | None:
    """Return the URL of a test database of your own that is emptied for each test; None means SQLite. To be overridden."""
    return None


@pytest.fixture(scope="session")
def tm_prepare_database() -> Callable[[str], None]:
    """Return what creates the app's own tables, called once with the database's URL. To be overridden."""
    return _prepare_nothing


def _prepare_nothing(url: str) -> None:
    """Leave a database with celery_tm's tables alone."""


@pytest.fixture(scope="session")
def _tm_template(
    tm_prepare_database: Callable[[str], None],
    tm_database_url: str | None,
    tmp_path_factory: pytest.TempPathFactory,
) -> Any:
    """Prepare, once, what the databases of all tests begin as."""
    from .databases import Own, Template

    if tm_database_url is not None:
        return Own(tm_database_url, tm_prepare_database)
    return Template(tmp_path_factory.mktemp("tm_template"), tm_prepare_database)


@pytest.fixture
def tm_database(tm_app: Celery, _tm_template: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestDatabase]:
    """Give the app an empty database of its own for a test."""
    from .databases import installed

    with installed(tm_app, _tm_template, tmp_path_factory) as database:
        yield database


@pytest.fixture
def tm_broker(tm_app: Celery) -> Iterator[str]:
    """Give the app a broker and a result backend in memory for a test; return the broker's URL."""
    from .brokers import in_memory

    with in_memory(tm_app) as url:
        yield url


@pytest.fixture
def tm_run_due(tm_app: Celery, tm_database: TestDatabase, tm_broker: str, tm_clock: MovableClock) -> RunDue:
    """Return what runs the due jobs of the app in this process."""
    from .rounds import RunDue

    return RunDue(tm_app, tm_clock)


@pytest.fixture
def tm_deferred(tm_app: Celery, tm_database: TestDatabase, tm_broker: str, tm_clock: MovableClock) -> Deferred:
    """Return a view of the jobs that are deferred."""
    from .deferred import Deferred

    return Deferred(tm_app)


@pytest.fixture
def tm_worker(tm_app: Celery, tm_database: TestDatabase, tm_broker: str) -> Iterator[EmbeddedWorker]:
    """Start a real worker and beat of the app in threads of this process."""
    from .working import embedded

    with embedded(tm_app) as worker:
        yield worker
