"""The job's states, what callers are told about them, and the texts and numbers a job may hold."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_tm.domain.job import (
    NEXT,
    Job,
    JobState,
    Status,
    checked_concurrency,
    checked_priority,
    checked_retries,
    checked_text,
    checked_timeout,
)
from celery_tm.errors import InvalidValue

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)
JOB = Job(id="j", task="t", args="[]", kwargs="{}", run_at=NOON, created_at=NOON, original_delay=timedelta(0))


def reachable(start: JobState | None) -> set[JobState | None]:
    """Return the states that may follow `start`, now or later."""
    found: set[JobState | None] = set()
    todo = [start]
    while todo:
        state = todo.pop()
        following = set(NEXT[state]) - found if state is not None else set()
        found |= following
        todo += following
    return found


def test_every_state_says_what_may_follow_it_and_why() -> None:
    assert set(NEXT) == set(JobState)
    assert all(isinstance(why, str) and why for following in NEXT.values() for why in following.values())


def test_every_state_is_reachable_from_pending() -> None:
    assert reachable(JobState.PENDING) == {*JobState, None}


@pytest.mark.parametrize("state", list(JobState))
def test_from_every_state_the_work_can_come_to_its_end(state: JobState) -> None:
    assert None in reachable(state)


def test_a_running_job_goes_back_to_pending_or_is_owed_no_more() -> None:
    assert set(NEXT[JobState.RUNNING]) == {JobState.PENDING, None}


def test_no_state_follows_itself() -> None:
    assert [state for state, following in NEXT.items() if state in following] == []


@pytest.mark.parametrize(
    ("state", "attempt", "tries_from", "status"),
    [
        (JobState.PENDING, 1, 1, Status.SCHEDULED),
        (JobState.DISPATCHED, 1, 1, Status.SCHEDULED),
        (JobState.RUNNING, 1, 1, Status.RUNNING),
        (JobState.PENDING, 2, 1, Status.RETRY_SCHEDULED),
        (JobState.DISPATCHED, 2, 1, Status.RETRY_SCHEDULED),
        (JobState.RUNNING, 2, 1, Status.RUNNING),
        (JobState.PENDING, 5, 5, Status.SCHEDULED),
        (JobState.PENDING, 6, 5, Status.RETRY_SCHEDULED),
    ],
)
def test_callers_are_told_where_a_job_stands(state: JobState, attempt: int, tries_from: int, status: Status) -> None:
    assert replace(JOB, state=state, attempt=attempt, tries_from=tries_from).status is status


@given(tries_from=st.integers(1, 1000), more=st.integers(0, 1000))
def test_retries_are_counted_from_the_last_revival(tries_from: int, more: int) -> None:
    assert replace(JOB, tries_from=tries_from, attempt=tries_from + more).retries == more


def test_a_job_is_expired_from_the_instant_on_that_it_names() -> None:
    job = replace(JOB, expires_at=NOON)

    assert [job.is_expired(NOON - SECOND), job.is_expired(NOON), job.is_expired(NOON + SECOND)] == [False, True, True]
    assert not JOB.is_expired(NOON + timedelta(days=36500))


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (5, "5 is not text"),
        (None, "None is not text"),
        (b"key", "is not text"),
        ("", "it is empty"),
        (" \t\n", "it is empty"),
        ("x" * 11, "11 characters are too many"),
        (" key", "blanks at its ends"),
        ("key\n", "blanks at its ends"),
        ("a\x00b", "cannot be seen"),
        ("a\nb", "cannot be seen"),
        ("a\u200bb", "cannot be seen"),
        ("\ud800", "cannot be seen"),
    ],
)
def test_a_text_that_databases_would_not_keep_alike_is_refused(value: Any, words: str) -> None:
    with pytest.raises(InvalidValue, match=words) as refused:
        checked_text(value, field="key", limit=10)

    assert refused.value.field == "key"


@pytest.mark.parametrize("value", ["a", "x" * 10, "zamówienie", "a b", "注文:1"])
def test_a_text_within_its_limit_is_kept_as_it_is(value: str) -> None:
    assert checked_text(value, field="key", limit=10) == value


def test_the_remedy_of_the_caller_is_shown() -> None:
    with pytest.raises(InvalidValue, match="name the order"):
        checked_text("", field="key", limit=10, remedy="name the order")


@given(st.text(max_size=30))
def test_a_text_is_either_kept_unchanged_or_refused_by_name(text: str) -> None:
    try:
        assert checked_text(text, field="key", limit=20) == text
    except InvalidValue as refused:
        assert refused.field == "key"  # noqa: PT017
    else:
        assert text.strip() == text != ""
        assert "\x00" not in text
        text.encode()


@pytest.mark.parametrize("value", [0, 9, 255])
def test_a_priority_from_0_to_255_is_kept(value: int) -> None:
    assert checked_priority(value) == value


@pytest.mark.parametrize("value", [-1, 256, 1.0, "1", True, None])
def test_any_other_priority_is_refused(value: Any) -> None:
    with pytest.raises(InvalidValue, match=r"^priority: .* from 0 to 255"):
        checked_priority(value)


@pytest.mark.parametrize("value", [0, 3, 1_000_000])
def test_a_number_of_retries_is_kept(value: int) -> None:
    assert checked_retries(value) == value


@pytest.mark.parametrize("value", [-1, 1_000_001, 2.0, "3", False, None])
def test_any_other_number_of_retries_is_refused(value: Any) -> None:
    with pytest.raises(InvalidValue, match=r"^max_retries: "):
        checked_retries(value)


@pytest.mark.parametrize(
    ("key", "limit", "expected"),
    [
        (None, None, (None, None)),
        ("db", None, ("db", 1)),
        ("db", 1, ("db", 1)),
        ("db", 1_000_000, ("db", 1_000_000)),
    ],
)
def test_a_concurrency_key_has_a_limit_of_one_unless_another_is_stated(key: Any, limit: Any, expected: Any) -> None:
    assert checked_concurrency(key, limit) == expected


@pytest.mark.parametrize(
    ("key", "limit", "words"),
    [
        (None, 3, "^concurrency: there is no concurrency_key to limit; give concurrency_key= too"),
        ("", None, "^concurrency_key: it is empty"),
        (5, None, "^concurrency_key: 5 is not text"),
        ("x" * 256, None, "^concurrency_key: 256 characters"),
        ("db", 0, "^concurrency: 0 is not a limit"),
        ("db", True, "^concurrency: True is not a limit"),
        ("db", 1.0, r"^concurrency: 1\.0 is not a limit"),
        ("db", 1_000_001, "^concurrency: 1000001 is not a limit"),
    ],
)
def test_any_other_key_or_limit_is_refused_by_its_name(key: Any, limit: Any, words: str) -> None:
    with pytest.raises(InvalidValue, match=words):
        checked_concurrency(key, limit)


def test_a_timeout_leaves_some_time() -> None:
    assert checked_timeout("5m") == timedelta(minutes=5)
    for nothing in (0, "0s", timedelta(0)):
        with pytest.raises(InvalidValue, match=r"^timeout: .* leaves no time; give a longer duration, e\.g\. '5m'"):
            checked_timeout(nothing)
