"""Clock changes by the published rules: row after row, what a cron expression does where clocks are put forward or back.

Sources, read for their facts:

* Cronos: github.com/HangfireIO/Cronos, README.md, section "Daylight Saving Time", and the rows of
  tests/Cronos.Tests/CronExpressionFacts.cs. Its rules are our defaults: what falls into skipped time runs at the next
  valid time, once; in repeated time an expression with `*`, a range or a step in second, minute or hour runs in both
  passes, any other one in the first pass alone.
* Debian's cron 3.0pl1: cron(8), section "Notes", as in github.com/lalbornoz/pkg-cron, cron.8 (with its cron.c and entry.c
  where the manual is silent). A change of less than three hours is special for jobs whose minute and hour do not begin with
  `*`: each of their skipped minutes is made up for soon after the change, and none is repeated. Jobs with a `*` follow the
  new time at once. A larger change counts as a correction of the clock.

The column `debian` says where Debian's cron does something else. What is expected is always ours.
"""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import islice
from typing import NamedTuple
from zoneinfo import ZoneInfo

import pytest

from celery_tm.domain.dst import Fold, Gap, wall_to_utc
from celery_tm.domain.schedule import Zone, read_schedule

NEW_YORK, WARSAW, LORD_HOWE, CHATHAM = "America/New_York", "Europe/Warsaw", "Australia/Lord_Howe", "Pacific/Chatham"
CAIRO, HAVANA, GOOSE_BAY, AMMAN = "Africa/Cairo", "America/Havana", "America/Goose_Bay", "Asia/Amman"
ASUNCION, SANTIAGO, APIA, PYONGYANG = "America/Asuncion", "America/Santiago", "Pacific/Apia", "Asia/Pyongyang"

AGREES = "agrees"
NOT_MADE_UP = "has a *: what was skipped is not made up for"
EACH_MADE_UP = "makes up for each skipped time: runs twice soon after the change"
FIRST_PASS_ONLY = "a range that does not begin with * is a fixed time: runs in the first pass alone"
NO_SECONDS = "has no seconds"
NO_SUCH_SIGN = "has no such sign in its fields"
NO_CHOICE_SHIFT = "leaves no choice: runs soon after the change"
NO_CHOICE_FIRST = "leaves no choice: runs in the first pass"
NO_CHOICE_BOTH = "leaves no choice: runs in both passes"


class Row(NamedTuple):
    """From `after` on, an expression fires first at these local times, of the same year if they name none."""

    zone: str
    expression: str
    after: str
    fires: list[str]
    debian: str


def first_fires(row: Row, *, gap: Gap = Gap.SHIFT, fold: Fold | None = None) -> list[str]:
    """Return as many local times of the rule as the row has, with their offsets."""
    after = datetime.fromisoformat(row.after)
    shown = ZoneInfo(row.zone)
    assert after.astimezone(shown).replace(tzinfo=None) == after.replace(tzinfo=None), "no clock shows this local time"
    rule = read_schedule(row.expression, Zone(name=row.zone, gap=gap, fold=fold))
    instants = islice(rule.between(after, datetime(2099, 1, 1, tzinfo=UTC)), len(row.fires))
    return [text_of(instant.astimezone(shown)).removeprefix(f"{after.year}-") for instant in instants]


def text_of(local: datetime) -> str:
    return local.isoformat(" ", "seconds" if local.second else "minutes")


def name_of(value: object) -> str | None:
    return f"{value.zone} {value.expression} after {value.after}" if isinstance(value, Row) else None


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


# Clocks are put forward

