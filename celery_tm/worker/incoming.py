"""Looks at a message before Celery gets it: one that would bring a worker down is refused, whatever it calls.

Celery trusts the shape of a message: one without an id, or with a time limit that is no number, ends the worker that takes
it in, and after that the next one, for it was never acknowledged. What is merely wrong Celery refuses by itself, and whether
a sound message may run is for the gate.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from celery.signals import task_rejected
from kombu.exceptions import ContentDisallowed, DecodeError

from ..domain.job import MAX_ID
from ..errors import shown
from ..producer.capturing import instant_of

logger = logging.getLogger(__name__)
MARK = "_celery_tm_looks"
LONGEST = 10**9  # seconds: thirty years
EARLIEST, LATEST = datetime(1, 1, 3, tzinfo=UTC), datetime(9999, 12, 29, tzinfo=UTC)


def look_first(consumer: Any, takes: Callable[[Any, Any], bool]) -> None:
    """Let a worker look at each message before it handles it; those that `takes` has dealt with Celery does not see."""
    if MARK in consumer.__dict__:  # a consumer starts anew with each connection
        return
    create = consumer.create_task_handler

    def create_task_handler(*args: Any, **kwargs: Any) -> Callable[[Any], Any]:
        handle = create(*args, **kwargs)

        def on_task_received(message: Any) -> Any:
            fault = fault_in(consumer.app, message)
            if fault is not None:
                return _refuse(consumer, message, fault)
            return None if takes(consumer, message) else handle(message)

        return on_task_received

    consumer.__dict__[MARK] = True
    consumer.create_task_handler = create_task_handler


def _refuse(consumer: Any, message: Any, fault: str) -> None:
    headers = message.headers if isinstance(message.headers, Mapping) else {}
    called, id = (shown(headers.get(name)) for name in ("task", "id"))
    logger.error("A message for task %s with id %s is refused: %s. It was not sent by Celery.", called, id, fault)
    message.reject_log_error(logger, consumer.connection_errors)
    task_rejected.send(sender=consumer, message=message, exc=None)


def fault_in(app: Any, message: Any) -> str | None:
    """Return why a message cannot be handled; None: it can, or Celery says itself why not."""
    if not isinstance(message.headers, Mapping):
        return None
    try:
        payload = message.payload
    except (DecodeError, ContentDisallowed):  # Celery says so itself, once it has looked the task up
        return _fault_in_said(app, message.headers) if "task" in message.headers else None
    except Exception as error:  # a coding that nobody knows, and whatever else its bytes may do
        return f"its body cannot be read ({type(error).__name__}: {shown(str(error))})"
    if "task" in message.headers:
        said, call = message.headers, payload
        if isinstance(payload, Mapping) and "args" in payload:  # a call as in protocol 1 under headers as in protocol 2
            call = [payload["args"], payload.get("kwargs", {}), payload]
    elif isinstance(payload, Mapping) and "task" in payload:  # protocol 1
        said, call = payload, [payload.get("args", []), payload.get("kwargs", {}), payload]
    else:
        return None
    return _fault_in_said(app, said) or _fault_in_call(call)


def _fault_in_said(app: Any, said: Mapping[str, Any]) -> str | None:
    wrong = [name for name, is_sound in SOUND.items() if name in said and not is_sound(said[name])]
    wrong += [name for name in NEEDED if name not in said]
    wrong += [name for name in ("eta", "expires") if said.get(name) is not None and not _is_instant(app, said[name])]
    if not wrong:
        return None
    return f"its {wrong[0]} is {shown(said[wrong[0]])}" if wrong[0] in said else f"it has no {wrong[0]}"


def _is_instant(app: Any, value: Any) -> bool:
    """Say whether a time can be read, and is one that Celery can wait for in any zone."""
    instant = instant_of(app, value)
    return instant is not None and EARLIEST < instant < LATEST


def _fault_in_call(call: Any) -> str | None:
    if not isinstance(call, Sequence) or isinstance(call, str) or len(call) != 3:
        return "its body is not a list of arguments, keyword arguments and what follows"
    args, kwargs, embed = call
    if not isinstance(args, (list, tuple)) or not isinstance(kwargs, dict):
        return "its arguments are not a list and a mapping"
    if embed is not None and not isinstance(embed, Mapping):
        return "what follows is not a mapping"
    wrong = [name for name, is_sound in FOLLOWING.items() if not is_sound((embed or {}).get(name))]
    return f"its {wrong[0]} are no signatures" if wrong else None


def is_id(value: Any) -> bool:
    """Say whether every database can look for an id."""
    return isinstance(value, str) and 0 < len(value) <= MAX_ID and "\x00" not in value and is_unicode(value)


def is_unicode(value: str) -> bool:
    """Say whether text can be written at all: JSON may hold halves of characters."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_text(value: Any) -> bool:
    return value is None or (isinstance(value, str) and is_unicode(value))


def _is_limit(value: Any) -> bool:
    if value is None:
        return True
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and 0 <= value <= LONGEST


def _are_limits(value: Any) -> bool:
    return not value or (isinstance(value, (list, tuple)) and len(value) == 2 and all(map(_is_limit, value)))


def _is_count(value: Any) -> bool:
    return value is None or (type(value) is int and 0 <= value < 2**31)


def _is_mapping(value: Any) -> bool:
    return value is None or isinstance(value, Mapping)


def _are_texts(value: Any) -> bool:
    return value is None or (isinstance(value, (list, tuple)) and all(isinstance(one, str) for one in value))


def _are_signatures(value: Any) -> bool:
    return value is None or (isinstance(value, (list, tuple)) and all(map(_is_signature, value)))


def _is_signature(value: Any) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("task"), str):
        return False
    return _is_mapping(value.get("options")) and _is_mapping(value.get("kwargs"))


# What Celery and the gate read of every message, and what it may be; each may be left out unless it is needed.
NEEDED = ("task", "id")
SOUND: Mapping[str, Callable[[Any], bool]] = {
    "task": lambda value: isinstance(value, str) and is_unicode(value),
    "id": is_id,
    "timelimit": _are_limits,
    "retries": _is_count,
    **dict.fromkeys(("root_id", "parent_id", "group", "shadow"), _is_text),
    **dict.fromkeys(("headers", "stamps"), _is_mapping),
    "stamped_headers": _are_texts,
}
FOLLOWING: Mapping[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("callbacks", "errbacks", "chain"), _are_signatures),
    "chord": lambda value: value is None or _is_signature(value),
}
