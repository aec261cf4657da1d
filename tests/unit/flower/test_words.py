"""Words of the pages: instants on three clocks, durations, shares of progress, and what differs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_tm.errors import InvalidValue
from celery_tm.flower.pages.words import away, changes, code_in, first_line, plainly, read_instant, roughly, share_of, when

NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.0004, "0 ms"), (0.25, "250 ms"), (3, "3 s"), (3.25, "3.2 s"), (59, "59 s"), (60, "1 min"), (95, "1 min 35 s"),
     (3599, "59 min"), (3660, "1 h 1 min"), (86_400, "1 d"), (100_000, "1 d 3 h"), (864_000, "10 d")],
)  # fmt: skip
def test_a_duration_has_one_or_two_units(seconds: float, said: str) -> None:
    assert roughly(seconds) == said


def test_an_instant_is_told_from_now() -> None:
    assert away(timedelta(minutes=5)) == "in 5 min"
    assert away(timedelta(hours=-3)) == "3 h ago"
    assert away(timedelta(0)) == "now"


def test_an_instant_is_in_utc_and_in_its_own_zone_where_that_differs() -> None:
    shown = when(NOON, now=NOON, zone="Europe/Warsaw")

    assert shown is not None
    assert (shown.utc, shown.own) == ("2 Mar 12:00 UTC", "13:00 Europe/Warsaw")
    assert when(NOON, now=NOON).own is None  # type: ignore[union-attr]
    assert when(NOON, now=NOON, zone="Europe/London").own is None  # type: ignore[union-attr]
    assert when(None, now=NOON) is None


def test_the_date_is_said_where_the_other_clock_has_another_and_the_year_where_it_is_not_this_one() -> None:
    shown = when(NOON.replace(hour=23, second=5, year=2027), now=NOON, zone="Asia/Tokyo")

    assert shown is not None
    assert (shown.utc, shown.own) == ("2 Mar 2027 23:00:05 UTC", "3 Mar 2027 08:00:05 Asia/Tokyo")


@pytest.mark.parametrize(
    ("progress", "share"),
    [("3/10", 0.3), ("250 of 1000 products", 0.25), ("40 %", 0.4), ("done 12.5%", 0.125), ("12/10", 1.0), ("1/0", None),
     ("fetching EUR", None), ("2026-01-02", None), (None, None), ("", None), ("100 % of 3", 1.0)],
)  # fmt: skip
def test_a_share_is_found_in_what_a_body_says(progress: str | None, share: float | None) -> None:
    assert share_of(progress) == share


@given(st.text())
def test_any_progress_is_a_share_or_none(progress: str) -> None:
    found = share_of(progress)
    assert found is None or 0 <= found <= 1


def test_long_texts_of_others_are_one_line() -> None:
    assert first_line("one") == "one"
    assert first_line("one\ntwo") == "one …"
    assert first_line(None) == ""
    assert len(first_line("x" * 1000)) < 200


def test_what_is_typed_without_an_offset_is_on_the_clocks_of_the_zone() -> None:
    assert read_instant("2026-03-02 13:00", field="at", zone="Europe/Warsaw") == NOON
    assert read_instant("2026-03-02T12:00:00+00:00", field="at", zone="Europe/Warsaw") == NOON
    for bad in ("yesterday", "2026-13-01", "", "9" * 400):
        with pytest.raises(InvalidValue, match="at"):
            read_instant(bad, field="at")


def test_what_differs_is_told_field_by_field() -> None:
    assert changes({"a": 1, "b": "x"}, {"b": "y", "c": [1]}) == [("a", "1", None), ("b", "x", "y"), ("c", None, "[1]")]


def test_values_are_written_as_people_write_them() -> None:
    assert plainly("15 2 * * *") == "15 2 * * *"
    assert plainly({"a": [1]}) == '{"a": [1]}'
    assert "\n" in plainly({"a": "x" * 100})


def test_commands_stand_between_backticks() -> None:
    assert code_in("run `celery beat` now") == [(False, "run "), (True, "celery beat"), (False, " now")]
    assert code_in("nothing") == [(False, "nothing")]
