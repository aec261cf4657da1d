"""The API's handlers, made from `operations`."""

from __future__ import annotations

from tornado.routing import URLSpec


def api_rules() -> list[URLSpec]:
    """Return the rules of the API."""
    return []
