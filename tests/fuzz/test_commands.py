"""Commands with arguments that nobody should give: each ends with a message and a code, and what failed changed nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
from celery import Celery
from click.testing import CliRunner, Result
from hypothesis import strategies as st
from tmtest.everything import Everything, furnish
from tmtest.rows import all_rows

from celery_tm import TimeManagement
from celery_tm.cli import tm as tm_group
from celery_tm.domain.stating import FIELDS
from fuzz.grammar import PIECES, STATEMENTS, TEXTS, near
from fuzz.limits import limited
from fuzz.values import ANY_TEXT

# Not tried, and why.
SKIPPED = {
    "flower": "it runs a server",
    "run": "it runs until it is stopped",
    "schema downgrade": "it takes away tables that the other commands need",
}
SKIPPED_OPTIONS = {
    "log --follow": "it waits for more lines until it is interrupted",
    "status --watch": "it repeats itself until it is interrupted",
}
CODES = {"doctor": {0, 1, 2, 3}}  # 3: it has found something
ODD = [
    "", " ", "-", "--", "-1", "0", "1", "50", "1e9", "NaN", "٣", "null", "true", "[]", "{}", '"x"', "[[[", "{0}", "%s %d",
    "\x00", "a\x00b", "\ud800", "\udcff", "\x1b[31mred", "a\nb", "\u202e", "\u2028", "9" * 30, "9" * 5000, str(2**31),
    str(2**63), "x" * 300, "x" * 20_000, "'; DROP TABLE tm_definition; --", "../../etc/passwd", "/dev/null", "/",
    "0001-01-01", "9999-12-31T23:59:59-12:00", "0001-01-01T00:00:00+14:00", "2026-01-01", "2026-01-01T00:00",
    "2026-02-30T00:00Z", "yesterday", "1h", "100000d", "-5m", "a=b", "=", "args=[NaN]", "priority=-1", "schedule=",
    "options={}", "steps=[[]]", "https://user:pass@host/", "sqlite:////dev/full", "eyJhIjoxfQ", "WyJqb2JzIixudWxsLCJ4Il0",
    "definition:some works", "redis://127.0.0.1:1/0", "01981f6e-7c10-7a52-b1c3-0d3f5a6b7c8d",
]  # fmt: skip


@dataclass(frozen=True)
class Command:
    """A command that does something, and the words it is called by."""

    words: tuple[str, ...]
    made: click.Command

    @property
    def name(self) -> str:
        return " ".join(self.words)


def commands(group: click.Group = tm_group, before: tuple[str, ...] = ()) -> Iterator[Command]:
    """Yield every command of the tree."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, (*before, name))
        else:
            yield Command((*before, name), command)


COMMANDS = list(commands())
TRIED = [command for command in COMMANDS if command.name not in SKIPPED]


def test_the_lists_name_only_what_there_is() -> None:
    options = {f"{one.name} {option}" for one in COMMANDS for parameter in one.made.params for option in parameter.opts}
    assert set(SKIPPED) <= {one.name for one in COMMANDS}
    assert set(SKIPPED_OPTIONS) <= options
    assert set(CODES) <= {one.name for one in TRIED}
    assert len(TRIED) > 35


def values_of(parameter: click.Parameter, known: Sequence[str]) -> st.SearchStrategy[str]:
    """Return values for an option or argument: of its own type, of another, of what is there, and odd ones."""
    choices = [st.sampled_from(ODD), st.sampled_from(known), st.sampled_from(PIECES), ANY_TEXT]
    if isinstance(parameter.type, click.Choice):
        choices += [st.sampled_from([str(one) for one in parameter.type.choices])] * 2
    if isinstance(parameter.type, click.types.IntParamType):
        choices += [st.integers().map(str), st.integers(1, 100).map(str)]
    if parameter.name == "schedule":
        choices += [TEXTS, near(TEXTS), STATEMENTS.map(as_json_text)]
    if parameter.name == "sets":
        choices.append(st.tuples(st.sampled_from(FIELDS), st.sampled_from(ODD) | st.sampled_from(known)).map("=".join))
    return st.one_of(*choices)


def as_json_text(value: Any) -> str:
    try:
        return json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        return "{}"


