"""Databases and brokers for the tests.

Store tests run on PostgreSQL and, by turns, on SQLite or MySQL; process tests on the first pair and a sample of the others.
`--thorough` runs each of them everywhere.
"""

from __future__ import annotations

import os
import uuid
import zlib
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from celery import Celery
from hypothesis import HealthCheck, settings
from kombu.transport import memory
from sqlalchemy import delete, make_url
from tmtest import services
from tmtest.app import make_app
from tmtest.canvas_tasks import canvas_conf
from tmtest.servers import OwnRedis
from tmtest.stand import Stand

from celery_tm import TimeManagement
from celery_tm.installation import Installation
from celery_tm.management.easy import embedded_broker
from celery_tm.settings import read_settings
from celery_tm.store import schema, tables
from celery_tm.store.database import Database
from celery_tm.store.dialects import with_driver
from celery_tm.testing import MovableClock

# A busy machine is no failure: examples are counted, not timed.
settings.register_profile("celery_tm", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("celery_tm")

DATABASES = ("sqlite", "postgresql", "mysql")
PAIRS = ("sqlite+files", "postgresql+redis", "mysql+rabbitmq")


def pytest_configure(config: pytest.Config) -> None:
    required = [name for name in os.environ.get("TM_TEST_REQUIRE", "").split(",") if name]
    missing = [services.why_missing(name) for name in required if not services.find(name)]
    if missing:
        raise pytest.UsageError("; ".join(missing))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--thorough", action="store_true", help="run every process test on every pair, not a part of them")


# Tests of real processes take their time. Every one runs on the first pair; `--thorough` (make test-thorough) runs them on
# all, and the longest at full length. Without it, one in SAMPLE runs on each of the other pairs, save in the files whose
# tests share processes that would be started for a few of them.
FIRST_PAIR = "postgresql+redis"
SAMPLE = 40
SHARING = ("test_pools", "test_task_options", "test_canvas_everywhere")
# What people state, type and read is the same on every database, and so is what Python keeps in memory: each test of these
# runs on one of them, by turns.
WORDS = (
    "test_bad_input", "test_calendars", "test_cli_commands", "test_cli_mistakes", "test_cli_operating", "test_cli_workflows",
    "test_definitions", "test_doctor", "test_explain", "test_flower_api", "test_flower_safety", "test_flower_views",
    "test_garbage", "test_importing", "test_json_shapes", "test_log_lines", "test_looking", "test_metrics", "test_spans",
    "test_unreadable_rows", "test_workflow_edits", "test_workflow_mistakes", "test_workflow_reports",
)  # fmt: skip
# The other store tests run on the first database, and each on one of the others by turns; these on all, since there the
# databases differ most.
FIRST_DATABASE = "postgresql"
EVERYWHERE = (
    "test_caller_transactions", "test_connections", "test_crash_points", "test_gate", "test_keys_and_callers",
    "test_protocol", "test_workflow_races",
)  # fmt: skip
# Tests share an engine for each database; where what is said to the server is counted, each has its own.
COUNTED = ("test_producer_cost", "test_step_ends", "test_tick_cost", "test_worker_cost")


# These take longest, so they begin first: else one process is still at them when the others have nothing left to do.
LONG = (
    "test_tutorial", "test_celery_suites", "test_long_outages", "test_003_billing", "test_readme", "test_deployment",
    "test_whole_life", "test_packaging", "test_crash_points", "test_upgrades",
)  # fmt: skip


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: LONG.index(item.path.stem) if item.path.stem in LONG else len(LONG))
    if config.getoption("--thorough") or not all(services.find(name) for name in ("postgresql", "mysql", "redis")):
        return
    left = [item for item in items if not _is_for_the_thorough(item)]
    config.hook.pytest_deselected(items=[item for item in items if _is_for_the_thorough(item)])
    items[:] = left


@pytest.fixture
def thorough(request: pytest.FixtureRequest) -> bool:
    """Whether the longest tests run at full length."""
    return bool(request.config.getoption("--thorough"))


def _is_for_the_thorough(item: pytest.Item) -> bool:
    if item.get_closest_marker("thorough"):
        return True
    values = item.callspec.params.values() if hasattr(item, "callspec") else ()
    database = next((value for value in values if value in DATABASES), None)
    if item.path.stem == "test_locks":  # a stranger's lock is waited for: slow, and alike on both servers
        return zlib.crc32(item.nodeid.replace(database or "", "").encode()) % 2 != (database == "mysql")
    if database is not None and item.path.parent.name == "store":
        return _is_anothers_turn(item, database)
    pair = next((value for value in values if value in PAIRS), FIRST_PAIR)
    if pair == FIRST_PAIR:
        return False
    number = zlib.crc32(item.nodeid.replace(pair, "").encode())
    return item.path.stem in SHARING or (number + PAIRS.index(pair)) % SAMPLE != 0


