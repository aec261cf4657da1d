"""What a forger makes of a real message: other ids, other attempts, other arguments, other shapes, and plain rubbish.

Forgeries are data, so that the same ones reach the worker in this process and the real one.
"""

from __future__ import annotations

import base64
import copy
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

Raw = dict[str, Any]
LONG = "x" * 1_000_000


@dataclass(frozen=True)
class IdOf:
    """The id that one of the messages at hand has."""

    number: int


@dataclass(frozen=True)
class Edit:
    """One change of a message: `where` is a path into it, `GONE` takes the part away."""

    where: tuple[str | int, ...]
    value: Any


class Gone:
    def __repr__(self) -> str:
        return "GONE"


GONE = Gone()
ATTEMPTS: list[Any] = [
    GONE, None, 0, -1, 1, 2, 3, 7, True, False, 1.0, 1.5, "1", "", "one", [], [1], {}, 2**31 - 1, 2**31, 2**63,
    10**30, -(2**63),
]  # fmt: skip
TEXTS: list[Any] = ["", " ", "x", "a\x00b", "\ud800", "'; DROP TABLE tm_job; --", "é" * 200, "{0}", LONG]
ODD: list[Any] = [GONE, None, True, 0, -5, 1.5, 10**30, [], {}, [[]], {"a": "b"}, *TEXTS]
TASKS: list[Any] = ["effect", "chunked", "fails", "keyed", "counts", "plain", "no.such.task", *ODD]
INSTANTS: list[Any] = [
    "2000-01-01T00:00:00+00:00", "2999-01-01T00:00:00+00:00", "9999-12-31T23:59:59+00:00", "9999-12-31T23:59:59-12:00",
    "0001-01-01T00:00:00+14:00", "2030-01-01", "yesterday", "2999-01-01T00:00:00", *ODD,
]  # fmt: skip
LIMITS: list[Any] = [[600, 600], [0, 0], [-1, -1], ["1", "2"], [10**400, 1], [1], [None], [1, 2, 3], "12", [None, {}], *ODD]
ARGUMENTS: list[Any] = [[], ["forged"], ["forged", "forged"], [[]], [None], *ODD]
KEYWORDS: list[Any] = [{}, {"n": "forged"}, {"self": 1}, {"task_id": "x"}, {"": 1}, *ODD]
LINK = {"task": "effect", "args": ["linked"], "kwargs": {}, "options": {}, "subtask_type": None, "immutable": True}
LINKS: list[Any] = [[LINK], [LINK, LINK], LINK, [{}], [{"task": 5}], [None], ["effect"], [[LINK]], *ODD]
BODIES: list[Any] = [[], [[]], [[], {}], [[], {}, {}, {}], {"args": [], "kwargs": {}}, {"task": "effect", "id": "x"}, *ODD]
HEADERS = ("id", "task", "retries", "root_id", "parent_id", "group", "argsrepr", "kwargsrepr", "origin", "shadow", "lang",
           "ignore_result", "replaced_task_nesting", "stamps", "stamped_headers", "headers", "meth",
           "group_index")  # fmt: skip
TM = ("job", "execution", "queue", "scheduled_at", "source", "metadata", "unknown", "chunk")
KINDS = ["application/x-python-serialize", "application/json", "application/data", "text/plain", "application/x-yaml",
         "application/x-msgpack", "", None, 5, "a\x00b"]  # fmt: skip
PICKLE = b"cos\nabort\n(tR."  # ends whoever reads it


