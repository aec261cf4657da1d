"""The page about the JSON API inside Flower, made from the same data as its routes and its OpenAPI document."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from celery_tm.flower.openapi import REFUSALS, refusals_of
from celery_tm.flower.operations import OPERATIONS, Operation

from .markdown import code, page, table

EVERYWHERE = frozenset({"reason", "limit", "before", "after"})
CURL = """```console
$ curl -u ann:secret https://flower.example/api/tm/definitions/nightly
$ curl -u ann:secret -H 'Content-Type: application/json' -d '{"reason": "stocktaking"}' \\
       https://flower.example/api/tm/definitions/nightly/pause
```"""


def api_page() -> str:
    """Return the page about the API."""
    reads = [one for one in OPERATIONS if one.method == "GET"]
    changes = [one for one in OPERATIONS if one.method == "POST"]
    return page(
        "The JSON API",
        "What the commands and the pages do, for programs, inside Flower and behind its authentication. "
        "`GET /api/tm/openapi.json` answers with an OpenAPI 3.1 document; this page is made from the same data.",
        CURL,
        "A program that sends its credentials in `Authorization`, a body in JSON and no cookies needs nothing else. One "
        "that keeps cookies asks `GET /api/tm/token` and sends the token in the header `X-XSRFToken`. "
        "[Security](../howto/security.md#flower-and-the-api) says who may do what.",
        "Lists come in pages: `limit` is 1 to 1000, and `next` of an answer is what to pass on as `before` (lists that "
        "begin with the latest) or `after`. Instants are ISO 8601 with an offset, `+` in an address is written `%2B`, and a "
        "`/` in a name `%2F`. A parameter that is not known is refused.",
        "## Reading",
        _operations(reads),
        "## Changing",
        "Every change takes `reason`, which the audit keeps with the user's name. The shapes are those of "
        "[`--json`](json.md#by-kind).",
        _operations(changes),
        "## Refusals",
        'An answer that refuses is `{"error": {"code": …, "message": …}}`, with `hint` where a name was probably misspelt, '
        "`version` where an edit was made on an older one, and `count` where other dead letters are there than were "
        "expected. Nothing is half done.",
        table(("status", "meaning"), [(status, about) for status, about in REFUSALS.items()]),
        "Only some operations answer with 409: "
        + ", ".join(code(one.name) for one in OPERATIONS if 409 in refusals_of(one))
        + ".",
    )


def _operations(found: Iterable[Operation]) -> str:
    return table(("address", "what it does", "parameters", "answer"), [_row(one) for one in found])


def _row(one: Operation) -> tuple[str, str, str, str]:
    said = [_parameter(parameter) for parameter in one.parameters if parameter.name not in EVERYWHERE]
    more = [code(parameter.name) for parameter in one.parameters if parameter.name in ("limit", "before", "after")]
    return code(f"{one.method} {one.path}"), one.about, "; ".join([*said, *more]), _answer(one.answer)


def _parameter(parameter: Any) -> str:
    words = parameter.schema["description"]
    if "enum" in parameter.schema:
        words += ": " + ", ".join(parameter.schema["enum"])
    needed = ", required" if parameter.required else ""
    return f"{code(parameter.name)} {words}{needed}"


def _answer(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        return code(schema["$ref"].rpartition("/")[2])
    items = schema.get("properties", {}).get("items")
    if items and "$ref" in items["items"]:
        following = ", `next`" if "next" in schema["properties"] else ""
        return f"`items` of {code(items['items']['$ref'].rpartition('/')[2])}{following}"
    fields = ", ".join(code(name) for name in schema.get("properties", {}))
    return fields or schema["description"]
