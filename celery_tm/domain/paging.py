"""Long lists, a page at a time: each page ends with a cursor, the place in the order where the next one begins.

A page is found by that place and not by counting rows, so the thousandth costs what the first one does, and what is written
in between is neither shown twice nor makes anything be passed over. What a list is sorted by is said in `store.paging`.
"""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable
from datetime import datetime
from typing import Any, TypeVar

from ..errors import InvalidValue, shown
from .set_aside import BadRow

T = TypeVar("T")
MAX_PAGE = 1000
MAX_CURSOR = 1000
FROM_A_PAGE = "take it from the `next` of a page of the same list"

Place = tuple[datetime | None, str | int]


class Page(list[T]):
    """Some of a list; `next` asks for what follows, and is None where nothing does.

    `unreadable` are rows that belong here and cannot be read.
    """

    def __init__(self, items: Iterable[T] = (), next: str | None = None, unreadable: Iterable[BadRow] = ()) -> None:
        super().__init__(items)
        self.next = next
        self.unreadable = list(unreadable)


def checked_limit(limit: Any) -> int:
    """Return how many a page may have."""
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= MAX_PAGE:
        remedy = f"give a whole number from 1 to {MAX_PAGE}, and ask for the next page by its cursor"
        raise InvalidValue("limit", f"{shown(limit)} is not the size of a page", remedy)
    return limit


def write_cursor(kind: str, place: Place) -> str:
    """Return a place in the order of a kind of list as text that fits into an address."""
    at, id = place
    text = json.dumps([kind, None if at is None else at.isoformat(), id], separators=(",", ":"))
    return urlsafe_b64encode(text.encode()).decode().rstrip("=")


def read_cursor(kind: str, text: Any, *, field: str, timed: bool = True, numbered: bool = False) -> Place:
    """Return the place that a cursor means; one that no page of this kind of list has ended with is refused.

    `timed`: the list is sorted by an instant first; `numbered`: its ids are numbers.
    """
    try:
        found, at, id = _parts(text)
        if found == kind:
            return _instant(at) if timed else None, _number(id) if numbered else _text(id)
    except (ValueError, TypeError, OverflowError, RecursionError):
        raise InvalidValue(field, f"{shown(text)} is not a cursor", FROM_A_PAGE) from None
    raise InvalidValue(field, f"it is a cursor of {shown(found)}, not of {kind}", FROM_A_PAGE)


def _parts(text: Any) -> tuple[Any, Any, Any]:
    if not isinstance(text, str) or len(text) > MAX_CURSOR or not text.isascii():
        raise ValueError(text)
    kind, at, id = json.loads(urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    return kind, at, id


def _instant(text: str) -> datetime:
    instant = datetime.fromisoformat(text)
    if instant.tzinfo is None:
        raise ValueError(text)
    return instant


def _text(id: Any) -> str:
    if not isinstance(id, str) or not id.isprintable():
        raise ValueError(id)
    return id


def _number(id: Any) -> int:
    if isinstance(id, bool) or not isinstance(id, int) or not 0 <= id < 2**63:
        raise ValueError(id)
    return id
