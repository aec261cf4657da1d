"""The whole life of each process, in this one: beat, worker, producer, reader, operator and pruner, each as its own user.

`Cast` is one installation seen by two: the owner of the tables, who sets the stage, and the one under test, who may do what
its role grants and no more. A life ends with the signs that it worked.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from celery import Celery
from kombu.transport import memory
from sqlalchemy import text, update
from sqlalchemy.orm import Session

from celery_tm import Task, TimeManagement, cancel, current_job, defer, defer_many, workflow
from celery_tm.domain.execution import Failure, Outcome
from celery_tm.scheduler import Scheduler
from celery_tm.store import dead_letters, jobs, tables
from celery_tm.testing import MovableClock
from celery_tm.worker.attending import Attendance
from celery_tm.worker.lease import LeaseKeeper
from celery_tm.worker.release import record_handed_back

from .app import make_app
from .commands import Cli
from .courier import Courier
from .everything import furnish

LATER = timedelta(hours=2)
SEQUENCE = [{"name": "fetch", "task": "effect"}, {"name": "load", "task": "fails", "max_retries": 0}]


class Cast:
    """The owner's app and the one under test, on the same tables and the same broker."""

    def __init__(self, owner_url: str, url: str, time: MovableClock, *, schema: str | None = None) -> None:
        memory.Channel.queues.clear()
        common = {"broker_url": "memory://", "tm_schema": schema}
        self.owner, self.mine = (TimeManagement(make_app({**common, "tm_database_url": one})) for one in (owner_url, url))
        self.time = time
        for app in (self.owner.app, self.mine.app):
            app.conf.tm_retry = "proportional"

    @property
    def app(self) -> Celery:
        return self.mine.app

    def settle(self) -> None:
        """Let the owner do all that is due."""
        for _ in range(4):
            self.owner.run_due_jobs(now=self.time.now)
            self.time.forward("1s")

    def change(self, job: str, **values: Any) -> None:
        """Let the owner write into a job's row."""
        with self.owner.installation.database.transaction() as tx:
            tx.execute(update(tables.job).where(tables.job.c.id == job).values(**values))

    def bury(self, id: str) -> None:
        """Let the owner have a dead letter of an earlier job that had this id."""
        with self.owner.installation.database.transaction() as tx:
            job = jobs.find(tx, id)
            assert job is not None
            dead_letters.bury(tx, job, reason="of an earlier job", failure=Failure(error="earlier", outcome=Outcome.FAILED))

    def close(self) -> None:
        for tm in (self.owner, self.mine):
            tm.installation.database.dispose()
            tm.app.close()


def beat(cast: Cast) -> None:
    """Seed, plan, claim, publish, expand, sweep, reap, be seen, sign off."""
    owner, app = cast.owner, cast.app
    app.conf.beat_schedule = {"seeded": {"task": "effect", "schedule": 60.0}}
    owner.calendars.set("closed", ["12-25"])
    every = {"schedule": "every 10m", "timezone": "Europe/Warsaw", "calendars": ["closed"]}
    owner.definitions.add(name="often", task="effect", overlap="replace", recovery="bounded", recovery_count=2, **every)
    owner.definitions.add(name="ahead", task="effect", schedule="*/20 * * * *", plan_ahead="1h", overlap="allow")
    owner.definitions.add(name="flow", steps=SEQUENCE, schedule="every 1h", pause_after=1, overlap="allow")
    slot = {"concurrency_key": "lane", "concurrency": 1}
    owner.definitions.add(name="narrow", task="effect", schedule="every 10m", overlap="allow", recovery="all", **slot)
    kept = defer(owner.app.tasks["keyed"].s(7), delay="1s", app=owner.app)
    cast.settle()
    assert kept.state == "SUCCEEDED"
    done = workflow([(owner.app.tasks["keyed"].s(7), {"key": "keyed:7"})])  # over as soon as it is begun
    defer(done, delay="1s", key="run", app=owner.app)
    lost, dead, broken, late = (defer("effect", args=[n], delay="1s", app=owner.app) for n in range(4))
    defer("plain", delay="1s", app=owner.app)
    defer("effect", delay="1s", concurrency_key="a new lane", app=owner.app)
    scheduler = Scheduler(app, max_interval=0.01)
    scheduler.work()
    cast.time.forward("5s")
    gone = {"state": "running", "lease_until": cast.time.now - LATER, "claimed_by": "worker@gone"}
    cast.change(lost.id, **gone)
    cast.change(dead.id, **gone, max_retries=0)
    cast.bury(dead.id)
    cast.change(broken.id, args="{", max_retries=0)
    cast.change(late.id, expires_at=cast.time.now, scope={"tenant_id": 7})
    stale = owner.trigger("often").id
    run = owner.trigger("flow").id
    owner.definitions.update("flow", queue="other")  # that run is still one of the version before
    for _ in range(3):
        scheduler.work()
        cast.time.forward("3s")
    with owner.installation.database.transaction() as tx:  # a worker has begun both, and died
        past, some = cast.time.now - LATER, tables.occurrence.c.id.in_([stale, run])
        tx.execute(update(tables.occurrence).where(some).values(state="running", started_at=past, deadline_at=past))
        steps = (tables.job.c.occurrence == run, tables.job.c.step.is_not(None))
        tx.execute(update(tables.job).where(*steps).values(**gone))
    owner.definitions.update("ahead", schedule="*/15 * * * *", policy="graceful")
    for _ in range(8):
        scheduler._seen_at = 0.0
        scheduler.work()
        cast.time.forward("25m")
    scheduler.waiter.wait(0.01)
    scheduler.close()
    assert scheduler.outages._away == {}
    assert owner.definitions.get("seeded").origin is not None
    assert {letter.id for letter in owner.dead_letters.list()} >= {dead.id, broken.id}
    assert owner.dead_letters.get(dead.id).reason != "of an earlier job"
    assert owner.job(late.id).state == "CANCELED"
    assert [one.state for one in owner.occurrences("flow") if one.id == run] == ["stale"]
    assert owner.definitions.get("flow").paused


