"""Everything else that Celery offers on a task: options of a call, defaults of a task, routing, limits, signals.

What a body sees of its message when plain Celery's `apply_async` sends it is the oracle. It must be the same for our
tasks, and however a job comes about: `apply_async`, `defer`, `defer` of a signature with options, or a definition.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery, chain, chord, group
from tmtest.app import make_app
from tmtest.canvas_tasks import DEFAULTS, EXTRA, OURS, PLAIN, PREFIXES, place
from tmtest.stand import Stand
from tmtest.twice import SOON, Side, both

from celery_tm import defer
from celery_tm.domain.job import Status

pytestmark = pytest.mark.xdist_group("options")  # they share a stand

WAYS = ("apply_async", "defer", "signature", "definition")
OF_DEFER = ("queue", "priority", "expires")  # what `defer` and a definition take by name
# What two messages of the same call have in common; ids and times differ.
FIELDS = (
    "header", "priority", "exchange", "routing_key", "timelimit", "expires", "shadow", "ignore_result",
)  # fmt: skip


def send(side: Side, task: Any, way: str, *args: Any, **options: Any) -> None:
    """Call a task in one of the ways, its first argument telling which."""
    own = {name: value for name, value in options.items() if name in OF_DEFER}
    rest = {name: value for name, value in options.items() if name not in OF_DEFER}
    if way == "apply_async":
        task.apply_async((way, *args), **options)
    elif way == "defer":
        defer(task.s(way, *args).set(**rest), delay=0.1, **own)  # beat sends it
    elif way == "signature":
        defer(task.s(way, *args).set(**options))  # this process sends it
    else:
        name = f"{task.name} {uuid.uuid4().hex[:8]}"
        side.stand.tm.definitions.add(
            name=name, task=task.name, args=[way, *args], schedule="0 0 1 1 *", options=rest, **own
        )
        side.stand.tm.trigger(name)


def of_way(side: Side, kind: str, way: str, **equal: Any) -> list[dict[str, Any]]:
    return [fact for fact in side.facts(kind, **equal) if fact["args"][:1] == [way]]


def view(side: Side, way: str) -> dict[str, Any]:
    """Wait for a call's body, and return what it and the worker saw of the message."""
    what = f"the body called by {way}"
    [seen] = side.wait(lambda: of_way(side, "seen", way), what)
    [received] = side.facts("received", id=seen["id"])
    return {name: seen[name] for name in FIELDS} | {name: received[name] for name in ("content_type", "compression")}


def views(stand: Stand, name: str, **options: Any) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Return what plain Celery's own way gives, and what each way gives with each set of tasks."""
    sides = {prefix: Side(stand, prefix) for prefix in PREFIXES}
    for side in sides.values():
        for way in WAYS:
            send(side, getattr(side, name), way, **options)
    found = {f"{prefix} {way}": view(side, way) for prefix, side in sides.items() for way in WAYS}
    return found[f"{PLAIN} apply_async"], found


def differing(found: dict[str, dict[str, Any]], expected: dict[str, Any]) -> dict[str, str]:
    """Return in what each way differs from the oracle."""
    wrong = {who: {k: v for k, v in one.items() if v != expected[k]} for who, one in found.items()}
    return {who: f"{one}, expected { ({k: expected[k] for k in one}) }" for who, one in wrong.items() if one}


def options(stand: Stand) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """Return every option of a call, and what shows it."""
    other, exchange = place(stand.conf, "other"), place(stand.conf, "exchange")
    bound = {"exchange": exchange, "routing_key": "a.b"}
    return {
        "headers": ({"headers": {EXTRA: "v"}}, {"header": "v"}),
        "priority": ({"priority": 6}, {"priority": 6}),
        "queue": ({"queue": other}, {"exchange": "", "routing_key": other}),
        "exchange": (bound, bound),
        "limits": ({"soft_time_limit": 40, "time_limit": 50}, {"timelimit": [50, 40]}),
        "expires": ({"expires": 60}, {"expires": 60}),
        "serializer": ({"serializer": "yaml"}, {"content_type": "application/x-yaml"}),
        "compression": ({"compression": "gzip"}, {"compression": "application/x-gzip"}),
        "shadow": ({"shadow": "alias"}, {"shadow": "alias"}),
        "ignore_result": ({"ignore_result": True}, {"ignore_result": True}),
    }


OPTIONS = (
    "headers", "priority", "queue", "exchange", "limits", "expires", "serializer", "compression", "shadow", "ignore_result",
)  # fmt: skip


