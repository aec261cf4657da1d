"""Windows: every so often between two times of day, on some days."""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_tm.domain.dst import Fold, Gap
from celery_tm.domain.schedule import Window, Zone, load_schedule, read_schedule
from celery_tm.domain.schedule.window import DAYS
from celery_tm.errors import InvalidValue

UTC_ZONE = Zone()
NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)  # a Thursday


def fires(value: Any, after: str, until: str, zone: Zone = UTC_ZONE) -> list[str]:
    rule = read_schedule(value, zone)
    assert isinstance(rule, Window)
    ends = (datetime.fromisoformat(text).replace(tzinfo=UTC) for text in (after, until))
    return [instant.strftime("%d %H:%M") for instant in rule.between(*ends)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("every 4h from 08:00 until 18:00", ["01 08:00", "01 12:00", "01 16:00", "02 08:00", "02 12:00", "02 16:00"]),
        ("every 5h from 08:00 until 18:00", ["01 08:00", "01 13:00", "01 18:00", "02 08:00", "02 13:00", "02 18:00"]),
        ("every 24h from 08:00 until 18:00", ["01 08:00", "02 08:00"]),
        ("every 12h from 00:00 until 23:59", ["01 12:00", "02 00:00", "02 12:00"]),
        ("every 4h from 22:00 until 06:00", ["01 02:00", "01 06:00", "01 22:00", "02 02:00", "02 06:00", "02 22:00"]),
        ("every 4h from 22:00 until 06:00 on thu", ["01 22:00", "02 02:00", "02 06:00"]),
        ("every 4h from 22:00 until 06:00 on wed", ["01 02:00", "01 06:00"]),
        ("every 6h from 06:30 until 12:30 on fri-sun", ["02 06:30", "02 12:30"]),
        ("every 90m from 10:15 until 13:00 on thu", ["01 10:15", "01 11:45"]),
    ],
)
def test_a_window_fires_in_steps_from_its_opening(text: str, expected: list[str]) -> None:
    assert fires(text, "2026-01-01 00:00", "2026-01-02 23:59") == expected


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (
            {"every": "2h", "from": "08:00", "until": "18:00", "days": "mon-fri"},
            "every 2h from 08:00 until 18:00 on mon-fri",
        ),
        ({"every": timedelta(hours=2), "from": time(8), "until": time(18, 0, 30)}, "every 2h from 08:00 until 18:00:30"),
        (
            {"every": 90, "from": "08:00:00", "until": "18:00", "days": ["mon", "wed"]},
            "every 1m 30s from 08:00 until 18:00 on mon,wed",
        ),
        (
            {"every": "2h", "from": "08:00", "until": "18:00", "days": "Fri-Mon"},
            "every 2h from 08:00 until 18:00 on mon,fri-sun",
        ),
        (
            {"every": "2h", "from": "08:00", "until": "18:00", "days": "sunday, saturday"},
            "every 2h from 08:00 until 18:00 on sat,sun",
        ),
        (
            {"every": "2h", "from": "08:00", "until": "18:00", "days": ["mon-wed", "fri"]},
            "every 2h from 08:00 until 18:00 on mon-wed,fri",
        ),
        ({"every": "2h", "from": "08:00", "until": "18:00", "days": "mon-sun"}, "every 2h from 08:00 until 18:00"),
    ],
)
def test_a_mapping_means_the_same_as_the_text_it_is_kept_as(given: dict[str, Any], text: str) -> None:
    rule = read_schedule({"kind": "window", **given}, Zone())

    assert rule.expression == text.removesuffix(" on mon-sun")
    assert read_schedule(text, Zone()) == rule == load_schedule("window", rule.expression, Zone())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("every 2h from 08:00 until 18:00 on mon-fri",
         "every 2 hours from 08:00 until 18:00 on Monday to Friday in Europe/Warsaw"),
        ("every 1m from 22:00 until 06:00", "every minute from 22:00 until 06:00 every day in Europe/Warsaw"),
        ("every 30s from 08:00:30 until 09:00 on sat,sun",
         "every 30 seconds from 08:00:30 until 09:00 on Saturday and Sunday in Europe/Warsaw"),
    ],
)  # fmt: skip
def test_a_window_says_in_words_when_it_fires(text: str, words: str) -> None:
    assert read_schedule(text, Zone(name="Europe/Warsaw")).describe() == words


# Clocks: Warsaw skips 02:00-03:00 on 29 March and repeats it on 25 October


def test_in_skipped_time_a_window_fires_at_the_first_valid_instant() -> None:
    text, zone = "every 30m from 01:00 until 03:30", Zone(name="Europe/Warsaw")
    skipping = Zone(name="Europe/Warsaw", gap=Gap.SKIP)

    assert fires(text, "2026-03-28 12:00", "2026-03-29 12:00", zone) == ["29 00:00", "29 00:30", "29 01:00", "29 01:30"]
    assert fires("every 30m from 02:15 until 02:45", "2026-03-29 00:00", "2026-03-29 12:00", zone) == ["29 01:00"]
    assert fires("every 30m from 02:15 until 02:45", "2026-03-29 00:00", "2026-03-29 12:00", skipping) == []


