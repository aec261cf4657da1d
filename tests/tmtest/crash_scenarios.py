"""What processes do when they die, as data: what was there before, what is done, and how it may end.

`ends` are the right endings, by task and outcome, one of which must be found: a death uses up a try and changes nothing
else. Where what is done is itself a wish (to defer, to cancel), it may also not have been said at all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from celery import chain
from kombu.exceptions import ChannelError
from sqlalchemy import update
from sqlalchemy.orm import Session

from celery_tm import cancel, defer, defer_many, embedded, workflow
from celery_tm.domain.execution import Failure, Outcome
from celery_tm.recovery.pruner import prune
from celery_tm.recovery.reaper import reap
from celery_tm.recovery.sweeper import sweep
from celery_tm.scheduler import Scheduler
from celery_tm.scheduler.dispatcher import Dispatcher
from celery_tm.scheduler.planner import Planner
from celery_tm.scheduler.zones import ZoneWatch
from celery_tm.store import jobs, keys, occurrences, tables
from celery_tm.worker import gate, recorder, release

from .crash_world import OUTSIDER, CrashWorld, Found, book

Ends = Mapping[str, int]
Prepare = Callable[[CrashWorld], Any]
AGO, LONG_AGO = timedelta(minutes=-10), timedelta(days=-100)
NOTHING: Ends = {}
WORKED: Ends = {"crash.work succeeded": 1}
RUN, WORK = "celery_tm.workflow", "crash.work"
GONE = "gone@test"


@dataclass(frozen=True)
class Scenario:
    """One way to be in the middle of something; without `ends` only what holds for all is asked, and `holds`."""

    name: str
    prepare: Prepare
    act: Callable[[CrashWorld], Any]
    ends: tuple[Ends, ...] = ()
    holds: Callable[[Found], bool] = lambda _: True
    redelivered: bool = False  # its messages are acknowledged late, as `acks_late` has it: what was taken comes again

    def __str__(self) -> str:
        return self.name


# What processes do


def first_tick(world: CrashWorld) -> None:
    """Do what a beat does in its first round."""
    Scheduler(world.app, max_interval=1).work()


def beat(world: CrashWorld) -> None:
    """Plan, dispatch, sweep and reap."""
    installation = world.tm.installation
    Planner(installation).plan_due()
    Dispatcher(installation, "doomed beat").dispatch_due()
    sweep(installation.database, default=installation.default_policy, limit=100)
    reap(installation.database, limit=100)


def deliver(world: CrashWorld) -> None:
    """Run what is in the broker."""
    for message in sorted(world.doomed.collect(), key=lambda message: message.headers["id"]):  # the same each time
        world.doomed.deliver(message)


def dispatch_in_vain(world: CrashWorld) -> None:
    """Claim what is due, with a broker that takes nothing."""

    def _put(*_: Any, **__: Any) -> None:
        raise ChannelError("no")

    embedded.Channel._put = _put  # type: ignore[method-assign]  # this process will not live to tell
    world.doomed.dispatch()


def all_of_it(world: CrashWorld) -> None:
    """Be beat and worker, until nothing is left to do at once."""
    for _ in range(8):
        Dispatcher(world.tm.installation, "doomed beat").dispatch_due()
        deliver(world)


def check_zones(world: CrashWorld) -> None:
    """Look up the next runs again, as a beat does that finds another tz database."""
    with world.at(timedelta(hours=-2, minutes=-20)):
        ZoneWatch(world.tm.installation).check_once()


def reap_twice(world: CrashWorld) -> None:
    """End what takes too long; a second time, what runs regardless too."""
    reap(world.database, limit=100)
    with world.at(timedelta(hours=1)):
        reap(world.database, limit=100)


def hand_back(world: CrashWorld) -> None:
    """Give back what a worker was at that is to stop."""
    installation, mine = world.tm.installation, [(job.id, job.attempt) for job in world.state]
    release.record_handed_back(installation, mine, "shutdown", workers=[GONE])


def tell_vanished(world: CrashWorld) -> None:
    """Write that the pool process of an attempt is gone."""
    for job in world.state:
        failure = Failure.orphaned("its process is gone")
        recorder.record_vanished(world.tm.installation, job.id, job.attempt, failure, workers=[GONE])


def revoke(world: CrashWorld) -> None:
    """Write that deliveries are discarded, or terminated."""
    for job in world.state:
        recorder.record_revoked(
            world.tm.installation, job.id, job.attempt, outcome=Outcome.CANCELLED, reason="revoked", workers=[GONE],
            task=job.task,
        )  # fmt: skip


def prune_all(world: CrashWorld) -> None:
    """Delete what is old."""
    prune(world.database, replace(world.tm.settings, tm_keep_last=0))


# What was there before


def nothing(_: CrashWorld) -> None:
    """Begin with nothing."""


def sent(task: str, *args: Any, link: str | None = None, **options: Any) -> Prepare:
    """Let a deferred job be on its way."""

    def prepare(world: CrashWorld) -> Any:
        sig = world.app.tasks[task].s(*args)
        if link is not None:
            sig.link(world.app.tasks[link].s())
        return defer(sig, app=world.app, **options)

    return prepare


def called(task: str, *args: Any, link: str | None = None, error: str | None = None, times: int = 1) -> Prepare:
    """Let a direct call be on its way."""

    def prepare(world: CrashWorld) -> None:
        follows: dict[str, Any] = {}
        if link is not None:
            follows["link"] = world.app.tasks[link].s()
        if error is not None:
            follows["link_error"] = world.app.tasks[error].si()
        for _ in range(times):
            world.app.tasks[task].apply_async(args, **follows)

    return prepare


def chained(world: CrashWorld) -> None:
    """Let a chain be on its way."""
    work = world.app.tasks[WORK]
    chain(work.s(1), work.s(), work.s()).apply_async()


def waiting(task: str, *args: Any, times: int = 1, **options: Any) -> Prepare:
    """Let jobs be due, and not yet sent."""

    def prepare(world: CrashWorld) -> list[Any]:
        with world.at(AGO):
            sig = world.app.tasks[task].s(*args)
            if "serializer" in options:
                return [defer(sig.set(serializer=options["serializer"]), delay=1, app=world.app)]
            return [defer(sig, delay=1, app=world.app, **options) for _ in range(times)]

    return prepare


def lost(prepare: Prepare) -> Prepare:
    """Let what is due have been sent ten minutes ago, and got lost."""

    def lost(world: CrashWorld) -> Any:
        made = prepare(world)
        with world.at(AGO + timedelta(minutes=1)):
            world.doomed.dispatch()
        world.courier.collect()
        return made

    return lost


def begun(prepare: Prepare, *, cancelled: bool = False, ended: Any = None) -> Prepare:
    """Let a worker have begun what is due, and not have been heard of since."""

    def begun(world: CrashWorld) -> list[Any]:
        lost(prepare)(world)
        with world.at(AGO + timedelta(minutes=2)):
            return [admitted(world, handle.id, cancelled=cancelled, ended=ended) for handle in owed(world)]

    return begun


def owed(world: CrashWorld) -> list[Any]:
    """Return the jobs that a worker may begin."""
    with world.database.transaction(write=False) as tx:
        return [job for job in jobs.select_jobs(tx) if job.task != RUN and job.state == "dispatched"]


def admitted(world: CrashWorld, id: str, *, cancelled: bool = False, ended: Any = None) -> Any:
    """Let a worker begin a job, and do no more than is said."""
    installation = world.tm.installation
    job = gate.admit_job(installation, id, 1, worker=GONE, occurring=True).job
    assert job is not None
    if cancelled:
        cancel(id=id, app=world.app)
    if ended is not None:
        recorder.record_success(installation, job, ended["result"], ended=ended)
    return job


def begun_together(world: CrashWorld) -> list[Any]:
    """Let a worker have begun jobs that came in one message."""
    lost(waiting("crash.chunked", 0, times=2))(world)
    with world.at(AGO + timedelta(minutes=2)):
        attempts = [(job.id, 1) for job in owed(world)]
        return list(gate.admit_all(world.tm.installation, attempts, carrier="message", worker=GONE)[0])


def expired(world: CrashWorld) -> None:
    """Let a message be on its way that comes too late."""
    with world.at(AGO):
        defer(world.app.tasks[WORK].s().set(expires=120), app=world.app)
        world.doomed.dispatch()


def done_elsewhere(world: CrashWorld) -> None:
    """Let a job be on its way whose key has succeeded meanwhile."""
    sent(WORK, key="done")(world)
    done: dict[str, Any] = {"execution": "e", "result": "1", "keep": timedelta(days=7)}
    world.database.run(lambda tx: keys.keep(tx, task=WORK, key_text="done", job=OUTSIDER, **done))


def both_states(world: CrashWorld) -> list[Any]:
    """Let one job run on a worker, and another wait."""
    running = begun(waiting(WORK))(world)
    sent(WORK)(world)
    return running + owed(world)


# Definitions and runs


def definitions(world: CrashWorld) -> None:
    """Let definitions have instants that are due: all, the last, ahead of time, and of a workflow."""
    with world.at(timedelta(hours=-2, minutes=-30)):
        add, common = world.tm.definitions.add, hourly(world)
        add(name="all", task=WORK, recovery="all", overlap="allow", **common)
        add(name="last", task=WORK, recovery="last", **common)
        add(name="ahead", task=WORK, recovery="last", plan_ahead="3h", **common)
        add(name="steps", steps=[{"name": "a", "task": WORK}], recovery="last", **common)


def hourly(world: CrashWorld) -> dict[str, Any]:
    """Return a schedule of three instants: two hours ago, one hour ago, and now."""
    first = f"{world.start - timedelta(hours=2):%Y-%m-%dT%H:%M:%SZ}"
    return {"schedule": f"R/{first}/PT1H", "ends_at": world.start}


def planned_with_old_zones(world: CrashWorld) -> None:
    """Let a beat with another tz database have computed the next run and the rows that are planned ahead."""
    with world.at(timedelta(hours=-2, minutes=-30)):
        common = hourly(world) | {"timezone": "Asia/Tokyo", "recovery": "all", "overlap": "allow", "plan_ahead": "3h"}
        added = world.tm.definitions.add(name="moved", task=WORK, **common)
    with world.database.transaction() as tx:
        tx.execute(update(tables.definition).values(next_run_at=world.start + timedelta(days=365)))
        for number, id in enumerate(occurrences.planned_ahead(tx, added.id)):
            wrong = {"id": f"wrong {number}", "scheduled_at": world.start - timedelta(minutes=15 * (number + 1))}
            tx.execute(update(tables.occurrence).where(tables.occurrence.c.id == id).values(wrong))


def replacing(world: CrashWorld) -> None:
    """Let a definition have an instant that takes the place of one that runs, and of a run that does."""
    with world.at(timedelta(hours=-2, minutes=-30)):
        add, common = world.tm.definitions.add, hourly(world)
        add(name="one", task=WORK, recovery="last", overlap="replace", execution_timeout="5h", **common)
        steps = [{"name": name, "task": WORK} for name in "ab"]
        add(name="steps", steps=steps, recovery="last", overlap="replace", execution_timeout="5h", **common)
    with world.at(timedelta(hours=-2)):
        beat(world)
        world.doomed.dispatch()
        world.courier.collect()
        for job in owed(world):
            admitted(world, job.id)


def edited(world: CrashWorld) -> None:
    """Let an edit wait for the next instant of its definition."""
    definitions(world)
    with world.at(timedelta(hours=-2, minutes=-20)):
        world.tm.definitions.update("all", task="crash.fails_once", policy="graceful")


def triggered(
    name: str = "it", *, ago: timedelta = AGO, task: str | None = None, steps: Any = None, **values: Any
) -> Prepare:
    """Let a definition be triggered ten minutes ago."""

    def prepare(world: CrashWorld) -> None:
        stated = {"task": task} if steps is None else {"steps": steps}
        with world.at(ago):
            world.tm.definitions.add(name=name, schedule="0 0 1 1 *", **stated, **values)
            world.tm.trigger(name)

    return prepare


def started(prepare: Prepare) -> Prepare:
    """Let the steps of a run be on their way."""

    def started(world: CrashWorld) -> None:
        prepare(world)
        for _ in range(2):
            world.doomed.dispatch()

    return started


def run_of(steps: Any, *, entity: str | None = None, **common: Any) -> Prepare:
    """Let a deferred workflow be due."""

    def prepare(world: CrashWorld) -> list[Any]:
        with world.at(AGO):
            return [defer(workflow(steps, **common), delay=1, entity_id=entity, app=world.app)]

    return prepare


def begun_run(prepare: Prepare) -> Prepare:
    """Let the steps of a run have begun, on a worker that was not heard of since."""

    def begun_run(world: CrashWorld) -> list[Any]:
        prepare(world)
        with world.at(AGO + timedelta(minutes=1)):
            for _ in range(2):
                world.doomed.dispatch()
            world.courier.collect()
            return [admitted(world, job.id) for job in owed(world)]

    return begun_run


def history(world: CrashWorld) -> None:
    """Let much have happened long ago, and a job wait that was deferred then."""
    with world.at(LONG_AGO):
        sent(WORK, key="old")(world)
        sent("crash.reports")(world)
        triggered("run", ago=LONG_AGO, steps=[{"name": "a", "task": WORK}])(world)
        defer(world.app.tasks[WORK].s(), delay=timedelta(days=100, minutes=1), concurrency_key="lane", app=world.app)
    with world.at(LONG_AGO + timedelta(minutes=1)):
        for _ in range(4):
            world.doomed.dispatch()
            deliver(world)
    world.effects.write_text("")  # its records go too


def buried(world: CrashWorld) -> Any:
    """Let there be a dead letter."""
    begun(waiting(WORK, max_retries=0))(world)
    beat(world)
    for message in world.courier.collect():
        world.courier.deliver(message)
    beat(world)
    deliver(world)
    return world.tm.dead_letters.list()[0].id


# What callers wish for


def defers(**options: Any) -> Callable[[CrashWorld], Any]:
    """Defer a job."""
    return lambda world: defer(world.app.tasks[WORK].s(), app=world.app, **options)


def defers_many(world: CrashWorld) -> None:
    """Defer several jobs at once, some now and some later."""
    work = world.app.tasks[WORK]
    defer_many([work.s(), (work.s(), {"delay": 60}), (work.s(), {"key": "k"})], app=world.app)


def orders(world: CrashWorld) -> None:
    """Defer a job in the transaction of the caller's own writes."""
    with Session(world.database.engine) as session, session.begin():
        session.execute(book.insert().values(line="order 1"))
        defer(world.app.tasks[WORK].s(), session=session, app=world.app)
        session.execute(book.insert().values(line="order 2"))


