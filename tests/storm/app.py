"""The app of a stage: `celery -A storm.app worker`. It has a task for each set of options that the stage's cases have."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from celery import Celery
from celery.exceptions import Reject
from celery.signals import task_received
from faults.app import CONF, FOLDER, noted
from sqlalchemy import text

from celery_tm import Task, TimeManagement, TmError, embedded
from storm import bodies, plan
from storm.plan import TRAITS, Case

LIMIT, UNREACHED = 2, 300  # seconds of a time limit: of bodies that overrun it, and of the others
FIXED = {"kind": "fixed", "delay": 0.3}
PERIODIC = "storm-periodic"  # an entry that `on_after_configure` adds, as Celery's documentation does


def options_of(traits: dict[str, str], kind: str) -> dict[str, Any]:
    """Return the options of a durable task that says this."""
    rules = {"by position": "subject:{0}", "by name": "subject:{subject}", "none": None}
    options: dict[str, Any] = {"acks_late": traits["acks"] == "late", "transactional": traits["transactional"] == "yes"}
    options["key"], options["concurrency_key"] = rules[traits["key"]], rules[traits["limit"]]
    options |= {"retry": FIXED, "max_retries": 2} if traits["retry"] == "fixed" else {"retry": "never"}
    if traits["chunk"] == "yes":
        options["chunk"] = plan.FRAME
    if traits["hook"] == "track_started":
        options["track_started"] = True
    if traits["time"] == "limit":
        options["timeout"] = LIMIT if kind == "overruns" else UNREACHED
    return options


def named(args: Any, kwargs: Any) -> tuple[str, str]:
    """Return case and call of a delivery, as a user's hook would: it counts on the arguments of its task."""
    return (kwargs["subject"], kwargs["label"]) if kwargs else (args[0], args[1])


