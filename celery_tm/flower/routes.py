"""The API's handlers, made from `operations`: one rule for each path, one operation for each method."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tornado.routing import URLSpec
from tornado.web import url

from ..errors import TmError
from .base import ApiHandler
from .failures import Refusal, Refused
from .guarding import JSON, media_type
from .operations import OPERATIONS, Asked, Operation
from .operations.asking import check_required, check_text, read_body, read_form, read_query

MAX_BODY = 1_000_000
FORMS = ("application/x-www-form-urlencoded", "multipart/form-data")


def api_rules() -> list[URLSpec]:
    """Return the rules of the API; paths without a name in them come first, for `preview` is no id."""
    by_path: dict[str, dict[str, Operation]] = {}
    for operation in OPERATIONS:
        by_path.setdefault(operation.path, {})[operation.method] = operation
    paths = sorted(by_path, key=lambda path: (path.count("{"), path))
    return [url(pattern_of(path), OperationHandler, {"operations": by_path[path]}, name=f"tm_api{path}") for path in paths]


def pattern_of(path: str) -> str:
    """Return the regular expression of a path: a name may hold anything, a `/` in it is written %2F."""
    return "".join("([^/]+)" if part.startswith("{") else re.escape(part) for part in re.split(r"({\w+})", path))


class OperationHandler(ApiHandler):
    """Does what an operation says."""

    def initialize(self, operations: Mapping[str, Operation]) -> None:
        """Take the operations of this path, by method."""
        self.operations = operations

    async def get(self, *path: str) -> None:
        """Tell."""
        await self.perform(*path)

    async def post(self, *path: str) -> None:
        """Change."""
        await self.perform(*path)

    async def perform(self, *path: str) -> None:
        """Read the request, do it, and answer; what is wrong with the request is said before anything is done."""
        operation = self.operations.get(self.request.method or "")
        if operation is None:
            offered = ", ".join(self.operations)
            self.set_header("Allow", offered)
            raise Refusal(405, "method_not_allowed", f"this address answers to {offered} only")
        asked = self._read(operation, path)
        result = await self.call(operation.work, asked)
        if operation.done is not None and self.wants_page:
            self.tell_later(operation.done(asked, result))
            self.redirect(self.back or self.reverse_url("tm"), status=303)
            return
        self.answer(result, status=operation.status)

    def _read(self, operation: Operation, path: tuple[str, ...]) -> Asked:
        try:
            named = {name: check_text(name, text) for name, text in zip(operation.names, path, strict=True)}
            values = (
                read_query(operation, self.request.query_arguments) if operation.method == "GET" else self._said(operation)
            )
            check_required(operation, values)
        except TmError as error:
            raise Refused(error) from error
        return Asked(
            tm=self.tm, actor=self.actor, path=named, values=values, token=self._token,
            prefix=self.application.options.url_prefix or "",
        )  # fmt: skip

    def _said(self, operation: Operation) -> dict[str, Any]:
        """Return what the body says, as JSON or as a form."""
        body, kind = self.request.body, media_type(self.request)
        if len(body) > MAX_BODY:
            raise Refusal(413, "too_large", f"the body has {len(body):,} bytes; at most {MAX_BODY:,} are read")
        if kind in FORMS:
            return read_form(operation, self.request.body_arguments)
        if kind == JSON or not body:
            return read_body(operation, body)
        raise Refusal(415, "unsupported_media_type", f"send the body as {JSON}, or as a form")

    def _token(self) -> str:
        return self.xsrf_token.decode()
