"""The OpenAPI 3.1 document of the API, made from `operations` and the documented shapes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..presentation.shapes import COMPONENTS, DRAFT
from ..version import __version__
from .operations import OPERATIONS, Operation
from .operations.answers import OWN

ABOUT = (
    "What the command line and the pages do, for programs. Every route asks for Flower's own authentication. Changes are "
    "POSTs, are refused in read-only mode and to whom `tm_admins` does not name, and are written to the audit with the "
    "user's name. A program that sends `Authorization` and a JSON body, and neither cookies nor `Origin`, needs no token; "
    "whoever sends cookies asks `GET /api/tm/token` and sends the token in the header `X-XSRFToken`."
)
REFUSALS: Mapping[int, str] = {
    400: "something that was said cannot be used; the message names it",
    401: "no credentials, wrong ones, or Flower has no authentication",
    403: "not an administrator, read-only mode, sent by another site, or a token that is missing or has expired",
    404: "no such definition, job, occurrence or dead letter; `hint` may say what was meant",
    409: "it has changed meanwhile; nothing was done",
    503: "the tables are missing or the database is away; the message says what to do",
}


def document_of(prefix: str = "") -> dict[str, Any]:
    """Return the whole document; `prefix` is Flower's `--url-prefix`."""
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation)
    return {
        "openapi": "3.1.0",
        "jsonSchemaDialect": DRAFT,
        "info": {"title": "celery_tm", "version": __version__, "description": ABOUT},
        "servers": [{"url": "/" + prefix.strip("/") if prefix else "/"}],
        "security": [{"basic": []}, {"session": []}],
        "paths": paths,
        "components": {
            "schemas": {**COMPONENTS, **OWN},
            "responses": {str(status): _refusal(about) for status, about in REFUSALS.items()},
            "securitySchemes": {
                "basic": {"type": "http", "scheme": "basic", "description": "Flower's --basic-auth"},
                "session": {
                    "type": "apiKey",
                    "in": "cookie",
                    "name": "user",
                    "description": "the cookie of Flower's login with --auth; changes need the token too",
                },
            },
        },
    }


def refusals_of(operation: Operation) -> list[int]:
    """Return the statuses that an operation may refuse a request with."""
    names_one = operation.names or any(parameter.name == "definition" for parameter in operation.parameters)
    named = (404,) if names_one else ()
    changes = (403,) if operation.method == "POST" else ()
    return sorted({400, 401, 503, *named, *changes, *operation.refusals})


def _operation(operation: Operation) -> dict[str, Any]:
    path = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}, "description": f"{name}, `/` as %2F"}
        for name in operation.names
    ]
    refused = {str(status): {"$ref": f"#/components/responses/{status}"} for status in refusals_of(operation)}
    answer = {"description": operation.about, "content": {"application/json": {"schema": operation.answer}}}
    told: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.about,
        "responses": {str(operation.status): answer, **refused},
    }
    if operation.method == "POST":
        told["requestBody"] = _body(operation)
        parameters = path
    else:
        parameters = [*path, *map(_query, operation.parameters)]
    return {**told, "parameters": parameters} if parameters else told


def _query(parameter: Any) -> dict[str, Any]:
    schema = {name: value for name, value in parameter.schema.items() if name != "description"}
    about = parameter.schema["description"]
    return {"name": parameter.name, "in": "query", "required": parameter.required, "description": about, "schema": schema}


def _body(operation: Operation) -> dict[str, Any]:
    required = [parameter.name for parameter in operation.parameters if parameter.required]
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {parameter.name: parameter.schema for parameter in operation.parameters},
        "additionalProperties": False,
    }
    if required:
        schema["required"] = required
    return {"required": bool(required), "content": {"application/json": {"schema": schema}}}


def _refusal(about: str) -> dict[str, Any]:
    return {"description": about, "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}}
