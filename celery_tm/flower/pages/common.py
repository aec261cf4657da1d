"""What every page has: its place in the menu, the way to other pages, times and states as they are shown, its filters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import quote, urlencode

from ...errors import InvalidValue
from ...management import TimeManagement
from ...presentation import Rows
from ..base import PageHandler
from ..charts import tone_of
from .words import When, first_line, read_instant, roughly, share_of, took, when

PAGE = 50


@dataclass(frozen=True, kw_only=True, slots=True)
class Action:
    """A button that changes something: where its form goes, and how it looks."""

    label: str
    to: str
    style: str = "outline-secondary"
    fields: Mapping[str, str] | None = None


class Page(PageHandler):
    """A page of ours. `section` is its entry in our menu."""

    section = ""

    def show(self, template: str, **model: Any) -> None:
        """Answer with a page that can say times and states."""
        known = {
            "section": self.section,
            "page": self,
            "here": self.request.uri,
            "tone_of": tone_of,
            "first_line": first_line,
            "share_of": share_of,
            "roughly": roughly,
            "took": took,
        }
        super().show(template, **{**known, **model})

    def rows(self, tm: TimeManagement) -> Rows:
        """Return what hides arguments that nobody is to see."""
        return Rows(tm)

    def at(self, instant: datetime | None, now: datetime, zone: str = "UTC") -> When | None:
        """Return an instant as it is shown."""
        return when(instant, now=now, zone=zone)

    def to_definition(self, name: str, at: datetime | None = None) -> str:
        """Return the address of a definition's page, at an instant where one is asked about."""
        return self.address("tm_definition", name, at=at.isoformat() if at else None)

    def address(self, page: str, *path: str, **query: Any) -> str:
        """Return the address of a page with what stands after `?`; what is empty is left out."""
        said = urlencode({name: value for name, value in query.items() if value not in (None, "", [])}, doseq=True)
        place = self.reverse_url(page, *("~" for _ in path))  # Tornado would leave the `/` of a name as it is
        for part in path:
            place = place.replace("~", quote(part, safe=""), 1)
        return place + (f"?{said}" if said else "")

    def api(self, *parts: str) -> str:
        """Return the address of an API route."""
        root = self.reverse_url("tm").removesuffix("/tm")  # Flower's prefix, if it has one
        return "/".join([f"{root}/api/tm", *(quote(part, safe="") for part in parts)])

    def filters(self, *names: str) -> dict[str, Any]:
        """Return the filters that were given, as they were typed."""
        return {name: value for name in names if (value := self.query(name))}

    def span(self) -> dict[str, Any]:
        """Return the range of time that was given, as instants."""
        return {field: read_instant(text, field=field) for field, text in self.filters("since", "until").items()}

    def number(self, name: str, default: int) -> int:
        """Return a number that was given after `?`."""
        text = self.query(name)
        if text is None:
            return default
        if not text.isascii() or not text.isdigit() or len(text) > 6:
            raise InvalidValue(name, f"{text!r} is not a number", f"give a whole number, e.g. {default}")
        return int(text)


def choices(known: Sequence[Any], chosen: str | None) -> list[tuple[str, bool]]:
    """Return the entries of a list to choose from, and which of them is chosen."""
    return [(str(one), str(one) == chosen) for one in known]
