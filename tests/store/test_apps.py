"""Several apps on one database: each plans, claims, shows and runs its own, on every database."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from celery import Celery
from sqlalchemy import select, update
from tmtest.commands import Cli
from tmtest.ledger import NOON

from celery_tm import Task, TimeManagement, cancel, defer, workflow
from celery_tm.errors import DefinitionNotFound, InvalidValue
from celery_tm.installation import Installation
from celery_tm.management.runner import run_once
from celery_tm.recovery.reaper import reap
from celery_tm.recovery.sweeper import sweep
from celery_tm.scheduler import Scheduler
from celery_tm.scheduler.dispatcher import Dispatcher
from celery_tm.scheduler.planner import Planner
from celery_tm.scheduler.seeding import Seeder, origin_of
from celery_tm.scheduler.zones import ZoneWatch
from celery_tm.settings import read_settings
from celery_tm.store import apps, tables
from celery_tm.testing import MovableClock
from celery_tm.worker import gate
from celery_tm.worker.decision import Refusal


@pytest.fixture(autouse=True)
def noon(tm_clock: MovableClock) -> MovableClock:
    tm_clock.move_to(NOON)
    return tm_clock


def another(tm: TimeManagement, name: str | None, **conf: Any) -> TimeManagement:
    """Return an app of another name on the same database."""
    settings = tm.installation.settings
    app = Celery(name, set_as_current=False, broker="memory://")
    app.conf.update(tm_database_url=settings.tm_database_url, result_expires=None, **conf)

    @app.task(base=Task, name="effect", shared=False)
    def effect(*_: Any) -> None:
        """Do nothing."""

    made = TimeManagement(app)
    made.installation.database.move_to(read_settings({"tm_database_url": settings.tm_database_url, **conf}, {}))
    return made


def begin(tm: TimeManagement) -> frozenset[str]:
    """Do what a beat of this app does first."""
    database = tm.installation.database
    database.serve_own_app()
    database.run(apps.register)
    database.run(lambda tx: apps.adopt(tx, origin=origin_of(tm.app), tasks=tm.app.tasks))
    return database.run(apps.strays)


def look_again(*some: TimeManagement) -> None:
    for tm in some:
        tm.installation.database._knows_apps_until = 0.0


@pytest.fixture
def shop(tm: TimeManagement) -> TimeManagement:
    begin(tm)
    return tm


@pytest.fixture
def billing(tm: TimeManagement, shop: TimeManagement) -> Any:
    made = another(tm, "billing")
    begin(made)
    look_again(shop, made)
    yield made
    made.installation.database.dispose()
    made.app.close()


def add(tm: TimeManagement, **values: Any) -> Any:
    return tm.definitions.add(**({"name": "nightly", "task": "effect", "schedule": "* * * * *"} | values))


def test_definitions_of_one_name_do_not_meet(shop: TimeManagement, billing: TimeManagement, noon: MovableClock) -> None:
    add(shop, args=["shop"])
    add(billing, args=["billing"], schedule="*/2 * * * *")
    shop.definitions.update("nightly", queue="a")
    assert billing.definitions.get("nightly").queue is None
    assert [(one.app, one.schedule) for one in shop.definitions.list()] == [("tmtest", "* * * * *")]
    assert [(one.app, one.schedule) for one in billing.definitions.list()] == [("billing", "*/2 * * * *")]
    noon.forward("2m")
    assert Planner(shop.installation).plan_due().definitions == 1
    assert [job.args for job in shop.jobs()] == ['["shop"]']
    assert billing.jobs() == []
    assert Planner(billing.installation).plan_due().definitions == 1
    assert [job.args for job in billing.jobs()] == ['["billing"]']
    billing.definitions.remove("nightly")
    assert shop.definitions.get("nightly")


def test_seeding_leaves_the_other_app_s_entries_alone(shop: TimeManagement, billing: TimeManagement) -> None:
    for tm, every in ((shop, 10), (billing, 20)):
        tm.app.conf.beat_schedule = {"celery.backend_cleanup": {"task": "effect", "schedule": every}}
        Seeder(tm.installation).seed_once()
    for tm in (shop, billing):
        Seeder(tm.installation).seed_once()
    schedules = [tm.definitions.get("celery.backend_cleanup").schedule for tm in (shop, billing)]
    assert schedules == ["every 10s", "every 20s"]


@pytest.mark.parametrize("lane", [None, "tenant:7"])
def test_one_app_does_not_claim_the_other_s_jobs(
    shop: TimeManagement, billing: TimeManagement, noon: MovableClock, lane: str | None
) -> None:
    made = defer("effect", args=[1], delay=5, app=billing.app, concurrency_key=lane)
    noon.forward("10s")
    assert Dispatcher(shop.installation, "beat@shop").claim(10) == (0, [])
    assert [job.id for job in Dispatcher(billing.installation, "beat@billing").claim(10)[1]] == [made.id]


def test_the_gate_of_another_app_refuses_and_says_why(
    shop: TimeManagement, billing: TimeManagement, noon: MovableClock
) -> None:
    made = defer("effect", args=[1], delay=5, app=billing.app)
    noon.forward("10s")
    Dispatcher(billing.installation, "beat").claim(10)
    refused = gate.admit_job(shop.installation, made.id, 1, worker="w@shop:1")
    assert refused.job is None
    assert "belongs to the app 'billing'" in refused.reason
    admitted, others = gate.admit_all(shop.installation, [(made.id, 1)], worker="w@shop:1", carrier="c")
    assert (admitted, [one.refusal for _, one in others]) == ([], [Refusal.OTHER_APP])
    assert gate.admit_job(billing.installation, made.id, 1, worker="w@billing:1").job is not None


def test_a_dead_letter_is_shown_and_revived_in_its_app(
    shop: TimeManagement, billing: TimeManagement, noon: MovableClock
) -> None:
    made = defer("no.such.task", args=[1], delay=1, app=billing.app, remote=True, max_retries=0)
    noon.forward("10s")
    assert billing.run_due_jobs(now=noon.now).failed == 1
    assert shop.dead_letters.list() == []
    assert [letter.id for letter in billing.dead_letters.list()] == [made.id]
    billing.dead_letters.revive(made.id)
    assert [job.app for job in billing.jobs()] == ["billing"]


def test_each_app_looks_up_its_own_definitions_in_a_new_tz_database(
    shop: TimeManagement, billing: TimeManagement, noon: MovableClock
) -> None:
    right = {tm: add(tm, schedule="0 9 * * *", timezone="Europe/Warsaw").next_run_at for tm in (shop, billing)}
    with shop.installation.database.transaction() as tx:  # as beats with another tz database would have left them
        tx.execute(update(tables.definition).values(next_run_at=NOON + timedelta(days=5)))
    for tm, wanted in right.items():
        ZoneWatch(tm.installation).check_once()
        assert tm.definitions.get("nightly").next_run_at == wanted


def test_status_and_doctor_of_one_app_leave_the_other_s_rows_out(
    shop: TimeManagement, billing: TimeManagement, noon: MovableClock
) -> None:
    defer("no.such.task", args=[1], delay=1, app=billing.app, remote=True, max_retries=0)
    noon.forward("10s")
    billing.run_due_jobs(now=noon.now)
    made = [defer("effect", args=[n], delay=1, app=billing.app) for n in range(2)]
    noon.forward("10s")
    Dispatcher(billing.installation, "beat").claim(10)
    assert gate.admit_job(billing.installation, made[0].id, 1, worker="w:1").job is not None
    add(billing)
    billing.pause("nightly")
    add(billing, name="spent", schedule="every 1m", max_runs=1)
    with billing.installation.database.transaction() as tx:
        spent = tables.definition.c.name == "spent"
        tx.execute(update(tables.definition).where(spent).values(next_run_at=None, runs=1))
    noon.forward("100d")
    ours, theirs = shop.status(), billing.status()
    counted = [(one.dead_letters, one.jobs["running"], one.jobs["dispatched"], one.expired_leases) for one in (ours, theirs)]
    assert counted == [(0, 0, 0, 0), (1, 1, 1, 2)]
    assert ours.in_flight == theirs.in_flight == 2, "tm_max_in_flight counts the jobs of all apps"
    named = {one.check for one in shop.doctor() if {"nightly", "spent"} & set(one.objects)}
    assert (named, {"nightly", "spent"} <= {name for one in billing.doctor() for name in one.objects}) == (set(), True)
    assert not any("dead letter" in one.text and one.level != "ok" for one in shop.doctor())


def test_doctor_and_explain_of_one_app_do_not_go_by_the_beat_of_the_other(
    shop: TimeManagement, billing: TimeManagement, noon: MovableClock, request: pytest.FixtureRequest
) -> None:
    add(billing)
    beats = {tm: Scheduler(app=tm.app) for tm in (shop, billing)}
    for beat in beats.values():
        beat._sign_on()
        request.addfinalizer(beat.close)
    assert [one.level for tm in beats for one in tm.doctor() if one.check == "beats"] == ["ok", "ok"]
    noon.forward("5m")
    beats[shop]._sign_on()
    beats[shop]._warn_of_strays()
    [found] = [one for one in billing.doctor() if one.check == "beats"]
    assert (found.level, "of the app 'billing' is running; the last one was seen at 2026-06-01 12:00" in found.text) == (
        "error",
        True,
    )
    assert [one.level for one in shop.doctor() if one.check == "beats"] == ["ok"]
    assert "the last beat was seen at 2026-06-01 12:00:00" in str(billing.explain("nightly", at=NOON + timedelta(minutes=2)))
    beats[billing]._warn_of_strays()
    assert [one.level for tm in beats for one in tm.doctor() if one.check == "beats"] == ["ok", "ok"]


def test_explain_tells_who_switched_the_app_s_own_definition(
    shop: TimeManagement, billing: TimeManagement, noon: MovableClock
) -> None:
    add(shop)
    add(billing)
    billing.pause("nightly", actor="kim", reason="billing is closed")
    noon.forward("1m")
    shop.pause("nightly", actor="lee", reason="stocktaking")
    noon.forward("1h")
    for tm in (shop, billing):
        tm.run_due_jobs()
    at = NOON + timedelta(minutes=30)
    told = str(billing.explain("nightly", at=at))
    assert ("kim" in told, "billing is closed" in told, "lee" in told, "stocktaking" in told) == (True, True, False, False)
    assert "stocktaking" in str(shop.explain("nightly", at=at))
    shop.definitions.remove("nightly", actor="eve")
    billing.definitions.remove("nightly", actor="pat")
    noon.forward("1h")
    for tm, actor in ((shop, "eve"), (billing, "pat")):
        assert f"by {actor}" in str(tm.explain("nightly", at=noon.now))
    add(billing, name="other")
    billing.definitions.remove("other")
    with pytest.raises(DefinitionNotFound):
        shop.explain("other")


# Runs of workflows belong to the app of their job, whoever ends a step of them


STEPS = [{"name": "first", "task": "effect", "max_retries": 0}, {"name": "second", "task": "effect"}]


def start_run(tm: TimeManagement, **values: Any) -> str:
    """Start a run of a definition, and let a worker in at its first step."""
    hooks = {"on_complete": "effect", "on_start": "effect"}
    tm.definitions.add(name="etl", schedule="0 3 * * *", steps=STEPS, **(hooks | values))
    made: str = tm.trigger("etl").id
    admit_first(tm)
    return made


def admit_first(tm: TimeManagement) -> None:
    dispatcher = Dispatcher(tm.installation, "beat")
    dispatcher.expand(dispatcher.claim(100)[1])
    for job in dispatcher.claim(100)[1]:
        if job.step == "first":
            assert gate.admit_job(tm.installation, job.id, job.attempt, worker="w:1").job is not None


def owners(tm: TimeManagement) -> dict[str, str]:
    with tm.installation.database.transaction(write=False) as tx:
        return {row.step: row.app for row in tx.execute(select(tables.job.c.step, tables.job.c.app)) if row.step}


def sweep_as(tm: TimeManagement) -> None:
    assert len(sweep(tm.installation.database, default=tm.installation.default_policy, limit=100).orphaned) == 1


def test_the_next_step_of_a_run_that_another_app_swept_belongs_to_the_run_s_app(
    shop: TimeManagement, billing: TimeManagement, noon: MovableClock
) -> None:
    start_run(billing, failure_strategy="continue")
    noon.forward("1h")
    sweep_as(shop)
    assert owners(shop) == {"second": "billing", "on_start": "billing", "first": "billing"}


def test_the_hook_of_a_run_that_another_app_reaped_belongs_to_the_run_s_app(
    shop: TimeManagement, billing: TimeManagement, noon: MovableClock
) -> None:
    made = start_run(billing, execution_timeout="10m")
    noon.forward("1h")
    assert len(reap(shop.installation.database, limit=100)) == 1
    assert [(one.id, str(one.state)) for one in billing.occurrences("etl")] == [(made, "stale")]
    assert owners(shop) == {"on_complete": "billing", "on_start": "billing", "first": "billing"}


def test_the_run_of_an_app_that_has_another_name_now_goes_on_under_it(shop: TimeManagement, noon: MovableClock) -> None:
    start_run(shop, failure_strategy="continue")
    renamed = another(shop, "store")
    begin(renamed)
    renamed.take_over("tmtest")
    noon.forward("1h")
    sweep_as(renamed)
    assert set(owners(renamed).values()) == {"store"}
    renamed.installation.database.dispose()


def test_the_replay_of_a_deferred_run_belongs_to_the_run_s_app(
    shop: TimeManagement, billing: TimeManagement, noon: MovableClock
) -> None:
    made = defer(workflow([billing.app.signature("effect")]), app=billing.app)
    for _ in range(3):
        noon.forward("1s")
        billing.run_due_jobs(now=noon.now)
    again = shop.replay(made.id)
    assert [(job.id, job.app) for job in billing.jobs()] == [(again.id, "billing")]
    cancel(id=again.id, app=billing.app)
    shop.take_over("billing")
    last = shop.replay(made.id)
    assert [(job.id, job.app) for job in shop.jobs()] == [(last.id, "tmtest")]


@pytest.mark.parametrize("is_taken_over", [False, True])
def test_the_entries_of_an_app_stay_its_own_when_it_is_renamed(
    tm: TimeManagement, request: pytest.FixtureRequest, is_taken_over: bool
) -> None:
    def seeded(name: str, **entries: Any) -> TimeManagement:
        made = another(tm, name, **({} if is_taken_over else {"tm_app": "prod"}))
        request.addfinalizer(made.installation.database.dispose)
        begin(made)
        if is_taken_over and name == "store" and not made.definitions.list():
            made.take_over("shop")
        made.app.conf.beat_schedule = {one: {"task": "effect", **entry} for one, entry in entries.items()}
        Seeder(made.installation).seed_once()
        return made

    options = {"queue": "slow", "priority": 3}
    first = seeded("shop", job={"schedule": 60, "options": options}, gone={"schedule": 60}, hers={"schedule": 60})
    first.definitions.update("hers", schedule="every 3m", actor="ann")
    seeded("shop", job={"schedule": 60, "options": options}, gone={"schedule": 60}, hers={"schedule": 90})
    renamed = seeded("store", job={"schedule": 120, "options": {"queue": "slow"}}, hers={"schedule": 120})
    found = {name: renamed.definitions.get(name) for name in ("job", "gone", "hers")}
    assert (found["job"].schedule, found["job"].queue, found["job"].priority) == ("every 2m", "slow", None)
    assert (found["gone"].standing, found["hers"].schedule) == ("retired", "every 3m")
    sources = {tuple(one.declared or {}) for one in found.values()}
    assert ({one.origin for one in found.values() if one.name != "gone"}, sources - {()}) == (
        {origin_of(renamed.app)},
        {(origin_of(renamed.app),)},
    )
    version = found["job"].version
    assert seeded("store", job={"schedule": 120, "options": {"queue": "slow"}}, hers={"schedule": 120})
    assert renamed.definitions.get("job").version == version


# Processes that have an app of their own, and none of the beats


def test_a_web_process_works_for_the_only_app_that_has_a_beat(shop: TimeManagement, noon: MovableClock) -> None:
    for name in ("web", None, "__main__"):
        web = another(shop, name)
        made = defer("effect", args=[1], delay=5, app=web.app)
        assert web.job(made.id).job.app == "tmtest"
        web.installation.database.dispose()
    noon.forward("10s")
    assert shop.run_due_jobs(now=noon.now).succeeded == 3


def test_what_was_written_before_the_first_beat_is_taken_over(tm: TimeManagement, noon: MovableClock) -> None:
    web = another(tm, "web")
    defer("effect", args=[1], delay=5, app=web.app)
    defer("effect", args=[1], delay=5, app=web.app, concurrency_key="k")
    add(web)
    assert {job.app for job in web.jobs()} == {""}
    begin(tm)
    assert {job.app for job in tm.jobs()} == {"tmtest"}
    assert tm.definitions.get("nightly").app == "tmtest"
    web.installation.database.dispose()


def test_a_definition_is_found_though_its_beat_died_before_it_adopted_it(tm: TimeManagement) -> None:
    web = another(tm, "web")
    add(web)
    tm.installation.database.serve_own_app()
    tm.installation.database.run(apps.register)
    look_again(web)
    assert web.definitions.get("nightly").app == ""
    web.disable("nightly", reason="month end")
    begin(tm)
    found = tm.definitions.get("nightly")
    assert (found.app, found.enabled) == ("tmtest", False)
    web.installation.database.dispose()


def test_an_app_is_registered_and_adopts_its_rows_in_one_transaction(
    tm: TimeManagement, monkeypatch: pytest.MonkeyPatch
) -> None:
    web = another(tm, "web")
    add(web)
    beat = Scheduler(app=tm.app)
    tm.installation.database.serve_own_app()

    def dies(*_: Any) -> None:
        raise RuntimeError("killed")

    with monkeypatch.context() as patch:
        patch.setattr("celery_tm.store.apps._take_definitions", dies)
        with pytest.raises(RuntimeError, match="killed"):
            beat._warn_of_strays()
    assert tm.installation.database.run(apps.registered) == frozenset()
    beat._warn_of_strays()
    assert tm.definitions.get("nightly").app == "tmtest"
    web.installation.database.dispose()


def register_another(tm: TimeManagement) -> None:
    """Register an app that has none of this app's tasks."""
    billing = another(tm, "billing")
    billing.installation.database.serve_own_app()
    billing.installation.database.run(apps.register)
    billing.installation.database.dispose()


