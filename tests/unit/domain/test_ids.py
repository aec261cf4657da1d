"""Names that come out the same when computed twice, and names that sort by time."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime, timedelta, timezone
from types import SimpleNamespace
from uuid import RFC_4122, UUID

import pytest
import time_machine
from hypothesis import given
from hypothesis import strategies as st

from celery_tm.domain import ids
from celery_tm.domain.ids import execution_id, new_id, occurrence_id, occurrence_job_id

instants = st.datetimes(datetime(1971, 1, 1), datetime(2200, 1, 1)).map(lambda t: t.replace(tzinfo=UTC))
uuids = st.uuids().map(str)


@given(one=st.tuples(uuids, instants), other=st.tuples(uuids, instants))
def test_an_occurrences_id_depends_on_its_definition_and_its_instant_alone(
    one: tuple[str, datetime], other: tuple[str, datetime]
) -> None:
    assert occurrence_id(*one) == occurrence_id(*one)
    assert (occurrence_id(*one) == occurrence_id(*other)) == (one == other)
    assert occurrence_id(one[0], other[1]) != occurrence_id(one[0], other[1] + timedelta(microseconds=1))
    assert (occurrence_id(one[0], one[1]) == occurrence_id(other[0], one[1])) == (one[0] == other[0])


@given(definition=uuids, instant=instants, hours=st.integers(-12, 14))
def test_an_instant_written_in_another_zone_is_the_same_occurrence(definition: str, instant: datetime, hours: int) -> None:
    elsewhere = instant.astimezone(timezone(timedelta(hours=hours)))

    assert occurrence_id(definition, instant) == occurrence_id(definition, elsewhere)


@given(one=st.tuples(uuids, st.text(max_size=9)), other=st.tuples(uuids, st.text(max_size=9)))
def test_the_id_of_an_occurrences_job_depends_on_the_occurrence_and_the_step(
    one: tuple[str, str], other: tuple[str, str]
) -> None:
    assert occurrence_job_id(*one) == occurrence_job_id(*one)
    assert (occurrence_job_id(*one) == occurrence_job_id(*other)) == (one == other)
    assert (occurrence_job_id(one[0], one[1]) == occurrence_job_id(one[0], other[1])) == (one[1] == other[1])
    assert (occurrence_job_id(one[0], one[1]) == occurrence_job_id(other[0], one[1])) == (one[0] == other[0])


@given(job=st.text(min_size=1, max_size=155), other=st.text(min_size=1, max_size=155), attempt=st.integers(1, 10**6))
def test_an_executions_id_depends_on_the_job_and_the_attempt(job: str, other: str, attempt: int) -> None:
    assert execution_id(job, attempt) == execution_id(job, attempt)
    assert execution_id(job, attempt) != execution_id(job, attempt + 1)
    assert (execution_id(job, attempt) == execution_id(other, attempt)) == (job == other)
    assert execution_id(f"{job}/1", attempt) != execution_id(job, attempt)


def test_the_ids_of_different_things_never_meet() -> None:
    text, instant = "00000000-0000-0000-0000-000000000001", datetime(2026, 1, 1, tzinfo=UTC)

    assert len({occurrence_id(text, instant), occurrence_job_id(text), execution_id(text, 1)}) == 3


def test_computed_ids_never_change_between_releases() -> None:
    definition = "00000000-0000-0000-0000-000000000001"
    occurrence = occurrence_id(definition, datetime(2026, 1, 1, tzinfo=UTC))

    assert UUID(occurrence).version == 5
    assert [occurrence, occurrence_job_id(occurrence), execution_id(definition, 1)] == PINNED


# Written down once: a beat of this release and one of the next must agree on them.
PINNED: list[str] = [
    "e9e7032c-83eb-5992-a795-bcbe3912795f",
    "78256fa8-245f-5e48-96b1-b0cba8a2e141",
    "21a1b4fa-66aa-5ec4-9f10-e16297896090",
]


def test_a_new_id_is_a_uuid_of_version_7() -> None:
    made = [UUID(new_id()) for _ in range(200)]

    assert {one.version for one in made} == {7}
    assert {one.variant for one in made} == {RFC_4122}


def test_a_new_id_carries_the_time_it_was_made() -> None:
    before = time.time_ns() // 1_000_000
    made = UUID(new_id()).int >> 80
    after = time.time_ns() // 1_000_000

    assert before <= made <= after + 60  # a burst of ids before this one may have run a little ahead


def test_new_ids_of_one_process_sort_in_the_order_they_were_made() -> None:
    made = [new_id() for _ in range(20_000)]

    assert made == sorted(made)
    assert len(set(made)) == len(made)


def test_new_ids_sort_even_while_the_clock_stands_still_or_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = iter([5_000_000_000] * 50 + [4_000_000_000] * 50 + [5_000_000_001] * 50)
    monkeypatch.setattr(ids, "time", SimpleNamespace(time_ns=lambda: next(readings)))
    monkeypatch.setattr(ids, "_last", 0)

    made = [UUID(new_id()).int >> 64 for _ in range(150)]

    assert made == sorted(set(made))


def test_only_one_thread_at_a_time_takes_its_place_in_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    meeting, met = threading.Barrier(2), []

    def read_clock() -> int:
        try:
            meeting.wait(timeout=0.2)
        except threading.BrokenBarrierError:
            return time.time_ns()
        met.append(True)
        return time.time_ns()

    monkeypatch.setattr(ids, "time", SimpleNamespace(time_ns=read_clock))
    threads = [threading.Thread(target=new_id) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert met == []


def test_new_ids_of_several_threads_never_meet_and_sort_in_each_thread() -> None:
    made: dict[int, list[str]] = {n: [] for n in range(4)}
    start = threading.Barrier(4)

    def make(number: int) -> None:
        start.wait()
        made[number] += [new_id() for _ in range(3000)]

    threads = [threading.Thread(target=make, args=(number,)) for number in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert all(own == sorted(own) and len(own) == 3000 for own in made.values())
    # The first 60 bits are time and counter: no two ids share them, so their order is never left to chance.
    assert len({UUID(one).int >> 64 for own in made.values() for one in own}) == 12_000


def test_ids_do_not_stay_in_a_future_that_the_clock_has_left() -> None:
    now = datetime.now(UTC)
    with time_machine.travel(now + timedelta(hours=1)):
        ahead = new_id()

    assert new_id() < ahead
