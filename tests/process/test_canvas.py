"""Chains, groups, chords and all else of Celery's canvas: with our tasks they do what they do with plain Celery's.

Every scenario runs twice, plain Celery's run being the oracle: results, states, children and the order of effects are
compared. The three pairs differ in how chords are joined: Redis counts by itself, files and a database are polled by
`celery.chord_unlock`.
"""

from __future__ import annotations

import uuid
from collections import Counter
from typing import Any

import pytest
from celery import chain, chord, group
from celery.canvas import StampingVisitor
from tmtest.canvas_tasks import EXTRA, OURS
from tmtest.stand import Stand
from tmtest.twice import Side, both

from celery_tm.domain.job import CALL

pytestmark = pytest.mark.xdist_group("canvas")  # they share a stand

# Chains


def test_a_chain_passes_each_result_on(canvas: Stand) -> None:
    def scenario(side: Side) -> Any:
        result = chain(side.add.s(1, 2), side.add.s(10, plus=100), side.add.s(y=1000)).apply_async()
        return side.get(result), side.ran()

    assert both(canvas, scenario) == (1113, ["add(1, 2)", "add(3, 10)", "add(113, 1000)"])


def test_an_immutable_step_takes_no_result(canvas: Stand) -> None:
    def scenario(side: Side) -> Any:
        result = chain(side.add.s(1, 2), side.add.si(20, 2), side.add.s(5)).apply_async()
        return side.get(result), side.ran()

    assert both(canvas, scenario) == (27, ["add(1, 2)", "add(20, 2)", "add(22, 5)"])


def test_chains_nest(canvas: Stand) -> None:
    def scenario(side: Side) -> Any:
        inner = chain(side.add.s(10), chain(side.add.s(100)))
        result = chain(side.add.s(1, 2), inner, side.add.s(1000)).apply_async()
        return side.get(result), side.ran()

    assert both(canvas, scenario)[0] == 1113


def test_a_chain_stops_at_the_step_that_fails(canvas: Stand) -> None:
    def scenario(side: Side) -> Any:
        result = chain(side.add.s(1, 2), side.fail.s("way"), side.add.s(10)).apply_async()
        told = side.error(result.parent), side.error(result)
        side.quiet()
        return *told, side.get(result.parent.parent), side.ran()

    told = "FAILURE ValueError: no way"  # also of the steps that never ran
    assert both(canvas, scenario) == (told, told, 3, ["add(1, 2)", "fail(3, way)"])


def test_a_retry_in_the_middle_of_a_chain_doubles_nothing(canvas: Stand) -> None:
    def scenario(side: Side) -> Any:
        result = chain(side.add.s(1, 2), side.retry_once.s(), side.add.s(10)).apply_async()
        value = side.get(result)
        side.quiet()
        return value, side.ran()

    assert both(canvas, scenario) == (13, ["add(1, 2)", "retry_once(3)", "retry_once(3)", "add(3, 10)"])


# Results


def test_results_know_states_parents_and_children(canvas: Stand) -> None:
    def scenario(side: Side) -> Any:
        last = chain(side.add.s(1, 2), side.add.s(10), side.add.s(100)).apply_async()
        value = side.get(last)
        middle, first = last.parent, last.parent.parent
        collected = [value for _, value in first.collect(timeout=5)]
        children = [child.id for child in first.children] == [middle.id], [c.id for c in middle.children] == [last.id]
        states = first.state, middle.state, last.state, last.successful(), first.parent
        roots = {part.id: (part.args, part.kwargs, part.name.partition(".")[2]) for part in (first, middle, last)}
        return value, collected, children, states, list(roots.values())

    value, collected, children, states, _ = both(canvas, scenario)
    assert (value, collected, children) == (113, [3, 13, 113], (True, True))
    assert states == ("SUCCESS", "SUCCESS", "SUCCESS", True, None)


def test_a_result_tells_the_exception_of_its_body(canvas: Stand) -> None:
    def scenario(side: Side) -> Any:
        result = side.fail.delay("luck")
        told = side.error(result)
        with pytest.raises(ValueError, match="no luck"):
            result.get(timeout=5)
        return told, result.failed(), "raise ValueError" in result.traceback, side.ran()

    assert both(canvas, scenario) == ("FAILURE ValueError: no luck", True, True, ["fail(luck)"])


def test_an_ignored_result_is_not_kept(canvas: Stand) -> None:
    def scenario(side: Side) -> Any:
        results = [side.silent.delay(1), side.add.apply_async((1, 2), ignore_result=True)]
        side.wait_for("ran", count=2)
        side.wait_for("signal", signal="task_postrun", count=2)
        return [side.app.AsyncResult(result.id).state for result in results]

    assert both(canvas, scenario) == ["PENDING", "PENDING"]


