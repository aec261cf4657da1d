"""Every command on every database, in this process: what it prints and what it writes."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest
from celery import Celery
from tmtest.commands import Cli, add, rows

from celery_tm import TimeManagement, clock
from celery_tm.cli.toml import plain_values, write_toml
from celery_tm.errors import InvalidValue
from celery_tm.store.database import Database

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)  # a Monday
DAY = timedelta(days=1)


@pytest.fixture
def cli(app: Celery, tm: TimeManagement) -> Iterator[Cli]:
    with clock.moved_to(NOON):
        yield Cli(app)


# Adding, showing, listing


def test_add_takes_any_field_and_show_tells_it_back(cli: Cli) -> None:
    cli.run("calendars", "set", "holidays", "12-25")
    added = add(
        cli, "nightly", "--timezone", "Europe/Warsaw", "--overlap", "allow", "--recovery", "all", "--group", "reports",
        "--queue", "123", "--args", '["sales", 3]', "--kwargs", '{"deep": {"er": [null]}}', "--set", "max_retries=5",
        "--set", 'calendars=["holidays"]', "--set", "starts_at=2026-06-03T00:00:00+02:00", "--set", "task_timeout=20m",
        "--set", "paused=true", "--set", "jitter=null", "--set", "concurrency_key=a=b",
    )  # fmt: skip
    assert (added["version"], added["is"], added["next_run_at"]) == (1, "paused", "2026-06-03T00:30:00+00:00")
    shown = cli.json("definitions", "show", "nightly")
    assert shown["stated"] == {
        "task": "effect", "schedule": "30 2 * * *", "args": ["sales", 3], "kwargs": {"deep": {"er": [None]}},
        "timezone": "Europe/Warsaw", "starts_at": "2026-06-02T22:00:00+00:00", "calendars": ["holidays"], "paused": True,
        "group": "reports", "queue": "123", "max_retries": 5, "overlap": "allow", "concurrency_key": "a=b",
        "concurrency": 1, "recovery": "all", "task_timeout": "20m",
    }  # fmt: skip
    assert shown["meaning"] == "at 02:30 every day in Europe/Warsaw"
    assert [(one["utc"], one["local"]) for one in shown["coming"]] == [
        (f"2026-06-0{day}T00:30:00+00:00", f"2026-06-0{day} 02:30:00+02:00") for day in (3, 4, 5)
    ]
    assert (shown["versions"], shown["waiting_edit"], shown["created_by"]) == (1, None, "ann")
    text = cli.run("definitions", "show", "nightly").stdout
    assert "meaning          at 02:30 every day in Europe/Warsaw" in text
    assert "2026-06-03 00:30:00 UTC   2026-06-03 02:30:00+02:00 Europe/Warsaw" in text


def test_a_schedule_may_be_a_mapping(cli: Cli) -> None:
    window = '{"kind": "window", "every": "2h", "from": "08:00", "until": "18:00", "days": "mon-fri"}'
    assert add(cli, schedule=window)["schedule"] == "every 2h from 08:00 until 18:00 on mon-fri"
    assert cli.refused("definitions", "edit", "nightly", "--schedule", "{kind: window}").startswith(
        "schedule: '{kind: window}' is not JSON (Expecting property name"
    )


def test_the_list_hides_nothing(cli: Cli, tm: TimeManagement) -> None:
    assert "no definitions yet" in cli.run("definitions", "list").stdout
    for name in ("disabled", "edited", "off twice", "on", "paused"):
        add(cli, name, "--group", "g" if name == "on" else "other")
    cli.run("definitions", "pause", "paused")
    cli.run("definitions", "disable", "disabled")
    for action in ("pause", "disable"):
        cli.run("definitions", action, "off twice")
    cli.run("definitions", "edit", "edited", "--schedule", "0 3 * * *", "--policy", "graceful")
    assert {one["name"]: one["is"] for one in cli.json("definitions", "list")} == {
        "disabled": "disabled", "edited": "on, edit waits", "off twice": "disabled, paused", "on": "on", "paused": "paused",
    }  # fmt: skip
    [one] = cli.json("definitions", "list", "--group", "g")
    assert (one["schedule"], one["next_run_at"], one["last_run_at"]) == ("30 2 * * *", "2026-06-02T02:30:00+00:00", None)
    table = cli.run("definitions", "list").stdout.splitlines()
    assert table[0].split("  ")[0] == "name"
    assert len(table) == 6
    assert "no definition is in group 'none'" in cli.run("definitions", "list", "--group", "none").stdout


def test_a_retired_definition_is_listed(cli: Cli, tm: TimeManagement, database: Database) -> None:
    from celery_tm.scheduler import editing
    from celery_tm.store import definitions

    add(cli)
    with database.transaction() as tx:
        found = definitions.find(tx, "nightly", lock=True)
        assert found is not None
        editing.retire(tm.installation, tx, found, reason="no longer in the code")
    assert [(one["is"], one["next_run_at"]) for one in cli.json("definitions", "list")] == [("retired", None)]
    assert cli.json("definitions", "show", "nightly")["coming"] == []


# Editing and previewing


def test_an_edit_is_a_version_that_says_what_changed(cli: Cli) -> None:
    add(cli)
    edited = cli.json(
        "definitions", "edit", "nightly", "--version", "1", "--schedule", "0 3 * * *", "--set", "max_retries=2",
        "--actor", "bob", "--reason", "later",
    )  # fmt: skip
    assert (edited["version"], edited["next_run_at"]) == (2, "2026-06-02T03:00:00+00:00")
    [second, first] = cli.json("definitions", "versions", "nightly")
    assert (second["actor"], second["action"], second["reason"]) == ("bob", "edit", "later")
    assert second["changed"] == {"schedule": "0 3 * * *", "max_retries": 2}
    assert (first["version"], first["changed"]) == (1, {"task": "effect", "schedule": "30 2 * * *"})
    [latest] = cli.json("definitions", "versions", "nightly", "--limit", "1")
    assert latest["changed"] == second["changed"]
    stale = cli.refused("definitions", "edit", "nightly", "--version", "1", "--set", "max_retries=9")
    assert stale.startswith("definition 'nightly' is at version 2 by bob, the edit was made on version 1")
    assert "is at version 2 by bob" in cli.refused(
        "definitions", "edit", "nightly", "--version", "1", "--set", "max_retries=9", "--dry-run"
    )
    assert cli.json("definitions", "edit", "nightly", "--set", "max_retries=2")["version"] == 2


def test_a_graceful_edit_is_shown_while_it_waits(cli: Cli) -> None:
    add(cli)
    edited = cli.json("definitions", "edit", "nightly", "--schedule", "0 3 * * *", "--policy", "graceful", "--actor", "bob")
    assert (edited["is"], edited["edit_waits_until"]) == ("on, edit waits", "2026-06-02T02:30:00+00:00")
    assert cli.json("definitions", "show", "nightly")["waiting_edit"]["values"] == {"schedule": "0 3 * * *"}
    text = cli.run("definitions", "show", "nightly").stdout
    assert "after 2026-06-02 02:30:00 UTC: schedule=0 3 * * *, by bob" in text


def test_a_dry_run_shows_what_comes_goes_and_stays_and_writes_nothing(cli: Cli, database: Database) -> None:
    add(cli)
    before = rows(database)
    change = ("nightly", "--schedule", "30 2 * * mon,tue", "--within", "7d")
    told = cli.json("definitions", "edit", *change, "--dry-run")
    assert (told["added"], len(told["removed"])) == ([], 5)
    assert told["kept"] == ["2026-06-02T02:30:00+00:00", "2026-06-08T02:30:00+00:00"]
    assert cli.json("definitions", "preview", *change) == told
    text = cli.run("definitions", "preview", *change, "--limit", "2").stdout
    assert "… and 5 more" in text
    assert "added: 0, removed: 5, kept: 2" in text
    assert len(cli.json("definitions", "preview", "nightly")["kept"]) == 7
    new = cli.json("definitions", "preview", "new", "--task", "effect", "--schedule", "@daily", "--within", "2d")
    assert new["added"] == ["2026-06-02T00:00:00+00:00", "2026-06-03T00:00:00+00:00"]
    assert rows(database) == before


def test_a_schedule_alone_can_be_previewed(cli: Cli) -> None:
    rule = ("definitions", "preview", "--schedule", "30 2 * * *", "--timezone", "America/New_York", "--count", "2")
    assert [one["utc"] for one in cli.json(*rule, "--since", "2026-03-08")] == [
        "2026-03-08T07:00:00+00:00", "2026-03-09T06:30:00+00:00",
    ]  # fmt: skip
    assert [one["local"] for one in cli.json(*rule, "--since", "2026-03-08T05:00:00Z", "--gap", "skip")] == [
        "2026-03-09 02:30:00-04:00", "2026-03-10 02:30:00-04:00",
    ]  # fmt: skip
    twice = ("definitions", "preview", "--schedule", "30 1 * * *", "--timezone", "America/New_York", "--since", "2026-11-01")
    assert [one["local"][-6:] for one in cli.json(*twice, "--fold", "both", "--count", "2")] == ["-04:00", "-05:00"]
    closed = cli.json(*rule, "--set", 'excluded=["2026-06-02"]')
    assert closed[0]["local"] == "2026-06-03 02:30:00-04:00"
    assert len(cli.run(*rule).stdout.splitlines()) == 3


# Files

AWKWARD = ' "quoted" \\back\\slash\ttab\nline\r\x00\x07\x7f\x85\u2028 żółć 😀 \'\'\' """ = [x] # no comment '
ARGS = [
    AWKWARD, 1, -2.5, 1e22, 1e-9, 10**20, True, [], {}, "yes", "1e3", "2026-01-01", "null", "~", "",
    datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC), datetime(2026, 1, 2, 3, 4), date(2026, 1, 2),
    datetime(2026, 1, 2, tzinfo=UTC).astimezone().timetz(), uuid.UUID(int=7), Decimal("1.10"), b"\xff\x00",
    {"a b": {"ü.x": [1, {"": "empty"}]}, "'": 1, '"\n': 2, "on": False},
]  # fmt: skip


