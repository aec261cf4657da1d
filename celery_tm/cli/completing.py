"""What a shell completes besides commands and options: names of definitions and groups. A database that is away: nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
from click.shell_completion import CompletionItem

MOST = 200


def complete_definitions(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the names of definitions that begin so."""
    return _items(ctx, incomplete, lambda tm: [one.name for one in tm.definitions.list(search=incomplete or None)])


def complete_groups(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the groups of definitions that begin so."""
    return _items(ctx, incomplete, lambda tm: [group for group in tm.definitions.groups() if group])


def complete_calendars(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the names of calendars that begin so."""
    return _items(ctx, incomplete, lambda tm: [one.name for one in tm.calendars.list()])


def _items(ctx: click.Context, incomplete: str, names: Callable[[Any], list[str]]) -> list[CompletionItem]:
    """Ask the database; whatever goes wrong completes nothing, for a shell has nowhere to show it."""
    try:
        found = names(_tm(ctx))
    except Exception:
        return []
    return [CompletionItem(name) for name in found if name.startswith(incomplete)][:MOST]


def _tm(ctx: click.Context) -> Any:
    """Return the `TimeManagement` of the app that `-A` names: while a shell completes, Celery itself loads none."""
    from celery.app.utils import find_app

    from ..management import TimeManagement

    return TimeManagement(find_app(ctx.find_root().params["app"]))


def definition_argument(*, required: bool = True) -> Callable[[Any], Any]:
    """Return the argument NAME, which a shell completes with the names of definitions."""
    return click.argument("name", required=required, shell_complete=complete_definitions)


group_option = click.option("--group", shell_complete=complete_groups, help="Only this group.")