FORWARD = [
    # Cronos' README and facts: New York, 13 March 2016, 02:00 -05:00 becomes 03:00 -04:00.
    Row(NEW_YORK, "30 2 * * *", "2016-03-12 02:30-05:00", ["03-13 03:00-04:00", "03-14 02:30-04:00"], AGREES),
    Row(NEW_YORK, "0 30 2 * * *", "2016-03-13 01:59:59-05:00", ["03-13 03:00-04:00", "03-14 02:30-04:00"], NO_SECONDS),
    Row(NEW_YORK, "*/30 * * * *", "2016-03-13 01:30-05:00", ["03-13 03:00-04:00", "03-13 03:30-04:00"], AGREES),
    Row(NEW_YORK, "*/30 */2 * * *", "2016-03-13 00:30-05:00", ["03-13 03:00-04:00", "03-13 04:00-04:00"], NOT_MADE_UP),
    Row(NEW_YORK, "1-58 */2 * * *", "2016-03-13 01:58-05:00", ["03-13 03:00-04:00", "03-13 04:01-04:00"], NOT_MADE_UP),
    Row(NEW_YORK, "0,30 0-23/2 * * *", "2016-03-13 00:30-05:00", ["03-13 03:00-04:00", "03-13 04:00-04:00"], EACH_MADE_UP),
    Row(NEW_YORK, "*/30 2 * * *", "2016-03-13 01:59-05:00", ["03-13 03:00-04:00", "03-14 02:00-04:00"], NOT_MADE_UP),
    Row(NEW_YORK, "0,30 2 * * *", "2016-03-12 02:30-05:00", ["03-13 03:00-04:00", "03-14 02:00-04:00"], EACH_MADE_UP),
    Row(NEW_YORK, "*/30 2 13 3 *", "2016-03-13 01:59-05:00", ["03-13 03:00-04:00", "2017-03-13 02:00-04:00"], NOT_MADE_UP),
    Row(NEW_YORK, "0,30 2 13 3 *", "2016-03-13 01:45-05:00", ["03-13 03:00-04:00", "2017-03-13 02:00-04:00"], EACH_MADE_UP),
    Row(NEW_YORK, "0 */2 * * *", "2016-03-13 00:00-05:00", ["03-13 03:00-04:00", "03-13 04:00-04:00"], NOT_MADE_UP),
    Row(NEW_YORK, "30 0-23/2 * * *", "2016-03-13 00:30-05:00", ["03-13 03:00-04:00", "03-13 04:30-04:00"], AGREES),
    Row(NEW_YORK, "0,59 * * * *", "2016-03-13 01:00-05:00", ["03-13 01:59-05:00", "03-13 03:00-04:00"], AGREES),
    Row(NEW_YORK, "30 * * 3 SUN#2", "2016-03-13 01:59-05:00", ["03-13 03:00-04:00", "03-13 03:30-04:00"], NO_SUCH_SIGN),
    # By the same rules, with our own expressions.
    Row(NEW_YORK, "30 * * * *", "2016-03-13 01:30-05:00", ["03-13 03:00-04:00", "03-13 03:30-04:00"], NOT_MADE_UP),
    Row(NEW_YORK, "0 0-6 * * *", "2016-03-13 01:00-05:00", ["03-13 03:00-04:00", "03-13 04:00-04:00"], EACH_MADE_UP),
    Row(NEW_YORK, "0 2,3 * * *", "2016-03-13 01:59-05:00", ["03-13 03:00-04:00", "03-14 02:00-04:00"], EACH_MADE_UP),
    Row(NEW_YORK, "0 3 * * *", "2016-03-13 01:59-05:00", ["03-13 03:00-04:00", "03-14 03:00-04:00"], AGREES),
    Row(NEW_YORK, "@hourly", "2016-03-13 01:00-05:00", ["03-13 03:00-04:00", "03-13 04:00-04:00"], AGREES),
    Row(NEW_YORK, "59 59 1 * * *", "2016-03-13 01:59-05:00", ["03-13 01:59:59-05:00", "03-14 01:59:59-04:00"], NO_SECONDS),
    Row(NEW_YORK, "*/20 * * * * *", "2016-03-13 01:59:40-05:00", ["03-13 03:00-04:00", "03-13 03:00:20-04:00"], NO_SECONDS),
    Row(NEW_YORK, "*/20 30 2 * * *", "2016-03-13 01:59-05:00", ["03-13 03:00-04:00", "03-14 02:30-04:00"], NO_SECONDS),
    # Warsaw, 31 March 2024, 02:00 +01:00 becomes 03:00 +02:00.
    Row(WARSAW, "30 2 * * *", "2024-03-30 02:30+01:00", ["03-31 03:00+02:00", "04-01 02:30+02:00"], AGREES),
    Row(WARSAW, "30 2 31 3 *", "2024-01-01 00:00+01:00", ["03-31 03:00+02:00", "2025-03-31 02:30+02:00"], AGREES),
    Row(WARSAW, "*/10 2 * * *", "2024-03-31 01:59+01:00", ["03-31 03:00+02:00", "04-01 02:00+02:00"], NOT_MADE_UP),
    # Cronos' facts: Lord Howe, 1 October 2017, 02:00 +10:30 becomes 02:30 +11:00.
    Row(LORD_HOWE, "*/30 * * * *", "2017-10-01 01:45+10:30", ["10-01 02:30+11:00", "10-01 03:00+11:00"], AGREES),
    Row(LORD_HOWE, "1-58 */2 * * *", "2017-10-01 01:59+10:30", ["10-01 02:30+11:00", "10-01 02:31+11:00"], AGREES),
    Row(LORD_HOWE, "0,30 2 * * *", "2017-10-01 01:59+10:30", ["10-01 02:30+11:00", "10-02 02:00+11:00"], EACH_MADE_UP),
    Row(LORD_HOWE, "30 2 * * *", "2017-10-01 01:59+10:30", ["10-01 02:30+11:00", "10-02 02:30+11:00"], AGREES),
    Row(LORD_HOWE, "0 */2 * * *", "2017-10-01 01:59+10:30", ["10-01 02:30+11:00", "10-01 04:00+11:00"], NOT_MADE_UP),
    Row(LORD_HOWE, "15 2 * * *", "2017-10-01 01:59+10:30", ["10-01 02:30+11:00", "10-02 02:15+11:00"], AGREES),
    # Chatham, 24 September 2023, 02:45 +12:45 becomes 03:45 +13:45.
    Row(CHATHAM, "0 3 * * *", "2023-09-23 12:00+12:45", ["09-24 03:45+13:45", "09-25 03:00+13:45"], AGREES),
    Row(CHATHAM, "45 2 * * *", "2023-09-24 02:44+12:45", ["09-24 03:45+13:45", "09-25 02:45+13:45"], AGREES),
    Row(CHATHAM, "44 2 * * *", "2023-09-23 12:00+12:45", ["09-24 02:44+12:45", "09-25 02:44+13:45"], AGREES),
    Row(CHATHAM, "*/30 3 * * *", "2023-09-24 02:30+12:45", ["09-24 03:45+13:45", "09-25 03:00+13:45"], NOT_MADE_UP),
    Row(CHATHAM, "*/30 * * * *", "2023-09-24 02:30+12:45", ["09-24 03:45+13:45", "09-24 04:00+13:45"], NOT_MADE_UP),
    Row(CHATHAM, "*/15 * * * *", "2023-09-24 02:30+12:45", ["09-24 03:45+13:45", "09-24 04:00+13:45"], AGREES),
    # Cairo, Friday 28 April 2023, 00:00 +02:00 becomes 01:00 +03:00.
    Row(CAIRO, "@daily", "2023-04-27 12:00+02:00", ["04-28 01:00+03:00", "04-29 00:00+03:00"], AGREES),
    Row(CAIRO, "0 0 * * 5", "2023-04-27 12:00+02:00", ["04-28 01:00+03:00", "05-05 00:00+03:00"], AGREES),
    Row(CAIRO, "0 0-6 * * *", "2023-04-27 23:59+02:00", ["04-28 01:00+03:00", "04-28 02:00+03:00"], EACH_MADE_UP),
    Row(CAIRO, "0 */2 * * *", "2023-04-27 22:00+02:00", ["04-28 01:00+03:00", "04-28 02:00+03:00"], NOT_MADE_UP),
    # Havana, 10 March 2024, 00:00 -05:00 becomes 01:00 -04:00.
    Row(HAVANA, "30 0 10 * *", "2024-03-09 23:59-05:00", ["03-10 01:00-04:00", "04-10 00:30-04:00"], AGREES),
    Row(HAVANA, "59 23 * * *", "2024-03-09 12:00-05:00", ["03-09 23:59-05:00", "03-10 23:59-04:00"], AGREES),
    # Goose Bay, 14 March 2010, 00:01 -04:00 becomes 01:01 -03:00.
    Row(GOOSE_BAY, "0 0 * * *", "2010-03-13 12:00-04:00", ["03-14 00:00-04:00", "03-15 00:00-03:00"], AGREES),
    Row(GOOSE_BAY, "1 0 * * *", "2010-03-14 00:00-04:00", ["03-14 01:01-03:00", "03-15 00:01-03:00"], AGREES),
    Row(GOOSE_BAY, "0 1 * * *", "2010-03-14 00:00-04:00", ["03-14 01:01-03:00", "03-15 01:00-03:00"], AGREES),
    Row(GOOSE_BAY, "*/30 * * * *", "2010-03-14 00:00-04:00", ["03-14 01:01-03:00", "03-14 01:30-03:00"], NOT_MADE_UP),
    # Cronos' facts: Jordan, 31 March 2017, 00:00 +02:00 becomes 01:00 +03:00.
    Row(AMMAN, "30 0 L * *", "2017-03-30 23:59:59.999999+02:00", ["03-31 01:00+03:00", "04-30 00:30+03:00"], NO_SUCH_SIGN),
    Row(AMMAN, "30 0 L * *", "2017-03-31 01:00+03:00", ["04-30 00:30+03:00"], NO_SUCH_SIGN),
    Row(AMMAN, "30 0 29 * *", "2019-03-28 23:59+02:00", ["03-29 01:00+03:00", "04-29 00:30+03:00"], AGREES),
    # Asuncion, 1 October 2017, 00:00 -04:00 becomes 01:00 -03:00.
    Row(ASUNCION, "@monthly", "2017-09-30 12:00-04:00", ["10-01 01:00-03:00", "11-01 00:00-03:00"], AGREES),
    # Samoa skipped 30 December 2011; for Debian that is a correction of the clock.
    Row(APIA, "0 10 * * *", "2011-12-29 12:00-10:00",
        ["12-31 00:00+14:00", "12-31 10:00+14:00"], "does not run on that day"),
]  # fmt: skip