def test_a_run_once_takes_over_what_was_written_before_it_and_adds_nothing_beside(
    tm: TimeManagement, noon: MovableClock
) -> None:
    add(tm, queue="hers", actor="ann")
    add(tm, name="other", actor="ann")
    assert {one.app for one in tm.definitions.list()} == {""}
    entries = {"nightly": {"task": "effect", "schedule": 60, "options": {"priority": 3}}}
    beside = another(tm, "tmtest", beat_schedule=entries)  # the same app in another process
    register_another(tm)
    noon.forward("2m")
    run_once(beside.app)
    look_again(tm)
    found = {one.name: one for one in tm.definitions.list() if one.name in ("nightly", "other")}
    assert {(one.app, one.queue) for one in found.values()} == {("tmtest", "hers"), ("tmtest", None)}
    assert (found["nightly"].priority, found["nightly"].created_by, found["nightly"].origin) == (3, "ann", None)
    assert tm.installation.database.run(apps.registered) == {"billing", "tmtest"}
    with tm.installation.database.transaction(write=False) as tx:
        named = tx.execute(select(tables.definition.c.name)).scalars().all()
    assert sorted(set(named)) == sorted(named), "there is one of each name"
    beside.installation.database.dispose()


def test_an_entry_waits_for_a_definition_that_somebody_holds_before_it_is_taken_over(
    tm: TimeManagement, request: pytest.FixtureRequest
) -> None:
    if tm.installation.database.dialect.name == "sqlite":
        pytest.skip("one writer at a time")
    add(tm, queue="hers", actor="ann")
    register_another(tm)
    tm.app.conf.beat_schedule = {"nightly": {"task": "effect", "schedule": 60}}
    holder, beat = another(tm, "web"), Scheduler(app=tm.app)
    request.addfinalizer(holder.installation.database.dispose)
    request.addfinalizer(beat.close)
    with holder.installation.database.transaction() as held:
        held.execute(select(tables.definition.c.id).with_for_update()).all()
        beat._warn_of_strays()
        beat.seeder.seed_some()
        with tm.installation.database.transaction(write=False) as tx:
            found = select(tables.definition.c.app, tables.definition.c.queue).where(tables.definition.c.name == "nightly")
            assert tx.execute(found).all() == [("", "hers")]
    beat.seeder._next_at = 0.0
    beat.seeder.seed_some()
    beat.seeder._next_at = 0.0
    beat.seeder.seed_some()
    assert [(one.name, one.app, one.queue) for one in tm.definitions.list() if one.name == "nightly"] == [
        ("nightly", "tmtest", "hers")
    ]