def test_a_result_may_be_forgotten(canvas: Stand) -> None:
    def scenario(side: Side) -> Any:
        result = side.add.delay(1, 2)
        value = side.get(result)
        result.forget()
        return value, side.app.AsyncResult(result.id).state

    assert both(canvas, scenario) == (3, "PENDING")


# Groups and chords


def test_a_group_keeps_the_order_of_its_results(canvas: Stand) -> None:
    def scenario(side: Side) -> Any:
        result = group(side.add.s(n, n) for n in range(4)).apply_async()
        values = side.get(result)
        return values, result.completed_count(), result.successful(), sorted(side.ran())

    assert both(canvas, scenario)[:3] == ([0, 2, 4, 6], 4, True)


def test_a_group_waits_for_its_countdown(canvas: Stand) -> None:
    def scenario(side: Side) -> Any:
        result = group(side.add.s(n, n) for n in range(2)).apply_async(countdown=1)
        sent = max(fact["at"] for fact in side.wait_for("signal", signal="after_task_publish", count=2))
        values = side.get(result)
        return values, [fact["at"] - sent > 0.7 for fact in side.facts("ran")]

    assert both(canvas, scenario) == ([0, 2], [True, True])


def test_a_chord_gives_its_body_all_results(canvas: Stand) -> None:
    def scenario(side: Side) -> Any:
        result = chord((side.add.s(n, n) for n in range(5)), side.total.s()).apply_async()
        return side.get(result), sorted(side.ran())

    value, ran = both(canvas, scenario)
    assert value == 20
    assert ran[-1] == "total([0, 2, 4, 6, 8])"
    assert len(ran) == 6


def test_a_chord_may_stand_in_a_chain(canvas: Stand) -> None:
    def scenario(side: Side) -> Any:
        header = [side.add.s(n) for n in range(3)]
        result = chain(side.add.s(1, 1), chord(header, side.total.s()), side.add.s(100)).apply_async()
        return side.get(result), sorted(side.ran())

    assert both(canvas, scenario)[0] == 109


def test_a_group_in_a_chain_becomes_a_chord(canvas: Stand) -> None:
    def scenario(side: Side) -> Any:
        result = (side.add.s(1, 1) | group(side.add.s(n) for n in range(3)) | side.total.s()).apply_async()
        return side.get(result), sorted(side.ran())

    assert both(canvas, scenario)[0] == 9


def test_a_group_may_end_a_chain(canvas: Stand) -> None:
    def scenario(side: Side) -> Any:
        result = (side.add.s(1, 1) | group(side.add.s(n) for n in range(3))).apply_async()
        return side.get(result), sorted(side.ran())

    assert both(canvas, scenario)[0] == [2, 3, 4]


def test_chains_may_stand_in_a_chord_s_header(canvas: Stand) -> None:
    def scenario(side: Side) -> Any:
        header = [side.add.s(n, n) | side.add.s(10) for n in range(2)]
        return side.get(chord(header, side.total.s()).apply_async()), sorted(side.ran())

    assert both(canvas, scenario)[0] == 22


def test_a_chord_waits_for_a_header_task_that_retries(canvas: Stand) -> None:
    def scenario(side: Side) -> Any:
        result = chord([side.add.s(1, 1), side.retry_once.s(5), side.add.s(2, 2)], side.total.s()).apply_async()
        value = side.get(result)
        side.quiet()
        return value, sorted(side.ran())

    expected = ["add(1, 1)", "add(2, 2)", "retry_once(5)", "retry_once(5)", "total([2, 5, 4])"]
    assert both(canvas, scenario) == (11, expected)


def test_a_chord_whose_header_fails_fails_and_calls_the_errback(canvas: Stand) -> None:
    def scenario(side: Side) -> Any:
        body = side.total.s().on_error(side.new_errback.s())
        result = chord([side.add.s(1, 1), side.fail.s("luck")], body).apply_async()
        told = side.error(result).replace(result.parent.results[1].id, "fail")
        [errback] = side.wait_for("errback")
        side.quiet()
        states = [part.state for part in result.parent.results]
        return told, errback["failed"] == result.id, states, sorted(side.ran()), len(side.facts("errback"))

    told, names_body, states, ran, errbacks = both(canvas, scenario)
    assert told.startswith("FAILURE ChordError: ")  # the rest is each backend's own
    assert "ValueError('no luck')" in told
    assert (names_body, states, errbacks) == (True, ["SUCCESS", "FAILURE"], 1)
    assert ran == ["add(1, 1)", "fail(luck)"]


