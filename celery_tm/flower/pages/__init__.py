"""The pages inside Flower, as a list of address, handler and name; `installing` adds them to Flower's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...management import TimeManagement
from ..base import PageHandler


class FirstPage(PageHandler):
    """The first page."""

    template = "tm_first.html"

    def gather(self, tm: TimeManagement, *_: str) -> Mapping[str, Any]:
        """Return the names of the definitions."""
        return {"names": [one.name for one in tm.definitions.list(limit=100)]}


PAGES: list[tuple[str, type[PageHandler], str]] = [(r"/tm", FirstPage, "tm")]