@pytest.mark.parametrize("named", [None, "shop"])
def test_an_upgrade_shows_what_was_there_before(tm: TimeManagement, named: str | None) -> None:
    shop = another(tm, "shop", tm_app=named)
    add(shop)
    with shop.installation.database.transaction() as tx:  # as a release before has written it
        tx.execute(update(tables.definition).values(app=""))
    shop.upgrade()
    assert [one.name for one in shop.definitions.list()] == ["nightly"], "before the first beat has begun"
    shop.installation.database.dispose()


def test_with_several_apps_nobody_takes_what_may_be_another_s(
    shop: TimeManagement, billing: TimeManagement, noon: MovableClock
) -> None:
    web = another(shop, "web")
    defer("effect", args=[1], delay=5, app=web.app)
    assert begin(shop) == {"web"}
    noon.forward("10s")
    assert Dispatcher(shop.installation, "beat").claim(10) == (0, [])
    named = another(shop, "web2", tm_app="billing")
    defer("effect", args=[1], delay=0.5, app=named.app)
    noon.forward("10s")
    assert len(Dispatcher(billing.installation, "beat").claim(10)[1]) == 1
    for one in (web, named):
        one.installation.database.dispose()


@pytest.mark.parametrize("key", [None, "tenant:7"])
def test_what_names_its_app_is_left_to_it_before_its_beat_has_looked_once(
    shop: TimeManagement, noon: MovableClock, key: str | None
) -> None:
    named = another(shop, "billing", tm_app="billing")
    add(named)
    made = defer("effect", args=[1], delay=5, app=named.app, concurrency_key=key)
    assert begin(shop) == {"billing"}
    assert [one.app for one in named.definitions.list()] == ["billing"]
    noon.forward("10m")
    assert Planner(shop.installation).plan_due().definitions == 0
    assert Dispatcher(shop.installation, "beat").claim(10) == (0, [])
    Dispatcher(named.installation, "beat").claim(10)
    assert gate.admit_job(shop.installation, made.id, 1, worker="w@shop:1").refusal is gate.Refusal.OTHER_APP
    assert gate.admit_all(shop.installation, [(made.id, 1)], worker="w@shop:1", carrier="c")[0] == []
    found = [one for one in shop.doctor() if one.check == "apps"]
    assert [(one.level, list(one.objects)) for one in found] == [("warning", ["billing"])]
    begin(named)
    assert [one.level for one in shop.doctor() if one.check == "apps"] == ["ok"]
    assert gate.admit_job(named.installation, made.id, 1, worker="w@billing:1").job is not None
    named.installation.database.dispose()


