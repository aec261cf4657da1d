"""Reading what a caller of `defer` said: everything is checked here, before anything is written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeVar

from celery import Celery
from celery.canvas import Signature

from .. import clock
from ..clock import as_utc, parse_duration
from ..domain.codec import encode
from ..domain.dedupe import key_by_rule
from ..domain.ids import new_id
from ..domain.job import (
    DEFAULT_RETRIES,
    MAX_ENTITY,
    MAX_ID,
    MAX_KEY,
    MAX_TASK,
    Job,
    Slot,
    Source,
    checked_concurrency,
    checked_priority,
    checked_retries,
    checked_text,
    checked_timeout,
)
from ..domain.retry import read_policy, write_policy
from ..errors import InvalidValue, UnknownOption, UnknownTask, nearest
from ..installation import Installation
from .message import injected_headers

T = TypeVar("T")
OPTIONS = (
    "args", "kwargs", "delay", "run_at", "key", "keep_key", "on_duplicate", "entity_id", "scope", "queue", "priority",
    "expires", "max_retries", "retry", "timeout", "session", "app", "remote", "actor", "concurrency_key", "concurrency",
)  # fmt: skip
DUPLICATES = ("return", "replace", "raise")
PAST_TOLERANCE = timedelta(seconds=1)  # "now" was a moment ago when it gets here
SIGNATURE_ONLY = frozenset({"task_id", "countdown", "eta", "queue", "priority", "expires"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """One checked call of `defer`. `delay is None` means that `job.run_at` was given as an instant."""

    job: Job
    delay: timedelta | None
    on_duplicate: str
    names_id: bool = False  # the caller chose the id, so it may be taken

    @property
    def is_immediate(self) -> bool:
        """Say whether the job is to run at once."""
        return self.delay == timedelta(0)


def installation_for(what: Any, app: Celery | None) -> Installation:
    found = app or (getattr(what, "app", None) if what is not None and not isinstance(what, str) else None)
    return Installation.of(found) if found is not None else Installation.current()


def read_request(installation: Installation, what: Any, options: Mapping[str, Any]) -> Request:
    """Check one call and return the job it asks for; nothing is written yet."""
    for name in options:
        if name not in OPTIONS:
            raise UnknownOption(name, nearest(name, OPTIONS))
    signature = _signature(installation.app, what, options)
    task = _task(installation.app, signature.task, remote=bool(options.get("remote")))
    said = {**{name: signature.options.get(name) for name in ("queue", "priority", "expires")}, **_given(options)}
    if said.get("priority") is None:
        said["priority"] = _inherited_priority(installation.app)
    now = clock.now()
    delay, run_at = _when(signature.options, options, now)
    args, kwargs = _arguments(signature, task)
    key = _key(task, options.get("key"), args, kwargs)
    keep_key = options.get("keep_key", getattr(task, "keep_key", None))
    lane, most = _lane(task, options, args, kwargs)
    # Receivers of Celery's publish signals are asked where the call is made; if this process sends it too, when it does.
    is_sent_here = delay == timedelta(0) and lane is None and installation.settings.tm_max_in_flight is None
    id = checked_text(signature.options.get("task_id") or new_id(), field="task_id", limit=MAX_ID)
    job = Job(
        id=id,
        task=checked_text(signature.task, field="task", limit=MAX_TASK),
        args=encode(list(args), field="args"),
        kwargs=encode(dict(kwargs), field="kwargs"),
        run_at=run_at,
        created_at=now,
        original_delay=run_at - now if delay is None else delay,
        max_retries=_retries(task, options),
        retry=_policy(options.get("retry", getattr(task, "retry_policy", None))),
        dedupe_key=key,
        keep_key=None if keep_key is None else parse_duration(keep_key, field="keep_key"),
        entity_id=_optional_text("entity_id", options.get("entity_id"), MAX_ENTITY),
        scope=_scope(options.get("scope")),
        queue=_optional_text("queue", said.get("queue"), 255),
        priority=_optional(checked_priority, said.get("priority")),
        expires_at=_expiry(said.get("expires"), now),
        timeout=_optional(checked_timeout, options.get("timeout", getattr(task, "timeout", None))),
        concurrency_key=lane,
        concurrency=most,
        slot=Slot.OPEN if lane else None,
        source=Source.DEFERRED,
        options=_celery_options(installation, signature, id, args, kwargs, is_sent_here=is_sent_here),
        actor=_optional_text("actor", options.get("actor"), 255),
    )
    return Request(
        job=job,
        delay=delay,
        on_duplicate=_duplicates(options.get("on_duplicate", "return")),
        names_id=bool(signature.options.get("task_id")),
    )


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _signature(app: Celery, what: Any, options: Mapping[str, Any]) -> Signature:
    args, kwargs = options.get("args"), options.get("kwargs")
    if isinstance(what, str):
        return Signature(what, args=_list(args), kwargs=_dict(kwargs), app=app)
    if isinstance(what, Mapping) and "task" in what:  # a signature, maybe one that went through JSON
        if args is not None or kwargs is not None:
            raise InvalidValue("args", "the signature has its arguments already", "pass them in one place")
        signature = what if isinstance(what, Signature) else Signature.from_dict(dict(what), app=app)
        if str(signature.task).startswith("celery."):
            raise InvalidValue("task", f"a {signature.task.removeprefix('celery.')} is several tasks", _CANVAS_HINT)
        return signature
    if hasattr(what, "signature") and hasattr(what, "name"):
        return what.signature(_list(args), _dict(kwargs), app=app)
    raise InvalidValue("task", f"{what!r} is no signature, task or name", "pass e.g. task.s(42) or 'shop.expire_payment'")


_CANVAS_HINT = "defer the first one and link the others to it, or defer a task that calls it"


def _list(value: Any) -> tuple[Any, ...]:
    if value is not None and not isinstance(value, (list, tuple)):
        raise InvalidValue("args", f"{value!r} is not a list", "pass e.g. args=[42]")
    return tuple(value or ())


def _dict(value: Any) -> dict[str, Any]:
    if value is not None and not isinstance(value, Mapping):
        raise InvalidValue("kwargs", f"{value!r} is not a mapping", "pass e.g. kwargs={'order_id': 42}")
    return dict(value or {})


def _task(app: Celery, name: Any, *, remote: bool) -> Any:
    """Return the registered task; one that only the workers know is fine if the caller says so."""
    checked_text(name, field="task", limit=MAX_TASK)
    if name not in app.tasks and not remote:
        app.loader.import_default_modules()
        if name not in app.tasks:
            raise UnknownTask(name, nearest(name, (known for known in app.tasks if not known.startswith("celery."))))
    return app.tasks.get(name)


def _when(said: Mapping[str, Any], options: Mapping[str, Any], now: datetime) -> tuple[timedelta | None, datetime]:
    delay, run_at = options.get("delay"), options.get("run_at")
    if delay is not None and run_at is not None:
        raise InvalidValue("delay", "run_at is given too", "pass one of them")
    if delay is None and run_at is None:
        delay, run_at = said.get("countdown"), said.get("eta")
    if run_at is None:
        wait = parse_duration(delay or 0, field="delay")
        return wait, now + wait
    instant = as_utc(run_at, field="run_at")
    if instant < now - PAST_TOLERANCE:
        raise InvalidValue(
            "run_at", f"{instant.isoformat()} is in the past", "give a later instant, or leave it out to run now"
        )
    return (timedelta(0), now) if instant <= now else (None, instant)


def _arguments(signature: Signature, task: Any) -> tuple[Sequence[Any], Mapping[str, Any]]:
    args, kwargs = signature.args or (), signature.kwargs or {}
    if task is not None and task.typing:
        try:
            task.__header__(*args, **kwargs)
        except TypeError as error:
            raise InvalidValue("args", f"{signature.task} does not take them: {error}", "pass what the task takes") from None
        except AttributeError:  # a class-based task has no header
            pass
    return args, kwargs


def _key(task: Any, given: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    if given is None and task is not None:
        given = key_by_rule(getattr(task, "key", None), args, kwargs)
    return _optional_text("key", given, MAX_KEY)


def _lane(
    task: Any, options: Mapping[str, Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[str | None, int | None]:
    """Return the concurrency key and its limit, as given or as the task's own rule makes them."""
    key, limit = options.get("concurrency_key"), options.get("concurrency")
    if key is None and task is not None:
        key = key_by_rule(getattr(task, "concurrency_key", None), args, kwargs, field="concurrency_key")
    if limit is None and key is not None:
        limit = getattr(task, "concurrency", None)
    return checked_concurrency(key, limit)


