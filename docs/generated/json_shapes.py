"""The page about what `--json` prints: the shape of each command's answer, and of each kind of thing in it."""

from __future__ import annotations

from typing import Any

from celery_tm.presentation.shapes import COMPONENTS, DRAFT, SHAPES

from .markdown import code, page, table


def json_page() -> str:
    """Return the page about JSON."""
    return page(
        "What `--json` prints",
        f"Each shape is JSON Schema ({DRAFT}); `celery_tm.presentation.shapes` has them by command and by kind. "
        "Every field is always there unless *optional* is said, no other field is, and tests hold every command to it. "
        "Instants are ISO 8601 in UTC, durations are seconds. Arguments are hidden where `tm_redact` says so.",
        "`--watch` and `--follow` print one object to a line. `flower` runs a server and prints its log.",
        "## By command",
        table(("command", "answer"), [(code(command), _answer(shape)) for command, shape in SHAPES.items()]),
        "## By kind",
        *(part for kind, shape in COMPONENTS.items() for part in _component(kind, shape)),
    )


def _component(kind: str, shape: dict[str, Any]) -> list[str]:
    fields = shape["properties"]
    rows = [(code(name), _type(one), _about(one, name in shape["required"])) for name, one in fields.items()]
    return [f"### {kind}", f"{_sentence(shape['description'])}", table(("field", "type", "meaning"), rows)]


def _answer(shape: dict[str, Any]) -> str:
    about = shape.get("description", "")
    if "properties" in shape:
        inner = ", ".join(f"{code(name)}: {_type(one)}" for name, one in shape["properties"].items())
        return f"{about}: {inner}"
    return f"{_type(shape)}: {about}" if about else _type(shape)


def _about(shape: dict[str, Any], required: bool) -> str:
    words = shape.get("description", "")
    if "enum" in shape:
        words += ": " + ", ".join(code(word) for word in shape["enum"] if word is not None)
    return words if required else f"{words} (optional)"


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + "."


def _type(shape: dict[str, Any]) -> str:
    if "$ref" in shape:
        kind = shape["$ref"].rpartition("/")[2]
        return f"[{kind}](#{kind.lower()})"
    if "anyOf" in shape:
        return " or ".join(_type(one) for one in shape["anyOf"])
    kinds = shape.get("type", "anything")
    return " or ".join(_word(kind, shape) for kind in ([kinds] if isinstance(kinds, str) else kinds))


def _word(kind: str, shape: dict[str, Any]) -> str:
    if kind == "array":
        return f"list of {_type(shape['items'])}"
    if kind == "object":
        values = shape.get("additionalProperties")
        if "properties" in shape:
            return "{" + ", ".join(f"{name}: {_type(one)}" for name, one in shape["properties"].items()) + "}"
        return f"mapping of {_type(values)}" if isinstance(values, dict) else "mapping"
    if kind == "string" and shape.get("format") == "date-time":
        return "instant"
    return {"string": "text", "integer": "whole number", "boolean": "flag"}.get(kind, kind)