def test_a_worker_learns_whose_jobs_it_runs_when_the_first_beat_has_registered(
    tm: TimeManagement, noon: MovableClock
) -> None:
    worker = another(tm, "worker")
    assert worker.jobs() == []  # it has looked, and found no app
    begin(tm)
    ids = [defer("effect", args=[n], delay=5, app=tm.app).id for n in range(3)]
    noon.forward("10s")
    Dispatcher(tm.installation, "beat").claim(10)
    assert gate.admit_job(worker.installation, ids[0], 1, worker="w:1").job is not None
    worker.installation.database.move_to(worker.installation.settings)
    assert gate.admit_all(worker.installation, [(id, 1) for id in ids[1:]], worker="w:1", carrier="c")[1] == []
    worker.installation.database.dispose()


def test_every_job_that_names_no_app_is_taken_over_however_many_there_are(
    tm: TimeManagement, noon: MovableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apps, "BATCH", 2)
    for number in range(5):
        defer("effect", args=[number], delay=5, app=tm.app)
    beat = Scheduler(tm.app, max_interval=5)
    beat.work()
    assert [job.app for job in tm.jobs()] == ["tmtest"] * 5
    beat.close()


def test_with_several_apps_each_takes_over_unnamed_rows_of_its_own_tasks(
    shop: TimeManagement, billing: TimeManagement, noon: MovableClock
) -> None:
    ids = {name: defer(name, args=[1], delay=5, app=shop.app, remote=True).id for name in ("fails", "nobody's")}
    add(shop, task="fails")
    add(shop, name="other", task="nobody's")
    with shop.installation.database.transaction() as tx:  # as a release before has written it
        tx.execute(update(tables.job).values(app=""))
        tx.execute(update(tables.definition).values(app=""))
    assert begin(billing) == begin(shop) == {""}
    assert [job.id for job in shop.jobs()] == [ids["fails"]]
    assert [one.name for one in shop.definitions.list()] == ["nightly"]
    assert [one.level for one in shop.doctor() if one.check == "apps"] == ["warning"]