@pytest.mark.parametrize("row", FORWARD, ids=name_of)
def test_what_falls_into_skipped_time_runs_once_at_the_next_valid_time(row: Row) -> None:
    assert first_fires(row) == row.fires


SKIPPED = [
    Row(NEW_YORK, "30 2 * * *", "2016-03-12 02:30-05:00", ["03-14 02:30-04:00"], NO_CHOICE_SHIFT),
    Row(NEW_YORK, "0 2,3 * * *", "2016-03-12 03:00-05:00", ["03-13 03:00-04:00", "03-14 02:00-04:00"], EACH_MADE_UP),
    Row(NEW_YORK, "30 * * * *", "2016-03-13 01:30-05:00", ["03-13 03:30-04:00", "03-13 04:30-04:00"], AGREES),
    Row(NEW_YORK, "0 */2 * * *", "2016-03-13 00:00-05:00", ["03-13 04:00-04:00"], AGREES),
    Row(NEW_YORK, "*/30 2 * * *", "2016-03-13 01:59-05:00", ["03-14 02:00-04:00"], AGREES),
    Row(NEW_YORK, "*/20 * * * * *", "2016-03-13 01:59:40-05:00", ["03-13 03:00-04:00"], NO_SECONDS),
    Row(WARSAW, "30 2 31 3 *", "2024-01-01 00:00+01:00", ["2025-03-31 02:30+02:00"], NO_CHOICE_SHIFT),
    Row(LORD_HOWE, "0,30 2 * * *", "2017-10-01 01:59+10:30", ["10-01 02:30+11:00", "10-02 02:00+11:00"], EACH_MADE_UP),
    Row(LORD_HOWE, "15 2 * * *", "2017-10-01 01:59+10:30", ["10-02 02:15+11:00"], NO_CHOICE_SHIFT),
    Row(CHATHAM, "0 3 * * *", "2023-09-23 12:00+12:45", ["09-25 03:00+13:45"], NO_CHOICE_SHIFT),
    Row(CHATHAM, "45 2,3 * * *", "2023-09-24 02:44+12:45", ["09-24 03:45+13:45", "09-25 02:45+13:45"], EACH_MADE_UP),
    Row(CAIRO, "0 0 * * 5", "2023-04-27 12:00+02:00", ["05-05 00:00+03:00"], NO_CHOICE_SHIFT),
    Row(HAVANA, "@daily", "2024-03-09 12:00-05:00", ["03-11 00:00-04:00"], NO_CHOICE_SHIFT),
    Row(GOOSE_BAY, "0 0,1 * * *", "2010-03-13 12:00-04:00", ["03-14 00:00-04:00", "03-15 00:00-03:00"], NO_CHOICE_SHIFT),
    Row(AMMAN, "30 0 L * *", "2017-03-30 23:59+02:00", ["04-30 00:30+03:00"], NO_SUCH_SIGN),
    Row(ASUNCION, "@monthly", "2017-09-30 12:00-04:00", ["11-01 00:00-03:00"], NO_CHOICE_SHIFT),
    Row(APIA, "0 10 * * *", "2011-12-29 12:00-10:00", ["12-31 10:00+14:00"], AGREES),
]  # fmt: skip