def _is_anothers_turn(item: pytest.Item, database: str) -> bool:
    """Say whether a test runs on other databases, but not on this one."""
    number = zlib.crc32(item.nodeid.replace(database, "").encode())
    if item.path.stem in WORDS:
        return number % len(DATABASES) != DATABASES.index(database)
    if item.path.stem in EVERYWHERE or database == FIRST_DATABASE:
        return False
    others = [one for one in DATABASES if one != FIRST_DATABASE]
    return others[number % len(others)] != database


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Escape lone surrogates in what a test printed: xdist cannot send them, and would end the whole run instead."""
    report = yield
    report.sections = [(name, _sendable(content)) for name, content in report.sections]
    if report.longrepr is not None and (shown := str(report.longrepr)) != _sendable(shown):
        report.longrepr = _sendable(shown)
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_warning_recorded(warning_message: Any) -> None:
    """Do the same for warnings."""
    shown = str(warning_message.message)
    if shown != _sendable(shown):
        warning_message.message = UserWarning(_sendable(shown))


def _sendable(shown: str) -> str:
    return shown.encode("utf-8", "backslashreplace").decode("utf-8")


def pytest_report_header() -> str:
    return "celery_tm services: " + ", ".join(f"{n} {'found' if services.find(n) else 'MISSING'}" for n in services.KINDS)


def require(name: str) -> None:
    """Skip, saying how to get it, where a service is missing."""
    if name in services.KINDS and not services.find(name):
        pytest.skip(services.why_missing(name))


@pytest.fixture(scope="session")
def postgresql_url() -> Iterator[str]:
    require("postgresql")
    with services.own_database("postgresql") as url:
        yield url


@pytest.fixture(scope="session")
def mysql_url() -> Iterator[str]:
    require("mysql")
    with services.own_database("mysql") as url:
        yield url


@pytest.fixture(scope="session")
def sqlite_url() -> Iterator[str]:
    memory = Path("/dev/shm")  # where there is one, nobody waits for the disk
    with TemporaryDirectory(prefix="tm-test-", dir=memory if memory.is_dir() else None) as place:
        yield f"sqlite:///{place}/jobs.db"


@pytest.fixture(scope="session")
def redis_service() -> Iterator[tuple[str, str]]:
    require("redis")
    with services.own_redis() as found:
        yield found


@pytest.fixture(scope="session")
def rabbitmq_url() -> Iterator[str]:
    require("rabbitmq")
    with services.own_rabbitmq() as url:
        yield url


_prepared: dict[str, Database] = {}


def empty(database: Database) -> None:
    """Delete every row that an earlier test left."""
    with database.transaction() as tx:
        for table in tables.metadata.sorted_tables:
            tx.execute(delete(table))


@pytest.fixture(params=DATABASES)
def database_url(request: pytest.FixtureRequest) -> str:
    """The URL of an empty, upgraded database of each kind."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    prepare(url)
    return url


def prepare(url: str) -> Database:
    """Bring a database to this release, empty it, and return it: one for each URL, which all tests share."""
    database = _prepared.get(url)
    if database is None:
        database = _prepared[url] = Database(read_settings({"tm_database_url": url}, {}))
        schema.upgrade(database)
    empty(database)
    return database


@pytest.fixture
def app(request: pytest.FixtureRequest, database_url: str) -> Iterator[Celery]:
    """An app with the test tasks, on each database, with a broker in memory."""
    memory.Channel.queues.clear()  # brokers in memory are one per process, so what an earlier test left is there
    queue = f"test-{uuid.uuid4().hex}"
    app = make_app({"broker_url": "memory://", "task_default_queue": queue, "tm_database_url": database_url})
    database = Installation.of(app).database
    if request.path.stem in COUNTED:
        database.serve_own_app()  # where no beat has registered, each transaction looks for one first
    else:
        share_engine(database, _prepared[database_url])
    yield app
    if request.path.stem in COUNTED:
        database.dispose()
    app.close()


def share_engine(database: Database, ready: Database) -> None:
    """Let a test's database use an engine whose connections are open and whose statements are compiled."""
    database._engine, database._pid, database._schema_checked = ready.engine, os.getpid(), True


@pytest.fixture
def tm(app: Celery) -> TimeManagement:
    return TimeManagement(app)


