"""`celery -A app tm calendars`: named days on which definitions do not fire."""

from __future__ import annotations

from typing import Any

import click

from ..management import TimeManagement
from ..presentation import Rows
from . import Group
from .common import actor_option, as_json, example, reason_option, tell_next, with_tm
from .completing import complete_calendars
from .output import show, show_one

COLUMNS = ("name", "dates", "used_by", "updated_at", "updated_by")


@click.group(name="calendars", cls=Group, help="Days on which the definitions that name a calendar do not fire.")
def command() -> None:
    """Calendars."""


@command.command("list", help="List the calendars and the definitions that name them.", epilog=example("calendars list"))
@as_json
@with_tm
def list_calendars(tm: TimeManagement, as_json: bool) -> None:
    """List the calendars."""
    users = _users(tm)
    show_rows = Rows(tm)
    found = tm.calendars.list()
    rows = [show_rows.calendar(calendar, users.get(calendar.name, [])) for calendar in found]
    show(rows, columns=COLUMNS, json_wanted=as_json, empty="no calendars yet; `tm calendars set NAME DATE…` adds one")
    tell_next(found, "")


@command.command("show", help="Show one calendar.", epilog=example("calendars show holidays"))
@click.argument("name", shell_complete=complete_calendars)
@as_json
@with_tm
def show_calendar(tm: TimeManagement, name: str, as_json: bool) -> None:
    """Show one calendar."""
    show_one(_row(tm, name), json_wanted=as_json)


def _row(tm: TimeManagement, name: str) -> dict[str, Any]:
    return Rows(tm).calendar(tm.calendars.get(name), _users(tm).get(name, []))


def _users(tm: TimeManagement) -> dict[str, list[str]]:
    """Return the names of the definitions that name each calendar."""
    users: dict[str, list[str]] = {}
    for definition in tm.definitions.list():
        for name in definition.calendars:
            users.setdefault(name, []).append(definition.name)
    return users


@command.command(
    "set",
    help="Write a calendar, new or instead of the old one; the definitions that name it follow at once. A DATE is a day"
    " (2026-12-24), a range (2026-12-24/2027-01-02, or with local times), a day of every year (12-25) or week (sat).",
    epilog=example("calendars set holidays 12-25 2026-12-24/2027-01-02 sun"),
)
@click.argument("name", shell_complete=complete_calendars)
@click.argument("dates", metavar="DATE...", nargs=-1, required=True)
@actor_option
@reason_option
@as_json
@with_tm
def set_calendar(
    tm: TimeManagement, name: str, dates: tuple[str, ...], actor: str | None, reason: str | None, as_json: bool
) -> None:
    """Write a calendar."""
    tm.calendars.set(name, dates, actor=actor, reason=reason)
    show_one(_row(tm, name), json_wanted=as_json)


@command.command(help="Delete a calendar that no definition names.", epilog=example("calendars remove holidays"))
@click.argument("name", shell_complete=complete_calendars)
@actor_option
@reason_option
@as_json
@with_tm
def remove(tm: TimeManagement, name: str, actor: str | None, reason: str | None, as_json: bool) -> None:
    """Delete a calendar."""
    tm.calendars.remove(name, actor=actor, reason=reason)
    show_one({"removed": name}, json_wanted=as_json)
