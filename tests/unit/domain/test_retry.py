"""Backoff and the decision whether a failed attempt is tried again."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_tm.domain.job import Job
from celery_tm.domain.retry import (
    POLICIES,
    Bury,
    Exponential,
    Fixed,
    Linear,
    Proportional,
    RetryPolicy,
    TryAgain,
    after_failure,
    read_policy,
    write_policy,
)
from celery_tm.errors import InvalidValue, UnknownOption

SECOND, MINUTE, HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
JOB = Job(id="j", task="t", args="[]", kwargs="{}", run_at=NOON, created_at=NOON, original_delay=15 * MINUTE, max_retries=2)

# Whole milliseconds below a minute: durations that text keeps exactly.
durations = st.integers(0, 100 * 86400 * 20).map(lambda n: n * timedelta(milliseconds=50))
delays = st.timedeltas(timedelta(0), timedelta(days=36500))
shares = st.floats(0, 10, allow_nan=False)


def proportionals(times: Any = durations) -> st.SearchStrategy[Proportional]:
    return st.builds(Proportional, share=shares, floor=times, cap=times)


def linears(times: Any = durations) -> st.SearchStrategy[Linear]:
    return st.builds(Linear, base=times, cap=times)


def exponentials(times: Any = durations, *, least: float = 0, jitters: Any = None) -> st.SearchStrategy[Exponential]:
    spread = st.floats(0, 1) if jitters is None else jitters
    return st.builds(Exponential, interval=times, factor=st.floats(least, 1000), cap=times, jitter=spread)


policies = st.one_of(proportionals(), linears(), exponentials(), st.builds(Fixed, delay=durations))


@pytest.mark.parametrize(
    ("delay", "retry", "wait"),
    [
        (15 * MINUTE, 1, 1.5 * MINUTE),
        (15 * MINUTE, 2, 3 * MINUTE),
        (15 * MINUTE, 3, 4.5 * MINUTE),
        (48 * HOUR, 1, 60 * MINUTE),
        (48 * HOUR, 2, 60 * MINUTE),
        (10 * HOUR, 1, 60 * MINUTE),
        (9 * HOUR, 1, 54 * MINUTE),
        (timedelta(0), 1, SECOND),
        (timedelta(0), 5, 5 * SECOND),
        (10 * SECOND, 1, SECOND),
    ],
)
def test_the_default_backoff_is_a_tenth_of_the_original_delay_per_try(delay: timedelta, retry: int, wait: timedelta) -> None:
    assert Proportional().delay_after(retry, original_delay=delay) == wait


def test_the_cap_of_the_proportional_backoff_can_be_set() -> None:
    assert Proportional(cap=5 * MINUTE).delay_after(1, original_delay=48 * HOUR) == 5 * MINUTE
    assert Proportional(cap=3 * HOUR).delay_after(1, original_delay=20 * HOUR) == 2 * HOUR


def test_the_floor_of_the_proportional_backoff_can_be_set() -> None:
    assert Proportional(floor=30 * SECOND).delay_after(1, original_delay=SECOND) == 30 * SECOND
    assert Proportional(floor=30 * SECOND).delay_after(2, original_delay=SECOND) == 60 * SECOND


def test_a_floor_above_the_cap_gives_the_cap() -> None:
    assert Proportional(floor=2 * HOUR, cap=HOUR).delay_after(1, original_delay=SECOND) == HOUR


def test_linear_backoff_is_the_base_times_the_try() -> None:
    policy = Linear(base=10 * SECOND, cap=35 * SECOND)

    assert [policy.delay_after(n, original_delay=HOUR) / SECOND for n in (1, 2, 3, 4, 5)] == [10, 20, 30, 35, 35]


def test_exponential_backoff_multiplies_by_its_factor_up_to_the_cap() -> None:
    policy = Exponential(interval=2 * SECOND, factor=3, cap=MINUTE)

    assert [policy.delay_after(n, original_delay=HOUR) / SECOND for n in (1, 2, 3, 4, 5)] == [2, 6, 18, 54, 60]


def test_exponential_backoff_survives_more_tries_than_a_float_can_count() -> None:
    assert Exponential().delay_after(1_000_000, original_delay=HOUR) == HOUR


def test_fixed_backoff_never_changes() -> None:
    assert {Fixed(delay=MINUTE).delay_after(n, original_delay=n * HOUR) for n in range(1, 9)} == {MINUTE}


@given(policy=st.one_of(proportionals(), linears(), exponentials()), retry=st.integers(1, 10_000), delay=delays)
@settings(max_examples=200)
def test_no_delay_is_negative_or_above_the_cap(policy: Any, retry: int, delay: timedelta) -> None:
    assert timedelta(0) <= policy.delay_after(retry, original_delay=delay) <= policy.cap


@given(
    policy=st.one_of(proportionals(), linears(), exponentials(least=1, jitters=st.just(0.0))),
    retry=st.integers(1, 10_000),
    delay=delays,
)
@settings(max_examples=200)
def test_delays_never_shrink_from_try_to_try(policy: Any, retry: int, delay: timedelta) -> None:
    assert policy.delay_after(retry, original_delay=delay) <= policy.delay_after(retry + 1, original_delay=delay)


@given(jitter=st.floats(0, 1), retry=st.integers(1, 12))
def test_jitter_shortens_a_delay_by_its_share_at_most(jitter: float, retry: int) -> None:
    plain = Exponential(interval=SECOND).delay_after(retry, original_delay=HOUR)
    spread = Exponential(interval=SECOND, jitter=jitter).delay_after(retry, original_delay=HOUR)

    assert plain * (1 - jitter) - timedelta(microseconds=1) <= spread <= plain


@pytest.mark.parametrize(
    ("policy", "retry"),
    [
        (Linear(base=timedelta(days=36500)), 1_000_000),
        (Proportional(share=1000), 1_000_000),
        (Proportional(floor=timedelta(days=36500)), 1_000_000),
        (Exponential(factor=1000.0), 1_000_000),
    ],
    ids=lambda value: getattr(value, "kind", None),
)
def test_the_widest_policy_that_can_be_stated_still_keeps_its_cap_at_the_last_try(policy: Any, retry: int) -> None:
    assert read_policy(write_policy(policy)) == policy
    assert policy.delay_after(retry, original_delay=timedelta(days=36500)) == policy.cap


def test_a_failure_with_tries_left_is_tried_again_after_the_defaults_delay() -> None:
    assert after_failure(JOB, default=Proportional()) == TryAgain(1.5 * MINUTE)
    assert after_failure(replace(JOB, attempt=2), default=Proportional()) == TryAgain(3 * MINUTE)


def test_the_jobs_own_policy_goes_before_the_default() -> None:
    job = replace(JOB, retry={"kind": "fixed", "delay": "7s"})

    assert after_failure(job, default=Proportional()) == TryAgain(7 * SECOND)


def test_a_failure_with_all_tries_used_up_is_buried_with_the_count() -> None:
    assert after_failure(replace(JOB, attempt=3), default=Fixed()) == Bury("failed 3 times, max_retries=2")


def test_a_job_without_retries_is_buried_at_once() -> None:
    assert after_failure(replace(JOB, max_retries=0), default=Fixed()) == Bury("failed 1 time, max_retries=0")


def test_a_job_without_a_limit_is_tried_for_ever() -> None:
    assert after_failure(replace(JOB, max_retries=None, attempt=100_000), default=Fixed()) == TryAgain(MINUTE)


def test_a_revived_job_counts_its_tries_from_the_revival() -> None:
    revived = replace(JOB, attempt=4, tries_from=4)

    assert after_failure(revived, default=Proportional()) == TryAgain(1.5 * MINUTE)
    assert after_failure(replace(revived, attempt=5), default=Proportional()) == TryAgain(3 * MINUTE)
    assert isinstance(after_failure(replace(revived, attempt=6), default=Proportional()), Bury)


@pytest.mark.parametrize("lost", ["args", "kwargs"])
def test_a_job_whose_arguments_were_not_kept_is_buried(lost: str) -> None:
    decision = after_failure(replace(JOB, **{lost: None}), default=Fixed())

    assert isinstance(decision, Bury)
    assert "arguments" in decision.reason


@given(attempt=st.integers(1, 50), revived=st.integers(1, 50), limit=st.integers(0, 20) | st.none())
def test_a_job_is_buried_exactly_when_its_tries_are_used_up(attempt: int, revived: int, limit: int | None) -> None:
    job = replace(JOB, attempt=max(attempt, revived), tries_from=revived, max_retries=limit)

    buried = isinstance(after_failure(job, default=Fixed()), Bury)

    assert buried == (limit is not None and job.attempt - revived + 1 > limit)


@given(policy=policies)
@settings(max_examples=200)
def test_a_policy_survives_being_written_and_read(policy: RetryPolicy) -> None:
    assert read_policy(write_policy(policy)) == policy


@pytest.mark.parametrize("kind", sorted(POLICIES))
def test_a_kinds_name_alone_means_its_defaults(kind: str) -> None:
    assert read_policy(kind) == POLICIES[kind]() == read_policy({"kind": kind})


def test_a_policy_object_is_taken_as_it_is() -> None:
    policy = Fixed(delay=5 * SECOND)

    assert read_policy(policy) is policy


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("quadratic", ["retry", "quadratic", "fixed"]),
        ({"kind": "quadratic"}, ["retry", "quadratic", "exponential"]),
        ({"kind": ["fixed"]}, ["retry", "fixed"]),
        ({"delay": "5s"}, ["retry", "kind"]),
        (5, ["retry", "5"]),
        (None, ["retry"]),
        ({"kind": "fixed", "delay": "soon"}, ["retry.delay", "soon"]),
        ({"kind": "fixed", "delay": -1}, ["retry.delay", "negative"]),
        ({"kind": "linear", "base": []}, ["retry.base"]),
        ({"kind": "linear", "cap": "200000d"}, ["retry.cap", "100 years"]),
        ({"kind": "proportional", "share": "0.1"}, ["retry.share", "'0.1'"]),
        ({"kind": "proportional", "share": -0.1}, ["retry.share", "-0.1"]),
        ({"kind": "proportional", "share": True}, ["retry.share", "True"]),
        ({"kind": "exponential", "factor": float("nan")}, ["retry.factor", "nan"]),
        ({"kind": "exponential", "factor": float("inf")}, ["retry.factor", "inf"]),
        ({"kind": "exponential", "jitter": 1.5}, ["retry.jitter", "1.5"]),
    ],
)
def test_a_bad_policy_is_refused_with_the_name_of_what_is_wrong(value: Any, words: list[str]) -> None:
    with pytest.raises(InvalidValue) as refused:
        read_policy(value)

    assert [word for word in words if word not in str(refused.value)] == []


def test_an_unknown_option_of_a_policy_is_refused_with_the_one_that_was_meant() -> None:
    with pytest.raises(UnknownOption, match="'delya', did you mean 'delay'"):
        read_policy({"kind": "fixed", "delya": "5s"})
