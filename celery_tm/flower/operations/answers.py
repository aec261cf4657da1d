"""Shapes that only the API has: a page of a list, the token, the error, and what the parameters of many routes are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ...presentation import plain
from ...presentation.shapes.schema import Schema, instant, list_of, mapping, maybe, ref, text, thing, whole
from . import asking
from .asking import Parameter

ERROR = thing(
    "why a request was refused; nothing was changed",
    {
        "error": thing(
            "what is wrong",
            {
                "code": text("for programs, e.g. `definition_not_found`"),
                "message": text("for people: what is wrong and what to do"),
                "hint": text("what was probably meant"),
                "version": whole("with `stale_version`: the version that is there now"),
                "count": whole("with `count_changed`: how many there are now"),
            },
            optional=("hint", "version", "count"),
        )
    },
)
TOKEN = thing(
    "what a browser, or a program that keeps cookies, sends along with a change",
    {
        "token": text("the token, which fits the cookie that comes with this answer"),
        "header": text("the header to send it in"),
        "field": text("the field of a form to send it in"),
    },
)
COMING = thing("the next instants of a definition", {"items": list_of(ref("BothTimes"), "the instants, the next one first")})
GROUPS = thing("the groups of definitions", {"groups": mapping("how many definitions each has", whole("how many"))})
FORECAST = thing(
    "how busy the time to come is",
    {
        "since": instant("begin of the first hour"),
        "hours": whole("how many hours"),
        "totals": list_of(whole("how many instants"), "instants of all definitions, hour by hour"),
        "counts": mapping("the same by definition, those with at least one", list_of(whole("how many"), "hour by hour")),
        "estimated": list_of(text("name of a definition"), "definitions that are partly estimated, by their rate"),
        "broken": mapping("definitions that cannot be read, by name", text("why")),
    },
)
OCCURRENCE = thing(
    "one occurrence, what is owed of it, its attempts and, of a workflow, its report",
    {
        "occurrence": ref("Occurrence"),
        "definition": maybe(text("name of its definition; null: it was removed, or the workflow was deferred")),
        "executions": list_of(ref("Execution"), "its attempts, the latest first"),
        "report": maybe(ref("Report", "of a workflow that has begun")),
    },
)
OWN: Mapping[str, Schema] = {"Error": ERROR, "Token": TOKEN, "OccurrenceInFull": OCCURRENCE}

LIMIT = asking.whole("limit", "how many at most, 1 to 1000", minimum=1, maximum=1000)
REASON = asking.text("reason", "why, for the audit")
BEFORE = asking.text("before", "the `next` of the page before this one")
AFTER = asking.text("after", "the `next` of the page before this one")


def page_of(kind: str, about: str) -> Schema:
    """Return the schema of a page of a list: its items, and what to ask for the next page with."""
    following = maybe(text("what to pass on for the next page; null: this is the last one"))
    bad = list_of(ref("UnreadableRow"), "rows that belong here and cannot be read")
    return thing(about, {"items": list_of(ref(kind), about), "next": following, "unreadable": bad})


def all_of(kind: str, about: str) -> Schema:
    """Return the schema of a list that has no pages."""
    return thing(about, {"items": list_of(ref(kind), about)})


def paged(found: Any, items: Iterable[Any]) -> dict[str, Any]:
    """Return a page of a list."""
    bad = [plain(row) for row in getattr(found, "unreadable", ())]
    return {"items": list(items), "next": getattr(found, "next", None), "unreadable": bad}


def span(what: str) -> tuple[Parameter, Parameter]:
    """Return the two ends of a stretch of time."""
    return asking.instant("since", f"only {what} at or after this"), asking.instant("until", f"only {what} before this")
