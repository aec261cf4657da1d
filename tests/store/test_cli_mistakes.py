"""Mistakes on the command line: the words of the API, one line, the right exit code, and nothing written."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import pytest
from celery import Celery
from click.testing import CliRunner
from tmtest.commands import Cli, add, rows

from celery_tm import TimeManagement, clock
from celery_tm.cli import tm as tm_group
from celery_tm.cli.stating import read_values
from celery_tm.cli.toml import write_toml
from celery_tm.errors import InvalidValue, TmError
from celery_tm.installation import Installation
from celery_tm.store.database import Database

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)


@pytest.fixture
def cli(app: Celery, tm: TimeManagement) -> Iterator[Cli]:
    with clock.moved_to(NOON):
        yield Cli(app)


# Mistakes: a call, a command and a file are refused in the same words

BAD: list[tuple[dict[str, Any], str]] = [
    ({"schedule": "61 * * * *"}, "minute '61'"),
    ({"schedule": "* * * *"}, "has 4 fields"),
    ({"schedule": "0 0 30 2 *"}, "never fires"),
    ({"schedule": "* * * * fri-"}, "schedule: "),
    ({"schedule": "@dayly"}, "unknown nickname '@dayly'"),
    ({"schedule": "every never"}, "schedule"),
    ({"schedule": "every 0s"}, "too short"),
    ({"schedule": "R5/2026-01-01T00:00:00Z/P1X"}, "P1X"),
    ({"schedule": "2020-01-01T00:00:00Z"}, "schedule"),
    ({"schedule": "at 2020-01-01T00:00:00+00:00"}, "has no instant after"),
    ({"schedule": ""}, "schedule"),
    ({"schedule": "żółć 😀"}, "schedule"),
    ({"schedule": {"kind": "windw"}}, "did you mean 'window'"),
    ({"schedule": {"kind": "window", "every": "2h", "from": "08:00"}}, "'until'"),
    ({"schedule": {"kind": "window", "every": "2h", "from": "25:00", "until": "18:00"}}, "not a time of day"),
    ({"schedule": {"kind": "window", "every": "2h", "from": "08:00", "until": "08:00"}}, "is empty"),
    ({"schedule": {"kind": "window", "every": "2h", "from": "08:00", "until": "18:00", "days": "mon-fry"}}, "day"),
    ({"schedule": {"kind": "window", "every": "2h", "from": "08:00", "untl": "18:00"}}, "did you mean 'until'"),
    ({"schedule": {"kind": "rrule", "rule": "FREQ=SOMETIMES", "start": "2026-01-01T09:00:00"}}, "FREQ"),
    ({"schedule": {"kind": "solar", "event": "sunrise", "lat": 99, "lon": 0}}, "degrees"),
    ({"timezone": "Europe/Warsow"}, "did you mean 'Europe/Warsaw'"),
    ({"timezone": "Mars/Base"}, "unknown time zone 'Mars/Base'"),
    ({"timezone": ""}, "time zone"),
    ({"gap": "jump"}, "gap: "),
    ({"fold": "third"}, "fold: "),
    ({"starts_at": "2026-13-01"}, "starts_at: '2026-13-01' is not a date and time"),
    ({"ends_at": "2026-12-01T00:00:00"}, "ends_at: 2026-12-01T00:00:00 has no time zone"),
    ({"starts_at": "2027-01-01T00:00:00Z", "ends_at": "2026-12-01T00:00:00Z"}, "ends_at: it is before starts_at"),
    ({"ends_at": "2026-01-01T00:00:00Z"}, "has no instant after"),
    ({"excluded": ["2026-02-30"]}, "excluded[0]: "),
    ({"excluded": ["12-25", "2026-12-26/2026-12-24"]}, "excluded[1]: '2026-12-26/2026-12-24' ends before it starts"),
    ({"excluded": "sat"}, "excluded: 'sat' is not a list"),
    ({"excluded": ["mon", "tue", "wed", "thu", "fri", "sat", "sun"]}, "has no instant after"),
    ({"calendars": ["holidys"]}, "there is no calendar 'holidys', did you mean 'holidays'?"),
    ({"calendars": "holidays"}, "calendars: 'holidays' is not a list of names"),
    ({"jitter": "soon"}, "jitter: 'soon' is not a duration"),
    ({"jitter": -5}, "jitter: -5 is negative"),
    ({"max_runs": 0}, "max_runs: 0 is not a count"),
    ({"max_runs": 1.5}, "max_runs: 1.5 is not a count"),
    ({"enabled": "yes"}, "enabled: 'yes' is not true or false"),
    ({"priority": "high"}, "priority"),
    ({"max_retries": -1}, "max_retries"),
    ({"retry": {"kind": "sometimes"}}, "retry: unknown kind 'sometimes'"),
    ({"overlap": "sometimes"}, "overlap: 'sometimes' is not one of its values; use one of 'skip'"),
    ({"overlap": "quue"}, "did you mean 'queue'?"),
    ({"recovery": "bounded"}, "recovery: bounded needs a bound"),
    ({"recovery": "last", "recovery_count": 3}, "knows no count"),
    ({"recovery": {"policy": "bounded", "cuont": 3}}, "did you mean 'count'"),
    ({"recovery_within": "0s", "recovery": "bounded"}, "recovery_within: "),
    ({"concurrency": 2}, "concurrency"),
    ({"concurrency_key": "k", "overlap": "queue"}, "concurrency_key: "),
    ({"task_timeout": 0}, "task_timeout: 0 leaves no time"),
    ({"pause_after": 101}, "pause_after: 101 is not a count"),
    ({"args": {"a": 1}}, "args: "),
    ({"kwargs": [1]}, "kwargs: "),
    ({"options": []}, "options: "),
    ({"max_retrys": 2}, "unknown option 'max_retrys', did you mean 'max_retries'?"),
    ({"zzz": 2}, "unknown option 'zzz'"),
    ({"group": "g" * 101}, "group: 101 characters"),
    ({"queue": 5}, "queue: 5 is not text"),
]  # fmt: skip
OWN_OPTIONS = ("task", "schedule", "timezone", "overlap", "group", "args", "kwargs")


def stating(values: dict[str, Any]) -> list[str]:
    """Return values as the options of a command."""
    words: list[str] = []
    for field, value in values.items():
        text = value if isinstance(value, str) else json.dumps(value)
        own = field in OWN_OPTIONS
        words += [f"--{field}", text] if own else ["--set", f"{field}={text}"]
    return words


def test_a_call_a_command_and_a_file_are_refused_alike(
    cli: Cli, tm: TimeManagement, database: Database, tmp_path: Path
) -> None:
    tm.calendars.set("holidays", ["12-25"])
    before = rows(database)
    path = tmp_path / "bad.toml"
    for stated, words in BAD:  # in one test per database, for the sake of time
        values = {"task": "effect", "schedule": "* * * * *", **stated}
        with pytest.raises(TmError) as refused:
            tm.definitions.add(name="bad", **values)
        text = str(refused.value)
        assert words in text
        assert cli.refused("definitions", "add", "bad", *stating(values)) == text
        path.write_text(write_toml({"definitions": [{"name": "bad", **values}]}), encoding="utf-8")
        assert cli.refused("definitions", "load", str(path)) == f"definition 'bad': {text}; nothing of {path} was loaded"
    assert rows(database) == before


BAD_DATES = [
    (["2026-02-30"], "dates[0]: '2026-02-30' is not a date or a range; use e.g. '2026-12-24'"),
    (["12-25", "funday"], "dates[1]: "),
    (["2026-12-26/2026-12-24"], "ends before it starts; give the earlier day first"),
    (["2026-12-24T10:00/2026-12-24T12:00Z"], "has an offset at one end only; give both or none"),
    (["2026-12-24T10:00"], "is one moment"),
    (["13-01"], "dates[0]: "),
    ([""], "dates[0]: "),
]


def test_a_bad_calendar_is_refused_alike(cli: Cli, tm: TimeManagement, database: Database, tmp_path: Path) -> None:
    before = rows(database)
    path = tmp_path / "bad.toml"
    for dates, words in BAD_DATES:
        with pytest.raises(InvalidValue) as refused:
            tm.calendars.set("bad", dates)
        assert words in str(refused.value)
        assert cli.refused("calendars", "set", "bad", *dates) == str(refused.value)
        path.write_text(write_toml({"calendars": [{"name": "bad", "dates": dates}], "definitions": [{"name": "x"}]}))
        told = cli.refused("definitions", "load", str(path))
        assert told == f"calendar 'bad': {refused.value}; nothing of {path} was loaded"
    assert rows(database) == before


def test_a_bad_edit_is_refused_alike(cli: Cli, tm: TimeManagement, database: Database) -> None:
    add(cli)
    before = rows(database)
    for values in ({"policy": "gracefull", "queue": "q"}, {"schedule": "0 25 * * *"}, {"max_retrys": 5}):
        with pytest.raises(TmError) as refused:
            tm.definitions.update("nightly", **values)
        policy = ["--policy", values.pop("policy")] if "policy" in values else []
        for more in ([], ["--dry-run"]):
            assert cli.refused("definitions", "edit", "nightly", *policy, *stating(values), *more) == str(refused.value)
    for field in ("name", "actor", "reason", "version", "policy", "within"):  # keywords of the call, not fields
        assert f"unknown option {field!r}" in cli.refused("definitions", "edit", "nightly", "--set", f"{field}=1")
    assert rows(database) == before


@pytest.mark.parametrize("bad", ['task = "effect"\nschedule = "61 * * * *"', 'task = "effect"', "calendars = 5"])
def test_one_bad_entry_of_a_file_changes_nothing(
    cli: Cli, tm: TimeManagement, database: Database, tmp_path: Path, bad: str
) -> None:
    tm.calendars.set("holidays", ["12-25"])
    add(cli, "nightly", "--set", 'calendars=["holidays"]', "--set", "plan_ahead=2d")
    before = rows(database)
    path = tmp_path / "some.toml"
    path.write_text(
        '[[calendars]]\nname = "holidays"\ndates = ["2026-06-02"]\n[[calendars]]\nname = "new"\ndates = ["sat"]\n'
        '[[definitions]]\nname = "nightly"\ntask = "effect"\nschedule = "0 5 * * *"\ncalendars = ["new"]\n'
        '[[definitions]]\nname = "added"\ntask = "effect"\nschedule = "@daily"\nplan_ahead = "2d"\n'
        f'[[definitions]]\nname = "bad"\n{bad}\n'
    )
    assert cli.refused("definitions", "load", str(path)).endswith(f"nothing of {path} was loaded")
    assert rows(database) == before


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[definitions]\n", "it is not TOML"),
        ("", "it has no list of definitions"),
        ("[[definitons]]\n", "it has no list of definitions"),
        ("definitions = 5\n", "it has no list of definitions"),
        ('[[definitions]]\ntask = "x"\n', "one of its definitions has no name"),
        ('[[definitions]]\nname = "a"\n[[definitions]]\nname = "a"\n', "'a' is there twice"),
        ("definitions: [\n  a: b: c", "it is not YAML"),
    ],
)
def test_a_file_that_is_none_is_one_line(sqlite_app: Celery, tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / ("bad.yaml" if ":" in text else "bad.toml")
    path.write_text(text)
    assert words in Cli(sqlite_app).refused("definitions", "load", str(path))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["definitions", "add", "x", "--task", "effect"], "Missing option '--schedule'"),
        (["definitions", "add", "x", "--task", "t", "--schedule", "@daily", "--set", "queue"], "--set takes FIELD=VALUE"),
        (["definitions", "add", "x", "--task", "t", "--schedule", "@daily", "--set", "task=u"], "task is stated twice"),
        (["definitions", "edit", "x"], "state what to change"),
        (["definitions", "edit", "x", "--set", "queue=q", "--within", "1d"], "--within goes with --dry-run"),
        (["definitions", "edit", "x", "--polcy", "graceful"], "--policy"),
        (["definitions", "preview"], "name a definition, or pass --schedule"),
        (["definitions", "preview", "x", "--count", "3"], "--since and --count are for a --schedule alone"),
        (["definitions", "preview", "--schedule", "@daily", "--within", "3d"], "--within goes with a NAME"),
        (["definitions", "preview", "--schedule", "@daily", "--queue", "q"], "queue says nothing about when"),
        (["definitions", "export", "--format", "ini"], "'ini' is not one of"),
        (["definitions", "lst"], "no command 'lst', did you mean 'list'?"),
        (["calendars", "zzz"], "no command 'zzz'; there are list, remove, set, show"),
        (["ocurrences"], "no command 'ocurrences', did you mean 'occurrences'?"),
        (["occurrences", "x", "--limit", "0"], "0 is not in the range"),
        (["jobs", "list", "--state", "lost"], "'lost' is not one of"),
        (["dead-letters", "revive"], "name one ID, or pass --all"),
        (["definitions", "show", "\udcff"], "name is not UTF-8"),
        (["calendars", "set", "x", "12-25", "\udcff"], "dates is not UTF-8"),
        (["definitions", "load", "\udcff.toml"], "file is not UTF-8"),
    ],
)  # fmt: skip
def test_wrong_usage_is_exit_code_2(sqlite_app: Celery, arguments: list[str], words: str) -> None:
    assert words in " ".join(Cli(sqlite_app).misused(*arguments).split())


@pytest.fixture
def sqlite_app(fresh_url: Any) -> Iterator[Celery]:
    app = Celery("shop", broker="memory://", set_as_current=False)
    app.conf.tm_database_url = fresh_url("sqlite")
    yield app
    Installation.of(app).database.dispose()
    app.close()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["definitions", "add", "x", "--schedule", "@daily"], "task: definition 'x' has none; add task=…, or steps=[…]"),
        (["definitions", "show", "nightyl"], "no definition named 'nightyl'"),
        (["definitions", "load", "none.toml"], "none.toml: it cannot be read"),
        (["jobs", "show", "nobody"], "no job 'nobody'"),
        (["dead-letters", "revive", "nobody"], "no dead letter 'nobody'"),
        (["occurrences", "nobody"], "no definition named 'nobody'"),
        (["calendars", "show", "nobody"], "there is no calendar 'nobody'"),
        (["calendars", "set", "x", "12-25", "--actor", "a" * 256], "actor: 256 characters"),
    ],
)
def test_what_is_not_there_is_one_line_and_exit_code_1(sqlite_app: Celery, arguments: list[str], words: str) -> None:
    assert words in Cli(sqlite_app).refused(*arguments)


def test_a_preview_that_cannot_be_says_what_the_api_says(sqlite_app: Celery) -> None:
    cli, tm = Cli(sqlite_app), TimeManagement(sqlite_app)
    for option, value in (("count", 0), ("timezone", "Europe/Warsow"), ("gap", "jump"), ("fold", "third")):
        with pytest.raises(TmError) as refused:
            tm.preview(**{"schedule": "@daily", option: value})
        told = cli.refused("definitions", "preview", "--schedule", "@daily", f"--{option}", str(value))
        assert told == str(refused.value)
    assert cli.refused("definitions", "preview", "--schedule", "@daily", "--since", "then").startswith("since: 'then' is")
    assert cli.refused("definitions", "preview", "x", "--within", "long").startswith("within: 'long' is not a duration")


# What every command has


def leaves(group: click.Group, *path: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield each command with the words that call it."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from leaves(command, *path, name)
        else:
            yield (*path, name), command


LEAVES = dict(leaves(tm_group))


@pytest.mark.parametrize("path", LEAVES, ids=" ".join)
def test_every_command_has_json_and_an_example_that_it_understands(path: tuple[str, ...]) -> None:
    command = LEAVES[path]
    assert any("--json" in parameter.opts for parameter in command.params) or path == ("flower",)  # it runs a server
    for parameter in command.params:
        if isinstance(parameter, click.Option) and parameter.name != "form":
            assert parameter.help, parameter.name
    told = CliRunner().invoke(tm_group, [*path, "--help"])
    assert told.exit_code == 0
    [line] = [line.strip() for line in told.stdout.splitlines() if line.strip().startswith("celery -A app tm")]
    words = shlex.split(line.partition(" > ")[0])[4:]
    assert tuple(words[: len(path)]) == path
    command.make_context(path[-1], words[len(path) :])  # raises UsageError for what it does not understand


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5", 5), ("5m", "5m"), ("true", True), ("True", "True"), ("null", None), ("", ""), ("NaN", "NaN"), ("[1]", [1]),
        ('"5"', "5"), ("2026-01-01T00:00:00Z", "2026-01-01T00:00:00Z"), ("a=b", "a=b"), ("1" * 5000, "1" * 5000),
    ],
)  # fmt: skip
def test_a_value_is_json_where_it_is_json(text: str, value: Any) -> None:
    assert read_values(sets=[f"queue={text}"]) == {"queue": value}


@pytest.mark.parametrize("text", ["[holidays]", "{'a': 1}", '"open', "[1, NaN]", "[" * 100_000])
def test_what_only_looks_like_json_is_refused(text: str) -> None:
    with pytest.raises(InvalidValue, match=r"calendars: .* is not JSON .*; write text in double quotes"):
        read_values(sets=[f"calendars={text}"])


def test_a_user_without_a_name_may_run_commands(sqlite_app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody() -> str:
        raise KeyError("getpwuid(): uid not found: 4711")

    monkeypatch.setattr("getpass.getuser", nobody)
    assert Cli(sqlite_app).json("calendars", "set", "holidays", "12-25")["updated_by"] is None