@pytest.mark.parametrize("option", OPTIONS)
def test_an_option_of_a_call_reaches_the_message(canvas: Stand, option: str) -> None:
    given, shown = options(canvas)[option]
    expected, found = views(canvas, "sees", **given)
    assert {name: expected[name] for name in shown} == shown
    assert differing(found, expected) == {}


@pytest.mark.parametrize("name", DEFAULTS)
def test_what_a_task_states_for_all_its_calls_reaches_the_message(canvas: Stand, name: str) -> None:
    expected, found = views(canvas, name)
    bare = views(canvas, "sees")[0]
    assert (expected != bare) is (name != "with_nothing")
    assert differing(found, expected) == {}


@pytest.mark.parametrize("name", ["with_queue", "with_priority", "with_limits", "with_expires", "routed"])
def test_an_option_of_a_call_goes_before_the_task_s_own(canvas: Stand, name: str) -> None:
    other = {"priority": 9, "soft_time_limit": 20, "time_limit": 30, "expires": 120, "queue": place(canvas.conf, "other")}
    given = {"priority": 9} if name == "routed" else other
    expected, found = views(canvas, name, **given)
    if name != "routed":
        assert (expected["priority"], expected["timelimit"], expected["expires"]) == (9, [30, 20], 120)
    assert differing(found, expected) == {}


def test_a_reply_goes_where_the_caller_says(canvas: Stand) -> None:
    side = Side(canvas, OURS)
    for way in WAYS:
        send(side, side.sees, way, reply_to="somewhere")
    found = {way: side.wait(lambda way=way: of_way(side, "seen", way), way)[0]["reply_to"] for way in WAYS}
    assert found == dict.fromkeys(WAYS, "somewhere")


# Limits


def test_a_soft_time_limit_is_raised_in_the_body(canvas: Stand) -> None:
    side = Side(canvas, OURS)
    for way in WAYS:
        send(side, side.catches_soft_limit, way, soft_time_limit=1)
    defer(side.catches_soft_limit.s("timeout"), timeout=1)
    caught = side.wait_for("caught", count=5)
    assert sorted(fact["args"][0] for fact in caught) == sorted((*WAYS, "timeout"))


def test_a_soft_time_limit_that_nobody_catches_fails_the_task(canvas: Stand) -> None:
    def scenario(side: Side) -> Any:
        result = side.too_long.apply_async(soft_time_limit=1)
        return side.error(result), side.ran()

    told, ran = both(canvas, scenario)
    assert told.startswith("FAILURE SoftTimeLimitExceeded")
    assert ran == ["too_long()"]


def test_what_has_expired_does_not_run(canvas: Stand) -> None:
    def scenario(side: Side) -> Any:
        result = side.same.apply_async(("late",), countdown=0.6, expires=0.2)
        in_time = side.same.apply_async(("early",), countdown=0.2, expires=30)
        return side.error(result).split(":")[0], side.get(in_time), side.ran()

    assert both(canvas, scenario) == ("REVOKED TaskRevokedError", ["early"], ["same(early)"])

    side = Side(canvas, OURS)
    late = [defer(side.same.s("late"), delay=0.6, expires=0.2), defer(side.same.s("late").set(expires=0.2), delay=0.6)]
    for handle in late:
        side.wait(lambda handle=handle: canvas.outcomes(job=handle.id), "the record of what expired")
        assert canvas.outcomes(job=handle.id) == Counter(expired=1)
        assert handle.state == Status.CANCELED
    assert side.ran() == []


def test_a_rate_limit_holds(canvas: Stand) -> None:
    def seconds(side: Side, way: str) -> float:
        for n in range(5):
            if way == "apply_async":
                side.seldom.delay(n)
            else:
                defer(side.seldom.s(n))
        times = [fact["at"] for fact in side.wait_for("ran", count=5)]
        return max(times) - min(times)

    for prefix, way in ((PLAIN, "apply_async"), (OURS, "apply_async"), (OURS, "defer")):
        assert seconds(Side(canvas, prefix), way) > 0.7, (prefix, way)  # four gaps of a fifth of a second


# Around the body


def test_annotations_hold(canvas: Stand) -> None:
    def scenario(side: Side) -> Any:
        told = side.get(side.annotated.delay(1))
        side.wait_for("hook")
        return told, side.get(side.wrapped.delay(21)), side.ran(), len(side.facts("hook"))

    expected = {"n": 1, "rate_limit": "70/s", "colour": "red"}
    assert both(canvas, scenario) == (expected, 42, ["annotated(1)", "wrapped(21)"], 1)

    side = Side(canvas, OURS)
    handle = defer(side.wrapped.s(4))
    assert side.get(canvas.app.AsyncResult(handle.id)) == 8
    side.wait(lambda: handle.state == Status.SUCCEEDED, "the record of an annotated body")