def _retries(task: Any, options: Mapping[str, Any]) -> int | None:
    given = options.get("max_retries")
    if given is not None:
        return checked_retries(given)
    return task.max_retries if task is not None else DEFAULT_RETRIES


def _policy(value: Any) -> Mapping[str, Any] | None:
    return None if value is None else write_policy(read_policy(value))


def _optional(check: Callable[[Any], T], value: Any) -> T | None:
    return None if value is None else check(value)


def _optional_text(field: str, value: Any, limit: int) -> str | None:
    return None if value is None else checked_text(value, field=field, limit=limit)


def _scope(value: Any) -> Mapping[str, Any] | None:
    if value is None:
        return None
    if not isinstance(value, Mapping) or not all(isinstance(v, (str, int)) for v in value.values()):
        raise InvalidValue("scope", f"{value!r} is not a mapping of ids", "pass e.g. scope={'tenant_id': 7}")
    return dict(value)


def _expiry(value: Any, now: datetime) -> datetime | None:
    if value is None:
        return None
    instant = as_utc(value, field="expires") if isinstance(value, datetime) else now + parse_duration(value, field="expires")
    if instant <= now:
        raise InvalidValue("expires", f"{value!r} is over already", "give a later instant or a longer duration")
    return instant


def _duplicates(value: Any) -> str:
    if value not in DUPLICATES:
        raise InvalidValue("on_duplicate", f"{value!r} is unknown", f"use one of {', '.join(DUPLICATES)}")
    return str(value)


def _celery_options(
    installation: Installation, signature: Signature, id: str, args: Any, kwargs: Any, *, is_sent_here: bool
) -> dict[str, Any]:
    """Return what else the message carries (headers, links, limits, routing, tracing, parent), as plain JSON."""
    app = installation.app
    wanted = {name: value for name, value in signature.options.items() if name not in SIGNATURE_ONLY and value is not None}
    own = wanted.get("headers")
    if own is not None and not isinstance(own, Mapping):
        raise InvalidValue("headers", f"{own!r} is not a mapping", "pass e.g. headers={'tenant': 7}")
    headers = {} if is_sent_here else injected_headers(app, signature.task, args, kwargs, id=id, headers=own)
    if headers:
        wanted["headers"] = {**(wanted.get("headers") or {}), **headers}
    parent = app.current_worker_task
    if parent is not None and parent.request.id:
        wanted.setdefault("root_id", parent.request.root_id or parent.request.id)
        wanted.setdefault("parent_id", parent.request.id)
    encode(wanted, field="options")
    return wanted


def _inherited_priority(app: Celery) -> Any:
    parent = app.current_worker_task if app.conf.task_inherit_parent_priority else None
    return (parent.request.delivery_info or {}).get("priority") if parent is not None else None
