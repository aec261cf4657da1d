"""The pytest plugin as users meet it: whole suites of an app that runs on servers which are not there."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest_plugins = ["pytester"]

APP = """
from celery import Celery

from celery_tm import Task, TimeManagement, defer

app = Celery("shop", broker="redis://nowhere.invalid:1/0", backend="redis://nowhere.invalid:1/0")
app.conf.tm_database_url = "sqlite:////nowhere/shop.db"
tm = TimeManagement(app)
done = []


@app.task(base=Task, name="shop.expire_payment")
def expire_payment(order_id):
    done.append(order_id)


@app.task(base=Task, name="shop.remind")
def remind(times):
    done.append(tm_now())
    if times > 1:
        defer(remind.s(times - 1), delay="1h")


@app.task(base=Task, name="shop.charge", max_retries=1)
def charge(order_id):
    raise ValueError("the card was declined")


@app.task(base=Task, name="shop.forever")
def forever():
    defer(forever.s())


def tm_now():
    from celery_tm import current_job

    return current_job().scheduled_at


def place_order(order_id, **options):
    return defer(expire_payment.s(order_id), delay="15m", key=f"payment-timeout:{order_id}", **options)
"""

CONFTEST = """
import pytest
from shop import done


@pytest.fixture(autouse=True)
def nothing_done():
    done.clear()
"""


@pytest.fixture
def suite(pytester: pytest.Pytester) -> pytest.Pytester:
    """A folder with an app and the settings of its suite."""
    pytester.makepyfile(shop=APP)
    pytester.makeconftest(CONFTEST)
    pytester.makeini("[pytest]\ntm_app = shop:app\naddopts = -p no:celery -p no:cacheprovider\n")
    return pytester


def run(suite: pytest.Pytester, tests: str) -> pytest.RunResult:
    suite.makepyfile(test_shop=f"import pytest\nfrom shop import *\n{tests}")
    return suite.runpytest_subprocess("-W", "error", timeout=120)


def test_a_suite_runs_what_is_due_and_sees_what_is_deferred(suite: pytest.Pytester) -> None:
    result = run(
        suite,
        """
def test_an_order_expires(tm_run_due, tm_deferred, tm_clock):
    handle = place_order(42)
    job = tm_deferred.assert_deferred(expire_payment, args=[42], key="payment-timeout:42", delay="15m")
    assert (job.id, job.run_at, list(tm_deferred)) == (handle.id, handle.run_at, [job])
    tm_deferred.assert_deferred(expire_payment.s(42), run_at=handle.run_at)
    tm_deferred.assert_not_deferred("shop.expire_payment", args=[41])
    assert tm_run_due(forward="14m").claimed == 0
    assert tm_run_due(forward="1m").succeeded == 1
    assert done == [42]
    tm_deferred.assert_nothing_deferred()

def test_the_next_test_begins_with_nothing(tm_deferred, tm_database):
    assert len(tm_deferred) == 0
    place_order(42)

def test_time_passes_from_one_instant_to_the_next(tm_run_due, tm_clock):
    start = tm_clock.now
    defer(remind.s(4), delay="1h")
    assert tm_run_due.through("3h").succeeded == 3
    assert [(at - start).total_seconds() / 3600 for at in done] == [1, 2, 3]
    assert (tm_clock.now - start).total_seconds() == 3 * 3600

def test_definitions_are_due_too(tm_run_due, tm_deferred):
    tm.definitions.add(name="sweep", task="shop.expire_payment", args=[1], schedule="*/10 * * * *")
    assert tm_run_due.through("1h").succeeded == 6
    tm_deferred.assert_nothing_deferred()

def test_a_failure_is_counted(tm_run_due):
    handle = defer(charge.s(1), delay="10m")
    assert tm_run_due(forward="10m").retried == 1
    assert tm_run_due(forward="1h").failed == 1
    assert handle.state == "FAILED"

def test_a_chain_without_end_is_stopped(tm_run_due):
    defer(forever.s())
    with pytest.raises(AssertionError, match="more than limit=20; next come shop.forever"):
        tm_run_due(limit=20)

def test_afterwards_the_app_is_at_home():
    assert "nowhere" in tm.installation.database.safe_url
    assert "nowhere" in app.conf.broker_url
""",
    )

    result.assert_outcomes(passed=7)


def test_a_suite_starts_a_real_worker(suite: pytest.Pytester) -> None:
    result = run(
        suite,
        """
def test_it_runs_what_is_deferred(tm_worker):
    assert tm_worker.wait_for(defer(expire_payment.s(7))) == "SUCCEEDED"
    assert done == [7]

def test_it_lives_at_the_time_of_the_test(tm_worker, tm_clock):
    handle = place_order(8)
    with pytest.raises(AssertionError, match=r"shop.expire_payment \\(.*\\) is SCHEDULED after 0.2 s"):
        tm_worker.wait_for(handle, timeout=0.2)
    tm_clock.forward("15m")
    assert tm_worker.wait_for(handle.id) == "SUCCEEDED"
    [execution] = tm.history()
    assert execution.worker != "inline"

def test_it_is_gone_afterwards():
    import threading
    assert [thread.name for thread in threading.enumerate() if "worker" in thread.name.lower()] == []