@pytest.mark.parametrize("row", SKIPPED, ids=name_of)
def test_with_gap_skip_what_falls_into_skipped_time_does_not_run_at_all(row: Row) -> None:
    assert first_fires(row, gap=Gap.SKIP) == row.fires


# Clocks are put back

BACK = [
    # Cronos' README and facts: New York, 6 November 2016, 02:00 -04:00 becomes 01:00 -05:00.
    Row(NEW_YORK, "30 * * * *", "2016-11-06 00:59:59-04:00",
        ["11-06 01:30-04:00", "11-06 01:30-05:00", "11-06 02:30-05:00"], AGREES),
    Row(NEW_YORK, "30 1 * * *", "2016-11-06 00:59:59-04:00", ["11-06 01:30-04:00", "11-07 01:30-05:00"], AGREES),
    Row(NEW_YORK, "*/30 */2 * * *", "2016-11-06 01:30-04:00", ["11-06 02:00-05:00", "11-06 02:30-05:00"], AGREES),
    Row(NEW_YORK, "0 */2 * * *", "2016-11-06 00:30-04:00", ["11-06 02:00-05:00", "11-06 04:00-05:00"], AGREES),
    Row(NEW_YORK, "0 2-3 * * *", "2016-11-06 00:30-04:00", ["11-06 02:00-05:00", "11-06 03:00-05:00"], AGREES),
    Row(NEW_YORK, "*/30 * * * *", "2016-11-06 01:00-04:00",
        ["11-06 01:30-04:00", "11-06 01:00-05:00", "11-06 01:30-05:00", "11-06 02:00-05:00"], AGREES),
    Row(NEW_YORK, "30 */1 * * *", "2016-11-06 01:30-04:00", ["11-06 01:30-05:00", "11-06 02:30-05:00"], AGREES),
    Row(NEW_YORK, "30 1-9 * * *", "2016-11-06 01:30-04:00", ["11-06 01:30-05:00", "11-06 02:30-05:00"], FIRST_PASS_ONLY),
    Row(NEW_YORK, "*/30 1 * * *", "2016-11-06 01:00-04:00",
        ["11-06 01:30-04:00", "11-06 01:00-05:00", "11-06 01:30-05:00", "11-07 01:00-05:00"], AGREES),
    Row(NEW_YORK, "0-30 1 * * *", "2016-11-06 01:29-04:00",
        ["11-06 01:30-04:00", "11-06 01:00-05:00", "11-06 01:01-05:00"], FIRST_PASS_ONLY),
    Row(NEW_YORK, "*/30 0 1 * * *", "2016-11-06 01:00:30-04:00",
        ["11-06 01:00-05:00", "11-06 01:00:30-05:00", "11-07 01:00-05:00"], NO_SECONDS),
    Row(NEW_YORK, "0-30 0 1 * * *", "2016-11-06 01:00:30-04:00", ["11-06 01:00-05:00", "11-06 01:00:01-05:00"], NO_SECONDS),
    Row(NEW_YORK, "0,30 1 * * *", "2016-11-06 01:00-04:00", ["11-06 01:30-04:00", "11-07 01:00-05:00"], AGREES),
    Row(NEW_YORK, "0,30 1 * 1-11/2 *", "2016-11-06 01:30-04:00", ["11-07 01:00-05:00", "11-07 01:30-05:00"], AGREES),
    Row(NEW_YORK, "0 1 6 11 *", "2015-11-07 01:00-05:00", ["2016-11-06 01:00-04:00", "2017-11-06 01:00-05:00"], AGREES),
    Row(NEW_YORK, "0 2 * * *", "2016-11-06 01:45-04:00", ["11-06 02:00-05:00", "11-07 02:00-05:00"], AGREES),
    Row(NEW_YORK, "59 59 1 * * *", "2016-11-06 01:59:59.999999-05:00", ["11-07 01:59:59-05:00"], NO_SECONDS),
    # By the same rules, with our own expressions.
    Row(NEW_YORK, "@hourly", "2016-11-06 00:00-04:00",
        ["11-06 01:00-04:00", "11-06 01:00-05:00", "11-06 02:00-05:00"], AGREES),
    Row(NEW_YORK, "0 0-6 * * *", "2016-11-06 00:00-04:00",
        ["11-06 01:00-04:00", "11-06 01:00-05:00", "11-06 02:00-05:00"], FIRST_PASS_ONLY),
    Row(NEW_YORK, "*/10 1 * * *", "2016-11-06 01:40-04:00",
        ["11-06 01:50-04:00", "11-06 01:00-05:00", "11-06 01:10-05:00"], AGREES),
    Row(NEW_YORK, "*/20 * * * * *", "2016-11-06 01:59:20-04:00",
        ["11-06 01:59:40-04:00", "11-06 01:00-05:00", "11-06 01:00:20-05:00"], NO_SECONDS),
    # Warsaw, 27 October 2024, 03:00 +02:00 becomes 02:00 +01:00.
    Row(WARSAW, "30 2 * * *", "2024-10-26 12:00+02:00", ["10-27 02:30+02:00", "10-28 02:30+01:00"], AGREES),
    Row(WARSAW, "0 2 * * 0", "2024-10-26 12:00+02:00", ["10-27 02:00+02:00", "11-03 02:00+01:00"], AGREES),
    Row(WARSAW, "0 0-6 * * *", "2024-10-27 01:00+02:00",
        ["10-27 02:00+02:00", "10-27 02:00+01:00", "10-27 03:00+01:00"], FIRST_PASS_ONLY),
    # Cronos' facts: Lord Howe, 2 April 2017, 02:00 +11:00 becomes 01:30 +10:30.
    Row(LORD_HOWE, "*/30 */2 * * *", "2017-04-02 01:30+11:00", ["04-02 02:00+10:30", "04-02 02:30+10:30"], AGREES),
    Row(LORD_HOWE, "30 * * * *", "2017-04-02 01:30+11:00", ["04-02 01:30+10:30", "04-02 02:30+10:30"], AGREES),
    Row(LORD_HOWE, "*/30 1 * * *", "2017-04-02 01:20+11:00",
        ["04-02 01:30+11:00", "04-02 01:30+10:30", "04-03 01:00+10:30"], AGREES),
    Row(LORD_HOWE, "0-30 1 * * *", "2017-04-02 01:30+11:00", ["04-02 01:30+10:30", "04-03 01:00+10:30"], FIRST_PASS_ONLY),
    Row(LORD_HOWE, "*/30 30 1 * * *", "2017-04-02 01:30:30+11:00",
        ["04-02 01:30+10:30", "04-02 01:30:30+10:30", "04-03 01:30+10:30"], NO_SECONDS),
    Row(LORD_HOWE, "0,30 1 * * *", "2017-04-02 01:20+11:00", ["04-02 01:30+11:00", "04-03 01:00+10:30"], AGREES),
    Row(LORD_HOWE, "30 1 * * *", "2017-04-02 01:30+10:30", ["04-03 01:30+10:30"], AGREES),
    # Chatham, 7 April 2024, 03:45 +13:45 becomes 02:45 +12:45.
    Row(CHATHAM, "0 3 * * *", "2024-04-06 12:00+13:45", ["04-07 03:00+13:45", "04-08 03:00+12:45"], AGREES),
    Row(CHATHAM, "45 2,3 * * *", "2024-04-06 12:00+13:45", ["04-07 02:45+13:45", "04-07 03:45+12:45"], AGREES),
    Row(CHATHAM, "*/30 * * * *", "2024-04-07 03:00+13:45",
        ["04-07 03:30+13:45", "04-07 03:00+12:45", "04-07 03:30+12:45", "04-07 04:00+12:45"], AGREES),
    # Cairo, Friday 27 October 2023, 00:00 +03:00 becomes 23:00 +02:00 on Thursday.
    Row(CAIRO, "30 23 * * *", "2023-10-26 12:00+03:00", ["10-26 23:30+03:00", "10-27 23:30+02:00"], AGREES),
    Row(CAIRO, "0 0 * * 5", "2023-10-26 12:00+03:00", ["10-27 00:00+02:00", "11-03 00:00+02:00"], AGREES),
    Row(CAIRO, "*/30 23 * * 4", "2023-10-26 23:00+03:00",
        ["10-26 23:30+03:00", "10-26 23:00+02:00", "10-26 23:30+02:00", "11-02 23:00+02:00"], AGREES),
    # Havana, 3 November 2024, 01:00 -04:00 becomes 00:00 -05:00: the day begins twice.
    Row(HAVANA, "@daily", "2024-11-02 12:00-04:00", ["11-03 00:00-04:00", "11-04 00:00-05:00"], AGREES),
    Row(HAVANA, "0 1 * * *", "2024-11-02 12:00-04:00", ["11-03 01:00-05:00", "11-04 01:00-05:00"], AGREES),
    Row(HAVANA, "@hourly", "2024-11-02 23:00-04:00",
        ["11-03 00:00-04:00", "11-03 00:00-05:00", "11-03 01:00-05:00"], AGREES),
    # Goose Bay, 7 November 2010, 00:01 -03:00 becomes 23:01 -04:00 on the day before.
    Row(GOOSE_BAY, "0 0 * * *", "2010-11-06 12:00-03:00", ["11-07 00:00-03:00", "11-08 00:00-04:00"], AGREES),
    Row(GOOSE_BAY, "0 23 * * *", "2010-11-06 12:00-03:00", ["11-06 23:00-03:00", "11-07 23:00-04:00"], AGREES),
    Row(GOOSE_BAY, "0 * * * *", "2010-11-06 22:00-03:00",
        ["11-06 23:00-03:00", "11-07 00:00-03:00", "11-07 00:00-04:00", "11-07 01:00-04:00"], AGREES),
    # Cronos' facts: Jordan, 31 October 2014, 01:00 +03:00 becomes 00:00 +02:00.
    Row(AMMAN, "30 0 L * *", "2014-10-31 00:00+03:00", ["10-31 00:30+03:00", "11-30 00:30+02:00"], NO_SUCH_SIGN),
    Row(AMMAN, "30 0 L * *", "2014-10-31 00:29+02:00", ["11-30 00:30+02:00"], NO_SUCH_SIGN),
    # Asuncion, 26 March 2017, 00:00 -03:00 becomes 23:00 -04:00 on the day before.
    Row(ASUNCION, "30 23 * * 6", "2017-03-25 12:00-03:00", ["03-25 23:30-03:00", "04-01 23:30-04:00"], AGREES),
    # Cronos' facts: Chile, 14 May 2017, 00:00 -03:00 becomes 23:00 -04:00 on the day before.
    Row(SANTIAGO, "30 23 * * *", "2017-05-13 23:59:59.999999-03:00", ["05-14 23:30-04:00"], AGREES),
    # North Korea, 15 August 2015, 00:00 +09:00 becomes 23:30 +08:30 on the day before, and it is not summer time.
    Row(PYONGYANG, "45 23 * * *", "2015-08-14 12:00+09:00", ["08-14 23:45+09:00", "08-15 23:45+08:30"],
        "notices a new offset only when summer time begins or ends (cron.c, set_time)"),
]  # fmt: skip