def worker(cast: Cast) -> None:
    """Let in, run, record, renew, log, hand back; alone, in chunks, in a body's transaction, in a run."""
    owner, app = cast.owner, cast.app
    courier, mine = Courier(owner), Courier(cast.mine)
    for one in (owner.app, app):
        _add_helper(one)
    owner.calendars.set("closed", ["12-25"])
    owner.definitions.add(
        name="failing",
        task="fails",
        schedule="every 1h",
        max_retries=0,
        pause_after=1,
        overlap="queue",
        calendars=["closed"],
    )
    owner.definitions.add(name="flow", steps=SEQUENCE, schedule="every 1h", pause_after=1, overlap="allow")
    for name in ("failing", "flow"):
        owner.trigger(name)
    made = [
        defer(name, args=args, delay="1s", app=owner.app, **more)
        for name, args, more in (
            ("effect", [1], {"concurrency_key": "lane", "scope": {"tenant_id": 7}}),
            ("flaky", [1, 1], {}),
            ("keyed", [1], {"key": "keyed:1"}),
            ("reports", ["success"], {"scope": {"tenant_id": 7}}),
            ("counts", [1], {}),
            ("chunked", [1], {"key": "chunk:1"}),
            ("chunked", [2], {}),
            ("asks_again", [1, 1], {}),
            ("helps", [], {}),
        )
    ]
    defer(workflow([owner.app.tasks["effect"].s(1)]), delay="1s", key="run", app=owner.app)
    _add_counter(owner)
    doomed = defer("fails", delay="1s", max_retries=0, app=owner.app)
    cast.bury(doomed.id)
    stopped = defer("effect", delay="1s", app=owner.app)
    for _ in range(8):
        cast.time.forward("30s")
        owner.installation.database.run(lambda tx: None)
        Scheduler(owner.app, max_interval=0.01).work()
        for message in courier.collect():
            if message.headers["id"] != stopped.id:
                mine.deliver(message)
    assert {owner.job(one.id).state for one in made} == {"SUCCEEDED"}
    assert owner.definitions.get("failing").paused
    assert owner.definitions.get("flow").paused
    assert owner.log(made[3].id)
    assert owner.dead_letters.get(doomed.id).reason != "of an earlier job"
    mine.app.tasks["effect"].delay(2)
    for message in courier.collect():
        mine.deliver(message)
    LeaseKeeper(cast.mine.installation).renew_all()
    gone = {"state": "running", "claimed_by": "worker@here", "lease_until": cast.time.now + LATER}
    cast.change(stopped.id, **gone)
    assert record_handed_back(cast.mine.installation, [(stopped.id, 1)], "stops", workers={"worker@here"})
    attendance = Attendance(cast.mine.installation, "worker@here")
    attendance.begin()
    attendance.end()


def _add_counter(tm: TimeManagement) -> None:
    """Give the application a table of its own, which the worker's user may write to."""
    with tm.installation.database.transaction() as tx:
        tx.connection.execute(text("DELETE FROM tm_test_counter"))
        tx.connection.execute(text("INSERT INTO tm_test_counter VALUES (0)"))


