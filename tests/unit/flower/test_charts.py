"""Charts: well-formed SVG that says in words what it shows, and nothing that was typed by others as markup."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_tm.domain.execution import Outcome
from celery_tm.domain.occurrence import OccurrenceState
from celery_tm.flower.charts import (
    LEVELS,
    TONES,
    Cell,
    Mark,
    heat_map,
    level_of,
    short_number,
    sparkline,
    timeline,
    tone_of,
)

NASTY = "<script>alert(\"1\")</script> & 'more'"


def titles(svg: str) -> list[str]:
    return [one.text or "" for one in ET.fromstring(svg).iter("title")]


def of_class(svg: str, name: str) -> list[ET.Element]:
    return [one for one in ET.fromstring(svg).iter() if name in (one.get("class") or "").split()]


def test_a_sparkline_says_in_words_what_it_shows() -> None:
    svg = sparkline(
        [Mark(state="completed", title="a"), Mark(state="failed", title="b"), Mark(state="completed", title="c")]
    )

    assert ET.fromstring(svg).get("aria-label") == "last 3 instants, oldest first: 2 completed, 1 failed"
    assert ET.fromstring(svg).get("role") == "img"
    assert titles(svg) == ["a", "b", "c"]


def test_a_sparkline_keeps_the_newest_and_lines_them_up_at_the_right() -> None:
    many = [Mark(state="completed", title=str(n)) for n in range(30)]

    assert titles(sparkline(many, slots=20)) == [str(n) for n in range(10, 30)]
    few = of_class(sparkline(many[:2], slots=20), "tm-bar")
    assert [int(bar.get("x", "")) for bar in few] == [18 * 6, 19 * 6]


def test_nothing_yet_is_said_too() -> None:
    assert ET.fromstring(sparkline([])).get("aria-label") == "no runs yet"


def test_what_failed_and_what_did_not_run_differ_without_their_colours() -> None:
    good, bad, missed = (sparkline([Mark(state=state, title="")]) for state in ("completed", "failed", "missed"))

    assert not of_class(good, "tm-notch")
    assert of_class(bad, "tm-notch")
    assert int(of_class(missed, "tm-bar")[0].get("height", "")) < int(of_class(good, "tm-bar")[0].get("height", "")) / 2


@pytest.mark.parametrize("state", [*OccurrenceState, *Outcome])
def test_every_state_has_a_tone(state: str) -> None:
    assert str(state) in TONES
    assert tone_of(state) in ("good", "bad", "live", "wait", "warn", "off")


def test_a_timeline_has_what_was_left_of_now_and_what_comes_right_of_it() -> None:
    svg = timeline([Mark(state="missed", title="was", href="/tm/x?at=1")], [Mark(state="coming", title="comes")])
    now = int(of_class(svg, "tm-now")[0].get("x1", ""))
    was, comes = (int(bar.get("x", "")) for bar in of_class(svg, "tm-bar"))

    assert was < now < comes
    assert ET.fromstring(svg).get("aria-label") == "1 past instants (1 missed), then 1 to come"
    assert [one.get("href") for one in ET.fromstring(svg).iter("a")] == ["/tm/x?at=1"]


def test_a_heat_map_has_a_column_for_each_day_and_a_row_for_each_hour() -> None:
    cells = [Cell(count=0, title="none"), Cell(count=12, title="twelve"), None]
    svg = heat_map([("Mon", cells), ("Tue", cells)], ["00", "01", "02"], label="the week")

    assert titles(svg) == ["none", "none", "twelve", "twelve"]
    assert [text.text for text in of_class(svg, "tm-count")] == ["12", "12"]
    assert len(of_class(svg, "tm-level-0")) == 2
    assert len(of_class(svg, f"tm-level-{LEVELS}")) == 2


def test_an_hour_that_was_not_counted_is_not_shown_as_quiet() -> None:
    svg = heat_map([("Mon", [Cell(count=0, title="not counted", is_unknown=True)])], ["00"], label="x")

    assert [text.text for text in of_class(svg, "tm-count")] == ["?"]
    assert of_class(svg, "tm-level-x")


@given(st.integers(0, 10**7), st.integers(0, 10**7))
def test_levels_grow_with_the_count_and_only_nothing_is_cold(one: int, other: int) -> None:
    low, high = sorted([one, other])
    assert 0 <= level_of(low, high) <= level_of(high, high) <= LEVELS
    assert (level_of(low, high) == 0) == (low == 0)


@pytest.mark.parametrize(
    ("count", "shown"), [(7, "7"), (999, "999"), (1000, "1k"), (3600, "3.6k"), (36_000, "36k"), (360_000, "360k")]
)
def test_numbers_are_short_enough_for_a_cell(count: int, shown: str) -> None:
    assert short_number(count) == shown


def test_what_others_have_typed_is_text() -> None:
    pictures = [
        sparkline([Mark(state=NASTY, title=NASTY, href=NASTY)]),
        timeline([Mark(state="failed", title=NASTY, href=NASTY)], []),
        heat_map([(NASTY, [Cell(count=1, title=NASTY, href=NASTY)])], [NASTY], label=NASTY),
    ]

    for svg in pictures:
        assert "<script" not in svg
        assert NASTY in titles(svg)
        assert [one.get("href") for one in ET.fromstring(svg).iter("a")] == [NASTY]
