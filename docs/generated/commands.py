"""The page about the command line: a table to find a command by, and the help text of each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import click

from celery_tm.cli import tm

from .markdown import code, page, table

WIDTH = 100


def commands_page() -> str:
    """Return the page about the command line, one line for each command."""
    context = click.Context(tm)
    alone: list[click.Command] = []
    parts: list[str] = []
    for name in tm.list_commands(context):
        found = tm.get_command(context, name)
        assert found is not None
        if isinstance(found, click.Group):
            below = [found.commands[sub] for sub in found.list_commands(context)]
            parts += [f"## tm {name}", _sentence(found), _commands(f"{name} ", below)]
        else:
            alone.append(found)
    return page(
        "Commands",
        "`celery -A app tm …`. Tables are for people, `--json` is for programs, and every command has `--help` with an "
        "example. What is refused or not found is one line on stderr and exit code 1; a wrong call is exit code 2; `doctor` "
        "ends with 3 if it found something to act on. `--actor` (default: your login) and `--reason` go to the audit. "
        "The shape of each `--json` answer is in [json.md](json.md). Lists that go on say on stderr how to ask for what "
        "follows: `more: add --before …`. Tables that do not fit the terminal become a few lines for each row; colours are "
        "for terminals only, and `NO_COLOR` or `celery --no-color` switches them off.",
        *parts,
        "## The others",
        _commands("", alone),
        "## Help texts",
        *(_help(words, command) for words, command in each_command()),
    )


def _commands(prefix: str, found: Iterable[click.Command]) -> str:
    return table(("command", "what it does", "options"), [_command(prefix, each) for each in found])


def _command(prefix: str, command: click.Command) -> tuple[str, str, str]:
    words = [_argument(one) for one in command.params if isinstance(one, click.Argument)]
    options = [one for one in command.params if isinstance(one, click.Option)]
    words += [f"{one.opts[0]} {one.metavar or (one.name or '').upper()}" for one in options if one.required]
    others = [one.opts[0] for one in options if not one.required and one.opts[0] not in EVERYWHERE]
    return code(" ".join([f"{prefix}{command.name}", *words])), _sentence(command), ", ".join(map(code, others))


def _argument(argument: click.Argument) -> str:
    name = argument.metavar or (argument.name or "").upper()
    return name if argument.required else f"[{name}]"


def _sentence(command: click.Command) -> str:
    return " ".join((command.help or "").split())


EVERYWHERE = frozenset({"--json", "--actor", "--reason"})  # said once, above the tables


def each_command() -> Iterator[tuple[str, click.Command]]:
    """Yield every command that does something, with its words after `tm`."""
    context = click.Context(tm, info_name="tm")
    for name in tm.list_commands(context):
        found = tm.get_command(context, name)
        assert found is not None
        below = found.commands if isinstance(found, click.Group) else {}
        yield from ((f"{name} {sub}", below[sub]) for sub in below) if below else [(name, found)]


def _help(words: str, command: click.Command) -> str:
    context = click.Context(command, info_name=f"celery -A app tm {words}", max_content_width=WIDTH, terminal_width=WIDTH)
    return f"### {words}\n\n```text\n{command.get_help(context).strip()}\n```"