def edits(count: int) -> st.SearchStrategy[Edit]:
    """Return changes of a message that stands among `count` others."""
    ids = st.one_of(st.builds(IdOf, st.integers(0, count - 1)), st.sampled_from(ODD))
    pairs = st.lists(st.tuples(ids, st.sampled_from(ATTEMPTS[1:])), max_size=6).map(
        lambda found: [list(one) for one in found]
    )
    chunks = st.one_of(pairs, pairs.map(lambda found: found * 400), st.sampled_from(ODD), st.just([[["x", 1], 1]]))
    return st.one_of(
        at(("headers", "tm", "attempt"), st.sampled_from(ATTEMPTS)),
        at(("headers", "id"), ids),
        at(("headers", "tm", "job"), ids),
        both_ids(ids),
        at(("headers", "tm", "chunk"), chunks),
        at(("headers", "tm"), st.sampled_from([GONE, None, [], "x", 5, {}, {"job": 1}, {"chunk": [["x", 1]] * 11_000}])),
        at(("headers", "task"), st.sampled_from(TASKS)),
        at(("headers", "tm_replaces"), st.sampled_from(ATTEMPTS)),
        at(("headers", "tm_bounces"), st.sampled_from(ATTEMPTS)),
        *(at(("headers", name), st.sampled_from(INSTANTS)) for name in ("eta", "expires")),
        at(("headers", "timelimit"), st.sampled_from(LIMITS)),
        st.sampled_from(HEADERS).flatmap(lambda name: at(("headers", name), st.sampled_from(ODD))),
        st.sampled_from(TM).flatmap(lambda name: at(("headers", "tm", name), st.sampled_from(ODD))),
        at(("headers", "tm", "metadata", "occurrence"), ids),
        at(("body", 0), st.sampled_from(ARGUMENTS)),
        at(("body", 1), st.sampled_from(KEYWORDS)),
        *(at(("body", 2, name), st.sampled_from(LINKS)) for name in ("callbacks", "errbacks", "chain", "chord")),
        at(("body", 2), st.sampled_from(ODD)),
        at(("body",), st.sampled_from(BODIES)),
        at(("raw",), st.one_of(st.integers(0, 40), st.binary(max_size=40))),
        st.sampled_from(["content-type", "content-encoding"]).flatmap(lambda name: at((name,), st.sampled_from(KINDS))),
        st.sampled_from(["priority", "reply_to", "correlation_id"]).flatmap(
            lambda name: at(("properties", name), st.sampled_from(ODD))
        ),
        at(("headers",), st.sampled_from([{}, {"task": "effect"}, {"task": ["effect"]}, {"task": {}}, {"id": "x"}])),
    )


def at(where: tuple[str | int, ...], values: st.SearchStrategy[Any]) -> st.SearchStrategy[Edit]:
    return st.builds(Edit, st.just(where), values)


def both_ids(ids: st.SearchStrategy[Any]) -> st.SearchStrategy[Edit]:
    """The header and the contract agree: only the row can tell."""
    return st.builds(Edit, st.just(("both ids",)), ids)


def forged(messages: Sequence[Raw], number: int, changes: Sequence[Edit]) -> Raw:
    """Return a message with changes."""
    raw = copy.deepcopy(messages[number % len(messages)])
    body = json.loads(base64.b64decode(raw["body"]))
    cut: int | bytes | None = None
    for change in changes:
        value = _known(change.value, messages)
        if change.where == ("both ids",):
            _put(raw, ("headers", "id"), value)
            _put(raw, ("headers", "tm", "job"), value)
        elif change.where == ("raw",):
            cut = value
        elif change.where == ("body",):
            body = None if value is GONE else value
        elif change.where[0] == "body":
            _put(body, change.where[1:], value)
        else:
            _put(raw, change.where, value)
    text = json.dumps(body).encode()
    text = cut if isinstance(cut, bytes) else text[:cut] if cut is not None else text
    raw["body"] = base64.b64encode(text).decode()
    return raw


def _known(value: Any, messages: Sequence[Raw]) -> Any:
    """Return a value with the ids that stand in it."""
    if isinstance(value, IdOf):
        headers = messages[value.number % len(messages)]["headers"]
        listed = (headers.get("tm") or {}).get("chunk")
        return listed[0][0] if listed else headers["id"]
    if isinstance(value, list):
        return [_known(one, messages) for one in value if one is not GONE]
    return value


def _put(part: Any, where: Sequence[Any], value: Any) -> None:
    """Change a part of a message, if there still is such a part."""
    *way, last = where
    for name in way:
        try:
            part = part[name]
        except (LookupError, TypeError):
            return
    try:
        if value is GONE:
            del part[last]
        else:
            part[last] = value
    except (LookupError, TypeError):
        return