@pytest.mark.parametrize("row", BACK, ids=name_of)
def test_in_repeated_time_a_fixed_time_runs_once_and_an_interval_goes_on(row: Row) -> None:
    assert first_fires(row) == row.fires


PASSES = [
    (Fold.FIRST, Row(NEW_YORK, "30 1 * * *", "2016-11-06 00:00-04:00", ["11-06 01:30-04:00", "11-07 01:30-05:00"], AGREES)),
    (Fold.SECOND, Row(NEW_YORK, "30 1 * * *", "2016-11-06 00:00-04:00",
                      ["11-06 01:30-05:00", "11-07 01:30-05:00"], NO_CHOICE_FIRST)),
    (Fold.BOTH, Row(NEW_YORK, "30 1 * * *", "2016-11-06 00:00-04:00",
                    ["11-06 01:30-04:00", "11-06 01:30-05:00", "11-07 01:30-05:00"], NO_CHOICE_FIRST)),
    (Fold.FIRST, Row(NEW_YORK, "*/30 * * * *", "2016-11-06 01:00-04:00",
                     ["11-06 01:30-04:00", "11-06 02:00-05:00"], NO_CHOICE_BOTH)),
    (Fold.SECOND, Row(NEW_YORK, "*/30 * * * *", "2016-11-06 00:30-04:00",
                      ["11-06 01:00-05:00", "11-06 01:30-05:00"], NO_CHOICE_BOTH)),
    (Fold.BOTH, Row(NEW_YORK, "*/30 * * * *", "2016-11-06 01:00-04:00", ["11-06 01:30-04:00", "11-06 01:00-05:00"], AGREES)),
    (Fold.SECOND, Row(LORD_HOWE, "15,45 1 * * *", "2017-04-02 01:00+11:00",
                      ["04-02 01:15+11:00", "04-02 01:45+10:30"], NO_CHOICE_FIRST)),
    (Fold.BOTH, Row(LORD_HOWE, "15,45 1 * * *", "2017-04-02 01:15+11:00",
                    ["04-02 01:45+11:00", "04-02 01:45+10:30", "04-03 01:15+10:30"], NO_CHOICE_FIRST)),
    (Fold.SECOND, Row(CHATHAM, "0 3 * * *", "2024-04-06 12:00+13:45",
                      ["04-07 03:00+12:45", "04-08 03:00+12:45"], NO_CHOICE_FIRST)),
    (Fold.SECOND, Row(CAIRO, "30 23 * * 4", "2023-10-26 12:00+03:00",
                      ["10-26 23:30+02:00", "11-02 23:30+02:00"], NO_CHOICE_FIRST)),
    (Fold.SECOND, Row(HAVANA, "@daily", "2024-11-02 12:00-04:00",
                      ["11-03 00:00-05:00", "11-04 00:00-05:00"], NO_CHOICE_FIRST)),
    (Fold.BOTH, Row(HAVANA, "@daily", "2024-11-02 12:00-04:00",
                    ["11-03 00:00-04:00", "11-03 00:00-05:00"], NO_CHOICE_FIRST)),
    (Fold.FIRST, Row(HAVANA, "@hourly", "2024-11-02 23:00-04:00",
                     ["11-03 00:00-04:00", "11-03 01:00-05:00"], NO_CHOICE_BOTH)),
    (Fold.SECOND, Row(GOOSE_BAY, "0 0 * * *", "2010-11-06 12:00-03:00",
                      ["11-07 00:00-04:00", "11-08 00:00-04:00"], NO_CHOICE_FIRST)),
    (Fold.BOTH, Row(AMMAN, "30 0 L * *", "2014-10-31 00:00+03:00",
                    ["10-31 00:30+03:00", "10-31 00:30+02:00", "11-30 00:30+02:00"], NO_SUCH_SIGN)),
]  # fmt: skip


