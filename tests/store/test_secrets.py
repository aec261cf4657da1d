"""No password and no argument that is not to be shown is found in anything that is printed, logged, told or served.

Secrets are marked, everything is driven and gathered, and then all of it is searched. What a body itself says, and what
`definitions export` writes for `load`, are not ours to hide; the page about security says so.
"""

from __future__ import annotations

import json
import logging
import traceback
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import pytest
from celery import Celery
from kombu.exceptions import EncodeError
from kombu.transport import memory
from sqlalchemy import create_engine, make_url
from tmtest import services
from tmtest.commands import Cli
from tmtest.courier import Courier
from tmtest.flower import serving
from tmtest.ledger import HOUR, NOON
from tmtest.lives import pages_and_answers
from tmtest.rows import all_rows

from celery_tm import Task, TimeManagement, defer, events, workflow
from celery_tm.domain.secrecy import hidden, secrets_in
from celery_tm.errors import InvalidValue, StaleVersion, TmError
from celery_tm.metrics.collecting import StateCollector
from celery_tm.scheduler import Scheduler
from celery_tm.settings import read_settings
from celery_tm.store import schema
from celery_tm.store.database import Database
from celery_tm.store.dialects import with_driver
from celery_tm.testing import MovableClock

DATABASE, PARAMETER = "Da/ta@ba:se%Word", "para-Meter-Word"
BROKER, BACKEND, CARD, ENVIRONMENT = "br0ker-Word", "b4ckend-Word", "4111-card-2222", "envir0nment-Word"
SECRETS = (DATABASE, PARAMETER, BROKER, BACKEND, CARD, ENVIRONMENT)


class Gathered(logging.Handler):
    """Everything that was said, by where."""

    def __init__(self) -> None:
        super().__init__(logging.NOTSET)
        self.setFormatter(logging.Formatter("%(name)s %(message)s"))
        self.texts: list[tuple[str, str]] = []

    def add(self, where: str, *said: Any) -> None:
        self.texts += [(where, str(one)) for one in said]

    def emit(self, record: logging.LogRecord) -> None:
        self.add("the log", self.format(record), getattr(record, "tm", ""))

    def hear(self, **said: Any) -> None:
        self.add("a signal", {name: value for name, value in said.items() if name not in ("signal", "sender")})

    def error(self, where: str, error: BaseException) -> None:
        """Add an error as people, programs and logs with tracebacks see it."""
        self.add(where, error, repr(error), "".join(traceback.format_exception(error)))

    def check(self, *, at_least: int) -> None:
        """Fail where a secret was told, in whatever way it is written."""
        assert len(self.texts) >= at_least
        shapes = {shape for one in SECRETS for shape in (one, quote(one, safe=""), quote(one), json.dumps(one)[1:-1])}
        leaks = [(where, text[:300]) for where, text in self.texts if any(shape in text for shape in shapes)]
        assert leaks == []


@pytest.fixture
def gathered() -> Iterator[Gathered]:
    """Listen to all loggers at DEBUG, and to every signal."""
    listener, root = Gathered(), logging.getLogger()
    before = root.level
    root.addHandler(listener)
    root.setLevel(logging.DEBUG)
    for signal in events.SIGNALS.values():
        signal.connect(listener.hear, weak=False, dispatch_uid="test_secrets")
    yield listener
    for signal in events.SIGNALS.values():
        signal.disconnect(dispatch_uid="test_secrets")
    root.removeHandler(listener)
    root.setLevel(before)


