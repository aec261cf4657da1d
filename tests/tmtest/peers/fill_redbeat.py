"""Fills a Redis server with RedBeat's own entries: `python -m tmtest.peers.fill_redbeat URL PREFIX`."""

from __future__ import annotations

import json
import sys
import warnings
from datetime import UTC, datetime, timedelta, timezone
from importlib.metadata import version
from typing import Any
from zoneinfo import ZoneInfo

import time_machine
from celery import Celery
from celery.schedules import crontab, schedule

from tmtest.peers import NOW, ZONE


def samples() -> list[tuple[str, Any, dict[str, Any], datetime | None]]:
    """Return name, schedule, options and last run of each entry."""
    from dateutil.rrule import FR, MO
    from redbeat.schedules import rrule

    def at(*parts: int) -> datetime:
        return datetime(*parts, tzinfo=UTC)  # type: ignore[arg-type]

    plus_two = timezone(timedelta(hours=2))
    options = {"queue": "slow", "priority": 3, "expires": 90, "headers": {"x": "y"}, "routing_key": "shop"}
    return [
        ("ten minutes", schedule(run_every=600), {}, at(2026, 6, 1, 11, 53, 20)),
        ("a day", schedule(run_every=timedelta(days=1)), {}, at(2026, 5, 31, 15, 37, 12)),
        ("two hours, rounded", schedule(run_every=7200, relative=True), {}, at(2026, 6, 1, 11, 5, 30)),
        ("a day, rounded", schedule(run_every=timedelta(days=1), relative=True), {}, at(2026, 5, 31, 22, 0, 0)),
        ("at nine", crontab(0, 9, day_of_week="mon-fri"), {}, at(2026, 6, 1, 7, 0, 0, 90000)),
        ("a list", crontab(minute=[5, 35], hour=[3, 15]), {}, at(2026, 6, 1, 1, 35)),
        ("around midnight", crontab(0, "22-2"), {}, at(2026, 6, 1, 0, 0)),
        ("missed", crontab(0, 4), {}, at(2026, 5, 31, 2, 0, 0, 200000)),
        ("everything", crontab("*/15"), {"options": options, "args": ["sales", at(2026, 1, 1)], "kwargs": {"k": 1}},
         at(2026, 6, 1, 11, 45)),
        ("ends", crontab(0), {"options": {"expires": at(2026, 7, 1)}}, at(2026, 6, 1, 11)),
        ("off", crontab(0), {"enabled": False}, at(2026, 6, 1, 11)),
        ("rule", rrule("DAILY", dtstart=at(2026, 1, 1, 9, 30), byweekday=(MO, FR)), {}, at(2026, 6, 1, 9, 30)),
        ("rule at +2", rrule("MONTHLY", dtstart=datetime(2026, 1, 31, 10, tzinfo=plus_two), bymonthday=-1), {},
         at(2026, 5, 31, 8)),
        ("rule that counts", rrule("WEEKLY", dtstart=at(2026, 5, 4, 8), interval=2, count=4), {}, at(2026, 5, 18, 8)),
        ("rule until", rrule("HOURLY", dtstart=at(2026, 6, 1), until=at(2026, 6, 1, 18), byminute=[0, 30]), {},
         at(2026, 6, 1, 11, 30)),
        ("rule that is over", rrule("DAILY", dtstart=at(2026, 5, 1), count=3), {}, at(2026, 5, 3)),
    ]  # fmt: skip


def fill(app: Celery) -> dict[str, Any]:
    """Save the entries, and return when RedBeat would run each next."""
    from redbeat import RedBeatSchedulerEntry

    found: dict[str, Any] = {}
    for name, rule, more, last_run_at in samples():
        rule._app = app
        entry = RedBeatSchedulerEntry(name, "effect", rule, app=app, **more)
        if name != "at nine":  # beat's own clock is in the app's zone
            last_run_at = last_run_at and last_run_at.astimezone(ZoneInfo(ZONE))
        entry.last_run_at = last_run_at
        entry.save()
        if last_run_at:
            RedBeatSchedulerEntry.from_key(entry.key, app=app)._next_instance(last_run_at=last_run_at)
        again = RedBeatSchedulerEntry.from_key(entry.key, app=app)
        again.schedule._app = app
        is_due, _ = again.is_due()
        remaining = again.schedule.remaining_estimate(again.last_run_at)
        found[name] = "due" if is_due else None if remaining is None else (NOW + remaining).isoformat()
    return found


def main() -> None:
    """Fill the server and say what is in it."""
    warnings.simplefilter("ignore")
    from redbeat.schedulers import get_redis

    app = Celery("tmtest", broker="memory://", set_as_current=True)
    app.conf.update(timezone=ZONE, redbeat_redis_url=sys.argv[1], redbeat_key_prefix=sys.argv[2])
    with time_machine.travel(NOW, tick=False):
        following = fill(app)
    client = get_redis(app)
    keys = client.zrange(f"{sys.argv[2]}:schedule", 0, -1)
    hashes = {key.removeprefix(sys.argv[2]): client.hgetall(key) for key in keys}
    print(json.dumps({"versions": {"celery-redbeat": version("celery-redbeat")}, "next": following, "hashes": hashes}))


if __name__ == "__main__":
    main()