def fill(tm: TimeManagement) -> None:
    """Add definitions that state everything there is."""
    tm.calendars.set("Feiertage & mehr", ["12-25", "2026-12-24/2027-01-02", "sun", "2026-12-24T10:00/2026-12-24T12:00"])
    kinds = [
        "0 */15 8-17 * * mon-fri", "every 2h from 2026-01-01T08:00:00+00:00", "R/2026-01-01T00:00:00Z/P1M",
        "every 2h from 08:00 until 18:00 on mon-fri", {"kind": "once", "at": "2030-01-01T00:00:00+00:00"},
        {"kind": "rrule", "rule": "FREQ=MONTHLY;BYDAY=-1FR", "start": "2026-01-01T09:00:00"},
        {"kind": "crontab", "expression": "0 9 1 * mon"}, {"kind": "solar", "event": "sunrise", "lat": 52.2, "lon": 21.0},
        "H H * * *",
    ]  # fmt: skip
    for place, schedule in enumerate(kinds):
        tm.definitions.add(name=f"kind {place} {AWKWARD[16:20]}", task="effect", schedule=schedule, timezone="Europe/Warsaw")
    tm.definitions.add(
        name="all ''' \"of\" \\ it #1", task="effect", args=ARGS, kwargs={"ke y": ARGS, "k": {"n": {"m": 1}}},
        schedule="30 2 * * *", timezone="America/New_York", gap="skip", fold="both", starts_at="2026-01-01T00:00:00.25Z",
        ends_at="2036-01-01T00:00:00Z", excluded=["2026-07-04", "sat"], calendars=["Feiertage & mehr"], jitter="1m 30s",
        max_runs=1000, enabled=False, paused=True, group="Großes", queue="q", priority=3, max_retries=4,
        retry={"kind": "exponential", "interval": "10s", "factor": 2.5, "cap": "10m"}, overlap="allow", concurrency_key="k",
        concurrency=2, recovery={"policy": "bounded", "count": 3, "within": "2h", "spacing": "5s"}, execution_timeout="1h",
        task_timeout="20m", expires="30m", pause_after=3, plan_ahead="2d",
        options={"headers": {"x-y": AWKWARD.replace("\x00", ""), "deep": [{"a": 1.5}]}, "ignore_result": True},
    )  # fmt: skip