@pytest.mark.parametrize(("fold", "row"), PASSES, ids=name_of)
def test_a_stated_fold_policy_chooses_the_pass(fold: Fold, row: Row) -> None:
    assert first_fires(row, fold=fold) == row.fires


# Where the base stands: in Warsaw on 27 October 2024 02:30 comes at 00:30 and at 01:30 UTC. Debian has no base: it is awake.

BASES = [
    ("02:29+02:00", {Fold.FIRST: "27 02:30+02:00", Fold.SECOND: "27 02:30+01:00", Fold.BOTH: "27 02:30+02:00"}),
    ("02:30+02:00", {Fold.FIRST: "28 02:30+01:00", Fold.SECOND: "27 02:30+01:00", Fold.BOTH: "27 02:30+01:00"}),
    ("02:59+02:00", {Fold.FIRST: "28 02:30+01:00", Fold.SECOND: "27 02:30+01:00", Fold.BOTH: "27 02:30+01:00"}),
    ("02:00+01:00", {Fold.FIRST: "28 02:30+01:00", Fold.SECOND: "27 02:30+01:00", Fold.BOTH: "27 02:30+01:00"}),
    ("02:29+01:00", {Fold.FIRST: "28 02:30+01:00", Fold.SECOND: "27 02:30+01:00", Fold.BOTH: "27 02:30+01:00"}),
    ("02:30+01:00", {Fold.FIRST: "28 02:30+01:00", Fold.SECOND: "28 02:30+01:00", Fold.BOTH: "28 02:30+01:00"}),
    ("03:00+01:00", {Fold.FIRST: "28 02:30+01:00", Fold.SECOND: "28 02:30+01:00", Fold.BOTH: "28 02:30+01:00"}),
]