def test_rows_of_an_app_whose_beat_is_gone_are_reported(shop: TimeManagement, noon: MovableClock) -> None:
    add(shop)
    defer("effect", args=[1], delay=5, app=shop.app)
    renamed = another(shop, "store")
    assert begin(renamed) == frozenset()
    noon.forward("1h")
    assert begin(renamed) == {"tmtest"}
    [found] = [one for one in renamed.doctor() if one.check == "apps"]
    assert (found.level, list(found.objects)) == ("warning", ["tmtest"])
    assert "tm take-over" in (found.advice or "")
    renamed.take_over("tmtest")
    assert begin(renamed) == frozenset()
    renamed.installation.database.dispose()


def test_an_app_that_has_another_name_now_takes_over_what_it_had(
    shop: TimeManagement, noon: MovableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(shop)
    ids = [defer("effect", args=[n], delay=5, app=shop.app).id for n in range(5)]
    noon.forward("10s")
    Dispatcher(shop.installation, "beat").claim(2)
    renamed = another(shop, "store")
    begin(renamed)
    assert renamed.definitions.list() == []
    monkeypatch.setattr(apps, "BATCH", 2)
    renamed.take_over("tmtest")
    assert {renamed.job(id).job.app for id in ids} == {"store"}
    assert [one.app for one in renamed.definitions.list()] == ["store"]
    with pytest.raises(InvalidValue, match="is this app"):
        renamed.take_over("store")
    renamed.installation.database.dispose()


def test_taking_over_is_in_the_audit_with_who_and_why(
    shop: TimeManagement, noon: MovableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(shop)
    for n in range(3):
        defer("effect", args=[n], delay="1h", app=shop.app)
    defer("fails", app=shop.app, max_retries=0)
    shop.run_due_jobs()
    renamed = another(shop, "store")
    begin(renamed)
    monkeypatch.setattr(apps, "BATCH", 2)
    renamed.take_over("tmtest", actor="ann", reason="renamed")
    lines = renamed.audit(action="take over")
    assert {(one.actor, one.reason, (one.before or {})["app"]) for one in lines} == {("ann", "renamed", "tmtest")}
    [moved] = [one for one in lines if one.object.startswith("definition:")]
    assert (moved.object, moved.after) == ("definition:nightly", {"app": "store"})
    batches = [one.after or {} for one in lines if one.object == "app:tmtest"]
    assert [sum(one[kind] for one in batches) for kind in ("jobs", "dead_letters")] == [3, 1]
    renamed.installation.database.dispose()


def test_a_name_that_nothing_belongs_to_is_no_app_to_take_over(shop: TimeManagement, noon: MovableClock) -> None:
    add(shop)
    renamed = another(shop, "store")
    begin(renamed)
    cli = Cli(renamed.app)
    assert "did you mean 'tmtest'?" in cli.refused("take-over", "tmtset")
    assert "nothing belongs to an app called 'moon'" in cli.refused("take-over", "moon")
    assert renamed.definitions.list() == []
    cli.run("take-over", "")  # rows that name no app: there may be none left
    assert renamed.audit(action="take over") == []
    cli.run("take-over", "tmtest", "--actor", "ann", "--reason", "renamed")
    assert [one.app for one in renamed.definitions.list()] == ["store"]
    assert {one.actor for one in renamed.audit(action="take over")} == {"ann"}
    assert "nothing belongs" in cli.refused("take-over", "tmtest")
    renamed.installation.database.dispose()


def test_the_name_of_an_app_is_checked() -> None:
    with pytest.raises(InvalidValue, match="not the name of an app"):
        read_settings({"tm_app": "x" * 87}, {})
    assert read_settings({}, {"TM_APP": "shop"}).tm_app == "shop"


# Settings are read on first use


def test_time_management_above_a_handler_of_on_after_configure_loses_nothing() -> None:
    app = Celery("early", set_as_current=False, broker="memory://", tm_database_url="sqlite://")
    tm = TimeManagement(app)
    Installation.of(app)

    @app.on_after_configure.connect
    def add_entries(sender: Any, **_: Any) -> None:
        sender.add_periodic_task(10.0, sender.signature("effect"), name="every ten")

    assert tm.settings.tm_lease == timedelta(seconds=30)
    assert list(app.conf.beat_schedule) == ["every ten"]


def test_a_typo_in_a_setting_is_refused_at_first_use() -> None:
    from celery_tm.errors import UnknownSetting

    app = Celery("typo", set_as_current=False, broker="memory://", tm_leese=5)
    tm = TimeManagement(app)
    for use in (lambda: tm.settings, lambda: tm.definitions.list(), lambda: defer("x", args=[], app=app, remote=True)):
        with pytest.raises(UnknownSetting, match="tm_lease"):
            use()


def test_an_app_acts_on_its_own_jobs_and_letters_only_though_no_beat_of_it_has_run(
    tm: TimeManagement, noon: MovableClock
) -> None:
    shop, billing = another(tm, "shop", tm_app="shop"), another(tm, "billing", tm_app="billing")
    try:
        kept = defer("effect", args=[1], delay="1h", entity_id="order-1", app=shop.app)
        assert not cancel(entity_id="order-1", app=billing.app)
        assert cancel(entity_id="order-1", app=shop.app)
        assert str(kept.state) == "CANCELED"
        defer("no.such.task", args=[1], delay=1, app=shop.app, remote=True, max_retries=0)
        noon.forward("10s")
        assert billing.run_due_jobs(now=noon.now).claimed == 0
        assert shop.run_due_jobs(now=noon.now).failed == 1
        assert billing.dead_letters.list() == []
        assert billing.dead_letters.revive_all() == 0
        assert len(shop.dead_letters.list()) == 1
    finally:
        for one in (shop, billing):
            one.installation.database.dispose()
            one.app.close()
