"""Schedules that nobody should state: each is read, and then answers soon and in order, or refused in words of ours."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from hypothesis import strategies as st
from tmtest.commands import Cli
from tmtest.rows import all_rows

from celery_tm import TimeManagement
from celery_tm.domain.definition import new_definition, stated
from celery_tm.domain.dst import Fold, Gap
from celery_tm.domain.schedule import Schedule, Zone, load_schedule, read_schedule
from celery_tm.errors import TmError
from fuzz.grammar import BOUNDS, INSTANTS, ODD_BOUNDS, SOLAR, SOLAR_PARTS, STATEMENTS, ZONES, near
from fuzz.limits import check_told, limited
from fuzz.values import Rude

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
NAME = "nightly"


def zones() -> st.SearchStrategy[Zone]:
    return st.builds(Zone, name=st.sampled_from(ZONES), gap=st.sampled_from(Gap), fold=st.none() | st.sampled_from(Fold))


def read(value: Any, zone: Zone) -> Schedule | None:
    """Return the schedule that a statement means, or None where it is refused as it should be."""
    with limited():
        try:
            return read_schedule(value, zone, name=NAME)
        except TmError as error:
            check_told(error)
            return None


def check_walk(rule: Any, since: datetime) -> None:
    """Ask a schedule for a few instants, one question at a time."""
    found, at = [], since
    for _ in range(4):
        with limited():
            following = rule.next_after(at)
        if following is None:
            break
        assert following > at
        assert following.utcoffset() == timedelta(0)
        found.append(following)
        at = following
    with limited(10):
        until = found[-1] if found else since
        assert list(islice(rule.between(since, until), 9)) == found
    assert all(earlier < later for earlier, later in pairwise(found))


def check_again(rule: Schedule, zone: Zone) -> None:
    """Hold a schedule against what the database gives back of it."""
    again = load_schedule(rule.kind, rule.expression, zone, name=NAME)
    assert again == rule
    assert (again.kind, again.expression) == (rule.kind, rule.expression)
    assert rule.describe()


def test_a_statement_is_a_schedule_or_refused(tried: Callable[..., Any]) -> None:
    seen: set[str] = set()

    def check(value: Any, zone: Zone, since: datetime) -> None:
        rule = read(value, zone)
        seen.add(rule.kind if rule else "refused")
        if rule:
            check_walk(rule, since)
            check_walk(rule, NOON)
            check_again(rule, zone)

    tried(25, value=STATEMENTS, zone=zones(), since=INSTANTS)(check)
    assert seen >= {"refused", "cron", "interval", "iso8601", "once", "window", "rrule"}, seen


def test_the_sun_of_any_place_is_one_or_refused(tried: Callable[..., Any]) -> None:
    seen: set[bool] = set()

    def check(value: Any, since: datetime) -> None:
        rule = read(value, Zone())
        seen.add(rule is None)
        if rule:
            check_walk(rule, since)
            check_again(rule, Zone())

    tried(2, value=SOLAR | near(SOLAR) | SOLAR_PARTS, since=INSTANTS)(check)
    assert seen == {True, False}


def test_bounds_and_exclusions_are_kept_or_refused(tried: Callable[..., Any]) -> None:
    """The whole of what a definition says about time, without a database."""
    seen: set[bool] = set()

    def check(value: Any, bounds: dict[str, Any], now: datetime) -> None:
        with limited(4):
            try:
                made = new_definition(
                    id="x", name=NAME, values={"task": "effect", "schedule": value} | bounds, now=now, actor=None
                )
            except TmError as error:
                check_told(error)
                seen.add(False)
                return
        seen.add(True)
        check_walk(made.timeline, now)
        for at in islice(made.timeline.between(now, datetime.max.replace(tzinfo=UTC)), 3):
            assert made.starts_at is None or at >= made.starts_at
            assert made.ends_at is None or at <= made.ends_at

    right = st.fixed_dictionaries({}, optional=BOUNDS)
    odd = st.fixed_dictionaries({}, optional=ODD_BOUNDS)
    tried(15, value=STATEMENTS, bounds=right | odd, now=st.just(NOON) | INSTANTS)(check)
    assert seen == {True, False}


@pytest.mark.parametrize("kind", ["sqlite", "postgresql", "mysql"])
def test_what_is_stated_is_stored_exported_and_loaded_again_or_leaves_nothing(
    kind: str, app_on: Callable[[str], Celery], tried: Callable[..., Any], tmp_path: Path
) -> None:
    app = app_on(kind)
    tm, cli, file = TimeManagement(app), Cli(app), tmp_path / "exported.toml"
    empty, seen = all_rows(tm), set[bool]()

    def check(value: Any, bounds: dict[str, Any]) -> None:
        try:
            made = tm.definitions.add(name=NAME, task="effect", schedule=value, **bounds)
        except TmError as error:
            check_told(error)
            seen.add(False)
            assert all_rows(tm) == empty
            return
        seen.add(True)
        assert tm.definitions.get(NAME) == made
        assert tm.definitions.get(NAME).rule == made.rule
        file.write_text(cli.run("definitions", "export").stdout)
        tm.definitions.remove(NAME)
        tm.definitions.load(file)
        again = tm.definitions.get(NAME)
        assert stated(again) == stated(made)
        assert (again.rule, again.next_after(NOON)) == (made.rule, made.next_after(NOON))
        app_on(kind)

    right, odd = (st.fixed_dictionaries({}, optional=bounds) for bounds in (BOUNDS, ODD_BOUNDS))
    tried(3, value=STATEMENTS | SOLAR, bounds=right | right | odd)(check)
    assert seen == {True, False}


# Each of these hung, or got out as an error of Python's own, once.
START = "DTSTART:20260101T000000"
YEAR = [f"{date(2024, 1, 1) + timedelta(days=n):%m-%d}" for n in range(366)]
MOMENTS = [f"2000-01-01T00:00:00/2000-01-01T{n // 60 % 24:02d}:{n % 60:02d}:30" for n in range(4600)]
ODDEST = [10**5000, Rude(), "x" * 100_000]
KNOWN: dict[str, dict[str, Any]] = {
    "a count far away": {"schedule": f"{START} RRULE:FREQ=YEARLY;BYWEEKNO=53;COUNT=100000"},
    "many counts": {"schedule": f"{START} " + "RRULE:FREQ=SECONDLY;COUNT=100000 " * 20},
    "many rules that never fire": {"schedule": f"{START} " + "RRULE:FREQ=DAILY;BYMONTH=2;BYMONTHDAY=30 " * 90},
    "as many rules as may be": {"schedule": f"{START} " + "RRULE:FREQ=DAILY;BYMONTH=2;BYMONTHDAY=30 " * 4},
    "dates taken out that lie far apart": {
        "schedule": f"{START} RRULE:FREQ=DAILY;BYMONTH=2;BYMONTHDAY=29;BYDAY=MO EXDATE:"
        + ",".join(f"{year}0229T000000" for year in range(2028, 2980, 4) if year % 100 or not year % 400)
    },
    "a period of the whole calendar": {"schedule": "R/2026-01-01T00:00:00/P9999Y999999998D"},
    "a start before the calendar": {"schedule": "R/P1Y/0002-01-01T00:00:00+01:00"},
    "closed on every day of the year": {"schedule": "sunrise at 52,21", "excluded": YEAR},
    "closed on every day and often": {"schedule": "0 0 * * *", "excluded": YEAR + MOMENTS},
    "closed on most days": {"schedule": "sunrise at 52,21", "excluded": [day for day in YEAR if day != "02-29"]},
    "closed when the sun sets at the pole": {"schedule": "sunset at 89.99,21", "excluded": YEAR[244:300]},
    "the calendar's last instant elsewhere": {"schedule": "at 9999-12-31T23:59:59Z", "timezone": "Asia/Kathmandu"},
    **{f"{name} that cannot be shown, {number}": {"schedule": "@daily", name: odd}
       for name in ("timezone", "gap", "fold", "schedule") for number, odd in enumerate(ODDEST)},
    "a key that cannot be shown": {"schedule": {"kind": "interval", "every": "5m", 10**5000: 1}},
}  # fmt: skip


@pytest.mark.parametrize("name", KNOWN)
def test_what_once_hung_or_broke_does_not_any_more(name: str) -> None:
    with limited():
        try:
            made = new_definition(id="x", name=NAME, values={"task": "effect"} | KNOWN[name], now=NOON, actor=None)
        except TmError as error:
            check_told(error)
            return
    for at in (NOON, made.next_run_at or NOON, datetime.max.replace(tzinfo=UTC)):
        check_walk(made.timeline, at)
        assert isinstance(made.offset_at(at), int | None)
