"""What nobody should give but somebody will: refused at the door by an error of ours, or taken and kept right."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_tm import clock
from celery_tm.clock import MAX_DURATION, format_duration, parse_duration
from celery_tm.domain.job import checked_priority, checked_retries
from celery_tm.domain.retry import Exponential, Fixed, Linear, Proportional, RetryPolicy, read_policy, write_policy
from celery_tm.errors import InvalidValue, UnknownOption
from celery_tm.settings import read_settings
from celery_tm.testing import MovableClock

SECOND = timedelta(seconds=1)
ENDLESS = 10**5000  # Python refuses to write a number this long


# Retry policies: one that cannot be read back would stop whoever records the failure, and the sweeper after it


@pytest.mark.parametrize(
    ("policy", "field"),
    [
        (Fixed(delay=-5 * SECOND), "retry.delay"),
        (Linear(base=-5 * SECOND), "retry.base"),
        (Proportional(share=-1), "retry.share"),
        (Exponential(factor=5000), "retry.factor"),
    ],
)
def test_a_policy_object_is_checked_like_a_mapping(policy: RetryPolicy, field: str) -> None:
    with pytest.raises(InvalidValue, match=field):
        read_policy(policy)


def test_an_option_of_a_policy_whose_name_is_no_text_is_refused_as_unknown() -> None:
    with pytest.raises(UnknownOption, match="5"):
        read_policy({"kind": "fixed", 5: "30s"})


@settings(max_examples=100, deadline=None)
@given(delay=st.timedeltas(min_value=timedelta(0), max_value=MAX_DURATION))
def test_every_policy_that_is_taken_can_be_written_and_read_back_to_the_microsecond(delay: timedelta) -> None:
    assert read_policy(write_policy(read_policy(Fixed(delay=delay)))) == Fixed(delay=delay)


# Numbers


def test_a_duration_too_long_to_write_is_refused_by_the_field_s_name() -> None:
    with pytest.raises(InvalidValue, match="delay"):
        parse_duration(ENDLESS, field="delay")


@pytest.mark.parametrize(("check", "field"), [(checked_priority, "priority"), (checked_retries, "max_retries")])
def test_a_number_too_long_to_write_is_refused_by_the_field_s_name(check: Any, field: str) -> None:
    with pytest.raises(InvalidValue, match=field):
        check(ENDLESS)


def test_a_duration_just_under_a_minute_is_not_written_as_sixty_seconds() -> None:
    duration = timedelta(seconds=59, microseconds=999_999)

    assert parse_duration(format_duration(duration), field="delay") == duration


# Settings


def test_a_claim_batch_of_zero_is_refused_since_nothing_would_ever_be_dispatched() -> None:
    with pytest.raises(InvalidValue, match="tm_claim_batch"):
        read_settings({"tm_claim_batch": 0}, {})


@pytest.mark.parametrize("aliases", [{"onprem": 5}, {"onprem": None}, {5: "queue"}])
def test_a_queue_alias_that_is_no_text_is_refused(aliases: Any) -> None:
    with pytest.raises(InvalidValue, match="tm_queue_aliases"):
        read_settings({"tm_queue_aliases": aliases}, {})


# A clock for tests that was moved to a local time


def test_an_hour_is_an_hour_where_clocks_are_put_back(tm_clock: MovableClock) -> None:
    before = datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Warsaw"))
    tm_clock.move_to(before)
    tm_clock.forward("1h")

    assert clock.now() == before.astimezone(UTC) + timedelta(hours=1)