def test_a_body_may_add_to_the_chord_it_is_in(canvas: Stand) -> None:
    if canvas.pair != "postgresql+redis":
        pytest.skip("only Celery's Redis backend lets a body add to a chord")

    def scenario(side: Side) -> Any:
        result = chord([side.adds_to_chord.s(n) for n in range(3)], side.same.s()).apply_async()
        [values] = side.get(result)
        return sorted(values), sorted(side.ran())[:4]

    assert both(canvas, scenario)[0] == [0, 1, 2, 101]


# map, starmap, chunks


def test_map_starmap_and_chunks_call_the_body_for_each_item(canvas: Stand) -> None:
    def scenario(side: Side) -> Any:
        mapped = side.get(side.total.map([[1, 2], [3, 4]]).apply_async())
        starred = side.get(side.add.starmap([(1, 2), (3, 4)]).apply_async())
        chunked = side.get(side.add.chunks(zip(range(5), range(5), strict=True), 2).apply_async())
        return mapped, starred, chunked, Counter(side.ran())

    mapped, starred, chunked, ran = both(canvas, scenario)
    assert (mapped, starred, chunked) == ([3, 7], [3, 7], [[0, 2], [4, 6], [8]])
    assert set(ran.values()) == {1}


# Callbacks


def test_links_are_called_with_the_result(canvas: Stand) -> None:
    def scenario(side: Side) -> Any:
        one = side.add.apply_async((1, 2), link=side.add.s(10))
        side.get(one)
        [child] = one.children
        several = side.add.apply_async((2, 2), link=[side.add.s(20), side.add.si(7, 7), side.total.si([1, 1])])
        side.get(several)
        side.wait_for("ran", count=6)
        side.quiet()
        return side.get(child), sorted(side.ran())

    value, ran = both(canvas, scenario)
    assert value == 13
    assert ran == ["add(1, 2)", "add(2, 2)", "add(3, 10)", "add(4, 20)", "add(7, 7)", "total([1, 1])"]


def test_links_of_a_task_that_retries_are_called_once(canvas: Stand) -> None:
    def scenario(side: Side) -> Any:
        result = side.retry_once.apply_async((5,), link=side.add.s(10), link_error=side.old_errback.s())
        value = side.get(result)
        side.wait_for("ran", count=3)
        side.quiet()
        return value, side.ran(), len(side.facts("errback"))

    assert both(canvas, scenario) == (5, ["retry_once(5)", "retry_once(5)", "add(5, 10)"], 0)


def test_errbacks_old_and_new_are_told_of_a_failure(canvas: Stand) -> None:
    def scenario(side: Side) -> Any:
        result = side.fail.apply_async(
            ("luck",), link=side.add.s(1), link_error=[side.old_errback.s(), side.new_errback.s()]
        )
        told = side.error(result)
        side.wait_for("errback", count=2)
        side.quiet()
        called = [(f["name"], f["failed"] == result.id, f.get("error")) for f in side.facts("errback")]
        return told, sorted(called), side.ran()

    told, called, ran = both(canvas, scenario)
    assert told == "FAILURE ValueError: no luck"
    assert called == [("new_errback", True, "ValueError: no luck"), ("old_errback", True, None)]
    assert ran == ["fail(luck)"]


def test_an_errback_of_a_chain_is_told_of_the_step_that_failed(canvas: Stand) -> None:
    def scenario(side: Side) -> Any:
        steps = chain(side.add.s(1, 2), side.fail.s("luck"), side.add.s(10))
        result = steps.apply_async(link_error=side.old_errback.s())
        [errback] = side.wait_for("errback")
        side.quiet()
        return errback["failed"] == result.parent.id, len(side.facts("errback")), side.ran()

    assert both(canvas, scenario) == (True, 1, ["add(1, 2)", "fail(3, luck)"])


# replace()

REPLACED = {"task": 6, "chain": 16, "group": [5, 6, 7], "chord": 18, "itself": 7, "retrying": 5}


@pytest.mark.parametrize("by", REPLACED)
def test_a_body_may_be_replaced(canvas: Stand, by: str) -> None:
    def scenario(side: Side) -> Any:
        result = side.replaced.delay(5, by=by)
        value = side.get(result)
        side.quiet()
        return value, result.state, sorted(side.ran())

    assert both(canvas, scenario)[:2] == (REPLACED[by], "SUCCESS")


@pytest.mark.parametrize("by", ["task", "chain", "chord", "retrying"])
def test_a_step_in_the_middle_of_a_chain_may_be_replaced(canvas: Stand, by: str) -> None:
    def scenario(side: Side) -> Any:
        result = chain(side.add.s(2, 3), side.replaced.s(by=by), side.add.s(1000)).apply_async()
        value = side.get(result)
        side.quiet()
        return value, sorted(side.ran())

    assert both(canvas, scenario)[0] == 1000 + REPLACED[by]


