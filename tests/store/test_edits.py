"""Edits on every database: versions, policies, previews and a horizon, and never an instant lost or repeated."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event
from tmtest.ledger import HOUR, MINUTE, NOON, add, claim, ledger, plan, rows, start

from celery_tm import TimeManagement
from celery_tm.errors import InvalidValue, StaleVersion
from celery_tm.scheduler import planner as planning
from celery_tm.store import audit, occurrences
from celery_tm.testing import MovableClock
from celery_tm.worker import recorder


@pytest.fixture(autouse=True)
def noon(tm_clock: MovableClock) -> MovableClock:
    tm_clock.move_to(NOON)
    return tm_clock


def minutes(instants: Any) -> list[float]:
    return [(instant - NOON) / MINUTE for instant in instants]


def audited(tm: TimeManagement, name: str = "tick") -> list[dict[str, Any]]:
    with tm.installation.database.transaction(write=False) as tx:
        return audit.lines(tx, f"definition:{name}")[::-1]


def test_every_version_is_kept_with_who_and_why(tm: TimeManagement) -> None:
    add(tm, actor="alice")
    tm.definitions.update("tick", schedule="*/2 * * * *", actor="bob", reason="too often")
    tm.pause("tick", actor="carol")
    kept = tm.definitions.versions("tick")
    assert [(one.version, one.action, one.actor, one.reason) for one in kept] == [
        (3, "pause", "carol", None),
        (2, "edit", "bob", "too often"),
        (1, "add", "alice", None),
    ]
    assert [one.stated["schedule"] for one in kept] == ["*/2 * * * *", "*/2 * * * *", "* * * * *"]
    assert kept[0].stated["paused"] is True


def test_of_two_edits_on_one_version_the_second_is_refused(tm: TimeManagement) -> None:
    added = add(tm)
    tm.definitions.update("tick", version=added.version, queue="a", actor="alice")
    with pytest.raises(StaleVersion, match=r"by alice.*queue: yours 'b', there 'a'"):
        tm.definitions.update("tick", version=added.version, queue="b")
    assert tm.definitions.get("tick").queue == "a"


def test_an_immediate_edit_counts_from_now_and_what_was_due_is_decided_by_the_old_rule(
    tm: TimeManagement, noon: MovableClock
) -> None:
    add(tm, schedule="*/2 * * * *", overlap="allow", recovery="all")
    noon.forward("5m")
    tm.definitions.update("tick", schedule="*/3 * * * *")
    noon.forward("5m")
    plan(tm)
    assert minutes(row.scheduled_at for row in rows(tm)) == [2, 4, 6, 9]
    assert [row.version for row in rows(tm)] == [1, 1, 2, 2]


def test_a_graceful_edit_takes_over_after_the_next_planned_run(tm: TimeManagement, noon: MovableClock) -> None:
    add(tm, schedule="*/10 * * * *", overlap="allow", recovery="all")
    waiting = tm.definitions.update("tick", schedule="*/3 * * * *", policy="graceful", actor="alice", reason="slower")
    assert (waiting.version, waiting.schedule, waiting.next_run_at) == (1, "*/10 * * * *", NOON + 10 * MINUTE)
    noon.forward("5m")
    plan(tm)
    assert ledger(tm) == []
    noon.forward("10m")  # 12:15: one old instant, then the new rule
    plan(tm)
    assert [((row.scheduled_at - NOON) / MINUTE, row.version) for row in rows(tm)] == [(10, 1), (12, 2), (15, 2)]
    after = tm.definitions.get("tick")
    assert (after.version, after.next_edit, after.updated_by) == (2, None, "alice")
    assert [line["action"] for line in audited(tm)] == ["add", "edit later", "edit takes over"]
    assert tm.definitions.versions("tick")[0].reason == "slower"


def test_graceful_edits_add_up_and_a_switch_meanwhile_is_kept(tm: TimeManagement, noon: MovableClock) -> None:
    add(tm, schedule="*/10 * * * *", overlap="allow", recovery="all")
    tm.definitions.update("tick", schedule="*/3 * * * *", policy="graceful")
    tm.definitions.update("tick", queue="slow", policy="graceful")
    tm.pause("tick")
    noon.forward("10m")
    plan(tm)
    after = tm.definitions.get("tick")
    assert (after.schedule, after.queue, after.paused) == ("*/3 * * * *", "slow", True)
    assert ledger(tm) == [(10, "skipped")]


def test_a_graceful_edit_of_one_that_will_not_run_again_counts_at_once(tm: TimeManagement, noon: MovableClock) -> None:
    add(tm, max_runs=1)
    noon.forward("1m")
    plan(tm)
    assert tm.definitions.update("tick", max_runs=2, policy="graceful").next_run_at == NOON + 2 * MINUTE


def test_a_graceful_edit_is_checked_when_it_is_made(tm: TimeManagement) -> None:
    add(tm)
    with pytest.raises(InvalidValue, match="minute"):
        tm.definitions.update("tick", schedule="61 * * * *", policy="graceful")
    assert tm.definitions.get("tick").next_edit is None


def test_an_unknown_policy_is_refused_with_the_nearest(tm: TimeManagement) -> None:
    add(tm)
    with pytest.raises(InvalidValue, match="did you mean 'graceful'"):
        tm.definitions.update("tick", queue="q", policy="gracefull")


def test_a_preview_shows_what_an_edit_adds_and_removes_and_writes_nothing(tm: TimeManagement) -> None:
    add(tm, schedule="*/20 * * * *")
    seen = tm.definitions.preview("tick", schedule="*/30 * * * *", within="1h")
    assert (minutes(seen.added), minutes(seen.removed), minutes(seen.kept)) == ([30], [20, 40], [60])
    new = tm.definitions.preview("new", task="effect", schedule="*/30 * * * *", within="1h")
    assert (minutes(new.added), new.removed) == ([30, 60], [])
    off = tm.definitions.preview("tick", ends_at=NOON + 25 * MINUTE, within="1h")
    assert (minutes(off.removed), minutes(off.kept)) == ([40, 60], [20])
    assert (tm.definitions.get("tick").version, [d.name for d in tm.definitions.list()]) == (1, ["tick"])


def test_a_horizon_is_planned_ahead_and_decided_when_it_comes(tm: TimeManagement, noon: MovableClock) -> None:
    add(tm, schedule="*/10 * * * *", plan_ahead="30m", overlap="skip")
    assert ledger(tm) == [(10, "pending"), (20, "pending"), (30, "pending")]
    assert claim(tm) == []
    noon.forward("10m")
    plan(tm)
    assert ledger(tm) == [(10, "pending"), (20, "pending"), (30, "pending"), (40, "pending")]
    [first] = claim(tm)
    start(tm, first)
    noon.forward("10m")
    plan(tm)
    assert [state for _, state in ledger(tm)] == ["running", "skipped", "pending", "pending", "pending"]
    assert [row.decided_at is None for row in rows(tm)] == [False, False, True, True, True]


@pytest.mark.parametrize("policy", ["windowed", "immediate"])
def test_a_horizon_is_compared_with_the_new_version_in_one_transaction(
    tm: TimeManagement, noon: MovableClock, policy: str
) -> None:
    add(tm, schedule="*/20 * * * *", plan_ahead="1h")
    noon.forward("1m")
    kept = {row.id for row in rows(tm) if row.scheduled_at == NOON + HOUR}
    tm.definitions.update("tick", schedule="*/30 * * * *", policy=policy)
    assert minutes(row.scheduled_at for row in rows(tm)) == [30, 60]
    assert kept <= {row.id for row in rows(tm)}
    told = audited(tm)[-1]["after"]["horizon"]
    assert (len(told["added"]), len(told["removed"]), told["kept"]) == (1, 2, 1)
    noon.forward("1h")
    plan(tm)
    decided = [row for row in rows(tm) if row.decided_at]
    assert minutes(row.scheduled_at for row in decided) == [30, 60]


def test_an_edit_that_fails_leaves_the_horizon_as_it_was(tm: TimeManagement) -> None:
    add(tm, schedule="*/20 * * * *", plan_ahead="1h")
    before = rows(tm)
    with pytest.raises(InvalidValue):
        tm.definitions.update("tick", schedule="*/20 * * * *", timezone="UTC", recovery="bounded")
    assert rows(tm) == before
    tm.definitions.update("tick", plan_ahead=None)
    assert rows(tm) == []


def test_removing_a_definition_removes_what_is_planned_ahead_and_keeps_its_history(
    tm: TimeManagement, noon: MovableClock
) -> None:
    add(tm, plan_ahead="5m")
    noon.forward("1m")
    tm.run_due_jobs()
    id = tm.definitions.get("tick").id
    tm.definitions.remove("tick", actor="alice", reason="not needed")
    from celery_tm.store import occurrences

    with tm.installation.database.transaction(write=False) as tx:
        assert [str(row.state) for row in occurrences.of_definition(tx, id)] == ["completed"]
    told = str(tm.explain("tick", at=NOON + MINUTE))
    assert "completed" in told


def test_what_was_due_before_a_removal_is_still_owed(tm: TimeManagement, noon: MovableClock) -> None:
    add(tm)
    noon.forward("1m")  # nobody planned meanwhile
    tm.definitions.remove("tick")
    assert tm.run_due_jobs().succeeded == 1


def test_a_running_occurrence_keeps_its_version_and_arguments(tm: TimeManagement, noon: MovableClock) -> None:
    add(tm, overlap="queue", args=[1])
    noon.forward("1m")
    plan(tm)
    [first] = claim(tm)
    running = start(tm, first)
    noon.forward("1m")
    plan(tm)
    tm.definitions.update("tick", args=[2], queue="other")
    recorder.record_success(tm.installation, running, None)
    [second] = claim(tm)
    waiting = start(tm, second)
    assert (running.args, waiting.args, waiting.queue) == ("[1]", "[1]", None)
    noon.forward("1m")
    plan(tm)
    assert [row.version for row in rows(tm)] == [1, 1, 2]
    assert tm.jobs(state="pending")[0].args == "[2]"


def test_groups_are_switched_all_or_none(tm: TimeManagement, noon: MovableClock) -> None:
    for name in ("a", "b"):
        add(tm, name=name, group="billing")
    add(tm, name="c", group="mail")
    assert [d.name for d in tm.pause(group="billing", actor="alice")] == ["a", "b"]
    noon.forward("1m")
    plan(tm)
    assert [ledger(tm, name) for name in "abc"] == [[(1, "skipped")], [(1, "skipped")], [(1, "pending")]]
    assert [d.paused for d in tm.resume(group="billing")] == [False, False]
    assert [d.enabled for d in tm.disable(group="mail")] == [False]
    assert [d.enabled for d in tm.enable(group="mail")] == [True]
    with pytest.raises(InvalidValue, match="no definition is in 'biling'"):
        tm.pause(group="biling")
    with pytest.raises(InvalidValue, match="a name or a group"):
        tm.pause()


class Crash(Exception):
    """The process dies here."""


def test_a_group_that_cannot_be_switched_as_a_whole_stays_as_it_was(tm: TimeManagement) -> None:
    for name in ("a", "b"):
        add(tm, name=name, group="billing")
    engine, saved = tm.installation.database.engine, Counter[str]()

    def die(conn: Any, cursor: Any, text: str, *_: Any) -> None:
        saved["n"] += text.startswith("UPDATE") and "tm_definition" in text
        if saved["n"] == 2:  # the first one is changed by now
            raise Crash

    event.listen(engine, "before_cursor_execute", die)
    try:
        with pytest.raises(Crash):
            tm.pause(group="billing", actor="alice")
    finally:
        event.remove(engine, "before_cursor_execute", die)
    assert [(one.paused, one.version) for one in tm.definitions.list(group="billing")] == [(False, 1), (False, 1)]
    assert [line["action"] for name in ("a", "b") for line in audited(tm, name)] == ["add", "add"]


def test_an_edit_while_catching_up_decides_the_rest_first(
    tm: TimeManagement, noon: MovableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "ROUND", 10)
    monkeypatch.setattr(planning, "FEWEST", 10)
    add(tm, recovery="compressed")
    noon.forward(timedelta(minutes=35, seconds=30))
    planning.Planner(tm.installation).plan_due()
    assert len(ledger(tm)) == 10
    tm.definitions.update("tick", schedule="*/10 * * * *")
    assert len(ledger(tm)) == 35
    last = rows(tm)[-1]
    assert (last.covers_from, last.version) == (NOON + MINUTE, 1)
    noon.forward("5m")
    plan(tm)
    assert minutes(row.scheduled_at for row in rows(tm))[-2:] == [35, 40]


def test_a_replay_runs_an_ended_occurrence_once_more_and_names_it(tm: TimeManagement, noon: MovableClock) -> None:
    add(tm, task="fails", max_retries=0)
    noon.forward("1m")
    tm.run_due_jobs()
    [failed] = rows(tm)
    tm.definitions.update("tick", task="effect")
    again = tm.replay(failed.id, reason="the shop is open again", actor="alice")
    assert (again.replay_of, str(again.state)) == (failed.id, "pending")
    tm.run_due_jobs()
    assert [(row.replay_of, str(row.state)) for row in rows(tm)] == [(None, "failed"), (failed.id, "completed")]
    assert {execution.source for execution in tm.history("tick")} == {"scheduled", "replay"}
    with pytest.raises(LookupError, match="no occurrence 'nope'"):
        tm.replay("nope")


def test_a_replay_obeys_the_overlap_rule(tm: TimeManagement, noon: MovableClock) -> None:
    add(tm)
    noon.forward("1m")
    tm.run_due_jobs()
    [done] = rows(tm)
    noon.forward("1m")
    plan(tm)
    start(tm, claim(tm)[0])
    assert str(tm.replay(done.id).state) == "skipped"
    with pytest.raises(InvalidValue, match="still running"):
        tm.replay(rows(tm)[1].id)


def test_a_waiting_edit_is_taken_back_by_the_later_word(tm: TimeManagement, noon: MovableClock) -> None:
    add(tm, schedule="*/10 * * * *", overlap="allow", recovery="all")
    tm.definitions.update("tick", schedule="*/3 * * * *", queue="slow", policy="graceful")
    back = tm.definitions.update("tick", schedule="*/10 * * * *", policy="graceful", actor="alice")
    assert back.waiting_edit is not None
    assert dict(back.waiting_edit.values) == {"queue": "slow"}
    assert tm.definitions.update("tick", queue="fast").next_edit is None
    noon.forward("20m")
    plan(tm)
    after = tm.definitions.get("tick")
    assert (after.schedule, after.queue, after.version) == ("*/10 * * * *", "fast", 2)


def test_an_edit_after_its_moment_finds_the_waiting_one_in_force(tm: TimeManagement, noon: MovableClock) -> None:
    add(tm, schedule="*/10 * * * *", overlap="allow", recovery="all")
    tm.definitions.update("tick", schedule="*/3 * * * *", policy="graceful")
    noon.forward("16m")  # nobody planned meanwhile
    tm.definitions.update("tick", schedule="*/10 * * * *")
    noon.forward("4m")
    plan(tm)
    assert [((row.scheduled_at - NOON) / MINUTE, row.version) for row in rows(tm)] == [(10, 1), (12, 2), (15, 2), (20, 3)]


def test_a_preview_follows_the_policy_and_ends_both_sides_alike(tm: TimeManagement) -> None:
    add(tm, schedule="*/20 * * * *")
    seen = tm.definitions.preview("tick", schedule="*/30 * * * *", within="1h", policy="graceful")
    assert (minutes(seen.added), minutes(seen.removed), minutes(seen.kept)) == ([30], [40], [20, 60])
    add(tm, name="often", schedule="* * * * * *")
    seen = tm.definitions.preview("often", schedule="*/2 * * * * *", within="7d")
    assert (list(seen.added), len(seen.removed), len(seen.kept)) == ([], 5000, 5000)
    assert seen.until == NOON + timedelta(seconds=10_000)


def test_what_fires_less_than_once_in_five_years_is_pointed_out(tm: TimeManagement) -> None:
    from celery_tm import events

    told: list[str] = []

    def listen(name: str, **_: Any) -> None:
        told.append(name)

    events.definition_seldom.connect(listen, sender=tm.app)
    add(tm, name="leap", schedule="0 0 29 2 *")
    add(tm, name="leap monday", schedule={"kind": "crontab", "expression": "0 0 29 2 mon"})
    assert told == ["leap monday"]
    with pytest.raises(InvalidValue, match="never fires"):
        add(tm, name="never", schedule="0 0 31 2 *")


# Of a definition that is far behind

SECONDS = 450  # more than an edit decides in its own transaction


def far_behind(tm: TimeManagement, noon: MovableClock, **values: Any) -> None:
    add(tm, schedule="every 1s", overlap="allow", recovery="all", **values)
    noon.forward(timedelta(seconds=SECONDS))


def test_an_edit_of_one_that_is_far_behind_decides_the_past_in_other_transactions(
    tm: TimeManagement, noon: MovableClock
) -> None:
    far_behind(tm, noon)
    with pytest.raises(InvalidValue, match="no calendar"):  # found out in the transaction of the edit, which is undone
        tm.definitions.update("tick", calendars=["gone"])
    assert [str(row.state) for row in rows(tm)] == ["pending"] * SECONDS
    assert len(tm.jobs(limit=1000)) == SECONDS


def test_what_changes_one_that_is_far_behind_decides_the_past_by_the_old_rule(
    tm: TimeManagement, noon: MovableClock, tmp_path: Path
) -> None:
    tm.calendars.set("days", ["2026-12-25"])
    far_behind(tm, noon, calendars=["days"], group="g")
    for number, change in enumerate((
        lambda: tm.calendars.set("days", ["2026-12-26"]),
        lambda: tm.definitions.update("tick", queue="slow"),
        lambda: tm.definitions.load(toml(tmp_path, 'task = "effect"\nschedule = "every 1s"\npriority = 3')),
        lambda: tm.definitions.change_group("g", {"priority": 4}, action="edit"),
        lambda: tm.definitions.remove("tick"),
    ), 1):  # fmt: skip
        id = tm.definitions.get("tick").id
        change()
        with tm.installation.database.transaction(write=False) as tx:
            found = occurrences.of_definition(tx, id, limit=10_000)
        assert [str(row.state) for row in found] == ["pending"] * SECONDS * number
        noon.forward(timedelta(seconds=SECONDS))


def toml(path: Path, body: str) -> Path:
    file = path / "definitions.toml"
    file.write_text(f'[[definitions]]\nname = "tick"\n{body}\n')
    return file


@pytest.mark.parametrize("how", ["pause", "disable", "pause the group"])
def test_switching_off_one_that_is_far_behind_ends_its_catch_up(tm: TimeManagement, noon: MovableClock, how: str) -> None:
    far_behind(tm, noon, group="g")
    if how == "pause the group":
        tm.pause(group="g")
    else:
        getattr(tm, how)("tick", actor="alice")
    assert rows(tm) == [], "the edit decides nothing of it"
    assert (tm.definitions.get("tick").version, tm.definitions.get("tick").standing) != (1, "on")
    plan(tm)
    assert [str(row.state) for row in rows(tm)] == ["skipped"] * SECONDS
    assert not tm.jobs()
    assert {row.version for row in rows(tm)} == {2}


def test_switching_one_on_again_that_is_far_behind_leaves_nothing_to_make_up_for(
    tm: TimeManagement, noon: MovableClock
) -> None:
    far_behind(tm, noon)
    tm.pause("tick")
    tm.resume("tick")
    noon.forward("1s")
    plan(tm)
    assert [str(row.state) for row in rows(tm)] == ["skipped"] * SECONDS + ["pending"]
