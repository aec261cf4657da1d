"""Scope references of a job, such as a tenant's id, as the index of the history has them: name and value, both as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import InvalidValue, shown
from .job import fitted

MAX_REF_NAME, MAX_REF_VALUE = 100, 200  # characters; what is longer is indexed by its beginning and a digest
MAX_REFS = 20  # of one job that are indexed; the others are kept, but not searched by
Ref = tuple[str, str]
_CONTROL = dict.fromkeys((*range(32), 127), " ")  # PostgreSQL stores no NUL


def refs_of(scope: Mapping[str, Any] | None) -> list[Ref]:
    """Return the references that a scope is indexed by; what is no text, number or flag is not one."""
    found: dict[Ref, None] = {}
    for name, value in (scope or {}).items():
        if isinstance(value, (str, int, float)):
            found[_indexed(str(name), MAX_REF_NAME), _indexed(_text(value), MAX_REF_VALUE)] = None
    return list(found)[:MAX_REFS]


def checked_refs(scope: Any) -> list[Ref]:
    """Return the references that history is searched by."""
    if not isinstance(scope, Mapping) or not scope:
        raise InvalidValue("scope", f"{shown(scope)} is not a mapping of ids", _REMEDY)
    for name, value in scope.items():
        if not isinstance(name, str) or not isinstance(value, (str, int, float)):
            raise InvalidValue("scope", f"{shown(name)}={shown(value)} is not a name with an id", _REMEDY)
    refs = refs_of(scope)
    if len(scope) > MAX_REFS:
        raise InvalidValue("scope", f"{len(scope)} references are too many", f"give at most {MAX_REFS}")
    return refs


def read_refs(texts: Sequence[str]) -> dict[str, str]:
    """Return the references that are written as `name=value`."""
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise InvalidValue("scope", f"{shown(text)} is not name=value", "give e.g. tenant_id=7")
        found[name] = value
    return found


_REMEDY = "give e.g. {'tenant_id': 7}"


def _text(value: str | float) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _indexed(text: str, limit: int) -> str:
    """Return a text as every database stores and compares it: MySQL ignores blanks at the end."""
    text = text.translate(_CONTROL).encode("utf-8", "replace").decode().rstrip(" ")
    return fitted(text, limit)