@pytest.mark.parametrize("fold", Fold)
@pytest.mark.parametrize(("base", "expected"), BASES, ids=[base for base, _ in BASES])
def test_a_base_inside_the_repeated_hour_never_yields_a_past_time(base: str, expected: dict[Fold, str], fold: Fold) -> None:
    row = Row(WARSAW, "30 2 * * *", f"2024-10-27 {base}", [f"10-{expected[fold]}"], AGREES)

    assert first_fires(row, fold=fold) == row.fires


@pytest.mark.parametrize("base", ["01:59:59+01:00", "01:59:59.999999+01:00", "03:00+02:00", "03:00:00.000001+02:00"])
@pytest.mark.parametrize("gap", Gap)
def test_a_base_next_to_the_skipped_hour_yields_its_end_once_at_most(base: str, gap: Gap) -> None:
    before = base.endswith("+01:00")
    first = "03-31 03:00+02:00" if before and gap is Gap.SHIFT else "04-01 02:30+02:00"
    row = Row(WARSAW, "30 2 * * *", f"2024-03-31 {base}", [first], NO_CHOICE_SHIFT)

    assert first_fires(row, gap=gap) == row.fires


# One local time

TIMES = [
    (NEW_YORK, "2016-07-01 12:00", Gap.SHIFT, Fold.FIRST, "2016-07-01 12:00-04:00"),
    (NEW_YORK, "2016-03-13 02:30", Gap.SHIFT, Fold.FIRST, "2016-03-13 03:00-04:00"),
    (NEW_YORK, "2016-03-13 02:30", Gap.SKIP, Fold.FIRST, None),
    (NEW_YORK, "2016-03-13 02:00", Gap.SKIP, Fold.BOTH, None),
    (NEW_YORK, "2016-03-13 03:00", Gap.SKIP, Fold.BOTH, "2016-03-13 03:00-04:00"),
    (NEW_YORK, "2016-11-06 01:30", Gap.SHIFT, Fold.FIRST, "2016-11-06 01:30-04:00"),
    (NEW_YORK, "2016-11-06 01:30", Gap.SHIFT, Fold.SECOND, "2016-11-06 01:30-05:00"),
    (NEW_YORK, "2016-11-06 01:30", Gap.SHIFT, Fold.BOTH, "2016-11-06 01:30-04:00"),
    (NEW_YORK, "2016-11-06 02:00", Gap.SHIFT, Fold.FIRST, "2016-11-06 02:00-05:00"),
    (LORD_HOWE, "2017-10-01 02:29:59.5", Gap.SHIFT, Fold.FIRST, "2017-10-01 02:30+11:00"),
    (CHATHAM, "2023-09-24 02:45", Gap.SHIFT, Fold.FIRST, "2023-09-24 03:45+13:45"),
    (HAVANA, "2024-11-03 00:00", Gap.SKIP, Fold.SECOND, "2024-11-03 00:00-05:00"),
    (GOOSE_BAY, "2010-11-07 00:01", Gap.SHIFT, Fold.FIRST, "2010-11-07 00:01-04:00"),
    (APIA, "2011-12-30 12:00", Gap.SHIFT, Fold.FIRST, "2011-12-31 00:00+14:00"),
    (APIA, "2011-12-30 12:00", Gap.SKIP, Fold.FIRST, None),
]


@pytest.mark.parametrize(("zone", "wall", "gap", "fold", "expected"), TIMES)
def test_one_local_time_means_one_instant_or_none(zone: str, wall: str, gap: Gap, fold: Fold, expected: str | None) -> None:
    instant = wall_to_utc(datetime.fromisoformat(wall), zone=ZoneInfo(zone), gap=gap, fold=fold)

    assert instant == (utc(expected) if expected else None)


def test_a_local_time_already_marked_as_the_second_one_is_read_by_the_policy_alone() -> None:
    wall = datetime(2016, 11, 6, 1, 30, fold=1)

    assert wall_to_utc(wall, zone=ZoneInfo(NEW_YORK), gap=Gap.SHIFT, fold=Fold.FIRST) == utc("2016-11-06 01:30-04:00")
