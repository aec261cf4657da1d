"""Many dead letters at once: what is affected is told first, and nothing is done if that has changed since."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from celery import Celery
from tmtest.ledger import MINUTE, NOON, add

from celery_tm import TimeManagement, defer
from celery_tm.errors import CountChanged, DeadLetterNotFound, DefinitionNotFound
from celery_tm.recovery.pruner import prune
from celery_tm.testing import MovableClock


@pytest.fixture
def buried(tm: TimeManagement, app: Celery, noon: MovableClock) -> list[str]:
    """Twelve dead letters of a deferred task, a minute apart, and one of a definition, half an hour later."""
    ids = []
    for n in range(12):
        ids.append(defer(app.tasks["fails"].s(n), delay="1m", max_retries=0).id)
        noon.forward("1m")
        tm.run_due_jobs()
    add(tm, schedule="0 0 1 1 *", task="fails", args=["50%_x"], max_retries=0)
    noon.move_to(NOON + 30 * MINUTE)
    tm.trigger("tick")
    tm.run_due_jobs()
    return ids


def test_a_preview_tells_what_is_affected(tm: TimeManagement, buried: list[str]) -> None:
    seen = tm.dead_letters.preview()
    assert (seen.count, seen.by_task, len(seen.sample)) == (13, {"fails": 13}, 10)
    assert (seen.oldest, seen.newest) == (NOON + MINUTE, NOON + 30 * MINUTE)
    assert [letter.id for letter in seen.sample] == [letter.id for letter in tm.dead_letters.list(limit=10)]
    none = tm.dead_letters.preview(task="other")
    assert (none.count, none.by_task, none.oldest, none.newest, none.sample) == (0, {}, None, None, [])


def test_letters_are_told_apart_page_by_page(tm: TimeManagement, buried: list[str]) -> None:
    count = tm.dead_letters.count
    assert (count(task="fails"), count(definition="tick"), count(error="NO 1"), count(error="no 11")) == (13, 1, 3, 1)
    assert (count(error="50%_X"), count(error="5_%"), count(error="%")) == (1, 0, 1), "what people type means itself"
    assert count(since=NOON + 3 * MINUTE, until=NOON + 5 * MINUTE) == 2
    assert (count(ids=buried[:3]), count(ids=[*buried[:3], "unknown"]), count(ids=[])) == (3, 3, 0)
    found, cursor = [], None
    while not found or cursor:
        page = tm.dead_letters.list(before=cursor, until=NOON + 20 * MINUTE, limit=5)
        found, cursor = [*found, *page], page.next
    assert [letter.id for letter in found] == buried[::-1]


def test_many_are_revived(tm: TimeManagement, buried: list[str]) -> None:
    assert tm.dead_letters.revive_all(error="no 1", expected=3, actor="ann", reason="mended") == 3
    assert {job.id for job in tm.jobs()} == {buried[n] for n in (1, 10, 11)}
    assert {line.object for line in tm.audit(actor="ann", action="revive")} == {f"job:{buried[n]}" for n in (1, 10, 11)}
    assert tm.dead_letters.revive_all(ids=buried[2:4]) == 2
    assert tm.dead_letters.count() == 8


def test_many_are_purged(tm: TimeManagement, buried: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("celery_tm.management.dead_letters.BATCH", 4)
    assert tm.dead_letters.purge(definition="tick", expected=1) == 1
    assert tm.dead_letters.purge(until=NOON + 11 * MINUTE, actor="ann", reason="test data") == 10
    assert [letter.id for letter in tm.dead_letters.list()] == buried[:9:-1]
    assert len(tm.audit(actor="ann", action="purge")) == 10
    assert (tm.dead_letters.purge(buried[-1]), tm.dead_letters.purge(all=True)) == (1, 1)
    with pytest.raises(DeadLetterNotFound):
        tm.dead_letters.purge(buried[-1])


@pytest.mark.parametrize("act", ["revive_all", "purge"])
def test_nothing_is_done_if_their_number_has_changed(tm: TimeManagement, buried: list[str], act: str) -> None:
    with pytest.raises(CountChanged, match=r"13 dead letters are there now, not the 12 .* nothing was done"):
        getattr(tm.dead_letters, act)(expected=12, **({"all": True} if act == "purge" else {}))
    with pytest.raises(CountChanged, match="2 dead letters are there now, not the 3"):
        getattr(tm.dead_letters, act)(ids=[*buried[:2], "gone"], expected=3)
    assert (tm.dead_letters.count(), tm.jobs(), tm.audit(action="revive"), tm.audit(action="purge")) == (13, [], [], [])


def test_what_is_buried_meanwhile_is_not_touched(
    tm: TimeManagement, app: Celery, noon: MovableClock, buried: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    later: list[str] = []
    revive = tm.dead_letters.revive

    def meanwhile(id: str, **said: object) -> object:
        if not later:
            later.append(defer(app.tasks["fails"].s(99), delay="1m", max_retries=0).id)
            noon.forward(timedelta(minutes=1))
            tm.run_due_jobs(limit=1)
        return revive(id, **said)  # type: ignore[arg-type]

    monkeypatch.setattr(tm.dead_letters, "revive", meanwhile)
    assert tm.dead_letters.revive_all(expected=13) == 13
    assert [letter.id for letter in tm.dead_letters.list()] == later


def test_a_removed_definition_is_still_known_by_what_it_left(
    tm: TimeManagement, noon: MovableClock, buried: list[str]
) -> None:
    tm.definitions.remove("tick")
    noon.forward("100d")
    prune(tm.installation.database, replace(tm.settings, tm_keep_last=0))
    assert tm.history("tick") == []
    assert tm.dead_letters.count(definition="tick") == 1
    assert tm.dead_letters.purge(definition="tick") == 1
    with pytest.raises(DefinitionNotFound):
        tm.history("tick")
