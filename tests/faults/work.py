"""The definitions of a run: schedules of seconds with every recovery and every overlap, and two workflows.

The schedules are simple on purpose: who checks a run computes their instants without our code.
"""

from __future__ import annotations

from typing import Any

ATTEMPTS: dict[str, Any] = {"max_retries": 50, "retry": {"kind": "fixed", "delay": 0.3}}

RECURRING: list[dict[str, Any]] = [
    {"name": "all-allow", "schedule": "* * * * * *", "recovery": "all", "overlap": "allow"},
    {"name": "last-skip", "schedule": "*/2 * * * * *", "recovery": "last", "overlap": "skip"},
    {"name": "skip-queue", "schedule": "*/3 * * * * *", "recovery": "skip", "overlap": "queue"},
    {"name": "bounded-one", "schedule": "*/2 * * * * *", "recovery": "bounded", "recovery_count": 3, "overlap": "queue_one"},
    {"name": "compressed-replace", "schedule": "*/5 * * * * *", "recovery": "compressed", "overlap": "replace"},
    {"name": "all-queue", "schedule": "*/4 * * * * *", "recovery": "all", "overlap": "queue"},
]  # fmt: skip

WORKFLOWS: list[dict[str, Any]] = [
    {
        "name": "in-order",
        "steps": [
            {"name": "fetch", "task": "step"},
            [{"name": "left", "task": "step"}, {"name": "right", "task": "step"}],
            {"name": "tidy", "task": "step", "cleanup": True},
        ],
    },
    {"name": "at-once", "mode": "parallel", "steps": [{"name": f"part-{n}", "task": "step"} for n in range(4)]},
]


def definitions() -> list[dict[str, Any]]:
    """Return all definitions as they are added."""
    recurring = [{"task": "recurring", "kwargs": {"label": each["name"]}} | each | ATTEMPTS for each in RECURRING]
    # Triggered by the load; their own schedule comes once a year.
    triggered = [{"schedule": "0 0 1 1 *", "overlap": "allow", "recovery": "skip"} | each | ATTEMPTS for each in WORKFLOWS]
    return recurring + triggered
