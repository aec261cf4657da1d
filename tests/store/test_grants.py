"""Each process lives its whole life with the rights that are documented for it, and needs every one of them."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest
from sqlalchemy import Engine, create_engine, event, make_url, text
from sqlalchemy.exc import DBAPIError
from tmtest import services
from tmtest.commands import Cli
from tmtest.courier import Courier
from tmtest.lives import LIVES, Cast

from celery_tm import cancel, defer, events
from celery_tm.errors import InvalidValue, RightMissing
from celery_tm.scheduler import Scheduler
from celery_tm.settings import read_settings
from celery_tm.store import schema, tables
from celery_tm.store.database import Database
from celery_tm.store.dialects import with_driver
from celery_tm.store.grants import NUMBERED, ROLES, grants
from celery_tm.testing import MovableClock

KINDS = ("postgresql", "mysql")
SCHEMA = "time_management"
WORD = "Pass-word1"
NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
DENIED = {"42501", 1142, 1143}


class House:
    """A database, its owner, and users made for each role."""

    def __init__(self, kind: str, url: str, where: str | None) -> None:
        self.kind, self.schema, self.url = kind, where, make_url(url)
        self.owner = create_engine(with_driver(self.url), isolation_level="AUTOCOMMIT")
        self.users: list[str] = []
        self.mark = f"tm_{uuid.uuid4().hex[:12]}"  # users belong to the whole server
        settings = read_settings({"tm_database_url": url, "tm_schema": where}, {})
        self.database = Database(settings)
        schema.upgrade(self.database)
        self.run("CREATE TABLE tm_test_counter (total INTEGER NOT NULL)")

    def run(self, *statements: str) -> None:
        """Let the owner say something."""
        with self.owner.connect() as connection:
            for statement in statements:
                connection.exec_driver_sql(statement.replace("%", "%%"))

    def user_of(self, role: str) -> str:
        """Return the URL of a user who may do what the role may, and no more."""
        name = f"{self.mark}_{role}"
        if name not in self.users:
            self.users.append(name)
            self.run(f"CREATE USER {self.named(name)} {'' if self.kind == 'mysql' else 'PASSWORD'} {self._password()}")
            self.run(*grants(role, name, url=self.url, schema=self.schema))
            self.run(f"GRANT SELECT, UPDATE ON tm_test_counter TO {self.named(name)}")
        return self.url.set(username=name, password=WORD).render_as_string(hide_password=False)

    def _password(self) -> str:
        return f"IDENTIFIED BY '{WORD}'" if self.kind == "mysql" else f"'{WORD}'"

    def named(self, user: str) -> str:
        return f"'{user}'@'%'" if self.kind == "mysql" else f'"{user}"'

    def table(self, name: str) -> str:
        return f"`{self.url.database}`.{name}" if self.kind == "mysql" else f'"{self.schema or "public"}".{name}'

    def close(self) -> None:
        self.database.dispose()
        for user in self.users:
            if self.kind == "postgresql":
                self.run(f"DROP OWNED BY {self.named(user)} CASCADE")
            self.run(f"DROP USER {self.named(user)}")
        self.owner.dispose()


@pytest.fixture(scope="module", params=["postgresql in a schema", "mysql"])
def house(request: pytest.FixtureRequest) -> Iterator[House]:
    kind, _, where = request.param.partition(" ")
    yield from opened(kind, SCHEMA if where else None)


@pytest.fixture(scope="module")
def plain_house() -> Iterator[House]:
    yield from opened("postgresql", None, suffix="_watched")


def opened(kind: str, where: str | None, suffix: str = "") -> Iterator[House]:
    if not services.find(kind):
        pytest.skip(services.why_missing(kind))
    with services.own_database(kind, suffix=f"_rights{suffix}{'_s' if where else ''}") as url:
        made = House(kind, url, where)
        try:
            yield made
        finally:
            made.close()


@pytest.fixture
def play(tm_clock: MovableClock) -> Iterator[Callable[[House, str], Cast]]:
    """Return how to put a role on an empty stage."""
    casts: list[Cast] = []

    def begin(house: House, role: str) -> Cast:
        tm_clock.move_to(NOON)
        schema.empty(house.database)
        owner = house.url.render_as_string(hide_password=False)
        casts.append(Cast(owner, house.user_of(role), tm_clock, schema=house.schema))
        return casts[-1]

    yield begin
    for cast in casts:
        cast.close()


@pytest.mark.parametrize("role", ROLES)
def test_a_process_lives_with_the_rights_of_its_role(house: House, play: Callable[..., Cast], role: str) -> None:
    LIVES[role](play(house, role))


@pytest.mark.parametrize("role", ROLES)
def test_no_right_is_granted_that_nothing_needs(plain_house: House, play: Callable[..., Cast], role: str) -> None:
    cast = play(plain_house, role)
    said = listened(cast.mine.installation.database.engine)
    LIVES[role](cast)
    user = plain_house.named(make_url(plain_house.user_of(role)).username or "")
    idle = [
        f"{right} on {table}"
        for table, rights in ROLES[role].rights.items()
        for right in re.findall(r"[A-Z]+(?: \([^)]*\))?", rights)
        if not is_needed(plain_house, user, said, table, right)
    ]
    assert idle == []


def listened(engine: Engine) -> list[tuple[str, Any]]:
    """Return a list that fills with the statements that an engine is told, each once."""
    said: dict[str, Any] = {}
    pairs: list[tuple[str, Any]] = []

    @event.listens_for(engine, "before_cursor_execute")
    def listen(_: Any, __: Any, statement: str, parameters: Any, ___: Any, many: bool) -> None:
        if statement not in said:
            said[statement] = parameters[0] if many else parameters
            pairs.append((statement, said[statement]))

    return pairs


def is_needed(house: House, user: str, said: list[tuple[str, Any]], table: str, right: str) -> bool:
    """Say whether a statement of a life is refused without a right; PostgreSQL asks for rights to explain one, too."""
    with house.owner.connect() as connection:
        raw = connection.connection.dbapi_connection
        assert raw is not None
        raw.execute(f"REVOKE {right} ON {house.table(table)} FROM {user}")
        raw.execute(f"SET SESSION AUTHORIZATION {user}")
        try:
            return any(is_refused(raw, *one) for one in said if re.search(rf"\b{table}\b", one[0]))
        finally:
            raw.execute("RESET SESSION AUTHORIZATION")
            raw.execute(f"GRANT {right} ON {house.table(table)} TO {user}")


def is_refused(raw: Any, statement: str, parameters: Any) -> bool:
    try:
        raw.execute(f"EXPLAIN {statement}", parameters)
    except psycopg.Error as error:
        return error.sqlstate == "42501"
    return False


def test_every_table_is_somebodys_and_the_reader_changes_nothing() -> None:
    named = {table for role in ROLES.values() for table in role.rights}
    assert named == {table.name for table in tables.metadata.sorted_tables}
    assert set(ROLES["reader"].rights.values()) == {"SELECT"}


FORBIDDEN = {
    "reader": ["DELETE FROM tm_job", "DELETE FROM tm_audit", "DELETE FROM tm_node", "UPDATE tm_definition SET task = 'x'"],
    "worker": ["DELETE FROM tm_audit", "SELECT * FROM tm_audit", "UPDATE tm_definition SET task = 'x'",
               "DELETE FROM tm_definition", "DELETE FROM tm_execution", "DELETE FROM tm_key", "DELETE FROM tm_log"],
    "producer": ["INSERT INTO tm_dead_letter SELECT * FROM tm_dead_letter", "UPDATE tm_definition SET schedule = 'x'",
                 "DELETE FROM tm_execution", "SELECT * FROM tm_log"],
    "beat": ["DELETE FROM tm_audit", "DELETE FROM tm_execution", "DELETE FROM tm_definition", "SELECT * FROM tm_log"],
    "operator": ["DELETE FROM tm_audit", "UPDATE tm_audit SET actor = 'x'", "DELETE FROM tm_execution", "DROP TABLE tm_job"],
    "pruner": ["DELETE FROM tm_job", "DELETE FROM tm_dead_letter", "UPDATE tm_audit SET actor = 'x'"],
}  # fmt: skip


@pytest.mark.parametrize("role", ROLES)
def test_what_a_role_must_not_do_is_refused(house: House, role: str) -> None:
    engine = create_engine(with_driver(make_url(house.user_of(role))))
    for statement in FORBIDDEN[role]:
        with engine.connect() as connection, pytest.raises(DBAPIError) as refused:
            connection.execute(text(re.sub(r"\btm_\w+", lambda name: house.table(name[0]), statement)))
        told: Any = refused.value.orig
        assert DENIED & {getattr(told, "sqlstate", None), told.args[0]}, statement
    engine.dispose()


# What is said where one is missing


class Without:
    """Takes a right away for the time of a block."""

    def __init__(self, house: House, role: str, right: str, table: str) -> None:
        self.house, self.what = house, f"{right} ON {house.table(table)}"
        self.user = house.named(make_url(house.user_of(role)).username or "")

    def __enter__(self) -> None:
        self.house.run(f"REVOKE {self.what} FROM {self.user}")

    def __exit__(self, *_: object) -> None:
        self.house.run(f"GRANT {self.what} TO {self.user}")


def test_a_missing_right_is_named_with_its_table_and_the_page(house: House, play: Callable[..., Cast]) -> None:
    cast = play(house, "producer")
    for right, table in (("INSERT", "tm_job"), ("SELECT", "tm_key"), ("SELECT", "tm_schema_version")):
        cast.mine.installation.database._schema_checked = False
        with Without(house, "producer", right, table), pytest.raises(RightMissing) as missing:
            defer("effect", key="k", delay="1h", app=cast.app)
        assert (missing.value.object, right in missing.value.right) == (table, True)
        assert "docs/howto/security.md" in str(missing.value)
        assert WORD not in str(missing.value)
        schema.empty(house.database)


def test_a_missing_right_is_named_in_a_callers_transaction_too(house: House, play: Callable[..., Cast]) -> None:
    cast = play(house, "producer")
    with (
        Without(house, "producer", "INSERT", "tm_job"),
        cast.mine.installation.database.engine.connect() as connection,
        pytest.raises(RightMissing, match=r"lacks INSERT.* on tm_job"),
    ):
        defer("effect", delay="1h", session=connection, app=cast.app)


def test_a_missing_sequence_is_named(plain_house: House, play: Callable[..., Cast]) -> None:
    cast = play(plain_house, "producer")
    made = defer("effect", delay="1h", app=cast.app)
    user = plain_house.named(make_url(plain_house.user_of("producer")).username or "")
    plain_house.run(f"REVOKE USAGE ON SEQUENCE tm_audit_id_seq FROM {user}")
    with pytest.raises(RightMissing, match="USAGE on sequence tm_audit_id_seq"):
        cancel(id=made.id, app=cast.app)
    plain_house.run(f"GRANT USAGE ON SEQUENCE tm_audit_id_seq TO {user}")
    assert cancel(id=made.id, app=cast.app)
    assert tuple(table.name for table in tables.metadata.sorted_tables if table.autoincrement_column is not None) == NUMBERED


def test_beat_goes_on_without_a_right_says_so_once_and_tells_of_the_next(
    house: House, play: Callable[..., Cast], caplog: pytest.LogCaptureFixture
) -> None:
    cast = play(house, "beat")
    cast.owner.definitions.add(name="often", task="effect", schedule="every 1m")
    cast.time.forward("5m")
    scheduler = Scheduler(cast.app, max_interval=0.01)
    with Without(house, "beat", "SELECT", "tm_mark"):
        for _ in range(3):
            scheduler.tick()
        with Without(house, "beat", "UPDATE", "tm_definition"):
            scheduler.tick()
    with Without(house, "beat", "INSERT", "tm_occurrence"):
        for _ in range(2):
            scheduler.tick()
    told = [record.getMessage() for record in caplog.records if "OutageBegan" in record.getMessage()]
    assert [re.search(r"lacks (.*?) on (\w+);", line).group(2) for line in told] == ["tm_mark", "tm_occurrence"]  # type: ignore[union-attr]
    assert not [record for record in caplog.records if record.exc_info]
    scheduler.tick()
    assert cast.owner.occurrences("often")
    assert scheduler.outages._away == {}
    scheduler.close()


def test_a_worker_without_a_right_fails_nobodys_job_and_says_so_once(
    house: House, play: Callable[..., Cast], caplog: pytest.LogCaptureFixture
) -> None:
    cast = play(house, "worker")
    events._warned.clear()
    courier, mine = Courier(cast.owner), Courier(cast.mine)
    made = [defer("effect", args=[n], delay="1s", app=cast.owner.app) for n in range(3)]
    cast.time.forward("2s")
    courier.dispatch()
    first, second, third = courier.collect()
    with Without(house, "worker", "UPDATE", "tm_job"):
        mine.deliver(first)
    with Without(house, "worker", "INSERT", "tm_execution"):
        mine.deliver(second)
        mine.deliver(third)
    assert not [job for job in cast.owner.jobs() if job.last_error]
    told = [record.getMessage() for record in caplog.records if "lacks" in record.getMessage()]
    assert len(told) == 2
    cast.time.forward("10m")
    cast.settle()
    for message in courier.collect():
        mine.deliver(message)
    cast.time.forward("1h")
    cast.settle()
    assert {owner.state for owner in map(cast.owner.job, [one.id for one in made])} == {"SUCCEEDED"}


# What prints them


def test_the_command_prints_what_the_test_runs(house: House, play: Callable[..., Cast]) -> None:
    cli = Cli(play(house, "worker").app)
    found = cli.json("schema", "grants", "--role", "worker", "--to", "shop")
    assert found["statements"] == grants("worker", "shop", url=house.url, schema=house.schema)
    printed = cli.run("schema", "grants", "--role", "worker", "--to", "shop").stdout.splitlines()
    assert printed[1:] == found["statements"]
    assert "did you mean 'worker'" in cli.misused("schema", "grants", "--role", "wroker", "--to", "shop")


@pytest.mark.parametrize("name", ["", "a;b", "a\\b", "a\nb", "x" * 200])
def test_a_name_that_could_hide_a_statement_is_refused(name: str) -> None:
    for url in ("postgresql://h/d", "mysql://h/d"):
        with pytest.raises(InvalidValue, match="name of a user"):
            grants("reader", name, url=make_url(url))


def test_names_are_quoted_and_sqlite_knows_no_users() -> None:
    assert 'TO "o""neil";' in grants("reader", 'o"neil', url=make_url("postgresql://h/d"))[0]
    assert "TO 'o''neil'@'10.%';" in grants("reader", "o'neil@10.%", url=make_url("mysql://h/d"))[0]
    with pytest.raises(InvalidValue, match="SQLite knows no users"):
        grants("reader", "me", url=make_url("sqlite:///x.db"))
