"""`celery -A app tm …`. Every Celery command imports this group, so it loads its parts only when they are used."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import click
from click.shell_completion import CompletionItem

COMMANDS = {
    "status": ("status", "Show how everything stands, in one screen."),
    "doctor": ("doctor", "Look for what is wrong, and say what to do about it."),
    "run": ("run", "Plan, dispatch and execute in this process, with no broker."),
    "schema": ("schema", "Create, upgrade or check the tables, or say who needs which rights."),
    "definitions": ("definitions", "Recurring definitions: list, show, add, edit, preview, load, export, pause, trigger …"),
    "import": ("importing", "Take over the entries of another scheduler: beat, django-celery-beat, redbeat …"),
    "calendars": ("calendars", "Days on which definitions do not fire: list, show, set, remove."),
    "occurrences": ("occurrences", "The instants of a definition and what was decided."),
    "explain": ("explain", "Say why a definition ran, ran late or did not run."),
    "backfill": ("backfill", "Run the instants of a past range that did not run."),
    "replay": ("replay", "Run an occurrence that has ended once more, or only some steps of it."),
    "report": ("report", "Show a run of a workflow, step by step."),
    "effective": ("effective", "Show the settings that steps run with, and where each comes from."),
    "jobs": ("jobs", "Jobs that are still owed: list, show, cancel."),
    "dead-letters": ("dead_letters", "Jobs that will not be tried again by themselves: list, show, revive, purge."),
    "history": ("history", "The latest executions."),
    "log": ("log", "What the bodies of a job's attempts have said."),
    "audit": ("audit", "Who changed what, when and why."),
    "rows": ("rows", "Rows that this release cannot read: list, remove."),
    "prune": ("prune", "Delete what is older than its retention."),
    "take-over": ("take_over", "Move what another app has here to this one."),
    "flower": ("flower", "Run Flower with the pages of celery_tm in it."),
    "completion": ("completion", "Print the script that completes commands and names in a shell."),
}


class Group(click.Group):
    """A group that answers a command it does not have with the nearest one that it has."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        known = self.list_commands(ctx)
        if args and args[0] not in known and not args[0].startswith("-"):
            from ..errors import nearest

            near = nearest(args[0], known)
            hint = f", did you mean {near!r}?" if near else f"; there are {', '.join(known)}"
            raise click.UsageError(f"no command {args[0]!r}{hint}", ctx)
        return super().resolve_command(ctx, args)


class LazyGroup(Group):
    """A group whose commands are imported when they are called or asked for help."""

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        """Read the group's own arguments."""
        with _harmless_refusals():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command."""
        with _harmless_refusals():
            return super().invoke(ctx)

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = import_module(f".{COMMANDS[cmd_name][0]}", __name__).command
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the commands that begin so, without importing them."""
        found = [CompletionItem(name, help=about) for name, (_, about) in COMMANDS.items() if name.startswith(incomplete)]
        return [*found, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, about) for name, (_, about) in COMMANDS.items()])


@contextmanager
def _harmless_refusals() -> Iterator[None]:
    """Let a refusal, click's own included, repeat nothing that moves the cursor or changes the colours of a terminal."""
    try:
        yield
    except click.ClickException as error:
        from .output import printable

        error.message = printable(error.message)  # type: ignore[misc]  # final, says newer click
        raise


@click.command(cls=LazyGroup, name="tm", help="Durable recurring and deferred jobs (celery_tm).")
def tm() -> None:
    """Durable recurring and deferred jobs."""
