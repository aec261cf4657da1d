"""Canvas in an app whose every task is ours, as `easy_app` makes it: also those that Celery brings along.

`celery.chord_unlock`, which retries itself without end, `celery.accumulate`, `celery.map` and the others then pass the
gate and are recorded too.
"""

from __future__ import annotations

from typing import Any

import pytest
from celery import chain, chord, group
from tmtest.stand import Stand
from tmtest.twice import Side, both

import celery_tm

pytestmark = pytest.mark.xdist_group("everywhere")  # they share a stand

CONF = {"test_task_cls": "celery_tm:Task"}  # read by the fixture


def test_the_tasks_that_celery_brings_along_are_ours(canvas: Stand) -> None:
    assert isinstance(canvas.app.tasks["celery.chord_unlock"], celery_tm.Task)


def test_a_chord_is_joined(canvas: Stand) -> None:
    def scenario(side: Side) -> Any:
        header = [side.add.s(1, 1), side.retry_once.s(5), side.slow.s(3, 1.5)]
        return side.get(chord(header, side.total.s()).apply_async()), sorted(side.ran())

    assert both(canvas, scenario)[0] == 10


def test_a_chord_fails_with_its_header(canvas: Stand) -> None:
    def scenario(side: Side) -> Any:
        body = side.total.s().on_error(side.new_errback.s())
        result = chord([side.add.s(1, 1), side.fail.s("luck")], body).apply_async()
        told = side.error(result)
        side.wait_for("errback")
        side.quiet()
        return told.split(":")[0], "ValueError('no luck')" in told, len(side.facts("errback"))

    assert both(canvas, scenario) == ("FAILURE ChordError", True, 1)


def test_map_chunks_and_a_group_in_a_chain_work(canvas: Stand) -> None:
    def scenario(side: Side) -> Any:
        mapped = side.get(side.add.starmap([(1, 2), (3, 4)]).apply_async())
        chunked = side.get(side.add.chunks([(1, 1), (2, 2), (3, 3)], 2).apply_async())
        chained = side.get(chain(side.add.s(1, 1), group(side.add.s(n) for n in range(3)), side.total.s()).apply_async())
        return mapped, chunked, chained, sorted(side.ran())

    assert both(canvas, scenario)[:3] == ([3, 7], [[2, 4], [6]], 9)


@pytest.mark.parametrize(("by", "value"), [("group", [5, 6, 7]), ("chord", 18)])
def test_a_body_may_be_replaced(canvas: Stand, by: str, value: Any) -> None:
    def scenario(side: Side) -> Any:
        return side.get(side.replaced.delay(5, by=by)), sorted(side.ran())

    assert both(canvas, scenario)[0] == value


def test_nothing_is_owed_after_all_that(canvas: Stand) -> None:
    canvas.wait_until_settled(seconds=60)  # the row of a job that a group replaces is looked at after growing pauses