def order_and_job(found: Found) -> bool:
    """Say whether both of the caller's lines and the job are there, or none."""
    return (found.book, dict(found.ends)) in ((["order 1", "order 2"], dict(WORKED)), ([], {}))


def calls_later(world: CrashWorld) -> None:
    """Call with a countdown that a worker's memory should not keep."""
    world.app.tasks[WORK].apply_async((1,), countdown=120)


def cancels(**which: Any) -> Callable[[CrashWorld], Any]:
    """Cancel something."""
    return lambda world: cancel(app=world.app, **which)


def cancels_all(world: CrashWorld) -> None:
    """Cancel what the set-up has made."""
    for made in world.state:
        cancel(id=made.id, app=world.app)


STEPS = [
    {"name": "a", "task": WORK},
    [{"name": "b", "task": WORK}, {"name": "c", "task": WORK}],
    {"name": "d", "task": WORK},
]
FAILING = [[{"name": "a", "task": "crash.fails"}, {"name": "b", "task": WORK, "concurrency_key": "l"},
            {"name": "c", "task": WORK, "concurrency_key": "l"}], {"name": "d", "task": WORK, "cleanup": True}]  # fmt: skip
STALE = [{"name": "a", "task": WORK}, {"name": "b", "task": WORK, "cleanup": True}]
HOOKS = {"on_start": WORK, "on_complete": WORK}