@st.composite
def arguments(draw: Any, command: Command, known: Sequence[str]) -> list[str]:
    """Return what a command is called with: mostly all that it needs, and some of what it may be given."""
    said, named = [], []
    for parameter in command.made.params:
        if f"{command.name} {parameter.opts[0]}" in SKIPPED_OPTIONS:
            continue
        if not draw(st.integers(0, 9) if parameter.required else st.integers(0, 9).map(lambda n: n < 3)):
            continue
        for _ in range(draw(st.integers(1, 2)) if parameter.multiple or parameter.nargs == -1 else 1):
            if isinstance(parameter, click.Argument):
                named.append(draw(values_of(parameter, known)))
            elif getattr(parameter, "is_flag", False):
                said.append(parameter.opts[0])
            else:
                said.append(f"{parameter.opts[0]}={draw(values_of(parameter, known))}")
    stray = [draw(st.sampled_from(ODD))] if not draw(st.integers(0, 20)) else []
    return [*command.words, *said, "--", *named, *stray]


class Terminal:
    """Calls commands, and holds each to what every command promises."""

    def __init__(self, app: Celery) -> None:
        self.app, self.tm = app, TimeManagement(app)
        self.codes: set[int] = set()

    def run(self, command: Command, words: Sequence[str]) -> None:
        """Call a command."""
        before = all_rows(self.tm)
        with limited(5):
            done = CliRunner().invoke(tm_group, list(words), obj=SimpleNamespace(app=self.app))
        if done.exception and not isinstance(done.exception, SystemExit):
            raise done.exception
        self.codes.add(done.exit_code)
        assert done.exit_code in CODES.get(command.name, {0, 1, 2}), done.output
        assert "Traceback" not in done.stderr  # those of bodies are told on stdout, where they are asked for
        check_shown(done)
        if "--json" in words:
            check_json(done)
        if done.exit_code:
            assert all_rows(self.tm) == before


def check_shown(done: Result) -> None:
    """Fail where what is printed could move a cursor or change colours."""
    strange = {c for c in done.output if not (c.isprintable() or c in "\n\t")}
    assert strange == set(), repr(done.output[-500:])


def check_json(done: Result) -> None:
    """Fail where a program could not read what it asked for."""
    if done.stdout or not done.exit_code:
        json.loads(done.stdout)


@pytest.fixture(params=["postgresql", *(pytest.param(kind, marks=pytest.mark.thorough) for kind in ("sqlite", "mysql"))])
def furnished(request: pytest.FixtureRequest, app_on: Callable[[str], Celery]) -> tuple[Terminal, Everything]:
    app = app_on(request.param)
    return Terminal(app), furnish(app, TimeManagement(app))


def test_every_command_answers_whatever_it_is_given(
    furnished: tuple[Terminal, Everything],
    few: int,
    tried: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    terminal, here = furnished
    known = [str(value) for value in vars(here).values()]
    for command in TRIED:

        def check(command: Command, words: list[str]) -> None:
            terminal.run(command, words)

        tried(most=few, command=st.just(command), words=arguments(command, known))(check)
    assert terminal.codes >= {0, 1, 2}


# Each of these left as an error of a driver's or of Python's own, or was repeated as it was, once.
KNOWN: dict[str, list[str]] = {
    "an occurrence with NUL": ["replay", "--", "a\x00b"],
    "a job with NUL": ["jobs", "show", "--", "a\x00b"],
    "a dead letter with NUL": ["dead-letters", "show", "--", "a\x00b"],
    "a file with NUL": ["definitions", "load", "--", "a\x00b.toml"],
    "a file that is half a character": ["definitions", "load", "--", "\ud800.toml"],
    "a file in colours": ["definitions", "load", "--", "\x1b[31m.toml"],
    "a file without an end": ["definitions", "load", "--", "/dev/zero"],
    "an argument in colours": ["status", "--", "\x1b[31m"],
    "an option in colours": ["status", "--\x1b[31m"],
    "a command in colours": ["\x1b[31m"],
    "an option of the group in colours": ["--\x1b[31m"],
    "a name that is too long": ["definitions", "show", "--", "x" * 20_000],
    "a zone that is too long": ["definitions", "preview", "--schedule=@daily", f"--timezone={'x' * 20_000}"],
}


@pytest.mark.parametrize("kind", ["sqlite", "postgresql", "mysql"])
def test_what_once_broke_is_refused(kind: str, app_on: Callable[[str], Celery]) -> None:
    terminal = Terminal(app_on(kind))
    for words in KNOWN.values():
        terminal.run(TRIED[0], words)
    assert terminal.codes <= {1, 2}