@pytest.mark.parametrize(("form", "suffix"), [("toml", "toml"), ("yaml", "yaml")])
def test_what_is_exported_loads_back_unchanged(
    cli: Cli, tm: TimeManagement, database: Database, tmp_path: Path, form: str, suffix: str
) -> None:
    fill(tm)
    path = tmp_path / f"definitions.{suffix}"
    path.write_text(cli.run("definitions", "export", "--format", form).stdout, encoding="utf-8")
    before, definitions = rows(database), tm.definitions.list()
    told = cli.json("definitions", "load", str(path))
    assert (told["added"], told["changed"], told["calendars"]) == ([], [], [])
    assert sorted(told["unchanged"]) == sorted(definition.name for definition in definitions)
    assert rows(database) == before
    for definition in definitions:
        cli.run("definitions", "remove", definition.name, "--yes")
    cli.run("calendars", "remove", "Feiertage & mehr")
    content = tm.definitions.export()
    assert content == {"definitions": []}
    assert sorted(cli.json("definitions", "load", str(path))["added"]) == sorted(told["unchanged"])
    assert cli.run("definitions", "export", "--format", form).stdout == path.read_text(encoding="utf-8")


def test_json_says_the_same_as_toml(cli: Cli, tm: TimeManagement) -> None:
    fill(tm)
    content = cli.json("definitions", "export")
    assert content == json.loads(cli.run("definitions", "export", "--format", "json").stdout)
    assert content == json.loads(json.dumps(plain_values(tm.definitions.export(), dates=False)))
    [one] = cli.json("definitions", "export", "--group", "Großes")["definitions"]
    assert (one["max_retries"], one["recovery_count"]) == (4, 3)
    assert cli.json("definitions", "export", "--group", "none") == {"definitions": []}
    assert cli.run("definitions", "export", "--group", "none").stdout == "definitions = []\n"


