"""Reading what a caller of `defer` said: everything is checked here, before anything is written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, NamedTuple

from celery import Celery
from celery.canvas import Signature

from .. import clock
from ..clock import as_utc, parse_duration
from ..domain.codec import decode, encode
from ..domain.dedupe import rule_key
from ..domain.ids import new_id
from ..domain.job import (
    DEFAULT_RETRIES,
    MAX_ENTITY,
    MAX_ID,
    MAX_KEY,
    MAX_SCOPE,
    MAX_TASK,
    Job,
    Slot,
    checked_concurrency,
    checked_priority,
    checked_retries,
    checked_text,
    checked_timeout,
)
from ..domain.keeping import keep_columns
from ..domain.retry import read_policy, write_policy
from ..domain.workflow import TASK
from ..errors import InvalidValue, UnknownOption, UnknownTask, nearest, shown
from ..installation import Installation
from ..settings import read_keep_key
from ..store.insertion import NEW
from ..store.jobs import columns_of
from .message import injected_headers, is_heard
from .workflows import Workflow, refuse_plain, refuse_unknown_hooks

OPTIONS = (
    "args", "kwargs", "delay", "run_at", "key", "keep_key", "on_duplicate", "on_failed", "entity_id", "scope", "queue",
    "priority", "expires", "max_retries", "retry", "timeout", "session", "app", "remote", "actor", "concurrency_key",
    "concurrency", "past",
)  # fmt: skip
DUPLICATES = ("return", "replace", "raise")
AFTER_FAILURE = ("new", "return")
PAST = ("now", "raise")  # what a run_at in the past means
PAST_TOLERANCE = timedelta(seconds=1)  # "now" was a moment ago when it gets here
SIGNATURE_ONLY = frozenset({"task_id", "countdown", "eta", "queue", "priority", "expires"})
NO_TIME = timedelta(0)
NOTHING: Mapping[str, Any] = {}
NO_ARGS = encode([], field="args")


class Request(NamedTuple):
    """One checked call of `defer`: a draft of its row (`store.insertion`), read now."""

    draft: Mapping[str, Any]
    now: datetime
    on_duplicate: str = "return"
    names_id: bool = False  # the caller chose the id, so it may be taken
    on_failed: str = "new"  # whether a dead letter with the key is returned, or a new job created

    @classmethod
    def of(cls, job: Job, *, delay: timedelta | None, names_id: bool = True) -> Request:
        """Return the request for a Celery call: due after `delay`, or else at its `run_at`."""
        columns = {name: value for name, value in columns_of(job).items() if value not in (None, NEW.get(name))}
        when = {"run_at": job.run_at} if delay is None else {"run_at": None, "delay": delay}
        return cls(columns | when | {"created_at": None}, job.created_at, names_id=names_id)

    @property
    def is_immediate(self) -> bool:
        """Say whether the job is to run at once."""
        return self.draft.get("delay") == NO_TIME

    @property
    def job(self) -> Job:
        """Return the job that is asked for, its times by this machine's clock."""
        stated = {name: v for name, v in self.draft.items() if v is not None and name not in ("delay", "lease")}
        times = {"created_at": self.now, "run_at": self.now + (self.draft.get("delay") or NO_TIME)}
        return Job(**{"kwargs": NEW["kwargs"], **times, **stated})


def installation_for(what: Any, app: Celery | None) -> Installation:
    """Return the installation of the given app, or of the one that a task or signature belongs to, or of the current one."""
    if app is not None and not isinstance(app, Celery):
        raise InvalidValue("app", f"{shown(app)} is no Celery app", "pass the app, or leave it out")
    found = app or (getattr(what, "app", None) if what is not None and not isinstance(what, str) else None)
    return Installation.of(found) if found is not None else Installation.current()


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """What calls of one task have in common, if nothing is said about a single one."""

    task: Any  # None: only the workers know it
    columns: Mapping[str, Any]
    header: Callable[..., Any] | None  # raises if the task does not take its arguments
    has_key: bool  # by the task's rule
    has_lane: bool