@pytest.fixture(scope="module", params=["postgresql", "mysql"])
def guarded_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of a database whose user has a password with every awkward character."""
    kind = request.param
    if not services.find(kind):
        pytest.skip(services.why_missing(kind))
    with services.own_database(kind, suffix="_secrets") as owner:
        user, word = f"{services.RUN}_keeper"[-30:], DATABASE.replace("%", "%%")
        engine = create_engine(with_driver(make_url(owner)), isolation_level="AUTOCOMMIT")
        named, where = (f'"{user}"', f'SCHEMA public TO "{user}"') if kind == "postgresql" else (f"'{user}'@'%%'", "")
        known = f"PASSWORD '{word}'" if kind == "postgresql" else f"IDENTIFIED BY '{word}'"
        name = make_url(owner).database
        with engine.connect() as connection:
            connection.exec_driver_sql(f"CREATE USER {named} {known}")
            connection.exec_driver_sql(f"GRANT ALL ON {where}" if where else f"GRANT ALL ON `{name}`.* TO {named}")
        url = make_url(owner).set(username=user, password=DATABASE)
        url = url.update_query_dict({"sslpassword": PARAMETER}) if kind == "postgresql" else url
        text = url.render_as_string(hide_password=False)
        database = Database(read_settings({"tm_database_url": text}, {}))
        schema.upgrade(database)
        database.dispose()
        yield text
        with engine.connect() as connection:
            if kind == "postgresql":
                connection.exec_driver_sql(f"DROP OWNED BY {named} CASCADE")
            connection.exec_driver_sql(f"DROP USER {named}")
        engine.dispose()


@pytest.fixture
def shop(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Celery]]:
    """Return how to make an app all of whose addresses have a password."""
    monkeypatch.setenv("SHOP_API_TOKEN", ENVIRONMENT)
    memory.Channel.queues.clear()
    made: list[Celery] = []

    def make(url: str, **conf: Any) -> Celery:
        app = Celery("shop", set_as_current=False, broker=f"memory://me:{BROKER}@localhost//")
        app.conf.update(tm_database_url=url, result_backend=f"redis://:{BACKEND}@127.0.0.1:1/0", task_ignore_result=True)
        app.conf.update(tm_redact=["*card*"], tm_verbose=True, worker_hijack_root_logger=False, **conf)

        @app.task(base=Task, name="pay", shared=False, max_retries=0)
        def pay(order: int, card: str = "", declined: bool = False) -> int:
            if declined:
                raise ValueError("declined")
            return order

        made.append(app)
        return app

    yield make
    for app in made:
        made_one = app.__dict__["_celery_tm"]._database if "_celery_tm" in app.__dict__ else None
        if made_one is not None:  # there is none where its URL was refused
            made_one.dispose()
        app.close()


def test_nothing_that_is_shown_tells_a_secret(
    guarded_url: str, shop: Callable[..., Celery], gathered: Gathered, spans: list[Any]
) -> None:
    app = shop(guarded_url)
    tm = TimeManagement(app)
    here = live(app, tm, gathered)
    tell_by_commands(app, here, gathered)
    gathered.add("metrics", *StateCollector(tm.installation).collect())
    with serving(app) as flower:
        for path in pages_and_answers(here):
            answer = flower.client().get(path)
            assert answer.status == 200, path
            gathered.add(path, answer.text)
    gathered.add("the audit's rows", *[row for row in all_rows(tm)["tm_audit"] if CARD not in row])
    gathered.add("spans", *(str(span.to_json()) for span in spans))
    assert spans
    gathered.check(at_least=150)


@pytest.fixture
def spans() -> list[Any]:
    """The spans that end during a test."""
    from opentelemetry import trace
    from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider

    class Kept(SpanProcessor):
        def __init__(self) -> None:
            self.spans: list[Any] = []

        def on_end(self, span: ReadableSpan) -> None:
            self.spans.append(span)

    kept, provider = Kept(), trace.get_tracer_provider()
    if not isinstance(provider, TracerProvider):
        provider = TracerProvider()
        trace.set_tracer_provider(provider)
    provider.add_span_processor(kept)
    return kept.spans


def live(app: Celery, tm: TimeManagement, gathered: Gathered) -> Any:
    """Let everything happen to jobs that have a card as argument."""
    who = {"actor": "ann", "reason": "a try"}
    card, pay = {"card": CARD}, app.tasks["pay"]
    common = {"schedule": "30 2 * * *", "group": "shop"}
    tm.definitions.add(name="works", task="pay", args=[1], kwargs=card, **common, **who)
    tm.definitions.add(name="falls", task="pay", args=[1], kwargs={"declined": True, **card}, **common, **who)
    steps = [
        {"name": "first", "task": "pay", "args": [1], "kwargs": card},
        {"name": "second", "task": "pay", "args": [2, CARD]},
    ]
    tm.definitions.add(name="flow", steps=steps, schedule="every 1h", **who)
    tm.definitions.update("works", kwargs={**card, "declined": False}, **who)
    runs = {name: tm.trigger(name, **who).id for name in ("works", "falls", "flow")}
    ended = defer(pay.s(1, CARD).set(link=pay.s(card=CARD)), app=app)
    pay.delay(2, card=CARD)
    defer(workflow([pay.s(3, card=CARD)]), app=app)
    owed = defer(pay.s(4, card=CARD), delay="1h", key="k", app=app)
    scheduler, courier = Scheduler(app, max_interval=0.01), Courier(tm)
    gathered.add("the banner", scheduler.info)
    for _ in range(5):
        scheduler.tick()
        for message in courier.collect():
            gathered.add("a message's headers", message.headers)
            gathered.add("the tracer", courier.deliver(message))
    scheduler.close()
    [dead] = tm.dead_letters.list(definition="falls")
    return SimpleNamespace(
        definition="works", failing="falls", workflow="flow", group="shop", occurrence=runs["works"], run=runs["flow"],
        ended=ended.id, owed=owed.id, dead=dead.id,
    )  # fmt: skip


def tell_by_commands(app: Celery, here: Any, gathered: Gathered) -> None:
    cli = Cli(app)
    for words in (
        ["status"], ["definitions", "list"], ["definitions", "show", "works"], ["definitions", "versions", "works"],
        ["schema", "check"], ["schema", "upgrade"], ["history"], ["audit"], ["explain", "works"], ["occurrences", "works"],
        ["report", here.run], ["jobs", "list"], ["jobs", "show", here.owed], ["jobs", "show", here.ended],
        ["log", here.ended],
        ["dead-letters", "list"], ["dead-letters", "show", here.dead], ["effective", "flow"], ["calendars", "list"],
        ["definitions", "preview", "works", "--schedule", "@daily"], ["definitions", "edit", "works", "--queue", "other"],
        ["definitions", "pause", "works"], ["dead-letters", "revive", "--all", "--dry-run"], ["jobs", "cancel", here.owed],
    ):  # fmt: skip
        for how in ([], ["--json"]) if words[:2] != ["jobs", "cancel"] else ([],):
            done = cli.run(*words, *how)
            gathered.add(" ".join(words), done.stdout, done.stderr)
    for how in ([], ["--json"]):
        gathered.add("doctor", cli.run("doctor", *how, code=3).output)


# Where something is wrong

PLACES = {
    "nobody listens": f"postgresql://me:{quote(DATABASE, safe='')}@127.0.0.1:1/shop?sslpassword={PARAMETER}",
    "no such host": f"mysql://me:{quote(DATABASE, safe='')}@no-such-host.invalid/shop",
    "a wrong password": f"mysql://me:{quote(DATABASE, safe='')}@127.0.0.1/shop",
    "no such database": f"postgresql://me:{quote(DATABASE, safe='')}@127.0.0.1/no_such_database?sslpassword={PARAMETER}",
    "not escaped": f"postgresql://me:{DATABASE}@127.0.0.1:1/shop",
    "no such driver": f"postgresql+nosuch://me:{quote(DATABASE, safe='')}@127.0.0.1:1/shop",
    "no such parameter": f"postgresql://me@127.0.0.1:1/shop?password={PARAMETER}&nosuch=1",
}


@pytest.mark.parametrize("wrong", PLACES)
def test_an_outage_tells_no_secret(wrong: str, shop: Callable[..., Celery], gathered: Gathered) -> None:
    app = shop(PLACES[wrong], broker_url=f"amqp://me:{BROKER}@127.0.0.1:1//", tm_publish_retry={"max_retries": 0})
    try:
        tm = TimeManagement(app)
        scheduler = Scheduler(app, max_interval=0.01)
    except TmError as error:  # a URL that nobody can read
        gathered.error("at the start", error)
        gathered.check(at_least=2)
        return
    gathered.add("the banner", scheduler.info)
    scheduler.tick()
    scheduler.close()
    for act in (tm.status, tm.upgrade, lambda: defer("pay", args=[1, CARD], app=app)):
        with pytest.raises(TmError) as failed:
            act()
        gathered.error("an error", failed.value)
    for words in (["status"], ["doctor"], ["schema", "check"], ["jobs", "list", "--json"]):
        done = Cli(app).run(*words, code=3 if words == ["doctor"] else 1)
        gathered.add(" ".join(words), done.stdout, done.stderr)
    with serving(app) as flower:
        for path in ("/tm", "/tm/health", "/api/tm/jobs", "/api/tm/status"):
            gathered.add(path, flower.client().get(path).text)
    gathered.check(at_least=20)


@pytest.mark.parametrize(
    "url",
    [f"amqp://me:{BROKER}@127.0.0.1:1//", f"redis://:a/b{BROKER}@127.0.0.1:1/0", f"nosuch://me:{BROKER}@host//",
     f"redis://:{BROKER}@no-such-host.invalid;redis://:{BROKER}@127.0.0.1:1"],
    ids=["refused", "not escaped", "no such transport", "two"],
)  # fmt: skip
def test_a_broker_that_is_away_tells_no_secret(
    url: str, shop: Callable[..., Celery], gathered: Gathered, tmp_path: Any
) -> None:
    app = shop(f"sqlite:///{tmp_path}/jobs.db", broker_url=url, tm_publish_retry={"max_retries": 0})
    tm = TimeManagement(app)
    gathered.add("doctor", *tm.doctor())
    defer("pay", args=[1, CARD], app=app)
    scheduler = Scheduler(app, max_interval=0.01)
    scheduler.tick()
    scheduler.close()
    gathered.check(at_least=10)


def test_a_statement_that_fails_does_not_tell_its_values(
    tmp_path: Any, shop: Callable[..., Celery], gathered: Gathered
) -> None:
    tm = TimeManagement(shop(f"sqlite:///{tmp_path}/jobs.db"))
    tm.upgrade()
    with tm.installation.database.transaction() as tx:
        tx.connection.exec_driver_sql("ALTER TABLE tm_definition RENAME COLUMN kwargs TO gone")
    with pytest.raises(Exception, match="kwargs") as failed:
        tm.definitions.add(name="paid", task="pay", kwargs={"order": 1, "card": CARD}, schedule="@daily")
    gathered.error("a statement", failed.value)
    gathered.check(at_least=3)


def test_nothing_shows_a_password_when_it_is_printed(shop: Callable[..., Celery], gathered: Gathered) -> None:
    app = shop(PLACES["nobody listens"])
    tm = TimeManagement(app)
    installation = tm.installation
    for one in (tm, installation, installation.settings, installation.database, Scheduler(app)):
        gathered.add(type(one).__name__, one, repr(one))
    gathered.check(at_least=10)


class Card:
    """What is no JSON, and shows what it holds."""

    def __repr__(self) -> str:
        return f"Card({CARD})"


def test_an_argument_that_is_refused_is_not_told(shop: Callable[..., Celery], gathered: Gathered, tmp_path: Any) -> None:
    app = shop(f"sqlite:///{tmp_path}/jobs.db", task_serializer="json")
    tm, pay = TimeManagement(app), app.tasks["pay"]
    tm.upgrade()
    bad = {"card": {"__type__": "uuid", "__value__": CARD}}
    for act in (
        lambda: defer(pay.s(1, card=Card())), lambda: defer(pay.s(1, **bad)),
        lambda: tm.definitions.add(name="pays", task="pay", kwargs={"order": 1, "card": Card()}, schedule="@daily"),
    ):  # fmt: skip
        with pytest.raises(TmError) as refused:
            act()
        gathered.add("a refusal", refused.value, repr(refused.value))
    with pytest.raises(EncodeError):  # by Celery: it is sent as plain Celery would
        pay.apply_async((1,), {"card": Card()}, countdown=3600)
    gathered.check(at_least=7)


# What is hidden is neither told by a refusal nor taken for a value when it is sent back

STEP = {"name": "a", "task": "effect"}
MINE, THERE = "my-own-card", "the-card-that-is-there"
# Every place in which a definition has arguments.
STATED: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
    ({"kwargs": {"n": {"card": THERE}}}, {"kwargs": {"n": {"card": MINE}}}),
    ({"args": [THERE]}, {"args": [MINE]}),
    ({"steps": [STEP | {"kwargs": {"n": {"card": THERE}}}]}, {"steps": [STEP | {"kwargs": {"n": {"card": MINE}}}]}),
    ({"task": "effect", "kwargs": {"n": {"card": THERE}}}, {"steps": [STEP | {"args": [MINE]}], "kwargs": {}}),
)


@pytest.mark.parametrize(("there", "mine"), STATED, ids=["named", "by position", "of a step", "from a task to steps"])
def test_a_stale_edit_tells_no_hidden_argument(
    app: Celery, tm: TimeManagement, there: dict[str, Any], mine: dict[str, Any]
) -> None:
    app.conf.tm_redact = ["*card*", "effect:0"]
    task = {} if "steps" in there else {"task": "effect"}
    tm.definitions.add(name="d", schedule="@daily", **{**task, **there})
    tm.definitions.update("d", queue="q", actor="ann")
    with pytest.raises(StaleVersion) as refused:
        tm.definitions.update("d", version=1, queue="mine", **mine)
    said = [str(refused.value), repr(refused.value)]
    assert refused.value.values["queue"] == ("'mine'", "'q'")
    words = [word for name, value in mine.items() for word in ("--set", f"{name}={json.dumps(value)}")]
    said.append(Cli(app).refused("definitions", "edit", "d", "--version", "1", *words))
    with serving(app) as flower:
        answer = flower.client().post("/api/tm/definitions/d/edit", values=mine, version=1)
    assert answer.status == 409
    said.append(answer.text)
    assert all("***" in text and MINE not in text and THERE not in text for text in said), said


SENT_BACK: dict[str, Callable[[TimeManagement, str, Any], Any]] = {
    "an edit": lambda tm, run, sent: tm.definitions.update("d", kwargs=sent),
    "an edit of steps": lambda tm, run, sent: tm.definitions.update("flow", steps=[STEP | {"kwargs": sent}]),
    "an edit of options": lambda tm, run, sent: tm.definitions.update("d", options={"link": [STEP | {"kwargs": sent}]}),
    "an edit with a tuple": lambda tm, run, sent: tm.definitions.update("d", args=(sent,)),
    "a preview": lambda tm, run, sent: tm.definitions.preview("d", kwargs=sent),
    "a new one": lambda tm, run, sent: tm.definitions.add(name="new", task="effect", schedule="@daily", kwargs=sent),
    "a trigger": lambda tm, run, sent: tm.trigger("d", kwargs=sent),
    "a replay": lambda tm, run, sent: tm.replay(run, kwargs=sent),
    "a backfill": lambda tm, run, sent: tm.backfill("d", since=NOON - HOUR, until=NOON, kwargs=sent),
}


@pytest.mark.parametrize("way", SENT_BACK)
def test_what_stands_for_a_hidden_argument_is_taken_for_no_value(
    app: Celery, tm: TimeManagement, tm_clock: MovableClock, way: str
) -> None:
    tm_clock.move_to(NOON)
    app.conf.tm_redact = ["*card*"]
    tm.definitions.add(name="d", task="effect", schedule="@daily", overlap="allow", kwargs={"n": {"card": CARD}})
    tm.definitions.add(name="flow", steps=[STEP | {"kwargs": {"n": {"card": CARD}}}], schedule="@daily")
    run = tm.trigger("d").id
    tm.run_due_jobs()
    before = all_rows(tm)
    with pytest.raises(InvalidValue, match=r"a value that was hidden \(\*\*\*\); leave the field out"):
        SENT_BACK[way](tm, run, {"n": {"card": "***"}})
    assert all_rows(tm) == before


def test_a_file_and_commands_with_what_stands_for_a_hidden_argument_are_refused(
    app: Celery, tm: TimeManagement, tmp_path: Any
) -> None:
    tm.definitions.add(name="d", task="effect", schedule="@daily", kwargs={"n": {"card": CARD}})
    app.conf.tm_redact = ["*card*"]
    kwargs = {"n": {"card": "***"}}
    sent, entry = json.dumps(kwargs), {"name": "d", "task": "effect", "schedule": "@daily", "kwargs": kwargs}
    file = tmp_path / "shop.json"
    file.write_text(json.dumps({"definitions": [entry]}))
    for words in (
        ["definitions", "edit", "d"], ["definitions", "edit", "d", "--dry-run"], ["definitions", "trigger", "d"],
    ):  # fmt: skip
        assert "was hidden" in Cli(app).refused(*words, "--kwargs", sent)
    assert "was hidden" in Cli(app).refused("definitions", "load", str(file))
    with serving(app) as flower:
        ann = flower.client()
        for act in ("trigger", "edit", "preview"):
            answer = ann.post(f"/api/tm/definitions/d/{act}", values={"kwargs": kwargs})
            assert (answer.status, answer.json["error"]["code"]) == (400, "invalid_value")
    assert CARD in tm.definitions.get("d").kwargs
    assert tm.jobs() == []


def test_three_asterisks_are_a_value_like_any_other_where_nothing_is_hidden(tm: TimeManagement) -> None:
    tm.definitions.add(name="d", task="effect", schedule="@daily", kwargs={"n": "***"})
    assert tm.trigger("d", kwargs={"n": ["***"]}).overrides == {"kwargs": {"n": ["***"]}}


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("redis://:word@host/0", "redis://:***@host/0"),
        ("amqp://me:wo@r/d@host//", "amqp://me:***@host//"),
        ("postgresql://h/d?sslpassword=abc&x=1", "postgresql://h/d?sslpassword=***&x=1"),
        ("connection to 'host=h password=abc user=me' failed", "connection to 'host=h password=*** user=me' failed"),
        ("https://h/?api_key=1&token=2&q=3", "https://h/?api_key=***&token=***&q=3"),
        ("postgresql://me@host/db", "postgresql://me@host/db"),
    ],
)
def test_addresses_are_hidden_by_their_shape(said: str, shown: str) -> None:
    assert hidden(said) == shown


def test_secrets_that_are_known_are_hidden_in_any_shape() -> None:
    known = secrets_in(["redis://:wo%40rd-1@host", "mysql://h/d?password=second"])
    assert hidden("port 'wo@rd-1' or 'wo%40rd-1' or second", known) == "port '***' or '***' or ***"
