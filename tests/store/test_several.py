"""Definitions with several schedules and several groups, on every database."""

from __future__ import annotations

from pathlib import Path

import pytest
from celery import Celery
from sqlalchemy import text
from tmtest.commands import Cli
from tmtest.ledger import HOUR, MINUTE, NOON, add, ledger, plan

from celery_tm import TimeManagement
from celery_tm.store.database import Database
from celery_tm.testing import MovableClock

RULES = ["*/20 * * * *", "*/30 * * * *"]


@pytest.fixture(autouse=True)
def noon(tm_clock: MovableClock) -> MovableClock:
    tm_clock.move_to(NOON)
    return tm_clock


def names(tm: TimeManagement, group: str) -> list[str]:
    return [one.name for one in tm.definitions.list(group=group)]


def test_each_scheduled_time_is_planned_once_and_explained(tm: TimeManagement, noon: MovableClock) -> None:
    add(tm, schedule=RULES, overlap="allow", recovery="all", jitter="5s")
    noon.forward("1h")
    plan(tm)
    assert [minute for minute, _ in ledger(tm)] == [20, 30, 40, 60]
    assert "given by the schedule '*/30 * * * *'" in tm.explain("tick", at=NOON + 30 * MINUTE).lines
    assert "given by the schedule '*/20 * * * *' and by '*/30 * * * *'" in tm.explain("tick", at=NOON + HOUR).lines


def test_previews_backfills_edits_and_exclusions_work_as_ever(tm: TimeManagement) -> None:
    add(tm, schedule=RULES, excluded=["2026-06-02"], recovery="skip", overlap="allow")
    assert [at.minute for at in tm.preview(schedule=RULES, count=4)] == [20, 30, 40, 0]
    made = tm.backfill("tick", since=NOON - HOUR, until=NOON, reason="new")
    assert [at.minute for at in made.instants] == [0, 20, 30, 40]
    seen = tm.definitions.preview("tick", schedule=[*RULES, "50 * * * *"], within="1h")
    assert [at.minute for at in seen.added] == [50]
    tm.definitions.update("tick", schedule=[*RULES, "50 * * * *"], policy="graceful")
    assert tm.definitions.get("tick").waiting_edit.values == {"schedule": [*RULES, "50 * * * *"]}


def test_files_and_commands_take_lists(tm: TimeManagement, app: Celery, tmp_path: Path) -> None:
    cli, file = Cli(app), tmp_path / "definitions.toml"
    file.write_text(
        '[[definitions]]\nname = "a"\ntask = "effect"\n'
        'schedule = ["0 8 * * *", "0 20 * * 6"]\ngroup = ["billing", "nightly"]\n'
    )
    cli.run("definitions", "load", str(file))
    assert tm.definitions.load(file).unchanged == ["a"]
    assert 'schedule = ["0 8 * * *", "0 20 * * 6"]' in cli.run("definitions", "export").stdout
    many = ("--group", "nightly", "--group", "reports")
    cli.run("definitions", "add", "b", "--task", "effect", "--schedule", '["0 8 * * *", "@hourly"]', *many)
    assert tm.definitions.get("b").groups == ("nightly", "reports")
    assert "by 0 8 * * *" in cli.run("definitions", "show", "a").stdout
    [first, *_] = cli.json("definitions", "preview", "--schedule", '["0 8 * * *", "@hourly"]')
    assert first["rule"] == "@hourly"
    assert [row["name"] for row in cli.json("definitions", "list", "--group", "nightly")] == ["a", "b"]


def test_groups_are_switched_listed_and_exported_by_any_of_them(tm: TimeManagement, database: Database) -> None:
    add(tm, name="a", group=["billing", "nightly"])
    add(tm, name="b", groups=["nightly", 'Béla\'s "x"'])
    add(tm, name="c", group="nightly")
    add(tm, name="d", group=["night", "Nightly"])
    assert (names(tm, "nightly"), names(tm, "billing"), names(tm, "Nightly")) == (["a", "b", "c"], ["a"], ["d"])
    assert names(tm, 'Béla\'s "x"') == ["b"]
    assert tm.definitions.groups() == {'Béla\'s "x"': 1, "Nightly": 1, "billing": 1, "night": 1, "nightly": 3}
    assert [one.name for one in tm.pause(group="nightly")] == ["a", "b", "c"]
    assert [one.name for one in tm.resume(group="billing")] == ["a"]
    assert [one["name"] for one in tm.definitions.export(group="billing")["definitions"]] == ["a"]
    with database.transaction() as tx:  # an older release has moved it, and knows one group
        group = tx.connection.dialect.identifier_preparer.quote("group")
        tx.execute(text(f"UPDATE tm_definition SET {group} = 'moved' WHERE name = 'a'"))
    assert (tm.definitions.get("a").group, tm.definitions.get("a").groups) == ("moved", ())
    assert names(tm, "nightly") == ["b", "c"]
    assert tm.definitions.groups()["moved"] == 1