@pytest.mark.parametrize("by", ["task", "chain", "chord"])
def test_a_task_in_a_chord_s_header_may_be_replaced(canvas: Stand, by: str) -> None:
    def scenario(side: Side) -> Any:
        result = chord([side.add.s(1, 1), side.replaced.s(5, by=by)], side.total.s()).apply_async()
        value = side.get(result)
        side.quiet()
        return value, sorted(side.ran())

    assert both(canvas, scenario)[0] == 2 + REPLACED[by]


def test_links_and_errbacks_follow_the_replacement(canvas: Stand) -> None:
    def scenario(side: Side) -> Any:
        good = side.replaced.apply_async((5,), {"by": "task"}, link=side.add.s(100))
        bad = side.replaced.apply_async((5,), {"by": "failing"}, link_error=side.old_errback.s())
        value, told = side.get(good), side.error(bad)
        [errback] = side.wait_for("errback")
        side.wait(lambda: "add(6, 100)" in side.ran(), "the link")
        side.quiet()
        return value, told, errback["failed"] == bad.id, sorted(side.ran())

    assert both(canvas, scenario)[:3] == (6, "FAILURE ValueError: no 5", True)


# Stamps and headers


class Stamp(StampingVisitor):
    """Stamps every signature."""

    def on_signature(self, sig: Any, **headers: Any) -> dict[str, Any]:
        return {"ticket": "T-1"}


def test_stamps_reach_every_step_also_after_a_retry(canvas: Stand) -> None:
    def scenario(side: Side) -> Any:
        steps = chain(side.sees.si(), side.sees_after_retry.si(), side.sees.si())
        steps.stamp(visitor=Stamp())
        side.get(steps.apply_async())
        return [(fact["stamps"], fact["stamped"]) for fact in side.facts("seen")]

    assert both(canvas, scenario) == [({"ticket": "T-1"}, ["ticket"])] * 3


def test_headers_reach_the_body_also_after_a_retry(canvas: Stand) -> None:
    def scenario(side: Side) -> Any:
        side.get(side.sees.apply_async(headers={EXTRA: "a"}))
        side.get(side.sees_after_retry.apply_async(headers={EXTRA: "b"}))
        side.get(chain(side.sees.si().set(headers={EXTRA: "c"}), side.sees.si().set(headers={EXTRA: "d"})).apply_async())
        return [fact["header"] for fact in side.facts("seen")]

    assert both(canvas, scenario) == ["a", "b", "c", "d"]


def test_every_step_names_the_root_and_its_parent(canvas: Stand) -> None:
    def scenario(side: Side) -> Any:
        last = chain(side.sees.si(), side.sees_after_retry.si(), side.sees.si()).apply_async()
        side.get(last)
        ids = [last.parent.parent.id, last.parent.id, last.id]
        return [(ids.index(f["root"]), f["parent"] and ids.index(f["parent"])) for f in side.facts("seen")]

    assert both(canvas, scenario) == [(0, None), (0, 0), (0, 1)]


# The same message twice: here plain Celery, which runs it twice, is no oracle


def test_the_same_message_twice_runs_once(canvas: Stand) -> None:
    side = Side(canvas, OURS)
    id = str(uuid.uuid4())
    for _ in range(2):
        result = side.slow.apply_async((7, 0.3), task_id=id)
    assert side.get(result) == 7
    side.app.send_task("ours.slow", (7, 0.3), task_id=id)
    side.wait_for("signal", signal="task_postrun", count=3)
    assert side.ran() == ["slow(7)"]
    assert (result.state, canvas.app.AsyncResult(id).result) == ("SUCCESS", 7)


@pytest.mark.parametrize("again", ["at once", "later"])
def test_a_step_delivered_twice_runs_the_rest_of_its_chain_once(canvas: Stand, again: str) -> None:
    side = Side(canvas, OURS)
    steps = chain(side.slow.s(1, 0.3), side.add.s(10), side.add.s(100))
    last = steps.freeze()
    first, *rest = steps.tasks
    message = {"chain": [dict(step) for step in reversed(rest)], "task_id": last.parent.parent.id}
    message["headers"] = {CALL: "one"}  # two copies of one message, not a signature that is applied twice
    first.apply_async(**message)
    if again == "later":
        assert side.get(last) == 111
    first.apply_async(**message)
    assert side.get(last) == 111
    side.wait_for("signal", signal="task_postrun", name="slow", count=2)
    side.quiet()
    assert side.ran() == ["slow(1)", "add(1, 10)", "add(11, 100)"]
    assert (last.parent.parent.state, last.result) == ("SUCCESS", 111)


def test_nothing_is_owed_after_all_that(canvas: Stand) -> None:
    canvas.wait_until_settled()
