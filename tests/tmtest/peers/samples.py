"""The entries that django-celery-beat and sqlalchemy-celery-beat are given; both keep the same fields."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from . import NOW

LONG = "a name that " + "goes on and on, " * 9 + "and ends"


def cron(text: str, zone: str) -> dict[str, str]:
    """Return a crontab's fields."""
    names = ("minute", "hour", "day_of_month", "month_of_year", "day_of_week")
    return dict(zip(names, text.split(), strict=True)) | {"timezone": zone}


def entry(name: str, kind: str, schedule: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """Return one entry: its schedule's kind and fields, and its own."""
    return {"kind": kind, "schedule": schedule, "fields": {"name": name, "task": "effect", **fields}}


def at(*parts: int) -> datetime:
    """Return an instant in UTC."""
    return datetime(*parts, tzinfo=UTC)  # type: ignore[arg-type]


ALL = {
    "args": '["sales", 3]', "kwargs": '{"deep": {"er": [null]}}', "queue": "slow", "exchange": "shop",
    "routing_key": "shop.slow", "priority": 7, "expire_seconds": 90, "headers": '{"x": "y"}',
    "start_time": at(2026, 1, 1), "description": "what it is for", "total_run_count": 41,
    "last_run_at": at(2026, 6, 1, 11, 0, 0, 500000),
}  # fmt: skip

SAMPLES = [
    entry("ten minutes", "interval", {"every": 10, "period": "minutes"}, last_run_at=at(2026, 6, 1, 11, 53, 20)),
    entry("a day", "interval", {"every": 1, "period": "days"}, last_run_at=at(2026, 5, 31, 15, 37, 12)),
    entry("five days", "interval", {"every": 5, "period": "days"}, last_run_at=at(2026, 5, 30, 3)),
    entry("at nine", "crontab", cron("0 9 * * mon-fri", "Europe/Warsaw"), last_run_at=at(2026, 6, 1, 7, 0, 0, 90000)),
    entry("new york", "crontab", cron("30 2 1,15 * *", "America/New_York"), last_run_at=at(2026, 6, 1, 6, 30, 1)),
    entry("kolkata", "crontab", cron("*/15 8-18 * * *", "Asia/Kolkata"), last_run_at=at(2026, 6, 1, 12, 0, 0, 1000)),
    entry("in words", "crontab", cron("5 22-2 * january-june monday-friday", "UTC"), last_run_at=at(2026, 6, 1, 2, 5)),
    entry("a lone day", "crontab", cron("0 0 13 * fri", "Europe/Warsaw"), last_run_at=at(2026, 3, 12, 23)),
    entry("sunset", "solar", {"event": "sunset", "latitude": 52.2297, "longitude": 21.0122},
          last_run_at=at(2026, 5, 31, 18, 50)),
    entry("clocked", "clocked", {"clocked_time": at(2026, 6, 2, 10)}, one_off=True),
    entry("clocked, missed", "clocked", {"clocked_time": at(2026, 6, 1, 11, 50)}, one_off=True),
    entry("clocked, missed long ago", "clocked", {"clocked_time": at(2026, 5, 1, 11, 50)}, one_off=True),
    entry("clocked, ran", "clocked", {"clocked_time": at(2026, 6, 1, 11)}, one_off=True, total_run_count=1,
          last_run_at=at(2026, 6, 1, 11, 0, 1)),
    entry("one-off", "crontab", cron("0 13 * * *", "UTC"), one_off=True, last_run_at=at(2026, 6, 1, 11)),
    entry("one-off, ran", "crontab", cron("0 13 * * *", "UTC"), one_off=True, total_run_count=1,
          last_run_at=at(2026, 6, 1, 11)),
    entry("off", "crontab", cron("0 4 * * *", "UTC"), enabled=False),
    entry("everything", "crontab", cron("0 * * * *", "Europe/Warsaw"), **ALL),
    entry("over", "interval", {"every": 1, "period": "hours"}, expires=at(2026, 5, 1), last_run_at=at(2026, 4, 30)),
    entry("ends", "interval", {"every": 1, "period": "hours"}, expires=at(2026, 7, 1), last_run_at=at(2026, 6, 1, 11, 30)),
    entry("starts", "interval", {"every": 2, "period": "hours"}, start_time=at(2026, 6, 3, 5)),
    entry("missed", "crontab", cron("0 4 * * *", "UTC"), last_run_at=at(2026, 5, 31, 4, 0, 0, 200000)),
    entry("missed long ago", "crontab", cron("0 0 28 * *", "UTC"), last_run_at=at(2026, 4, 28, 0, 0, 1)),
    entry(LONG, "interval", {"every": 1, "period": "hours"}, last_run_at=NOW - timedelta(minutes=5)),
    entry("too short", "interval", {"every": 10, "period": "microseconds"}),
    entry("broken", "interval", {"every": 1, "period": "hours"}, args="[1,"),
]  # fmt: skip
# Asked about these, a scheduler would change them, or cannot read them.
NOT_ASKED = ("broken", "over", "clocked, ran", "one-off, ran", "off")