class Reader:
    """Reads calls for one app; what is the same for all of them is looked up and checked once."""

    def __init__(
        self, installation: Installation, common: Mapping[str, Any], *, next_id: Callable[[], str] = new_id
    ) -> None:
        for name in common:
            if name not in OPTIONS:
                raise UnknownOption(name, nearest(name, OPTIONS))
        self.installation, self._app, self._common = installation, installation.app, dict(common)
        self._now = clock.now()
        self._next_id = next_id
        self._on_duplicate = _one_of(DUPLICATES, common.get("on_duplicate", "return"), field="on_duplicate")
        self._on_failed = _one_of(AFTER_FAILURE, common.get("on_failed", "new"), field="on_failed")
        _one_of(PAST, common.get("past") or "now", field="past")
        self._parent = self._app.current_worker_task
        self._is_heard = is_heard(self._app)
        self._kinds: dict[str, Kind] = {}

    def refuse_foreign(self, what: Any) -> None:
        """Raise if a call is for another app, unless `app=` says for which they all are."""
        if self._common.get("app") is not None or getattr(what, "_app", None) is self._app:
            return  # a signature knows it by that name; asked for as `what.app`, the answer takes longer than all the rest
        if installation_for(what, None) is not self.installation:
            raise InvalidValue("items", "they belong to several Celery apps", "call defer_many once per app")

    def read(self, what: Any, own: Mapping[str, Any] = NOTHING) -> Request:
        """Check one call and return what is to be written; nothing is written yet."""
        if isinstance(what, Workflow):
            return self._read_workflow(what, own)
        if own and (not own.keys() <= EACH or None in own.values()):
            return Reader(self.installation, {**self._common, **own}, next_id=self._next_id).read(what)
        options = {**self._common, **own} if own else self._common
        signature = _signature(self._app, what, options)
        kind = self._kind(signature.get("task"))
        said = signature.get("options") or NOTHING
        args, kwargs = signature.get("args") or (), signature.get("kwargs") or NOTHING
        _check_arguments(kind, args, kwargs)
        draft = dict(kind.columns)
        id = said.get("task_id")
        draft["id"] = checked_text(id, field="task_id", limit=MAX_ID) if id else self._next_id()
        if args:
            draft["args"] = encode(list(args), field="args")
        if kwargs:
            draft["kwargs"] = encode(dict(kwargs), field="kwargs")
        if said or (own and not own.keys() <= BY_CALL):
            draft |= self._own_columns(own, said, options)
        key = options.get("key")
        if key is not None:
            draft["dedupe_key"] = checked_text(key, field="key", limit=MAX_KEY)
        elif kind.has_key and (key := rule_key(kind.task, "key", args, kwargs)) is not None:
            draft["dedupe_key"] = key
        if kind.has_lane:
            draft |= _lane(kind.task, options, args, kwargs)
        if said or self._is_heard or self._parent is not None:
            draft |= self._celery_options(signature.task, said, args, kwargs, draft)
        return Request(draft, self._now, self._on_duplicate, bool(id), self._on_failed)

    def _read_workflow(self, what: Workflow, own: Mapping[str, Any]) -> Request:
        """Check a call of several steps: one job stands for all of them, and says what they are."""
        options = {**self._common, **own}
        for name in ("args", "kwargs", "timeout", "max_retries", "retry", "queue", "priority"):
            if options.get(name) is not None:
                raise InvalidValue(name, "it is a matter of the steps", "state it in the workflow or its steps")
        for step in what.steps:
            kind = self._kind(step.task)
            _check_arguments(kind, decode(step.args), decode(step.kwargs))
            refuse_plain(step.name, kind.task)
        if not options.get("remote"):
            refuse_unknown_hooks(self.installation, what.stated)
        reader = Reader(self.installation, {**options, "remote": True}, next_id=self._next_id)
        reader._is_heard = False  # nothing is sent for it, only for its steps
        request = reader.read(Signature(TASK, kwargs=dict(what.stated), app=self._app))
        keep = request.draft.get("keep_key", self.installation.settings.keep_keys["succeeded"])
        also = {"keep_key": keep, "execution_timeout": what.execution_timeout}
        return request._replace(draft={**request.draft, **also})

    def _kind(self, name: Any) -> Kind:
        found = self._kinds.get(name) if isinstance(name, str) else None
        if found is None:
            found = self._kinds[name] = self._read_kind(name)
        return found

    def _read_kind(self, name: Any) -> Kind:
        common = self._common
        task = _task(self._app, name, remote=bool(common.get("remote")))
        ours = _ours(task)
        lane = (getattr(ours, "concurrency_key", None), common.get("concurrency_key"), common.get("concurrency"))
        return Kind(
            task=task,
            columns=self._columns(name, task),
            header=getattr(task, "__header__", None) if task is not None and task.typing else None,
            has_key=getattr(ours, "key", None) is not None,
            has_lane=any(one is not None for one in lane),
        )

    def _columns(self, name: str, task: Any) -> dict[str, Any]:
        """Return the columns of a call about which nothing of its own is said."""
        ours = _ours(task)
        stated = {option: getattr(ours, attribute, None) for option, attribute in OF_TASK.items()} | self._common
        if stated.get("priority") is None:
            stated["priority"] = self._inherited_priority()
        columns = {"task": name, "args": NO_ARGS, "max_retries": DEFAULT_RETRIES if task is None else task.max_retries}
        columns |= {option: read(value) for option, read in READ.items() if (value := stated.get(option)) is not None}
        columns |= keep_columns(stated.get("keep_key"), self.installation.settings)
        return columns | _when(NOTHING, stated, self._now) | _expiry(stated.get("expires"), self._now)

    def _own_columns(self, own: Mapping[str, Any], said: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the columns that differ because of what a call, or its signature, says itself."""
        stated = {name: value for name in OF_BOTH if options.get(name) is None and (value := said.get(name)) is not None}
        stated |= own
        columns = {name: read(value) for name, value in stated.items() if (read := READ.get(name)) is not None}
        if "keep_key" in stated:
            columns |= keep_columns(stated["keep_key"], self.installation.settings)
        if any(one is not None for one in (own.get("delay"), own.get("run_at"), said.get("countdown"), said.get("eta"))):
            columns |= {"delay": None, "run_at": None} | _when(said, options, self._now)
        return columns | _expiry(stated.get("expires"), self._now)

    def _celery_options(
        self, name: str, said: Mapping[str, Any], args: Any, kwargs: Any, draft: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the column of what else the message carries: headers, links, limits, routing, tracing, parent."""
        wanted = {option: value for option, value in said.items() if option not in SIGNATURE_ONLY and value is not None}
        own = wanted.get("headers")
        if own is not None and not isinstance(own, Mapping):
            raise InvalidValue("headers", f"{shown(own)} is not a mapping", "pass e.g. headers={'tenant': 7}")
        # Receivers of Celery's publish signals are asked where the call is made, and the row keeps what they add: beat sends
        # what the broker refuses at first, and every later try.
        if self._is_heard:
            headers = injected_headers(self._app, name, args, kwargs, id=draft["id"], headers=own)
            if headers:
                wanted["headers"] = {**(own or {}), **headers}
        parent = self._parent
        if parent is not None and parent.request.id:
            wanted.setdefault("root_id", parent.request.root_id or parent.request.id)
            wanted.setdefault("parent_id", parent.request.id)
        encode(wanted, field="options")  # raises if it is not JSON
        return {"options": wanted} if wanted else {}

    def _inherited_priority(self) -> Any:
        parent = self._parent
        if parent is None or not self._app.conf.task_inherit_parent_priority:
            return None
        return (parent.request.delivery_info or {}).get("priority")


def _signature(app: Celery, what: Any, options: Mapping[str, Any]) -> Signature:
    args, kwargs = options.get("args"), options.get("kwargs")
    if isinstance(what, str):
        return Signature(what, args=_list(args), kwargs=_dict(kwargs), app=app)
    is_signature = isinstance(what, Signature)
    if is_signature or (isinstance(what, Mapping) and "task" in what):  # maybe one that went through JSON
        if args is not None or kwargs is not None:
            raise InvalidValue("args", "the signature has its arguments already", "pass them in one place")
        signature = what if is_signature else Signature.from_dict(dict(what), app=app)
        name = str(signature.get("task"))
        if name.startswith("celery."):
            raise InvalidValue("task", f"a {name.removeprefix('celery.')} is several tasks", _CANVAS_HINT)
        return signature
    if hasattr(what, "signature") and hasattr(what, "name"):
        return what.signature(_list(args), _dict(kwargs), app=app)
    raise InvalidValue(
        "task", f"{shown(what)} is no signature, task or name", "pass e.g. task.s(42) or 'shop.expire_payment'"
    )


_CANVAS_HINT = "defer the first one and link the others to it, or defer a task that calls it"


def _list(value: Any) -> tuple[Any, ...]:
    if value is not None and not isinstance(value, (list, tuple)):
        raise InvalidValue("args", f"{shown(value)} is not a list", "pass e.g. args=[42]")
    return tuple(value or ())


def _dict(value: Any) -> dict[str, Any]:
    if value is not None and not isinstance(value, Mapping):
        raise InvalidValue("kwargs", f"{shown(value)} is not a mapping", "pass e.g. kwargs={'order_id': 42}")
    return dict(value or {})


def _task(app: Celery, name: Any, *, remote: bool) -> Any:
    """Return the registered task; one that only the workers know is fine if the caller says so."""
    checked_text(name, field="task", limit=MAX_TASK)
    task = app.tasks.get(name)
    if task is None and not remote:
        app.loader.import_default_modules()
        task = app.tasks.get(name)
        if task is None:
            raise UnknownTask(name, nearest(name, (known for known in app.tasks if not known.startswith("celery."))))
    return task


def _ours(task: Any) -> Any:
    """Return a task if it is one of ours: attributes of a plain task mean whatever its authors mean by them."""
    return task if getattr(task, "tm_gated", False) else None


def _check_arguments(kind: Kind, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    if kind.header is not None:
        try:
            kind.header(*args, **kwargs)
        except TypeError as error:
            name = kind.columns["task"]
            raise InvalidValue("args", f"{name} does not take them: {error}", "pass what the task takes") from None


def _when(said: Mapping[str, Any], options: Mapping[str, Any], now: datetime) -> dict[str, Any]:
    """Return the columns that say when a job is due: after a delay, or at an instant."""
    delay, run_at = options.get("delay"), options.get("run_at")
    if delay is not None and run_at is not None:
        raise InvalidValue("delay", "run_at is given too", "pass one of them")
    if delay is None and run_at is None:
        delay, run_at = said.get("countdown"), said.get("eta")
    if run_at is None:
        wait = parse_duration(delay or 0, field="delay")
        return {"delay": wait, "original_delay": wait}
    instant = as_utc(run_at, field="run_at")
    if instant < now - PAST_TOLERANCE and options.get("past") == "raise":
        raise InvalidValue(
            "run_at", f"{instant.isoformat()} is in the past", "give a later time, or past='now' to run it now"
        )
    if instant <= now:
        return {"delay": NO_TIME, "original_delay": NO_TIME}
    return {"run_at": instant, "original_delay": instant - now}


def _lane(task: Any, options: Mapping[str, Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of a concurrency key and its limit, as given or as the task's own rule makes them."""
    own, limit = options.get("concurrency_key"), options.get("concurrency")
    task = _ours(task)
    key = rule_key(task, "concurrency_key", args, kwargs) if own is None else own
    if limit is None and key is not None:
        limit = getattr(task, "concurrency", None)
    _, limit = checked_concurrency("…" if key is not None and own is None else key, limit)
    return {} if key is None else {"concurrency_key": key, "concurrency": limit, "slot": Slot.OPEN}


def _scope(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(v, (str, int)) for v in value.values()):
        raise InvalidValue("scope", f"{shown(value)} is not a mapping of ids", "pass e.g. scope={'tenant_id': 7}")
    scope = dict(value)
    if (size := len(encode(scope, field="scope"))) > MAX_SCOPE:
        raise InvalidValue("scope", f"{size:,} characters are too many", f"stay within {MAX_SCOPE:,}, it is for ids")
    return scope


def _expiry(value: Any, now: datetime) -> dict[str, datetime]:
    if value is None:
        return {}
    instant = as_utc(value, field="expires") if isinstance(value, datetime) else now + parse_duration(value, field="expires")
    if instant <= now:
        raise InvalidValue("expires", f"{shown(value)} is over already", "give a later instant or a longer duration")
    return {"expires_at": instant}


def _text(field: str, limit: int) -> Callable[[Any], str]:
    return partial(checked_text, field=field, limit=limit)


# Options that mean one column each, which has their name, and how their values are read.
READ: Mapping[str, Callable[[Any], Any]] = {
    "max_retries": checked_retries,
    "retry": lambda value: write_policy(read_policy(value)),
    "keep_key": lambda value: read_keep_key(value).get("succeeded"),
    "entity_id": _text("entity_id", MAX_ENTITY),
    "scope": _scope,
    "queue": _text("queue", 255),
    "priority": checked_priority,
    "timeout": checked_timeout,
    "actor": _text("actor", 255),
}
OF_TASK = {"retry": "retry_policy", "keep_key": "keep_key", "timeout": "timeout"}  # options that a task may state itself
OF_BOTH = ("queue", "priority", "expires")  # options that a signature may have too
BY_CALL = frozenset({"args", "kwargs", "key"})  # what differs with each call anyway
EACH = BY_CALL | {*READ, "delay", "run_at", "expires"}  # what is read for a single call if it is said about it alone


def _one_of(known: Sequence[str], value: Any, *, field: str) -> str:
    if value not in known:
        raise InvalidValue(field, f"{shown(value)} is unknown", f"use one of {', '.join(known)}")
    return str(value)