BEAT = (
    Scenario("a beat's first tick", nothing, first_tick),
    Scenario("plan and dispatch", definitions, beat, ({f"{RUN} succeeded": 1, f"{WORK} succeeded": 6},)),
    Scenario("plan anew with other time zones", planned_with_old_zones, check_zones, ({f"{WORK} succeeded": 3},)),
    Scenario("plan an edit", edited, beat),
    Scenario("plan what replaces", replacing, beat),
    Scenario("dispatch lanes", waiting(WORK, times=2, concurrency_key="lane"), beat, ({f"{WORK} succeeded": 2},)),
    Scenario("dispatch a plain task", waiting("plain"), beat, ({"plain succeeded": 1},)),
    Scenario("dispatch a run", run_of(STEPS, **HOOKS), beat, ({f"{RUN} succeeded": 1, f"{WORK} succeeded": 6},)),
    Scenario("dispatch what expires", waiting(WORK, expires=60), beat, ({f"{WORK} expired": 1},)),
    Scenario("dispatch in vain", waiting(WORK), dispatch_in_vain, (WORKED,)),
    Scenario("dispatch what makes no message", waiting(WORK, serializer="none"), beat, ({f"{WORK} failed": 1},)),
)
WORKER = (
    Scenario("run", sent(WORK, key="k"), deliver, (WORKED,), lambda found: len(found.keys) == 1),
    Scenario("run an occurrence", started(triggered(task=WORK)), deliver, (WORKED,)),
    Scenario("run in a lane", lost(waiting(WORK, times=2, concurrency_key="l")), all_of_it, ({f"{WORK} succeeded": 2},)),
    Scenario("run a transaction", sent("crash.writes", WORK), deliver, (
        {"crash.writes succeeded": 1, f"{WORK} succeeded": 1},
    )),
    Scenario("report and renew", sent("crash.reports"), deliver, ({"crash.reports succeeded": 1},)),
    Scenario("fail, and be tried again", sent("crash.fails_once"), deliver, ({"crash.fails_once succeeded": 1},)),
    Scenario("ask to be tried again", sent("crash.asks_again"), deliver, ({"crash.asks_again succeeded": 1},)),
    Scenario("fail for good", sent("crash.fails_for_good"), deliver, tuple(
        {f"crash.fails_for_good {how}": 1} for how in ("failed", "orphaned")
    )),
    Scenario("fail an occurrence for good", started(triggered(task="crash.fails_for_good", pause_after=1)), deliver, tuple(
        {f"crash.fails_for_good {how}": 1} for how in ("failed", "orphaned")
    )),
    Scenario("be cancelled and stop", sent("crash.stops"), deliver, ({"crash.stops cancelled": 1},)),
    Scenario("come too late", expired, deliver, ({f"{WORK} expired": 1},)),
    Scenario("come after the key's success", done_elsewhere, deliver, ({f"{WORK} deduplicated": 1},)),
    Scenario("run a direct call", called(WORK), deliver, (WORKED,), redelivered=True),
    Scenario("run a direct call with a key", called("crash.keyed", 1, times=2), deliver, ({"crash.keyed succeeded": 1},),
             redelivered=True),
    Scenario("take a number", called("crash.in_turn", times=2), deliver, ({"crash.in_turn succeeded": 2},),
             redelivered=True),
    Scenario("hand on a link", sent(WORK, 1, link=WORK), deliver, ({f"{WORK} succeeded": 2},)),
    Scenario("hand on a chain", chained, deliver, ({f"{WORK} succeeded": 3},), redelivered=True),
    Scenario("hand on a failure", called("crash.fails_for_good", error=WORK), deliver, tuple(
        {f"crash.fails_for_good {how}": 1, f"{WORK} succeeded": 1} for how in ("failed", "orphaned")
    ), redelivered=True),
    Scenario("hand on a replacement", called("crash.replaced"), deliver, (WORKED,), redelivered=True),
    Scenario("run a chunk", waiting("crash.chunked", 1, times=3), all_of_it, ({"crash.chunked succeeded": 3},)),
    Scenario("fail in a chunk", waiting("crash.chunked", 2, times=2), all_of_it, ({"crash.chunked succeeded": 2},)),
)  # fmt: skip
RUNS = (
    Scenario("run a workflow", run_of(STEPS, **HOOKS), all_of_it, ({f"{RUN} succeeded": 1, f"{WORK} succeeded": 6},)),
    Scenario("run a workflow that fails", run_of(FAILING, failure_strategy="fail_fast", **HOOKS), all_of_it),
    Scenario("run a definition's workflow", triggered(steps=STEPS, max_parallel=1), all_of_it, (
        {f"{RUN} succeeded": 1, f"{WORK} succeeded": 4},
    )),
)  # fmt: skip
RECOVERY = (
    Scenario("sweep a lost message", lost(waiting(WORK)), beat, (WORKED,)),
    Scenario("sweep an orphan", begun(waiting(WORK)), beat, (WORKED,)),
    Scenario("sweep an orphan's last try", begun(waiting(WORK, max_retries=0)), beat, ({f"{WORK} orphaned": 1},)),
    Scenario("sweep what was cancelled", begun(waiting(WORK), cancelled=True), beat, ({f"{WORK} cancelled": 1},)),
    Scenario("sweep what shares a message", begun_together, beat, ({"crash.chunked succeeded": 2},)),
    Scenario("sweep what follows", begun(sent(WORK, 1, link=WORK, delay=0.01), ended={"result": 1, "attempt": 1}), beat),
    Scenario("sweep a step", begun_run(run_of(STEPS)), beat, ({f"{RUN} succeeded": 1, f"{WORK} succeeded": 4},)),
    Scenario("reap an occurrence", begun(triggered(task=WORK, execution_timeout="1m")), reap_twice, (
        {f"{WORK} timeout": 1}, {f"{WORK} orphaned": 1},
    )),
    Scenario("reap a run", begun_run(triggered(steps=STALE, execution_timeout="1m")), reap_twice),
    Scenario("hand back", begun(waiting(WORK)), hand_back, (WORKED,)),
    Scenario("hand back a step", begun_run(run_of(STEPS)), hand_back, ({f"{RUN} succeeded": 1, f"{WORK} succeeded": 4},)),
    Scenario("tell that it vanished", begun(waiting(WORK)), tell_vanished, (WORKED,)),
    Scenario("revoke", both_states, revoke, (
        {f"{WORK} succeeded": 2}, {f"{WORK} cancelled": 1, f"{WORK} succeeded": 1}, {f"{WORK} cancelled": 2},
    )),
    Scenario("prune", history, prune_all, holds=lambda found: f"{WORK} succeeded" in found.ends),
)  # fmt: skip
CALLERS = (
    Scenario("defer", nothing, defers(), (NOTHING, WORKED)),
    Scenario("defer for later", nothing, defers(delay=60), (NOTHING, WORKED)),
    Scenario("defer with a key", nothing, defers(key="k"), (NOTHING, WORKED)),
    Scenario("defer what is owed", sent(WORK, key="k", delay=60), defers(key="k", on_duplicate="replace"), (WORKED,)),
    Scenario("defer many", nothing, defers_many, (NOTHING, {f"{WORK} succeeded": 3})),
    Scenario("defer in a transaction", nothing, orders, (NOTHING, WORKED), order_and_job),
    Scenario("defer a plain task", nothing, lambda world: defer("plain", app=world.app), (NOTHING, {"plain succeeded": 1})),
    Scenario("call for later", nothing, calls_later, (NOTHING, WORKED)),
    Scenario("cancel", sent(WORK, key="k", delay=60), cancels(key="k"), (WORKED, {f"{WORK} cancelled": 1})),
    Scenario("cancel a run", begun_run(run_of(STEPS, entity="e")), cancels(entity_id="e")),
    Scenario("revive", buried, lambda world: world.tm.dead_letters.revive(world.state)),
    Scenario("trigger", triggered(task=WORK, overlap="allow"), lambda world: world.tm.trigger("it"), (
        WORKED, {f"{WORK} succeeded": 2},
    )),
)  # fmt: skip
SCENARIOS: tuple[Scenario, ...] = (*BEAT, *WORKER, *RUNS, *RECOVERY, *CALLERS)
