"""What people run at three in the morning: status, doctor, audit, log, many dead letters at once; and how it looks."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from fcntl import ioctl
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from celery.bin.celery import celery as celery_group
from click.shell_completion import ShellComplete
from click.testing import CliRunner
from sqlalchemy import insert, update
from tmtest.commands import Cli, add

from celery_tm import TimeManagement, clock, defer
from celery_tm.cli import common
from celery_tm.cli import tm as tm_group
from celery_tm.store import logs, nodes, tables
from celery_tm.store.database import Database

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
SECRET = "hunter2"


@pytest.fixture
def cli(app: Celery, tm: TimeManagement) -> Iterator[Cli]:
    with clock.moved_to(NOON):
        yield Cli(app)


def bury(tm: TimeManagement, count: int, task: str = "fails") -> list[str]:
    ids = [defer(task, args=[n], app=tm.app, max_retries=0).id for n in range(count)]
    tm.run_due_jobs(now=NOON)
    return ids


# Status and doctor


def test_status_is_one_screen(cli: Cli, tm: TimeManagement, database: Database) -> None:
    add(cli)
    cli.run("definitions", "pause", "nightly")
    bury(tm, 2)
    database.run(lambda tx: nodes.see(tx, "beat@here", "beat", started_ago=HOUR))
    screen = cli.run("status").stdout
    for line in (
        "2026-06-01 12:00:00Z   schema ", "definitions     1 paused", "dead letters    2", "last hour       2 failed",
        "lag             nothing due waits", "beat@here  beat  0s ago  1h",
    ):  # fmt: skip
        assert line in screen
    assert len(screen.splitlines()) <= 24


def test_status_says_who_waits_and_that_nobody_is_there(cli: Cli, tm: TimeManagement) -> None:
    late = defer("effect", app=tm.app, delay="1s").id
    with clock.moved_to(NOON + HOUR):
        screen = cli.run("status").stdout
    assert f"59m 59s   oldest: effect {late}" in screen
    assert "no beat and no worker was seen" in screen


def test_doctor_says_what_to_do_and_ends_with_three(cli: Cli, tm: TimeManagement, database: Database) -> None:
    add(cli)
    cli.json("definitions", "add", "typo", "--task", "efect", "--schedule", "@daily")
    bury(tm, 1)
    text = cli.run("doctor", code=3).stdout
    assert "error    beats: no beat is running" in text
    assert "→ run `celery -A app beat -S celery_tm.Scheduler`" in text
    assert "definition typo would run 'efect', which this app does not have (it has 'effect')" in text
    assert "ok       schema, " in text
    found = {one["check"]: one for one in json.loads(cli.run("doctor", "--json", code=3).stdout)}
    assert (found["dead letters"]["level"], found["tasks"]["objects"]) == ("warning", ["efect"])
    assert found["broker"]["level"] == "ok"


def test_doctor_ends_with_zero_when_nothing_is_to_be_done(cli: Cli, database: Database) -> None:
    database.run(lambda tx: nodes.see(tx, "beat@here", "beat", started_ago=HOUR))
    assert "0 to act on" in cli.run("doctor", "--all").stdout


def test_doctor_finds_what_the_tables_tell(cli: Cli, tm: TimeManagement, database: Database) -> None:
    """The facts come from real rows: each statement is made to find something."""
    for name in ("gone", "spent", "forgotten"):
        add(cli, name, *(("--set", "max_runs=1") if name == "spent" else ()))
    occurrence = cli.json("definitions", "trigger", "gone")["occurrence"]
    job = defer("effect", app=tm.app, delay="1d").id
    definition = tables.definition

    def spoil(tx: Any) -> None:
        tx.execute(tables.job.delete().where(tables.job.c.occurrence == occurrence))
        again = {"state": "dispatched", "dispatches": 7, "lease_until": NOON + HOUR}
        tx.execute(update(tables.job).where(tables.job.c.id == job).values(again))
        tx.execute(update(definition).where(definition.c.name != "forgotten").values(next_run_at=None))
        tx.execute(update(definition).where(definition.c.name == "spent").values(runs=1))
        old = {"paused": True, "updated_at": NOON - timedelta(days=30)}
        tx.execute(update(definition).where(definition.c.name == "forgotten").values(old))
        lost = {"id": "x", "job": "y", "task": "effect", "source": "direct", "attempt": 1, "outcome": "orphaned"}
        tx.execute(insert(tables.execution).values(completed_at=NOON - HOUR, **lost))
        tx.execute(insert(tables.execution).values(completed_at=NOON - timedelta(days=400), **lost | {"id": "z"}))
        later = lost | {"outcome": "succeeded", "completed_at": NOON - 2 * HOUR}  # so that it is not among the last 50
        tx.insert_all(tables.execution, [later | {"id": f"later {n}"} for n in range(50)])

    database.run(spoil)
    with clock.moved_to(NOON + HOUR / 2):
        found = {one["check"]: one for one in json.loads(cli.run("doctor", "--json", code=3).stdout)}
    assert found["occurrences"]["objects"] == [occurrence]
    assert found["dispatches"]["objects"] == [job]
    assert found["paused"]["objects"] == ["forgotten"]
    assert found["leases"]["objects"] == ["effect"]
    assert "the oldest is of 2025-04-27" in found["retention"]["text"]
    nexts = [one for one in json.loads(cli.run("doctor", "--json", code=3).stdout) if one["check"] == "next runs"]
    assert [(one["level"], one["objects"]) for one in nexts] == [("warning", ["gone"]), ("note", ["spent"])]


def test_doctor_works_without_database_and_without_broker(tmp_path: Path) -> None:
    conf = {"tm_database_url": "postgresql://nobody@127.0.0.1:1/none", "broker_url": "redis://127.0.0.1:1/0"}
    app = Celery("away", set_as_current=False)
    app.conf.update(conf)
    found = json.loads(Cli(app).run("doctor", "--json", code=3).stdout)
    assert [(one["level"], one["check"]) for one in found[:2]] == [("error", "schema"), ("error", "broker")]
    assert "cannot reach the database" in found[0]["text"]


def test_doctor_names_missing_tables(tmp_path: Path) -> None:
    app = Celery("empty", set_as_current=False, broker="memory://")
    app.conf.update(tm_database_url=f"sqlite:///{tmp_path}/empty.db", tm_auto_upgrade=False)
    text = Cli(app).run("doctor", code=3).stdout
    assert "there are no celery_tm tables" in text
    assert "→ run `celery -A app tm schema upgrade`" in text


# Audit and log


def test_the_audit_tells_who_what_and_why(cli: Cli) -> None:
    add(cli)
    cli.run("definitions", "edit", "nightly", "--set", "max_retries=7", "--actor", "bob", "--reason", "flaky bank")
    [line] = cli.json("audit", "--object", "definition:nightly", "--actor", "bob")
    assert (line["action"], line["reason"]) == ("edit", "flaky bank")
    assert "max_retries: – → 7" in cli.run("audit").stdout
    assert cli.run("audit", "--actor", "nobody").stdout == "nothing like that was changed\n"


def test_log_lines_are_told_in_order_and_followed_to_the_end(cli: Cli, tm: TimeManagement, database: Database) -> None:
    job = defer("reports", args=["well"], app=tm.app).id
    tm.run_due_jobs(now=NOON)
    execution = cli.json("jobs", "show", job)["executions"][0]["id"]
    database.run(lambda tx: logs.write(tx, execution, "info", "\x1b[31mred\x1b[0m"))
    lines = cli.run("log", job).stdout.splitlines()
    assert [line.split()[3] for line in lines] == ["progress", "info"]
    assert "\x1b" not in lines[1]
    assert cli.run("log", job, "--follow").stdout.splitlines() == lines
    assert [json.loads(line)["level"] for line in cli.run("log", execution, "--follow", "--json").stdout.splitlines()] == [
        "progress", "info",
    ]  # fmt: skip
    assert "no job 'nothing'" in cli.refused("log", "nothing")


# Pages


def test_lists_go_on_where_a_page_ends(cli: Cli, tm: TimeManagement) -> None:
    ids = bury(tm, 5)
    seen: list[str] = []
    more: list[str] = []
    while True:
        done = cli.run("dead-letters", "list", "--limit", "2", *more, "--json")
        seen += [one["id"] for one in json.loads(done.stdout)]
        if not done.stderr:
            break
        more = re.fullmatch(r"more: add (--before) (\S+)\n", done.stderr).groups()  # type: ignore[union-attr, assignment]
    assert sorted(seen) == sorted(ids)
    assert len(seen) == 5
    assert "is not a cursor" in cli.refused("history", "--before", "nonsense")
    assert "it is a cursor of" in cli.refused("jobs", "list", "--after", more[1])


def test_filters_narrow_and_a_typo_is_answered(cli: Cli, tm: TimeManagement) -> None:
    add(cli)
    bury(tm, 2)
    assert len(cli.json("history", "--outcome", "failed")) == 2
    assert cli.json("history", "--outcome", "succeeded") == []
    assert cli.json("history", "--until", "2026-06-01T00:00Z") == []
    assert "did you mean 'failed'?" in cli.misused("history", "--outcome", "faild")
    assert "did you mean 'running'?" in cli.misused("jobs", "list", "--state", "runing")
    assert "did you mean 'paused'?" in cli.misused("definitions", "list", "--standing", "pausd")
    assert "did you mean 'fails'?" in cli.run("history", "--task", "fial").stdout
    assert "did you mean 'nightly'?" in cli.refused("history", "nigthly")
    assert [one["name"] for one in cli.json("definitions", "list", "--search", "IGHT")] == ["nightly"]
    assert "--outcome" in cli.misused("history", "--outcom", "failed")
    assert "did you mean 'status'?" in cli.misused("statsu")


# Many dead letters


def test_many_are_revived_after_a_preview_and_a_yes(cli: Cli, tm: TimeManagement) -> None:
    bury(tm, 12)
    preview = cli.json("dead-letters", "revive", "--all", "--dry-run")
    assert (preview["count"], preview["by_task"], len(preview["sample"])) == (12, {"fails": 12}, 10)
    asked = cli.run("dead-letters", "revive", "--all", code=1, input="n\n")
    assert "12 dead letters (fails: 12)" in asked.stderr
    assert "… and 2 more" in asked.stderr
    assert len(cli.json("dead-letters", "list")) == 12
    assert "revived  12" in cli.run("dead-letters", "revive", "--all", input="y\n").stdout
    assert cli.json("dead-letters", "list") == []


def test_only_those_that_are_meant_are_purged(cli: Cli, tm: TimeManagement) -> None:
    bury(tm, 3)
    assert cli.json("dead-letters", "purge", "--all", "--error", "no 1", "--yes") == {"purged": 1}
    assert cli.json("dead-letters", "purge", "--all", "--task", "other", "--yes") == {"purged": 0}
    assert "did you mean 'fails'?" in cli.run("dead-letters", "purge", "--all", "--task", "fail", "--yes").stdout
    assert len(cli.json("dead-letters", "list")) == 2
    [one, _] = cli.json("dead-letters", "list")
    for wrong in (["--task", "fails"], [one["id"], "--all"], [one["id"], "--task", "fails"], [one["id"], "--dry-run"]):
        cli.misused("dead-letters", "purge", *wrong)
    assert cli.json("dead-letters", "purge", one["id"]) == {"purged": 1}


# Redaction


def test_a_secret_is_shown_nowhere(app: Celery, tm: TimeManagement, cli: Cli, database: Database) -> None:
    app.conf.tm_redact = ["*password*", "fails:0"]
    kwargs = json.dumps({"n": {"password": SECRET}})
    add(cli, "nightly", "--kwargs", kwargs)
    cli.run("definitions", "edit", "nightly", "--kwargs", json.dumps({"n": {"password": SECRET + "!"}}))
    cli.run("definitions", "edit", "nightly", "--kwargs", kwargs, "--policy", "graceful")
    steps = [{"name": "a", "task": "effect", "kwargs": {"n": {"Password": SECRET}}}]
    cli.run("definitions", "add", "flow", "--schedule", "@daily", "--steps", json.dumps(steps))
    letter = defer("fails", args=[SECRET], app=app, max_retries=0).id
    job = defer("effect", kwargs={"n": {"db_password": SECRET}}, app=app, delay="1d").id
    tm.run_due_jobs(now=NOON)
    with database.transaction() as tx:  # the body's own words are not redacted, so they say nothing here
        tx.execute(tables.execution.update().values(error="x", traceback="x"))
        tx.execute(tables.dead_letter.update().values(last_error="x", traceback="x"))
    commands = (
        ["definitions", "list"], ["definitions", "show", "nightly"], ["definitions", "show", "flow"],
        ["definitions", "versions", "nightly"], ["jobs", "list"], ["jobs", "show", job], ["jobs", "show", letter],
        ["dead-letters", "list"], ["dead-letters", "show", letter], ["dead-letters", "purge", "--all", "--dry-run"],
        ["audit"], ["history"], ["explain", "nightly"],
    )  # fmt: skip
    for command in commands:
        for more in ([], ["--json"]):
            assert SECRET not in cli.run(*command, *more).stdout, command
    assert "***" in cli.run("definitions", "show", "nightly").stdout
    assert SECRET in cli.run("definitions", "export").stdout  # a file that is loaded back has to have it


# How it looks


def shown_on(columns: int, folder: Path, *arguments: str, env: dict[str, str] | None = None) -> str:
    """Return what `celery -A shop tm …` writes to a terminal of so many columns."""
    ours, theirs = pty.openpty()
    ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    clean = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR", "FORCE_COLOR")}
    words = [sys.executable, "-m", "celery", "-A", "shop", "tm", *arguments]
    with subprocess.Popen(
        words, cwd=folder, stdin=theirs, stdout=theirs, stderr=theirs, env=clean | {"TERM": "xterm"} | (env or {})
    ) as process:
        os.close(theirs)
        text = b""
        while select.select([ours], [], [], 60)[0]:
            try:
                text += os.read(ours, 65536)
            except OSError:  # the other end is closed
                break
        process.wait(60)
    os.close(ours)
    return text.decode().replace("\r\n", "\n")


SHOP = """
from datetime import UTC, datetime, timedelta
from celery_tm import TimeManagement, defer, easy_app
app = easy_app("shop")
tm = TimeManagement(app)

