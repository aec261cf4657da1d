"""How arguments and results become text: JSON as Celery's own serializer writes it.

Dates, UUIDs, decimals and bytes survive, as they do in a Celery message; anything else that JSON cannot hold is refused
with the place where it sits, before anything is written.
"""

from __future__ import annotations

import json
from typing import Any

from kombu.utils.json import JSONEncoder, dumps, loads

from ..errors import InvalidValue, said

MAX_BYTES = 1_000_000
EMPTY = {"[]": list, "{}": dict}  # what most jobs have: not worth a parser
_encoder = JSONEncoder(allow_nan=False)  # as `dumps` has it, made once


def encode(value: Any, *, field: str) -> str:
    """Return `value` as JSON text, or say which part of it is not JSON."""
    try:
        text: str = _encoder.encode(value)
    except Exception as error:  # an object that says itself how it is JSON may raise anything
        raise InvalidValue(field, f"{_culprit(value, field)} is not JSON ({said(error)})", _REMEDY) from None
    if '"__type__"' in text:
        _read_back(text, field)
    if len(text) > MAX_BYTES:
        raise InvalidValue(field, f"{len(text):,} characters are too many", f"stay under {MAX_BYTES:,}, pass an id instead")
    return text


def _read_back(text: str, field: str) -> None:
    """Refuse what looks like one of Celery's own markers but cannot be read back."""
    try:
        loads(text)
    except Exception as error:
        raise InvalidValue(field, f"a '__type__' in it cannot be read back ({type(error).__name__})", _REMEDY) from None


_REMEDY = "pass plain values, or an id that the task looks up"


def decode(text: str | None) -> Any:
    """Return what `encode` wrote."""
    if text is None or text in EMPTY:
        return None if text is None else EMPTY[text]()
    # Celery's reader looks at every mapping for its own markers, and is made anew for each text.
    return loads(text) if '"__type__"' in text else json.loads(text)


def dumped(value: Any) -> str:
    """Return a message as Celery's own serializer writes it, only sooner where it holds nothing but JSON."""
    try:
        return json.dumps(value)
    except TypeError:
        text: str = dumps(value)
        return text


def _culprit(value: Any, path: str) -> str:
    """Walk down to the first part that cannot be encoded. What it is is told, not its value: it may be a secret."""
    try:
        for name, item in _items(value):
            try:
                dumps(item, allow_nan=False)
            except RecursionError:
                break
            except Exception:
                return _culprit(item, f"{path}[{name!r}]")
    except Exception:  # a mapping that cannot be looked into
        return path
    return f"{path} = {repr(value) if isinstance(value, float) else f'<{type(value).__name__}>'}"


def _items(value: Any) -> Any:
    if isinstance(value, dict):
        return value.items()
    return enumerate(value) if isinstance(value, (list, tuple)) else ()