@pytest.mark.parametrize(
    ("fold", "expected"),
    [
        (None, ["25 00:00", "25 00:30", "25 01:00", "25 01:30", "25 02:00"]),
        (Fold.FIRST, ["25 00:00", "25 00:30", "25 02:00"]),
        (Fold.SECOND, ["25 01:00", "25 01:30", "25 02:00"]),
    ],
)
def test_in_repeated_time_a_window_fires_in_both_passes_unless_told_otherwise(
    fold: Fold | None, expected: list[str]
) -> None:
    zone = Zone(name="Europe/Warsaw", fold=fold)

    assert fires("every 30m from 02:00 until 03:00", "2026-10-24 12:00", "2026-10-25 12:00", zone) == expected


@settings(max_examples=150, deadline=None)
@given(
    every=st.integers(1, 1440),
    opens=st.integers(0, 1439),
    closes=st.integers(0, 1439),
    days=st.sets(st.integers(0, 6), min_size=1),
    after=st.integers(0, 20 * 1440),
)
def test_a_window_fires_where_counting_minute_by_minute_says(
    every: int, opens: int, closes: int, days: set[int], after: int
) -> None:
    if opens == closes:
        return
    length = (closes - opens) % 1440
    text = f"every {every}m from {opens // 60:02d}:{opens % 60:02d} until {closes // 60:02d}:{closes % 60:02d}"
    rule = read_schedule(f"{text} on {','.join(DAYS[day] for day in days)}", Zone())
    since = NEW_YEAR + timedelta(minutes=after)

    def is_due(minute: int) -> bool:
        """Look at the windows that opened today and yesterday."""
        for day in (minute // 1440, minute // 1440 - 1):
            into = minute - day * 1440 - opens
            if (day + 3) % 7 in days and 0 <= into <= length and into % every == 0:
                return True
        return False

    expected = next(minute for minute in range(after + 1, after + 12 * 1440) if is_due(minute))
    assert rule.next_after(since) == NEW_YEAR + timedelta(minutes=expected)


# What is refused


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"every": "2h", "from": "08:00"}, ["no 'until'", "'until': '18:00'"]),
        ({"from": "08:00", "until": "18:00"}, ["no 'every'"]),
        ({"every": "2h", "until": "18:00"}, ["no 'from'"]),
        ({"every": "2h", "from": "08:00", "until": "18:00", "day": "mon"}, ["no key 'day'", "did you mean 'days'"]),
        ({"every": "soon", "from": "08:00", "until": "18:00"}, ["schedule.every", "'soon'"]),
        ({"every": "500ms", "from": "08:00", "until": "18:00"}, ["schedule.every", "1s-24h"]),
        ({"every": "1.5s", "from": "08:00", "until": "18:00"}, ["schedule.every", "whole seconds"]),
        ({"every": "25h", "from": "08:00", "until": "18:00"}, ["schedule.every", "1s-24h"]),
        ({"every": "2h", "from": "8:00", "until": "18:00"}, ["schedule.from", "'8:00'", "HH:MM"]),
        ({"every": "2h", "from": "24:00", "until": "18:00"}, ["schedule.from", "'24:00'"]),
        ({"every": "2h", "from": "08:00", "until": "18:60"}, ["schedule.until", "'18:60'"]),
        ({"every": "2h", "from": "08:00", "until": 1080}, ["schedule.until", "1080", "quotes"]),
        ({"every": "2h", "from": None, "until": "18:00"}, ["schedule.from", "None"]),
        ({"every": "2h", "from": "٠٨:00", "until": "18:00"}, ["schedule.from"]),
        ({"every": "2h", "from": "08:00", "until": "08:00:00"}, ["empty", "use cron"]),
        (
            {"every": "2h", "from": "08:00", "until": "18:00", "days": "mon-fry"},
            ["schedule.days", "'fry'", "did you mean 'fri'"],
        ),
        ({"every": "2h", "from": "08:00", "until": "18:00", "days": ""}, ["schedule.days", "''"]),
        ({"every": "2h", "from": "08:00", "until": "18:00", "days": []}, ["schedule.days"]),
        ({"every": "2h", "from": "08:00", "until": "18:00", "days": [1, 2]}, ["schedule.days", "[1, 2]", "'mon', 'wed'"]),
        ({"every": "2h", "from": "08:00", "until": "18:00", "days": 5}, ["schedule.days", "5"]),
    ],
)
def test_what_is_no_window_is_refused_naming_the_part(given: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(InvalidValue) as refusal:
        read_schedule({"kind": "window", **given}, Zone())

    assert all(word in str(refusal.value) for word in words), str(refusal.value)


@pytest.mark.parametrize("text", ["every 2h until 18:00", "every 2h from 08:00 until", "every 2h from 08:00 until 18:00 on"])
def test_half_a_window_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InvalidValue, match="every 2h from 08:00 until 18:00 on mon-fri"):
        load_schedule("window", text, Zone())