""",
    )

    result.assert_outcomes(passed=3)


def test_an_assertion_that_fails_names_what_is_there_instead(suite: pytest.Pytester) -> None:
    result = run(
        suite,
        """
def test_another_delay(tm_deferred):
    place_order(1)
    place_order(2)
    tm_deferred.assert_deferred(expire_payment, args=[2], delay="10m")

def test_nothing_at_all(tm_deferred):
    tm_deferred.assert_deferred(expire_payment, key="payment-timeout:1")

def test_another_task(tm_deferred):
    for number in range(12):
        place_order(number)
    tm_deferred.assert_deferred("shop.remind")

def test_too_much(tm_deferred):
    place_order(3)
    tm_deferred.assert_not_deferred(expire_payment)

def test_anything(tm_deferred):
    place_order(4)
    tm_deferred.assert_nothing_deferred()

def test_a_typo(tm_deferred):
    tm_deferred.assert_deferred(expire_payment, arg=[2])
""",
    )

    result.assert_outcomes(failed=6)
    result.stdout.fnmatch_lines(
        [
            "E*AssertionError: not deferred: shop.expire_payment, args=[[]2], delay=10m",
            "E*the nearest differs: delay is 15m, not 10m",
            "E*there are 2 jobs:",
            "E*shop.expire_payment(2) key='payment-timeout:2' after 15m, at *",
            "E*shop.expire_payment(1) key='payment-timeout:1' after 15m, at *",
            "E*AssertionError: not deferred: shop.expire_payment, key='payment-timeout:1'",
            "E*nothing is deferred",
            "E*AssertionError: not deferred: shop.remind",
            "E*there are 12 jobs:",
            "E*and 2 more",
            "E*AssertionError: deferred, and should not be: shop.expire_payment",
            "E*AssertionError: nothing should be deferred, and there is 1 job:",
            "E*TypeError: no such thing to expect of a job: arg; there are args, kwargs, *",
        ]
    )


def test_the_apps_own_tables_are_in_the_same_database(suite: pytest.Pytester) -> None:
    suite.makeconftest(
        """
import pytest
from sqlalchemy import create_engine, text

@pytest.fixture(scope="session")
def tm_prepare_database():
    def prepare(url):
        engine = create_engine(url)
        with engine.begin() as connection:
            connection.execute(text("CREATE TABLE orders (id INTEGER PRIMARY KEY)"))
        engine.dispose()
    return prepare

@pytest.fixture
def engine(tm_database):
    engine = create_engine(tm_database.url)
    yield engine
    engine.dispose()
"""
    )
    result = run(
        suite,
        """
import os
from sqlalchemy import text

def test_both_are_committed(engine, tm_deferred):
    with engine.begin() as connection:
        connection.execute(text("INSERT INTO orders VALUES (1)"))
        place_order(1, session=connection)
    tm_deferred.assert_deferred(expire_payment, args=[1])

def test_neither_is(engine, tm_deferred, tm_database):
    with engine.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM orders")).scalar() == 0
        place_order(1, session=connection)
        connection.rollback()
    tm_deferred.assert_nothing_deferred()
    assert os.environ["TM_DATABASE_URL"] == tm_database.url
""",
    )

    result.assert_outcomes(passed=2)


@pytest.mark.parametrize(("name", "outcomes"), [("test_shop.db", {"passed": 2}), ("shop.db", {"errors": 2})])
def test_a_database_of_ones_own_is_emptied_if_it_is_for_tests(
    suite: pytest.Pytester, name: str, outcomes: dict[str, int]
) -> None:
    suite.makeconftest(
        f"import pytest\n@pytest.fixture(scope='session')\ndef tm_database_url(): return 'sqlite:///{suite.path / name}'"
    )
    result = run(
        suite,
        """
def test_one(tm_deferred):
    tm_deferred.assert_nothing_deferred()
    place_order(1)

def test_two(tm_deferred):
    tm_deferred.assert_nothing_deferred()
    place_order(2)
""",
    )

    result.assert_outcomes(**outcomes)
    if "errors" in outcomes:
        result.stdout.fnmatch_lines(["*would be emptied, and its name does not say that it is for tests*"])


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("", "*celery_tm does not know which Celery app is tested; set `tm_app = shop:app`*"),
        ("tm_app = ship:app", "*tm_app = ship:app in pytest's settings leads to no app*No module named 'ship'*"),
    ],
)
def test_a_suite_is_told_how_to_name_its_app(suite: pytest.Pytester, setting: str, said: str) -> None:
    suite.makeini(f"[pytest]\n{setting}\naddopts = -p no:celery -p no:cacheprovider\n")
    suite.makeconftest("")
    suite.makepyfile(test_shop="def test_it(tm_deferred): pass")

    result = suite.runpytest_subprocess("-W", "error", timeout=60)

    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([said])


def test_a_suite_that_uses_none_of_it_loads_none_of_it() -> None:
    code = "import sys, pytest; before = set(sys.modules); import celery_tm.testing; print(*set(sys.modules) - before)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)

    assert set(done.stdout.split()) == {"celery_tm", "celery_tm.version", "celery_tm.testing"}
