"""Rows that one process leaves out for a while."""

from celery_tm.domain.set_aside import (
    CAPACITY,
    FIRST_PAUSE,
    FORGET_AFTER,
    HELD_FOR,
    LONGEST_PAUSE,
    REPORTED,
    BadRow,
    SetAside,
)

ROW = BadRow("tm_job", "1", "no such state")


def test_a_row_is_left_out_until_its_pause_is_over():
    aside = SetAside()
    assert aside.add(ROW, now=0.0)
    assert aside.ids("tm_job", now=FIRST_PAUSE - 0.1) == ["1"]
    assert aside.ids("tm_job", now=FIRST_PAUSE + 0.1) == []
    assert aside.ids("tm_definition", now=0.0) == []


def test_the_pause_doubles_up_to_its_cap_and_is_reported_once_per_error():
    aside, now = SetAside(), 0.0
    aside.add(ROW, now=now)
    for _ in range(20):
        assert not aside.add(ROW, now=now)
    assert aside.ids("tm_job", now=LONGEST_PAUSE - 1) == ["1"]
    assert aside.ids("tm_job", now=LONGEST_PAUSE + 1) == []
    assert aside.add(BadRow("tm_job", "1", "another reason"), now=now)


def test_a_row_that_works_again_is_forgotten():
    aside = SetAside()
    aside.add(ROW, now=0.0)
    aside.discard("tm_job", "1")
    assert not aside.ids("tm_job", now=0.0)
    assert not aside.rows()


def test_the_list_is_bounded_per_table():
    aside = SetAside()
    aside.add(BadRow("tm_definition", "d", "x"), now=0.0)
    for number in range(CAPACITY + 10):
        aside.add(BadRow("tm_job", str(number), "x"), now=0.0)
    assert len(aside.ids("tm_job", now=0.0)) == CAPACITY
    assert aside.ids("tm_definition", now=0.0) == ["d"]


def test_so_many_rows_of_a_table_are_reported_each_by_itself():
    aside = SetAside()
    assert sum(aside.add(BadRow("tm_job", str(number), "x"), now=0.0) for number in range(REPORTED + 10)) == REPORTED
    assert len(aside.ids("tm_job", now=0.0)) == REPORTED + 10, "and all of them are left out"
    assert aside.add(BadRow("tm_definition", "d", "x"), now=0.0)


def test_rows_that_have_not_failed_for_long_make_room_for_reports():
    aside = SetAside()
    for number in range(REPORTED):
        aside.add(BadRow("tm_job", str(number), "x"), now=0.0)
    later = FIRST_PAUSE + FORGET_AFTER + 1
    assert aside.add(BadRow("tm_job", "new", "x"), now=later)
    assert aside.count("tm_job") == 1


def test_a_row_that_another_transaction_holds_is_left_out_for_a_moment_however_often():
    aside = SetAside()
    for now in (0.0, 2.0, 4.0):
        aside.hold("tm_job", "1", now=now)
        assert aside.ids("tm_job", now=now) == ["1"]
        assert aside.ids("tm_job", now=now + HELD_FOR) == []
    assert not aside.rows()


def test_a_row_that_has_not_failed_for_long_begins_with_the_first_pause():
    aside = SetAside()
    for _ in range(5):
        aside.add(ROW, now=0.0)
    later = LONGEST_PAUSE + FORGET_AFTER + 1
    assert aside.add(ROW, now=later)
    assert aside.ids("tm_job", now=later + FIRST_PAUSE) == []


def test_a_row_that_is_waited_for_again_and_again_is_tried_more_and_more_seldom() -> None:
    aside, now, pauses = SetAside(), 100.0, []
    for _ in range(7):
        aside.hold("tm_definition", "1", now=now, waited=0.5)
        until = next(at / 10 for at in range(int(now * 10), 10_000) if not aside.ids("tm_definition", now=at / 10))
        pauses.append(round(until - now, 1))
        now = until
    assert pauses == [1.5, 3.0, 6.0, 12.0, 24.0, 30.0, 30.0]
    aside.discard("tm_definition", "1")
    aside.hold("tm_definition", "1", now=now)
    assert not aside.ids("tm_definition", now=now + 1.1), "it was handled meanwhile, and nobody waited for it now"


def test_a_row_that_nobody_waited_for_is_tried_every_second() -> None:
    aside = SetAside()
    for second in range(5):
        aside.hold("tm_definition", "1", now=100.0 + second)
        assert aside.ids("tm_definition", now=100.9 + second) == ["1"]
        assert aside.ids("tm_definition", now=101.0 + second) == []
