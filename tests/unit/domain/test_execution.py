"""The record of an attempt: what its outcome means to callers, and how long texts are cut."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_tm.domain.execution import MAX_ERROR, MAX_MESSAGE, MAX_TRACEBACK, STATUS, Failure, Outcome, cut
from celery_tm.domain.job import Status


def test_every_outcome_means_a_status_and_no_status_of_an_ended_job_is_left_out() -> None:
    assert set(STATUS) == set(Outcome)
    still_owed = {Outcome.INTERRUPTED, Outcome.REPLACED}  # another attempt, or another call of the same id, follows
    assert {STATUS[one] for one in Outcome if one not in still_owed} == {Status.SUCCEEDED, Status.FAILED, Status.CANCELED}
    assert {STATUS[one] for one in still_owed} == {Status.SCHEDULED, Status.RUNNING}


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.TIMEOUT, Outcome.ORPHANED])
def test_an_attempt_that_broke_counts_as_failed(outcome: Outcome) -> None:
    assert STATUS[outcome] is Status.FAILED


def test_an_attempt_that_vanished_is_orphaned_and_any_other_failure_failed() -> None:
    assert Failure.orphaned("its worker is gone") == Failure(error="its worker is gone", outcome=Outcome.ORPHANED)
    assert Failure(error="ValueError: no").outcome is Outcome.FAILED


def test_a_short_text_is_kept_as_it_is() -> None:
    assert cut("x" * 100, 100) == "x" * 100
    assert cut("", 100) == ""
    assert cut(None, 100) is None


def test_a_long_text_keeps_both_ends_and_says_how_much_is_missing() -> None:
    shortened = cut("the start" + "x" * 5000 + "the end", 100)

    assert shortened is not None
    assert shortened.startswith("the start")
    assert shortened.endswith("the end")
    assert "\n… 4936 more …\n" in shortened


def test_characters_that_no_database_stores_are_replaced() -> None:
    assert cut("a\x00b", 100) == "a\ufffdb"
    assert cut("a\ud800b", 100) == "a?b"


@settings(max_examples=100, deadline=None)
@given(
    text=st.text(alphabet=st.characters(), max_size=300).map(lambda text: text * 20),
    limit=st.sampled_from([64, 200, MAX_ERROR, MAX_MESSAGE, MAX_TRACEBACK]),
)
def test_a_cut_text_always_fits_and_can_be_stored(text: str, limit: int) -> None:
    shortened = cut(text, limit)

    assert shortened is not None
    assert len(shortened) <= limit
    assert "\x00" not in shortened
    assert shortened.encode().decode() == shortened