SIGNALS = ("before_task_publish", "after_task_publish", "task_prerun", "task_postrun")


@pytest.mark.parametrize(("name", "deliveries", "more"), [
    ("same", 1, {"task_success": 1}),
    ("retry_once", 2, {"task_retry": 1, "task_success": 1}),
    ("fail", 1, {"task_failure": 1}),
])  # fmt: skip
def test_each_signal_fires_once_per_delivery(canvas: Stand, name: str, deliveries: int, more: dict[str, int]) -> None:
    once = Counter(dict.fromkeys(SIGNALS, deliveries) | more)
    # Of what beat sends later, too: it is told where the call is made, and not again.
    expected = {f"{prefix} {way}": once for prefix in PREFIXES for way in WAYS}
    sides = {prefix: Side(canvas, prefix) for prefix in PREFIXES}
    for side in sides.values():
        for way in WAYS:
            send(side, getattr(side, name), way)

    def counted(side: Side, way: str) -> Counter[str]:
        ran = side.wait(lambda: of_way(side, "ran", way), f"the body called by {way}")
        total = expected[f"{side.prefix} {way}"].total()
        side.wait(lambda: len(side.facts("signal", id=ran[0]["id"])) >= total, f"the signals of {way}")
        return Counter(fact["signal"] for fact in side.facts("signal", id=ran[0]["id"]))

    found = {f"{prefix} {way}": counted(side, way) for prefix, side in sides.items() for way in WAYS}
    assert found == expected


# Calls from inside a body


@pytest.mark.parametrize(("prefix", "how"), [
    (PLAIN, "apply_async"), (OURS, "apply_async"), (OURS, "defer later"), (OURS, "defer at once"), (PLAIN, "defer later"),
])  # fmt: skip
def test_what_a_body_calls_names_its_root_and_parent_and_inherits_its_priority(canvas: Stand, prefix: str, how: str) -> None:
    side = Side(canvas, prefix)
    called = chain(side.same.si().set(priority=6), side.calls.si(how)).apply_async()
    caller = side.get(called)
    [seen] = side.wait_for("seen", id=caller["child"])
    assert caller["root"] == called.parent.id
    assert (seen["root"], seen["parent"], seen["priority"]) == (caller["root"], caller["id"], 6)
    if how == "apply_async":
        assert [child.id for child in called.children] == [caller["child"]]


# Without a worker


@pytest.fixture
def eager() -> Iterator[Celery]:
    """An app that runs everything in place, and has no database to ask."""
    app = make_app(
        {
            "broker_url": "memory://",
            "result_backend": "cache+memory://",
            "task_always_eager": True,
            "tm_database_url": "sqlite:////nonexistent/jobs.db",
        }
    )
    yield app
    app.close()


def eagerly(app: Celery, prefix: str) -> dict[str, Any]:
    def task(name: str) -> Any:
        return app.tasks[f"{prefix}.{name}"]

    add, total = task("add"), task("total")
    failed = task("fail").delay("luck")
    return {
        "delay": add.delay(1, 2).get(),
        "countdown": add.apply_async((1, 2), countdown=1000).get(),
        "chain": chain(add.s(1, 2), add.s(10)).apply_async().get(),
        "group": group(add.s(n, n) for n in range(3)).apply_async().get(),
        "chord": chord([add.s(n, n) for n in range(3)], total.s()).apply_async().get(),
        "map": add.starmap([(1, 2), (3, 4)]).apply_async().get(),
        "retry": task("retry_once").delay(5).get(),
        "replace": [task("replaced").apply((5,), {"by": by}).get() for by in ("task", "chain", "group", "chord")],
        "failure": (failed.state, repr(failed.result)),
        "called": task("calls").delay("apply_async").state,
        "in place": add(1, 2),
        "applied": add.apply((1, 2)).get(),
    }


def test_always_eager_runs_in_place_and_needs_no_database(eager: Celery) -> None:
    expected = eagerly(eager, PLAIN)
    assert (expected["delay"], expected["chain"], expected["chord"], expected["retry"]) == (3, 13, 6, 5)
    assert expected["failure"] == ("FAILURE", "ValueError('no luck')")
    assert eagerly(eager, OURS) == expected


def test_nothing_is_owed_after_all_that(canvas: Stand) -> None:
    canvas.wait_until_settled(seconds=SOON)
