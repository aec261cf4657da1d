"""Cursors: what a page ends with is taken back, and nothing else is."""

from __future__ import annotations

import json
from base64 import urlsafe_b64encode
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_tm.domain.paging import MAX_PAGE, Page, checked_limit, read_cursor, write_cursor
from celery_tm.errors import InvalidValue

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
IDS = st.text(st.characters(categories=["L", "N", "P"]), max_size=155)


@settings(deadline=None)
@given(st.datetimes(timezones=st.just(UTC)), IDS)
def test_a_place_survives_its_cursor_and_fits_into_an_address(at: datetime, id: str) -> None:
    cursor = write_cursor("executions", (at, id))
    assert read_cursor("executions", cursor, field="before") == (at, id)
    assert set(cursor) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")


@settings(deadline=None)
@given(st.integers(min_value=0, max_value=2**63 - 1))
def test_a_numbered_place_survives_too(id: int) -> None:
    cursor = write_cursor("log", (None, id))
    assert read_cursor("log", cursor, field="after", timed=False, numbered=True) == (None, id)


def encoded(value: Any) -> str:
    return urlsafe_b64encode(json.dumps(value).encode()).decode()


BAD = [
    "", "x", "not a cursor", "é", "=", "a" * 5000, 7, None, b"x", ["executions"], "\x00",
    encoded([]), encoded({}), encoded("executions"), encoded(["executions", NOON.isoformat()]),
    encoded(["executions", None, "id"]), encoded(["executions", "soon", "id"]), encoded(["executions", 5, "id"]),
    encoded(["executions", "2026-06-01T12:00:00", "id"]), encoded(["executions", NOON.isoformat(), 5]),
    encoded(["executions", NOON.isoformat(), "a\x00b"]), encoded(["executions", NOON.isoformat(), "\ud800"]),
    encoded(["executions", NOON.isoformat(), None]), encoded(["jobs", NOON.isoformat(), "id"]),
]  # fmt: skip


@pytest.mark.parametrize("cursor", BAD, ids=lambda value: repr(value)[:30])
def test_what_no_page_ended_with_is_refused(cursor: Any) -> None:
    with pytest.raises(InvalidValue, match="cursor") as refused:
        read_cursor("executions", cursor, field="before")
    assert refused.value.field == "before"


@pytest.mark.parametrize("id", ["7", -1, 2**63, True, 1.5, None])
def test_a_number_is_a_number_that_a_database_takes(id: Any) -> None:
    with pytest.raises(InvalidValue, match="is not a cursor"):
        read_cursor("log", encoded(["log", None, id]), field="after", timed=False, numbered=True)


@settings(deadline=None)
@given(st.text(max_size=200))
def test_no_text_makes_it_fail_otherwise(text: str) -> None:
    with pytest.raises(InvalidValue):
        read_cursor("executions", text, field="before")


@pytest.mark.parametrize("limit", [0, -1, MAX_PAGE + 1, 10**9, 1.5, "50", True, None])
def test_a_page_has_one_to_a_thousand(limit: Any) -> None:
    with pytest.raises(InvalidValue, match="from 1 to 1000"):
        checked_limit(limit)


def test_a_page_is_a_list() -> None:
    page = Page([1, 2], next="more")
    assert (page, page[0], len(page), page.next, Page([]).next) == ([1, 2], 1, 2, "more", None)
