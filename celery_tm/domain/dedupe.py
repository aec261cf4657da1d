"""The key that a task's own `key=` makes of a call's arguments."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

from ..errors import InvalidValue
from .job import MAX_KEY

UNHELD = re.compile("[\x00\ud800-\udfff]")  # what no column holds: NUL, and halves of characters


def key_by_rule(rule: Any, args: Sequence[Any], kwargs: Mapping[str, Any], *, field: str = "key") -> Any:
    """Return the key of a call: `rule` is a callable, text like "order:{0}" or "order:{order_id}", or None."""
    if rule is None:
        return None
    try:
        return rule(*args, **kwargs) if callable(rule) else str(rule).format(*args, **kwargs)
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        raise InvalidValue(
            field, f"the task's {field}= makes none of these arguments ({error})", f"fix its {field}="
        ) from None


def fitting(key: str) -> str:
    """Return a key that every column holds; one that is too long, or no text, ends in its digest: two never become one."""
    if len(key) <= MAX_KEY and not UNHELD.search(key):
        return key
    return f"{UNHELD.sub('�', key[:180])}…{sha256(key.encode(errors='surrogatepass')).hexdigest()}"
