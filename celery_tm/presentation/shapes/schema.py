"""Short words to write JSON Schema with."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

DRAFT = "https://json-schema.org/draft/2020-12/schema"
Schema = dict[str, Any]


def text(about: str, **more: Any) -> Schema:
    """Return the schema of a text."""
    return {"type": "string", "description": about, **more}


def whole(about: str, **more: Any) -> Schema:
    """Return the schema of a whole number."""
    return {"type": "integer", "description": about, **more}


def number(about: str) -> Schema:
    """Return the schema of a number."""
    return {"type": "number", "description": about}


def flag(about: str) -> Schema:
    """Return the schema of a yes or no."""
    return {"type": "boolean", "description": about}


def instant(about: str) -> Schema:
    """Return the schema of an instant."""
    return {"type": "string", "format": "date-time", "description": about}


def seconds(about: str) -> Schema:
    """Return the schema of a duration."""
    return {"type": "number", "description": f"{about}, in seconds"}


def one_of(about: str, values: Iterable[str]) -> Schema:
    """Return the schema of a word out of a few."""
    return {"type": "string", "enum": [str(value) for value in values], "description": about}


def maybe(schema: Schema) -> Schema:
    """Return the schema of the same, or null."""
    if "$ref" in schema:
        about = {"description": schema["description"]} if "description" in schema else {}
        return {"anyOf": [{"$ref": schema["$ref"]}, {"type": "null"}], **about}
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    also = {"enum": [*schema["enum"], None]} if "enum" in schema else {}
    return {**schema, "type": [*kinds, "null"], **also}


def list_of(items: Schema, about: str) -> Schema:
    """Return the schema of a list."""
    return {"type": "array", "items": items, "description": about}


def mapping(about: str, values: Schema | None = None) -> Schema:
    """Return the schema of a mapping whose names are not known beforehand."""
    return {"type": "object", "additionalProperties": values if values is not None else True, "description": about}


def anything(about: str) -> Schema:
    """Return the schema of any JSON value."""
    return {"description": about}


def thing(about: str, properties: dict[str, Schema], *, optional: Iterable[str] = ()) -> Schema:
    """Return the schema of a mapping with exactly these fields, all of which are there unless they are optional."""
    left_out = set(optional)
    required = [name for name in properties if name not in left_out]
    return {
        "type": "object",
        "description": about,
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def ref(kind: str, about: str = "") -> Schema:
    """Return a pointer to a component."""
    return {"$ref": f"#/components/schemas/{kind}"} | ({"description": about} if about else {})