def _add_helper(app: Celery) -> None:
    @app.task(base=Task, name="helps", shared=False)
    def helps() -> None:
        for number in range(60):  # more than are written one by one
            current_job().log(f"line {number}", level="warning")
        made = defer("effect", delay="1h", key="helped", concurrency_key="a new lane", scope={"tenant_id": 7}, app=app)
        assert made.state == "SCHEDULED"
        assert cancel(id=made.id, app=app)
        assert made.state == "CANCELED"


def producer(cast: Cast) -> None:
    """Defer one and many, with keys, in the place of others, in a caller's transaction; cancel all kinds of work."""
    owner, app = cast.owner, cast.app
    owner.calendars.set("closed", ["12-25"])
    done = defer("keyed", args=[1], key="done", delay="1s", app=app)
    cast.settle()
    assert done.state == "SUCCEEDED"
    assert not defer("keyed", args=[1], key="done", delay="1s", app=app).created
    first = defer("effect", key="k", entity_id="42", delay="1h", app=app)
    assert not defer("effect", key="k", delay="2h", app=app).created
    assert defer("effect", key="k", entity_id="42", delay="3h", on_duplicate="replace", app=app).id == first.id
    several = defer_many([app.tasks["effect"].s(n) for n in range(3)], delay="1h")
    with Session(cast.mine.installation.database.engine) as session:
        inside = defer("effect", delay="1h", session=session, app=app)
        session.commit()
    assert cancel(id=inside.id, app=app)
    scoped = {"concurrency_key": "a new lane", "scope": {"tenant_id": 7}}
    assert cancel(id=defer("effect", delay="1h", app=app, **scoped).id, app=app)
    assert cancel(entity_id="42", app=app)
    assert {one.state for one in several} == {"SCHEDULED"}
    lane = {"concurrency_key": "lane", "concurrency": 1}
    one, other = (defer("effect", args=[n], delay="1s", app=app, **lane) for n in range(2))
    cast.time.forward("2s")
    Courier(owner).dispatch()
    assert cancel(id=one.id, app=app)
    assert other.state in ("SCHEDULED", "RUNNING")
    app.tasks["plain"].apply_async()
    cancel(id=_step_of(cast, "flow", {"pause_after": 1, "calendars": ["closed"]}), app=app)
    assert owner.definitions.get("flow").paused
    run = defer(workflow([(app.tasks["effect"].s(1), {"failure_strategy": "continue"})]), delay="1s", key="run", app=app)
    cast.time.forward("2s")
    Courier(owner).dispatch()
    [step] = [job.id for job in owner.jobs() if job.step]
    assert cancel(id=step, app=app)
    assert run.state == "SUCCEEDED"
    other_run = defer(workflow([app.tasks["effect"].s(1)]), delay="1s", app=app)
    cast.time.forward("2s")
    Courier(owner).dispatch()
    assert cancel(id=other_run.id, app=app)


def _step_of(cast: Cast, name: str, more: dict[str, Any]) -> str:
    """Return the last step that is owed of a run one of whose steps has failed."""
    steps = [{"name": "a", "task": "fails", "max_retries": 0}, {"name": "b", "task": "effect"}]
    stated = {"mode": "parallel", "failure_strategy": "continue", "schedule": "every 1h", **more}
    cast.owner.definitions.add(name=name, steps=steps, **stated)
    cast.owner.trigger(name)
    courier = Courier(cast.owner)
    for _ in range(3):
        courier.dispatch()
        cast.time.forward("1s")
    for message in courier.collect():
        if message.headers["task"] == "fails":
            courier.deliver(message)
    return next(job.id for job in cast.owner.jobs() if job.step == "b")


def reader(cast: Cast) -> None:
    """Every look of the CLI, every page and answer of Flower, and what metrics ask."""
    from celery_tm.metrics.collecting import StateCollector

    from .flower import serving

    here = furnish(cast.owner.app, cast.owner)
    looks = (
        ["status"], ["definitions", "list"], ["definitions", "show", here.definition], ["history"], ["audit"],
        ["history", "--scope", "tenant_id=7"],
        ["definitions", "versions", here.definition], ["definitions", "export"], ["calendars", "list"],
        ["explain", here.definition], ["occurrences", here.definition], ["report", here.run], ["jobs", "list"],
        ["jobs", "show", here.owed], ["jobs", "show", here.ended], ["dead-letters", "list"], ["log", here.ended],
        ["dead-letters", "show", here.dead], ["effective", here.workflow], ["schema", "check"],
        ["definitions", "preview", here.definition, "--schedule", "@daily"], ["rows", "list"],
    )  # fmt: skip
    cli = Cli(cast.app)
    for look in looks:
        cli.run(*look, "--json")
    assert "lacks" not in str(cast.mine.doctor())
    assert list(StateCollector(cast.mine.installation).collect())
    with serving(cast.app, read_only=True) as flower:
        ann = flower.client()
        for path in pages_and_answers(here):
            answer = ann.get(path)
            assert answer.status == 200, f"{path}: {answer.text[:300]}"


