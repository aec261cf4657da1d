"""What a Celery call says, as data: kept with its row, and the message is made of it again when the job is dispatched.

Celery itself builds the message, with its signals, its routing and whatever instrumentation adds to its headers, and gives
it to a producer that keeps it instead of publishing it. So nothing that a call carries is left out, whatever the release.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from celery import Celery
from celery.app.task import Context
from celery.signals import before_task_publish
from kombu.utils.objects import cached_property

from ..domain.codec import encode
from ..errors import InvalidValue
from ..publisher import ANNOUNCED, HEADER

OWN = frozenset({"task_id", "retries", "expires", "root_id"})  # columns of the row, or made anew
OURS = frozenset({HEADER, ANNOUNCED, "tm_replaces", "tm_bounces"})  # headers that mean something for one delivery only
OF_CELERY = frozenset({*vars(Context), "lang", "task", "argsrepr", "kwargsrepr", "compression", "priority"})
PLACE = "group_index"  # in a chord's header, from 0: its body gets the results in this order
OF_PUBLISHING = ("serializer", "compression", "delivery_mode")


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    """A call as plain values."""

    args: str
    kwargs: str
    queue: str | None = None
    priority: int | None = None
    expires: Any = None
    options: Mapping[str, Any] = field(default_factory=dict)


class Keeper:
    """Stands in for a producer: keeps the first message it is given, and drops the events about it."""

    def __init__(self, app: Celery) -> None:
        self._app = app
        self.connection = self
        self.body: Any = None
        self.properties: Mapping[str, Any] | None = None
        self._borrowed: Any = None

    def publish(self, body: Any, **properties: Any) -> None:
        """Keep a message."""
        if self.properties is None:
            self.body, self.properties = body, properties

    def _reraise_as_library_errors(self) -> AbstractContextManager[None]:
        return nullcontext()

    @cached_property
    def channel(self) -> Any:
        """Return a channel for the result backend that declares the caller's queue of replies."""
        self._borrowed = self._app.pool.acquire(block=True)
        return self._borrowed.default_channel

    def close(self) -> None:
        """Give back what was borrowed."""
        if self._borrowed is not None:
            self._borrowed.release()

    def message(self) -> Message:
        """Return what was kept; raise InvalidValue where it is not JSON."""
        assert self.properties is not None
        args, kwargs, embed = read_body(self.body)
        said = dict(self.properties)
        request = Context({**(said.get("headers") or {}), **embed}, reply_to=said.get("reply_to"))
        publishing = {name: said[name] for name in OF_PUBLISHING if said.get(name) is not None}
        return as_message(request, args, kwargs, said, publishing)


def read_body(body: Any) -> tuple[Any, Any, Mapping[str, Any]]:
    """Return a message's arguments, keyword arguments, and what else its body says: all there is in protocol 1."""
    if isinstance(body, Mapping):
        return body.get("args") or [], body.get("kwargs") or {}, body
    args, kwargs, embed = body
    return args, kwargs, embed or {}


def as_message(
    request: Context, args: Any, kwargs: Any, info: Mapping[str, Any], publishing: Mapping[str, Any] | None = None
) -> Message:
    """Return a call as plain values; `info` tells where its message went. Raise InvalidValue where it is not JSON."""
    options = options_of(request, info) | dict(publishing or {})
    options["headers"] = {**options.get("headers", {}), ANNOUNCED: True}  # by Celery, when the call was made
    encode(options, field="options")
    return Message(
        args=encode(list(args), field="args"),
        kwargs=encode(dict(kwargs), field="kwargs"),
        queue=queue_of(info),
        priority=priority_of(info),
        expires=request.expires,
        options=options,
    )


def options_of(request: Context, info: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a message carries besides its arguments, as options to send it again with."""
    said = {name: value for name, value in request.as_execution_options().items() if name not in OWN}
    options = {name: value for name, value in said.items() if value or (name == PLACE and value is not None)}
    options.pop("headers", None)
    headers = custom_headers(request)
    if request.root_id and request.root_id != request.id:
        options["root_id"] = request.root_id
    if "ignore_result" in request.__dict__ and request.ignore_result is not None:
        options["ignore_result"] = bool(request.ignore_result)
    if headers:
        options["headers"] = headers
    if info.get("exchange"):
        options |= {"exchange": _name(info["exchange"]), "routing_key": info.get("routing_key")}
    return options


def custom_headers(request: Context) -> dict[str, Any]:
    """Return the headers of a message that are not Celery's own, and those that some tracers put one level deeper."""
    said = vars(request)
    theirs = {*OF_CELERY, *OURS, *(request.stamped_headers or ()), *(request.stamps or ())}
    own = {name: value for name, value in said.items() if name not in theirs and not name.startswith(("_", "x-death"))}
    deeper = {name: value for name, value in (request.headers or {}).items() if name not in theirs}
    # Celery shows the custom headers of a message that has none deeper there too: only where there are tracers of that kind
    # may it be one that has both.
    return own if not deeper or (deeper == own and not _has_tracer()) else {**own, "headers": deeper}


def _has_tracer() -> bool:
    """Say whether somebody has wrapped Celery's own way to send, as Sentry does."""
    return hasattr(Celery.send_task, "__wrapped__")


def priority_of(info: Mapping[str, Any]) -> int | None:
    """Return the priority that a message was sent with, if it is one that a database can keep."""
    said = info.get("priority")
    return said if type(said) is int and 0 <= said < 2**15 else None


def queue_of(info: Mapping[str, Any]) -> str | None:
    """Return the queue that a message was sent to by name, if it was."""
    return None if info.get("exchange") else info.get("routing_key")


def _name(entity: Any) -> str:
    return str(getattr(entity, "name", entity))


def is_heard(app: Celery) -> bool:
    """Say whether somebody may have something to add to a call where it is made."""
    return bool(before_task_publish.receivers or _has_tracer()) and not app.conf.task_always_eager


def injected_headers(
    app: Celery, name: str, args: Any, kwargs: Any, *, id: str, headers: Mapping[str, Any] | None
) -> Mapping[str, Any]:
    """Return the headers that receivers of `before_task_publish` and tracing add to a call where it is made.

    Celery makes a connection object for this. A broker URL that it cannot read adds no headers: the job is kept, and the
    publisher reports the URL.
    """
    keeper = Keeper(app)
    said = {"task_id": id, "headers": dict(headers or {})}
    try:
        app.send_task(name, args, kwargs, producer=keeper, ignore_result=True, add_to_parent=False, **said)
    except (ValueError, LookupError, ImportError):
        return {}
    found = custom_headers(Context((keeper.properties or {}).get("headers") or {}))
    try:
        encode(found, field="headers")
    except InvalidValue:  # somebody's object, of use only in this process
        return {ANNOUNCED: True}
    return {**found, ANNOUNCED: True}


def keep(app: Celery, send: Callable[[Any], Any]) -> tuple[Any, Message]:
    """Let Celery make a call with `send(producer)`, and return its result and the message that was not sent."""
    keeper = Keeper(app)
    try:
        result = send(keeper)
    finally:
        keeper.close()
    return result, keeper.message()