@pytest.fixture
def noon(tm_clock: MovableClock) -> MovableClock:
    """Noon of a summer's day, and a way to move on from it."""
    tm_clock.move_to(datetime(2026, 6, 1, 12, tzinfo=UTC))
    return tm_clock


@pytest.fixture
def database(app: Celery) -> Database:
    return Installation.of(app).database


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[OwnRedis]:
    """A Redis of a test's own, to look into and to stop."""
    server = OwnRedis(tmp_path)
    server.start()
    yield server
    server.stop()


OpenStand = Callable[[str, Path, Path], AbstractContextManager[Stand]]


@pytest.fixture(params=PAIRS)
def stand(request: pytest.FixtureRequest, open_stand: OpenStand, tmp_path: Path, effects: Path) -> Iterator[Stand]:
    """A database and a broker of each kind, with real workers and beats to start on them."""
    with open_stand(request.param, tmp_path, effects) as stand:
        yield stand


@pytest.fixture(scope="session")
def open_stand(request: pytest.FixtureRequest) -> OpenStand:
    """Return how to open a stand, for tests that share one."""

    @contextmanager
    def opened(pair: str, folder: Path, effects: Path) -> Iterator[Stand]:
        database, broker = pair.split("+")
        url: str = request.getfixturevalue(f"{database}_url")
        prepare(url)
        stand = Stand(broker_conf(request, broker, folder) | {"tm_database_url": url}, folder, effects, pair=pair)
        try:
            yield stand
        finally:
            stand.close()

    return opened


@pytest.fixture(params=PAIRS, scope="module")
def canvas(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    """A stand with a result backend, one beat and one worker that all tests of a module share."""
    stand = stand_with_results(request, tmp_path_factory.mktemp("canvas"), request.param)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TM_TEST_EFFECTS", str(stand.effects_file))
        stand.beat()
        stand.worker(concurrency=3)
        yield stand
        close_with_results(stand)


@pytest.fixture(params=PAIRS)
def own_canvas(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stand]:
    """The same for one test alone, which starts the processes itself."""
    stand = stand_with_results(request, tmp_path, request.param)
    monkeypatch.setenv("TM_TEST_EFFECTS", str(stand.effects_file))
    yield stand
    close_with_results(stand)


def stand_with_results(request: pytest.FixtureRequest, folder: Path, pair: str) -> Stand:
    """Return a stand on an empty database: Redis joins chords by itself, files and a database by `celery.chord_unlock`."""
    database, broker = pair.split("+")
    url: str = request.getfixturevalue(f"{database}_url")
    prepare(url)
    conf = broker_conf(request, broker, folder) | {"tm_database_url": url}
    conf |= canvas_conf(conf) | getattr(request.module, "CONF", {})
    if broker == "redis":
        conf["result_backend"] = conf["broker_url"]
        conf["result_backend_transport_options"] = conf["broker_transport_options"]
    elif broker == "rabbitmq":
        conf["result_backend"] = "db+" + with_driver(make_url(url)).render_as_string(hide_password=False)
    effects = folder / "effects.log"
    effects.touch()
    return Stand(conf, folder, effects, pair=pair)


def close_with_results(stand: Stand) -> None:
    """End a stand, and what its result backend has open in this process."""
    backend = stand.app.backend
    if stand.pair == "postgresql+redis":
        backend.result_consumer.stop()
        backend.client.close()
    stand.close()


@pytest.fixture
def fresh_url(request: pytest.FixtureRequest) -> Callable[[str], str]:
    """Return an empty, upgraded database of the kind asked for."""

    def fresh(kind: str) -> str:
        url: str = request.getfixturevalue(f"{kind}_url")
        prepare(url)
        return url

    return fresh


def broker_conf(request: pytest.FixtureRequest, broker: str, folder: Path) -> dict[str, Any]:
    """Return the settings of a broker, with queues of this test's own."""
    queue = {"task_default_queue": f"tm-test-{uuid.uuid4().hex[:12]}"}
    if broker == "files":
        return embedded_broker(folder / "broker") | queue
    if broker == "redis":
        url, prefix = request.getfixturevalue("redis_service")
        return queue | {"broker_url": url, "broker_transport_options": {"global_keyprefix": prefix}}
    return queue | {"broker_url": request.getfixturevalue("rabbitmq_url")}


@pytest.fixture
def effects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that the test tasks write their effects to."""
    path = tmp_path / "effects.log"
    path.touch()
    monkeypatch.setenv("TM_TEST_EFFECTS", str(path))
    return path