def test_toml_refuses_what_it_cannot_say(cli: Cli) -> None:
    add(cli, "nightly", "--kwargs", '{"a": [1, null]}')
    assert cli.refused("definitions", "export") == (
        "format: TOML has no null, and nightly: kwargs.a[1] is null; use --format yaml or json"
    )
    assert "null" in cli.run("definitions", "export", "--format", "yaml").stdout
    with pytest.raises(InvalidValue, match="half of one"):
        write_toml({"definitions": [{"name": "x", "args": ["\ud800"]}]})


def test_a_load_tells_people_what_it_did(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "d.toml"
    path.write_text(
        '[[calendars]]\nname = "h"\ndates = [2026-12-25]\n'
        '[[definitions]]\nname = "a"\ntask = "effect"\nschedule = "@daily"\ncalendars = ["h"]\n'
    )
    assert cli.run("definitions", "load", str(path)).stdout.splitlines() == [
        "added: 1 (a)", "changed: 0", "unchanged: 0", "calendars: 1 (h)",
    ]  # fmt: skip
    assert cli.run("definitions", "load", str(path)).stdout.splitlines() == ["added: 0", "changed: 0", "unchanged: 1 (a)"]


# Switching and removing


def test_one_definition_or_a_group_is_switched(cli: Cli) -> None:
    for name in ("a", "b"):
        add(cli, name, "--group", "g")
    add(cli, "c")
    assert cli.json("definitions", "pause", "c", "--reason", "holiday")["is"] == "paused"
    assert cli.json("definitions", "resume", "c")["is"] == "on"
    for action, standing in (("pause", "paused"), ("resume", "on"), ("disable", "disabled"), ("enable", "on")):
        assert [(one["name"], one["is"]) for one in cli.json("definitions", action, "--group", "g")] == [
            ("a", standing), ("b", standing),
        ]  # fmt: skip
    assert cli.json("definitions", "show", "c")["version"] == 3
    assert "name one definition, or pass --group" in cli.misused("definitions", "pause")
    assert "name one definition, or pass --group" in cli.misused("definitions", "pause", "a", "--group", "g")
    assert cli.refused("definitions", "pause", "--group", "x").startswith("group: no definition is in 'x'")


def test_a_definition_is_removed_when_said_so(cli: Cli) -> None:
    add(cli)
    assert "Aborted" in cli.run("definitions", "remove", "nightly", code=1, input="n\n").stderr
    assert len(cli.json("definitions", "list")) == 1
    assert cli.json("definitions", "remove", "nightly", "--yes") == {"removed": "nightly"}
    assert cli.json("definitions", "list") == []
    assert "was removed by" in cli.json("explain", "nightly", "--at", "2026-06-01T12:00")["answer"]
    assert cli.refused("definitions", "remove", "nightly").startswith("no definition named 'nightly'")


# Calendars


def test_calendars_are_set_shown_and_removed(cli: Cli) -> None:
    assert "no calendars yet" in cli.run("calendars", "list").stdout
    made = cli.json("calendars", "set", "holidays", "12-25", "2026-12-24/2027-01-02", "SAT", "--actor", "ann")
    assert made["dates"] == ["12-25", "2026-12-24/2027-01-02", "sat"]
    add(cli, "nightly", "--set", 'calendars=["holidays"]')
    [one] = cli.json("calendars", "list")
    assert (one["name"], one["used_by"], one["updated_by"]) == ("holidays", ["nightly"], "ann")
    cli.run("calendars", "set", "holidays", "2026-06-02")
    assert cli.json("definitions", "show", "nightly")["next_run_at"] == "2026-06-03T02:30:00+00:00"
    assert "is named by nightly" in cli.refused("calendars", "remove", "holidays")
    cli.run("definitions", "edit", "nightly", "--set", "calendars=null")
    assert cli.json("calendars", "remove", "holidays") == {"removed": "holidays"}
    assert cli.refused("calendars", "show", "holidays").startswith("calendar: there is no calendar 'holidays'")
    assert "Missing argument 'DATE...'" in cli.misused("calendars", "set", "holidays")


# Asking


def test_an_instant_without_an_offset_is_in_the_definitions_own_time(cli: Cli) -> None:
    add(cli, "nightly", "--timezone", "Europe/Warsaw")
    for at in ("2026-06-02T02:30", "2026-06-02T00:30:00Z", "2026-06-02 02:30+02:00"):
        told = cli.json("explain", "nightly", "--at", at)
        assert told["at"] == "2026-06-02T00:30:00+00:00"
        assert "still to come" in told["answer"]
    lines = cli.run("explain", "nightly").stdout.splitlines()
    assert lines[0].startswith("'nightly' had nothing to run at 2026-06-01 12:00:00 UTC")
    assert all(line.startswith("  ") for line in lines[1:])
    assert cli.refused("explain", "nightly", "--at", "yesterday").startswith(
        "at: 'yesterday' is not a date and time; use ISO 8601, e.g."
    )
    assert "no definition named 'nightyl'; did you mean 'nightly'?" in cli.refused("explain", "nightyl")


def test_the_ledger_is_listed_and_an_occurrence_replayed(cli: Cli, tm: TimeManagement) -> None:
    add(cli, schedule="0 13 * * *")
    assert "nothing was decided yet" in cli.run("occurrences", "nightly").stdout
    with clock.moved_to(NOON + timedelta(hours=1)):
        tm.run_due_jobs(now=NOON + timedelta(hours=1))
        [ran] = cli.json("occurrences", "nightly")
        assert (ran["state"], ran["scheduled_at"]) == ("completed", "2026-06-01T13:00:00+00:00")
        assert ran["started_at"] <= ran["ended_at"]
        again = cli.json("replay", ran["id"], "--reason", "it was empty", "--actor", "ann")
        assert (again["state"], again["replay_of"]) == ("pending", ran["id"])
        assert [one["replay_of"] for one in cli.json("occurrences", "nightly")] == [ran["id"], None]
        assert len(cli.json("occurrences", "nightly", "--limit", "1")) == 1
        assert "is still pending" in cli.refused("replay", again["occurrence"], "--reason", "x")
    assert "completed" in cli.run("occurrences", "nightly").stdout
    assert cli.refused("replay", "nothing", "--reason", "x").startswith("no occurrence 'nothing'")
    assert "Missing option '--reason'" in cli.misused("replay", "nothing")


def test_prune_says_how_many(cli: Cli, tm: TimeManagement) -> None:
    add(cli, schedule="0 13 * * *")
    tm.run_due_jobs(now=NOON + timedelta(hours=1))
    with clock.moved_to(NOON + 4000 * DAY):
        told = cli.json("prune")
    assert (told["executions"], told["occurrences"], told["finished"]) == (0, 0, True), "they are among the last 50"
    object.__setattr__(tm.settings, "tm_keep_last", 0)
    with clock.moved_to(NOON + 4000 * DAY):
        told = cli.json("prune")
    assert (told["executions"], told["occurrences"], told["finished"]) == (1, 1, True)
