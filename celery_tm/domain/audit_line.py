"""A line that a body writes to the audit: what it may say, checked before anything is written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import InvalidValue, shown
from .codec import encode
from .execution import MAX_MESSAGE
from .job import checked_text

SYSTEM = "SYSTEM"
MAX_ACTION, MAX_OBJECT, MAX_ACTOR = 40, 255, 255
OURS = ("definition:", "job:", "occurrence:", "calendar:", "tm_")  # objects whose lines celery_tm writes and reads itself
EXAMPLE = "e.g. 'subscription:42'"


def checked_line(
    action: Any, object: Any, *, before: Any = None, after: Any = None, reason: Any = None, actor: Any = SYSTEM
) -> dict[str, Any]:
    """Return a line as its columns, or say which of them cannot be kept and what to do."""
    about = checked_text(object, field="object", limit=MAX_OBJECT)
    if about.startswith(OURS):
        raise InvalidValue("object", f"{shown(about)} is an object of celery_tm's own lines", f"name your own, {EXAMPLE}")
    if reason is not None and not isinstance(reason, str):
        raise InvalidValue("reason", f"{shown(reason)} is not text", "give a string")
    if reason is not None and len(reason) > MAX_MESSAGE:
        raise InvalidValue("reason", f"{len(reason):,} characters are too many", f"stay within {MAX_MESSAGE:,}")
    return {
        "action": checked_text(action, field="action", limit=MAX_ACTION),
        "object": about,
        "before": _values("before", before),
        "after": _values("after", after),
        "reason": reason,
        "actor": checked_text(actor, field="actor", limit=MAX_ACTOR),
    }


def _values(field: str, value: Any) -> Mapping[str, Any] | None:
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise InvalidValue(field, f"{shown(value)} is not a mapping", "give e.g. {'state': 'active'}")
    encode(dict(value), field=field)
    return dict(value)
