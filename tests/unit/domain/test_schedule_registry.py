"""Which kinds there are, kinds that packages add, what a text means, and what fires too seldom to be meant."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from celery_tm.domain.schedule import KINDS, Zone, load_schedule, read_schedule, registry, seldom
from celery_tm.errors import InvalidValue

NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)
PACKAGE = """
from datetime import timedelta
from celery_tm.domain.schedule import Schedule

class Tides(Schedule):
    kind = "tides"

    def __init__(self, expression):
        self.expression = expression

    @classmethod
    def load(cls, expression, zone, *, name=""):
        return cls(expression)

    @classmethod
    def example(cls):
        return "use 'high'"

    def next_after(self, instant):
        return instant + timedelta(hours=12, minutes=25)

    def describe(self):
        return "at high tide"

class Other(Tides):
    kind = "another"

nothing = 5
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Install a package that adds kinds, for the time of a test."""
    (tmp_path / "tm_tides.py").write_text(PACKAGE)
    metadata = tmp_path / "tm_tides-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: tm-tides\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(
        "[celery_tm.schedules]\ntides = tm_tides:Tides\nwrong = tm_tides:nothing\nmisnamed = tm_tides:Other\n"
        "missing = tm_tides:Gone\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    known = dict(KINDS)
    registry._entries.cache_clear()
    yield
    registry._entries.cache_clear()
    KINDS.clear()
    KINDS.update(known)


@pytest.mark.usefixtures("package")
def test_a_package_may_add_a_kind() -> None:
    rule = read_schedule({"kind": "tides", "expression": "high"}, Zone())

    assert rule.describe() == "at high tide"
    assert load_schedule("tides", "high", Zone()).next_after(NEW_YEAR) == NEW_YEAR + timedelta(hours=12, minutes=25)
    assert next(rule.between(NEW_YEAR, NEW_YEAR + timedelta(days=1))) == NEW_YEAR + timedelta(hours=12, minutes=25)


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("wrong", ["'wrong' of 'celery_tm.schedules'", "tm_tides:nothing", "5, not a schedule", "subclass of"]),
        ("misnamed", ["'misnamed'", "kind = 'misnamed'"]),
        ("missing", ["'missing'", "cannot be loaded", "Gone"]),
        ("tide", ["unknown kind 'tide', did you mean 'tides'?", "cron"]),
    ],
)
def test_a_package_that_adds_what_is_no_kind_is_named(kind: str, words: list[str]) -> None:
    with pytest.raises(InvalidValue) as refusal:
        load_schedule(kind, "high", Zone())

    assert all(word in str(refusal.value) for word in words), str(refusal.value)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("*/5 * * * *", "cron"),
        ("@daily", "cron"),
        ("every 5m", "interval"),
        ("@every 5m", "interval"),
        ("every 5m from 2026-01-01T00:00:00Z", "interval"),
        ("every 5m from 08:00 until 18:00", "window"),
        ("at 2026-01-01T00:00:00Z", "once"),
        ("R/2026-01-01T00:00:00Z/P1D", "iso8601"),
        ("DTSTART:20260101T000000 RRULE:FREQ=DAILY", "rrule"),
        ("RRULE:FREQ=DAILY DTSTART:20260101T000000", "rrule"),
        ("sunset at 52.2,21.0", "solar"),
        ('["0 8 * * *", "0 20 * * 6"]', "any"),
    ],
)
def test_a_text_tells_its_kind(text: str, kind: str) -> None:
    assert read_schedule(text, Zone()).kind == kind
    assert [name for name, schedule in KINDS.items() if schedule.recognises(text)] == ([] if kind == "cron" else [kind])


def test_every_kind_says_what_is_right() -> None:
    assert all(kind.example().startswith("use ") for kind in KINDS.values())
    assert set(KINDS) == {"any", "cron", "crontab", "interval", "iso8601", "once", "rrule", "solar", "window"}


def test_the_bad_key_of_a_mapping_is_named_for_every_kind() -> None:
    for kind in KINDS:
        with pytest.raises(InvalidValue, match="no key 'colour'"):
            read_schedule({"kind": kind, "colour": "red"}, Zone())
        with pytest.raises(InvalidValue, match=f"kind '{kind}' has no '"):
            read_schedule({"kind": kind}, Zone())


# What fires too seldom to be meant


@pytest.mark.parametrize(
    ("value", "days"),
    [
        ("0 0 29 2 *", None),
        ("* * * * *", None),
        ({"kind": "crontab", "expression": "0 0 29 2 1"}, 6633),
        ("every 2000d", 2000),
        ("every 1800d", None),
        ("R/2026-01-02T00:00:00Z/P6Y", 6 * 365 + 1),
        ("R1/2026-01-02T00:00:00Z/P6Y", None),
        ("R/2040-01-01T00:00:00Z/P1D", 5113),
        ("at 2026-02-01T00:00:00Z", None),
        ("at 2020-02-01T00:00:00Z", None),
        ("DTSTART:20260102T000000 RRULE:FREQ=YEARLY;INTERVAL=10", 3652),
    ],
)
def test_a_wait_of_over_five_years_is_pointed_out(value: Any, days: int | None) -> None:
    assert seldom(read_schedule(value, Zone()), NEW_YEAR) == (None if days is None else timedelta(days=days))
