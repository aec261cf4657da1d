"""The key that a task's own `key=` or `concurrency_key=` makes of a call's arguments, however they are passed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from hashlib import sha256
from inspect import Parameter, Signature, isawaitable, signature
from typing import Any
from weakref import WeakKeyDictionary

from ..errors import InvalidValue
from .job import MAX_KEY

UNHELD = re.compile("[\x00\ud800-\udfff]")  # what no column holds: NUL, and halves of characters


def key_by_rule(
    rule: Any, args: Sequence[Any], kwargs: Mapping[str, Any], *, field: str = "key", body: Signature | None = None
) -> Any:
    """Return the key of a call: `rule` is a callable, text like "order:{0}" or "order:{order_id}", or None.

    `body` is what the task's body takes: text may then name an argument that is passed by position, or the other way round.
    """
    if rule is None:
        return None
    try:
        if not callable(rule):
            places, names = _bound(args, kwargs, body)
            return str(rule).format(*places, **names)
        key = rule(*args, **kwargs)
        if isawaitable(key):
            getattr(key, "close", bool)()
            raise TypeError("it is a coroutine, and nothing awaits it")
    except Exception as error:  # the rule is the task's own code
        raise InvalidValue(
            field, f"the task's {field}= makes none of these arguments ({error})", f"fix its {field}="
        ) from None
    return key


def rule_key(task: Any, field: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    """Return what a task's rule makes of a call, as every column holds it; raise InvalidValue where it makes none."""
    rule = getattr(task, field, None)
    if rule is None:
        return None
    key = key_by_rule(rule, args, kwargs, field=field, body=signature_of(task))
    if key is None:
        return None
    if not str(key).strip():
        raise InvalidValue(field, f"the task's {field}= makes an empty key of these arguments", f"fix its {field}=")
    return fitting(str(key))


def fits(body: Signature | None, args: Any, kwargs: Any) -> bool:
    """Say whether a body takes these arguments."""
    if body is None:
        return True
    try:
        body.bind(*(args or ()), **(kwargs or {}))
    except TypeError:
        return False
    return True


_signatures: WeakKeyDictionary[type, Signature | None] = WeakKeyDictionary()


def signature_of(task: Any) -> Signature | None:
    """Return what a task's body takes; None where that cannot be read."""
    cls = type(task)
    if cls not in _signatures:
        try:
            _signatures[cls] = signature(task.run)
        except (TypeError, ValueError):
            _signatures[cls] = None
    return _signatures[cls]


def _bound(
    args: Sequence[Any], kwargs: Mapping[str, Any], body: Signature | None
) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """Return arguments by place and by name, defaults included; as they are where the body does not take them."""
    if body is None or not fits(body, args, kwargs):
        return args, kwargs
    bound = body.bind(*args, **kwargs)
    bound.apply_defaults()
    names = dict(bound.arguments)
    for one in body.parameters.values():
        if one.kind is Parameter.VAR_KEYWORD:
            names |= names.pop(one.name)
    return bound.args, names


def fitting(key: str) -> str:
    """Return a key that every column holds; one that is too long, or no text, ends in its digest: two never become one."""
    if len(key) <= MAX_KEY and not UNHELD.search(key):
        return key
    return f"{UNHELD.sub('�', key[:180])}…{sha256(key.encode(errors='surrogatepass')).hexdigest()}"