class Hooked(Task):
    """A user's base class: its hooks look at what they get, and one of them may go wrong."""

    abstract = True
    hook = "none"

    def before_start(self, task_id: str, args: Any, kwargs: Any) -> None:
        super().before_start(task_id, args, kwargs)
        if self.hook.startswith("before_start"):
            bodies.note("hook", *named(args, kwargs))
        if self.hook == "before_start raises":
            raise LookupError("a hook that raises")

    def on_failure(self, exc: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
        if self.hook == "on_failure":
            bodies.note("hook", *named(args, kwargs))
        super().on_failure(exc, task_id, args, kwargs, einfo)

    def on_success(self, retval: Any, task_id: str, args: Any, kwargs: Any) -> None:
        super().on_success(retval, task_id, args, kwargs)
        if self.hook == "on_success rejects":
            raise Reject("a hook that rejects", requeue=False)


class Called(Hooked):
    """The same with a `__call__` of its own, as in Flask's documentation."""

    abstract = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        bodies.note("hook", *named(args, kwargs))
        if self.hook == "call raises":
            raise LookupError("a hook that raises")
        if self.hook == "call returns":
            return f"done {named(args, kwargs)[1]}"
        return super().__call__(*args, **kwargs)


def make_app(conf: dict[str, Any], cases: list[Case]) -> Celery:
    """Return the app with the tasks of these cases."""
    app = Celery("storm", set_as_current=False)
    app.conf.update(broker_connection_retry_on_startup=True, worker_hijack_root_logger=False, **conf)
    TimeManagement(app)

    @app.on_after_configure.connect(weak=False)
    def add_periodic(sender: Celery, **_: Any) -> None:
        signature = sender.signature("storm.periodic")  # by name: its task may be made later
        sender.add_periodic_task(2.0, signature, name=PERIODIC, queue=conf["task_default_queue"] + "-prefork")

    add_tasks(app, cases)
    return app


def add_tasks(app: Celery, cases: Sequence[Case]) -> None:
    """Add the tasks that cases call, and those that are called by them or after them."""
    known = {case.name: case for case in cases}
    for case in cases:
        if case.task not in app.tasks:
            _add(app, case, known)
    _add_callbacks(app)


def _add(app: Celery, case: Case, known: dict[str, Case]) -> None:
    traits = {name: case.values[name] for name in TRAITS}
    if traits["base"] == "plain":
        _add_plain(app, case, known)
        return
    kind = case.task.split(".")[1]
    base = Called if traits["hook"].startswith("call") else Hooked
    make = partial(app.task, base=base, bind=True, name=case.task, shared=False, hook=traits["hook"])
    options = options_of(traits, kind)
    if kind == "async":

        async def body(self: Any, subject: str = "", label: str = "", argument: Any = None) -> Any:
            return bodies.run(self, "returns", subject, label, argument)

    else:

        def body(self: Any, subject: str = "", label: str = "", argument: Any = None) -> Any:
            return bodies.run(self, _body_of(known, subject), subject, label, argument)

    with suppress(TmError):  # an async body may be refused; whoever calls it hears that there is no such task
        make(**options)(body)


def _body_of(known: dict[str, Case], subject: str) -> str:
    """Return what the body of a case does; one that was called without its arguments does nothing, which is seen."""
    case = known.get(subject.partition("~")[0])
    return case.body if case is not None else "returns"


def _add_plain(app: Celery, case: Case, known: dict[str, Case]) -> None:
    foreign = {"timeout": (3.05, 27), "retry_policy": {"attempts": 3}} if case.hook == "attributes" else {}

    @app.task(name=case.task, shared=False, acks_late=case.acks == "late", **foreign)
    def body(subject: str = "", label: str = "", argument: Any = None) -> Any:
        return bodies.run_plain(subject, label, _body_of(known, subject))


def _add_callbacks(app: Celery) -> None:
    """Add what is called after a body, or by one."""
    durable = partial(app.task, base=Task, shared=False, retry=FIXED, max_retries=20)

    @durable(name="storm.tail")
    def tail(value: Any, subject: str, label: str) -> Any:
        bodies.note("callback", subject, label, value)
        with noted(f"tail {label}"):
            return value

    @durable(name="storm.next_step")
    def next_step(subject: str, label: str) -> None:
        bodies.note("callback", subject, label)
        with noted(f"tail {label}"):
            pass

    @app.task(name="storm.errback", shared=False)
    def errback(request: Any, exc: Any, traceback: Any, subject: str, label: str) -> None:
        bodies.note("errback", subject, label, str(exc))

    @durable(name="storm.child")
    def child(subject: str, label: str, how: str) -> None:
        with noted(f"{how} {label}"):
            bodies.note(how, subject, label)

    @durable(name="storm.reports_failure", bind=True)
    def reports_failure(self: Any) -> None:
        self.job.report_failure("an inner call that fails")

    @durable(name="storm.needs_session", bind=True, transactional=True)
    def needs_session(self: Any) -> Any:
        return self.job.session.execute(text("SELECT 1")).scalar()

    @app.task(name="storm.plain_child", shared=False)
    def plain_child(subject: str, label: str) -> None:
        bodies.note("plain", subject, label)

    @durable(name="storm.periodic")
    def periodic() -> None:
        with noted():
            bodies.note("periodic", "", "")

    @durable(name="storm.pulse")
    def pulse() -> None:
        with noted():
            pass


def redeliver(app: Celery, cases: Sequence[Case]) -> None:
    """Have each message of the cases that say so come a second time, as a broker may do."""
    wanted = {case.name for case in cases if case.fault == "redelivery"}
    seen: set[str] = set()

    @task_received.connect(weak=False)
    def send_again(request: Any = None, **_: Any) -> None:
        message = request.message
        first = named(request.args, request.kwargs)[0] if request.args or request.kwargs else None
        header = message.headers.get("tm") or {}
        mark = f"{request.id} {header.get('attempt') if isinstance(header, dict) else ''} {request.task_name}"
        if first not in wanted or mark in seen or not isinstance(app.tasks.get(request.task_name), Task):
            return  # a plain task has no gate, and would run twice
        seen.add(mark)
        with app.producer_or_acquire() as producer:
            producer.publish(
                message.body,
                routing_key=message.delivery_info["routing_key"],
                exchange="",
                headers=message.headers,
                content_type=message.content_type,
                content_encoding=message.content_encoding,
                correlation_id=message.properties.get("correlation_id"),
                reply_to=message.properties.get("reply_to"),
            )


def app_of_environment() -> Celery:
    """Return the app of the stage that the environment names."""
    embedded.register()
    cases = plan.read(Path(os.environ[FOLDER]))
    app = make_app(json.loads(os.environ[CONF]), cases)
    redeliver(app, cases)
    return app


def __getattr__(name: str) -> Any:
    if name == "app":
        value = globals()["app"] = app_of_environment()
        return value
    raise AttributeError(name)
