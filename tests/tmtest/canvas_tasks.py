"""One set of tasks, registered twice: as plain Celery's (`plain.…`), the oracle, and as ours (`ours.…`).

Every body writes a line of JSON to the effects file, and so does every signal, so that what happened in whatever process
can be compared between the two.
"""

from __future__ import annotations

import json
import os
import time
from datetime import UTC, datetime
from functools import partial
from typing import Any

import celery
from celery import Celery, chain, chord, group, signals
from celery.exceptions import SoftTimeLimitExceeded

import celery_tm

from . import tracing

PLAIN, OURS = PREFIXES = ("plain", "ours")
EXTRA = "x-test"  # a header of the tests' own


def place(conf: Any, name: str) -> str:
    """Return the name of a queue or exchange of this stand's own: `other`, `routed`, `bound` or `exchange`."""
    return f"{conf['task_default_queue']}-{name}"


def canvas_conf(conf: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that the scenarios need, as plain JSON, for workers read them from the environment."""
    bound = {"exchange": place(conf, "exchange"), "exchange_type": "direct", "routing_key": "a.b"}
    queues = {conf["task_default_queue"]: {}, place(conf, "other"): {}, place(conf, "routed"): {}}
    route = {"queue": place(conf, "routed"), "priority": 3}
    return {
        "task_queues": queues | {place(conf, "bound"): bound},
        "task_routes": {f"{prefix}.routed": route for prefix in PREFIXES},
        "task_inherit_parent_priority": True,
        "accept_content": ["json", "yaml"],
        "result_chord_retry_interval": 0.1,
        "result_extended": True,
        "result_backend_thread_safe": True,
        "worker_prefetch_multiplier": 4,
    }


def write(kind: str, name: str, **facts: Any) -> None:
    """Append one fact to the effects file, in one write."""
    path = os.environ.get("TM_TEST_EFFECTS")
    if path:
        line = {"kind": kind, "name": name, "pid": os.getpid(), "at": time.time(), **facts}
        with open(path, "a") as file:
            file.write(json.dumps(line) + "\n")


def note(task: celery.Task, *args: Any) -> None:
    """Write that a body runs, and with what."""
    write("ran", task.name, id=task.request.id, args=list(args), retries=task.request.retries)


def read(text: str) -> list[dict[str, Any]]:
    """Return the facts of an effects file's text; lines of other tasks are not ours to read, nor is half of one."""
    whole = text[: text.rfind("\n") + 1]  # a reader may come in the middle of a write
    return [json.loads(line) for line in whole.splitlines() if line.startswith("{")]


def add_tasks(app: Celery, base: type[celery.Task]) -> None:
    """Register every task of this module with that base class, under its prefix."""
    app.conf.task_annotations = annotations()
    ours = issubclass(base, celery_tm.Task)
    soon = {"retry": {"kind": "fixed", "delay": 0.2}} if ours else {}  # in plain Celery `retry` is the method
    make = partial(app.task, base=base, bind=True, shared=False)
    named = partial(_named, make, OURS if ours else PLAIN)
    add_steps(named, soon)
    add_replacing(named)
    add_errbacks(app, base, OURS if ours else PLAIN)
    add_watching(named)
    add_limited(named, soon)
    add_with_defaults(named, app.conf)


def _named(make: Any, prefix: str, **options: Any) -> Any:
    def decorate(body: Any) -> Any:
        return make(name=f"{prefix}.{body.__name__}", **options)(body)

    return decorate


def sibling(task: celery.Task, name: str) -> celery.Task:
    """Return another task of the same set."""
    return task.app.tasks[f"{task.name.partition('.')[0]}.{name}"]


def add_steps(task: Any, soon: dict[str, Any]) -> None:
    """Register what chains, groups and chords are made of."""

    @task()
    def add(self: Any, x: Any, y: Any = 0, *, plus: int = 0) -> Any:
        note(self, x, y)
        return x + y + plus

    @task()
    def total(self: Any, numbers: list[Any]) -> Any:
        note(self, numbers)
        return sum(numbers)

    @task()
    def same(self: Any, *args: Any) -> Any:
        note(self, *args)
        return list(args)

    @task(max_retries=0)
    def fail(self: Any, *args: Any) -> None:
        note(self, *args)
        raise ValueError(f"no {args[-1] if args else ''}".strip())

    @task(max_retries=3)
    def retry_once(self: Any, n: Any) -> Any:
        note(self, n)
        if not self.request.retries:
            raise self.retry(countdown=0.2)
        return n

    @task(ignore_result=True)
    def silent(self: Any, n: Any) -> Any:
        note(self, n)
        return n

    @task(max_retries=3, **soon)
    def slow_at_first(self: Any, n: Any) -> Any:
        """Sleep in the first attempt only."""
        note(self, n)
        if not self.request.retries:
            time.sleep(60)
        return n

    @task()
    def slow(self: Any, n: Any, seconds: float) -> Any:
        note(self, n)
        time.sleep(seconds)
        return n


def add_replacing(task: Any) -> None:
    """Register tasks that become others, or add to the chord they are in."""

    @task()
    def replaced(self: Any, n: int, by: str) -> Any:
        note(self, n, by)
        step, total = sibling(self, "add"), sibling(self, "total")
        signatures = {
            "task": lambda: step.s(n, 1),
            "chain": lambda: chain(step.s(n, 1), step.s(10)),
            "group": lambda: group(step.s(n, i) for i in range(3)),
            "chord": lambda: chord([step.s(n, i) for i in range(3)], total.s()),
            "itself": lambda: self.s(n + 1, by="task"),
            "retrying": lambda: sibling(self, "retry_once").s(n),
            "failing": lambda: sibling(self, "fail").s(n),
        }
        return self.replace(signatures[by]())

    @task()
    def adds_to_chord(self: Any, n: int) -> int:
        note(self, n)
        if n == 1:
            self.add_to_chord(sibling(self, "add").s(n, 100))
        return n


def add_errbacks(app: Celery, base: type[celery.Task], prefix: str) -> None:
    """Register errbacks: an old one gets the id of what failed, a new one request, exception and traceback."""

    @app.task(base=base, shared=False, name=f"{prefix}.old_errback")
    def old_errback(failed: str) -> None:
        write("errback", f"{prefix}.old_errback", failed=failed)

    @app.task(base=base, shared=False, name=f"{prefix}.new_errback")
    def new_errback(request: Any, error: Any, traceback: Any) -> None:
        write("errback", f"{prefix}.new_errback", failed=request.id, error=f"{type(error).__name__}: {error}")


def add_watching(task: Any) -> None:
    """Register tasks that tell what their message was like, and what they call from inside."""

    @task()
    def sees(self: Any, *args: Any) -> Any:
        return tell(self, *args)

    @task(max_retries=3)
    def sees_after_retry(self: Any, *args: Any) -> Any:
        if not self.request.retries:
            raise self.retry(countdown=0.2)
        return tell(self, *args)

    @task()
    def calls(self: Any, how: str) -> Any:
        """Call `sees` from inside, and return the ids that its message should name."""
        note(self, how)
        other = sibling(self, "sees")
        if how == "apply_async":
            child = other.apply_async(countdown=0.3)
        else:
            child = celery_tm.defer(other.s(), delay=0.3) if how == "defer later" else celery_tm.defer(other.s())
        return {"id": self.request.id, "root": self.request.root_id, "child": child.id}

    @task()
    def annotated(self: Any, n: int) -> Any:
        note(self, n)
        return {"n": n, "rate_limit": self.rate_limit, "colour": getattr(self, "colour", None)}

    @task()
    def wrapped(self: Any, n: int) -> int:
        note(self, n)
        return n


def annotations() -> dict[str, Any]:
    """Return what the setting `task_annotations` says: attributes, a hook, and a wrapper around the body."""

    def on_success(self: Any, retval: Any, task_id: str, args: Any, kwargs: Any) -> None:
        write("hook", self.name, id=task_id)

    def doubled(run: Any) -> Any:
        return lambda *args, **kwargs: 2 * run(*args, **kwargs)

    said = {"annotated": {"rate_limit": "70/s", "colour": "red", "on_success": on_success}, "wrapped": {"@run": doubled}}
    return {f"{prefix}.{name}": values for prefix in PREFIXES for name, values in said.items()}


def tell(task: Any, *args: Any) -> str:
    """Write what a body can see of its message."""
    request = task.request
    info = request.delivery_info or {}
    facts = {
        "header": (request.headers or {}).get(EXTRA),
        "priority": info.get("priority") or 0,  # unset and none at all are the same to every broker
        "exchange": info.get("exchange"),
        "routing_key": info.get("routing_key"),
        "timelimit": list(request.timelimit or (None, None)),
        "expires": request.expires and seconds_until(request.expires),
        "reply_to": request.reply_to,
        "shadow": request.shadow,
        "ignore_result": bool(request.ignore_result),
        "root": request.root_id,
        "parent": request.parent_id,
        "stamps": request.stamps,
        "stamped": sorted(request.stamped_headers or ()),
        "trace": tracing.current(),
    }
    note(task, *args)
    write("seen", task.name, id=request.id, args=list(args), **facts)
    return "seen"


def seconds_until(instant: str) -> int:
    """Return how far off an instant is, in tens of seconds."""
    return round((datetime.fromisoformat(instant) - datetime.now(UTC)).total_seconds(), -1)


def add_limited(task: Any, soon: dict[str, Any]) -> None:
    """Register tasks that take too long, or come too often."""

    @task()
    def catches_soft_limit(self: Any, *args: Any) -> str:
        note(self, *args)
        try:
            time.sleep(20)
        except SoftTimeLimitExceeded:
            write("caught", self.name, args=list(args))
            return "soft"
        return "none"

    @task(max_retries=0)
    def too_long(self: Any) -> str:
        note(self)
        time.sleep(20)
        return "none"

    @task(rate_limit="5/s")
    def seldom(self: Any, n: int) -> int:
        note(self, n)
        return n


def add_with_defaults(task: Any, conf: Any) -> None:
    """Register one task per option that a task may state for all its calls."""
    places = {
        "with_queue": {"queue": place(conf, "other")},
        "with_exchange": {"exchange": place(conf, "exchange"), "routing_key": "a.b"},
    }
    for name, options in (DEFAULTS | places).items():

        def body(self: Any, *args: Any) -> Any:
            return tell(self, *args)

        body.__name__ = name
        task(**options)(body)


DEFAULTS: dict[str, dict[str, Any]] = {
    "with_queue": {},  # which one, only the app's settings tell
    "with_exchange": {},
    "with_priority": {"priority": 6},
    "with_serializer": {"serializer": "yaml"},
    "with_compression": {"compression": "gzip"},
    "with_expires": {"expires": 60},
    "with_limits": {"soft_time_limit": 40, "time_limit": 50},
    "with_ignore_result": {"ignore_result": True},
    "with_nothing": {},
    "routed": {},  # by the setting task_routes
}


# Signals, in whatever process they fire


def _is_here(name: Any) -> bool:
    return isinstance(name, str) and name.startswith(("plain.", "ours."))


def _tell(signal: str, name: Any, id: Any) -> None:
    if _is_here(name):
        write("signal", name, signal=signal, id=id)


@signals.before_task_publish.connect
def _before_publish(sender: Any = None, headers: Any = None, **_: Any) -> None:
    _tell("before_task_publish", sender, (headers or {}).get("id"))


@signals.after_task_publish.connect
def _after_publish(sender: Any = None, headers: Any = None, **_: Any) -> None:
    _tell("after_task_publish", sender, (headers or {}).get("id"))


@signals.task_received.connect
def _received(request: Any = None, **_: Any) -> None:
    """Write what only the worker's main process sees of a message."""
    name = request.task.name  # whatever its shadow says
    if _is_here(name):
        compression = request.request_dict.get("compression")
        write("received", name, id=request.id, content_type=request.content_type, compression=compression)


@signals.task_prerun.connect
def _prerun(sender: Any = None, task_id: Any = None, **_: Any) -> None:
    _tell("task_prerun", sender.name, task_id)


@signals.task_postrun.connect
def _postrun(sender: Any = None, task_id: Any = None, **_: Any) -> None:
    _tell("task_postrun", sender.name, task_id)


@signals.task_success.connect
def _success(sender: Any = None, **_: Any) -> None:
    _tell("task_success", sender.name, sender.request.id)


@signals.task_failure.connect
def _failure(sender: Any = None, task_id: Any = None, **_: Any) -> None:
    _tell("task_failure", sender.name, task_id)


@signals.task_retry.connect
def _retry(sender: Any = None, request: Any = None, **_: Any) -> None:
    _tell("task_retry", sender.name, request.id)