def pages_and_answers(here: Any) -> list[str]:
    """Return the address of everything that can be read in Flower."""
    from urllib.parse import quote

    from celery_tm.flower.operations import OPERATIONS
    from celery_tm.flower.pages import PAGES

    names = {"definitions": here.definition, "groups": here.group, "jobs": here.owed, "dead-letters": here.dead}
    names |= {"occurrences": here.occurrence, "runs": here.run, "executions": here.ended, "steps": "first"}
    found = []
    for operation in OPERATIONS:
        if operation.method == "GET":
            parts, before = [], ""
            for part in operation.path.split("/"):
                parts.append(quote(names[before], safe="") if part.startswith("{") else part)
                before = part
            found.append("/".join(parts))
    given = {"tm_definition": here.definition, "tm_edit": here.definition, "tm_job": here.owed, "tm_run": here.run}
    for pattern, _, name in PAGES:
        query = "?action=revive&all=true" if name == "tm_dead_letters_preview" else ""
        found.append(pattern.replace("([^/]+)", quote(given.get(name, "x"), safe="")) + query)
    return found


def operator(cast: Cast) -> None:
    """Every change that commands and Flower offer."""
    cli, owner = Cli(cast.app), cast.owner
    here = furnish(owner.app, owner)
    tm = cast.mine
    tm.calendars.set("closed", ["12-25"])
    tm.definitions.add(name="new", task="effect", schedule="*/20 * * * *", plan_ahead="1h", calendars=["closed"])
    tm.definitions.update("new", schedule="*/10 * * * *")
    for act in (tm.pause, tm.resume, tm.disable, tm.enable):
        act("new")
    tm.trigger("new")
    tm.backfill("new", since=cast.time.now - timedelta(hours=1), until=cast.time.now, overlap="allow")
    tm.replay(here.run)
    tm.replay(here.occurrence)
    tm.dead_letters.revive(here.dead)
    cast.settle()
    for letter in tm.dead_letters.list():
        tm.dead_letters.purge(letter.id)
    cli.run("jobs", "cancel", here.owed)
    cancel(id=defer("effect", delay="1h", concurrency_key="lane", scope={"a": 1}, app=cast.app).id, app=cast.app)
    cancel(id=_step_of(cast, "step", {"pause_after": 1}), app=cast.app)
    run = defer(
        workflow([(cast.app.tasks["effect"].s(1), {"failure_strategy": "continue"})]), delay="1s", key="r", app=cast.app
    )
    cast.time.forward("2s")
    Courier(owner).dispatch()
    assert cancel(id=next(job.id for job in owner.jobs() if job.step and job.definition is None), app=cast.app)
    assert run.state == "SUCCEEDED"
    tm.definitions.update("new", calendars=[])
    tm.definitions.remove("new")
    tm.calendars.remove("closed")
    with owner.installation.database.transaction() as tx:
        tx.execute(update(tables.definition).values(app="renamed"))
    tm.take_over("renamed", actor="ann")
    reader_again(cast, here)


def reader_again(cast: Cast, here: Any) -> None:
    """An operator also looks."""
    for look in ("status", "doctor", "audit", "history"):
        getattr(cast.mine, look)()
    cast.mine.history(scope={"tenant_id": 7})
    cast.mine.log(here.ended)
    cast.mine.definitions.versions(here.definition)


def pruner(cast: Cast) -> None:
    """Delete what is too old."""
    owner = cast.owner
    furnish(owner.app, owner)
    defer("keyed", args=[1], key="done", delay="1s", scope={"tenant_id": 7}, app=owner.app)
    defer("effect", args=[1], delay="1s", concurrency_key="lane", app=owner.app)
    cast.settle()
    for letter in owner.dead_letters.list():
        owner.dead_letters.purge(letter.id)
    cast.time.forward(timedelta(days=800))
    first = cast.mine.prune()  # leaves the last of each definition
    object.__setattr__(cast.mine.settings, "tm_keep_last", 0)
    rest = cast.mine.prune()
    kinds = ("occurrences", "steps", "runs", "logs", "keys", "audit")
    assert min(getattr(first, kind) + getattr(rest, kind) for kind in kinds) > 0
    assert (first.executions, rest.executions > 0) == (0, True), "they are among the last of their task"
    assert first.lanes + rest.lanes > 0


LIVES: dict[str, Callable[[Cast], None]] = {
    "beat": beat, "worker": worker, "producer": producer, "reader": reader, "operator": operator, "pruner": pruner,
}  # fmt: skip