@app.task(name="shop.fails", max_retries=0)
def fails(n):
    raise ValueError("the bank says no, and says it at such length that it does not fit on a line of eighty columns")
"""


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shop")
    (folder / "shop.py").write_text(SHOP)
    fill = "from shop import *\n" + "defer(fails.s(1), delay='10s')\n" * 2
    fill += "tm.run_due_jobs(now=datetime.now(UTC) + timedelta(minutes=1))"
    subprocess.run([sys.executable, "-c", fill], cwd=folder, check=True, timeout=60, capture_output=True)
    return folder


COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def test_a_narrow_terminal_gets_lines_that_fit_in_colour(shop: Path) -> None:
    shown = shown_on(80, shop, "dead-letters", "list")
    assert COLOUR.search(shown)
    plain = COLOUR.sub("", shown)
    assert max(map(len, plain.splitlines())) <= 80
    assert re.search(r"^[0-9a-f-]{36}$", plain, re.MULTILINE)
    assert "  last error ValueError: the bank says no" in plain


def test_a_wide_terminal_gets_a_table_and_no_colours_where_they_are_not_wanted(shop: Path) -> None:
    shown = shown_on(200, shop, "dead-letters", "list", env={"NO_COLOR": "1"})
    assert re.sub(r"\x1b\[[01]m", "", shown).splitlines()[0].split()[:3] == ["id", "task", "attempts"]  # bold is no colour
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]m", shown)


# Completion


def completed(*words: str) -> list[str]:
    """Return what a shell would offer for the last of these words."""
    maker = ShellComplete(celery_group, {}, "celery", "_CELERY_COMPLETE")
    return [item.value for item in maker.get_completions(list(words[:-1]), words[-1])]


def test_a_shell_completes_commands_options_and_names(cli: Cli, app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "shopping", SimpleNamespace(app=app))
    add(cli, "nightly", "--group", "reports")
    cli.run("calendars", "set", "holidays", "12-25")
    tm = ("-A", "shopping:app", "tm")
    assert completed(*tm, "dea") == ["dead-letters"]
    assert completed(*tm, "definitions", "show", "ni") == ["nightly"]
    assert completed(*tm, "definitions", "list", "--group", "r") == ["reports"]
    assert completed(*tm, "calendars", "show", "") == ["holidays"]
    assert completed(*tm, "history", "--outc") == ["--outcome"]
    assert completed(*tm, "history", "--outcome", "f") == ["failed"]
    assert completed("tm", "definitions", "show", "ni") == []  # no app, no names


def test_bash_asks_celery_itself(shop: Path) -> None:
    add = "from shop import *; tm.definitions.add(name='nightly', task='shop.fails', schedule='@daily')"
    subprocess.run([sys.executable, "-c", add], cwd=shop, check=True, timeout=60, capture_output=True)
    words = "celery -A shop tm definitions show ni"
    asked = {"_CELERY_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": "6"}
    argv = [sys.executable, "-c", "import sys; sys.argv[0] = 'celery'; from celery.__main__ import main; main()"]
    done = subprocess.run(argv, cwd=shop, env=os.environ | asked, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("plain,nightly\n", "")


def test_a_database_that_is_away_completes_nothing_and_says_nothing(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    app = Celery("away", set_as_current=False)
    app.conf.tm_database_url = "mysql://x@127.0.0.1:1/x"
    monkeypatch.setitem(sys.modules, "away", SimpleNamespace(app=app))
    assert completed("-A", "away:app", "tm", "definitions", "show", "ni") == []
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_each_shell_is_printed_without_an_app(shell: str) -> None:
    done = CliRunner().invoke(tm_group, ["completion", shell])
    assert done.exit_code == 0
    assert "_CELERY_COMPLETE" in done.stdout
    assert "did you mean 'bash'?" in CliRunner().invoke(tm_group, ["completion", "bsh"]).stderr


def test_a_command_waits_only_so_long_for_a_lock(cli: Cli, tm: TimeManagement) -> None:
    database = tm.installation.database
    cli.run("schema", "check")
    assert database.manner.lock_timeout is None
    cli.run("prune")
    assert database.manner.lock_timeout == (common.LOCK_TIMEOUT if database.dialect.is_server else None)
