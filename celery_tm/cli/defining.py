"""`definitions add|edit|preview`: stating a definition, changing it, and seeing what a change would bring."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import click

from ..domain.schedule import Zone, read_schedule, read_zone
from ..domain.stating import check_values
from ..errors import DefinitionNotFound, StaleVersion
from ..management import TimeManagement
from ..presentation import Rows
from ..presentation.rows import both_times
from ..scheduler.celery_schedules import default_zone
from ..scheduler.horizon import Difference
from .common import actor_option, as_json, example, limit_option, read_instant, reason_option, with_tm
from .completing import definition_argument
from .output import show, show_one
from .stating import read_values, schedule_option, stating_options

WITHIN = "7d"
ALONE = ("schedule", "timezone", "gap", "fold", "excluded", "calendars")  # what a schedule without a definition has

at_option = click.option(
    "--at", metavar="ISO", help="When the change takes over; without an offset in the definition's own time zone."
)
within_option = click.option("--within", metavar="DURATION", help=f"How far to look, e.g. 36h; default: {WITHIN}.")


@click.command(
    help="Add a definition; its first instant is the next one from now.",
    epilog=example('definitions add nightly --task shop.report --schedule "30 2 * * *" --set max_retries=5'),
)
@click.argument("name")
@click.option("--task", help="Name of the task; or state --steps.")
@click.option("--schedule", required=True, metavar="RULE", help="""'30 2 * * *', 'every 10s' … or JSON with a kind.""")
@stating_options
@actor_option
@reason_option
@as_json
@with_tm
def add(tm: TimeManagement, name: str, actor: str | None, reason: str | None, as_json: bool, **options: Any) -> None:
    """Add a definition."""
    added = tm.definitions.add(name=name, actor=actor, reason=reason, **read_values(**options))
    show_one(Rows(tm).changed_definition(added), json_wanted=as_json)


@click.command(
    help="Change what is stated about a definition; what is not stated stays.",
    epilog=example('definitions edit nightly --version 3 --schedule "0 3 * * *" --policy graceful'),
)
@definition_argument()
@click.option("--version", type=int, metavar="N", help="Refuse the edit if the definition is at another version by now.")
@click.option(
    "--policy",
    metavar="POLICY",
    help="immediate: from now on; graceful: after the next run; windowed: as immediate, what is planned ahead is compared. "
    "Default: tm_update_policy.",
)
@at_option
@click.option("--task", help="Name of the task.")
@schedule_option
@stating_options
@click.option("--dry-run", is_flag=True, help="Only show which instants would come, go and stay; change nothing.")
@within_option
@limit_option
@actor_option
@reason_option
@as_json
@with_tm
def edit(
    tm: TimeManagement,
    name: str,
    version: int | None,
    policy: str | None,
    at: str | None,
    dry_run: bool,
    within: str | None,
    limit: int,
    actor: str | None,
    reason: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Change a definition."""
    values = read_values(**options)
    if not values:
        raise click.UsageError("state what to change, e.g. --schedule '0 3 * * *' or --set max_retries=5")
    if within is not None and not dry_run:
        raise click.UsageError("--within goes with --dry-run")
    if policy is not None and at is not None:
        raise click.UsageError("--policy and --at exclude each other")
    if dry_run:
        before = tm.definitions.get(name)
        if version is not None and before.version != version:
            raise StaleVersion(name, version, before.version, before.updated_by)
        when = {"policy": policy, "at": _time(tm, name, at)}
        _show_difference(tm, name, values, within, limit=limit, json_wanted=as_json, **when)
        return
    time = _time(tm, name, at)
    after = tm.definitions.update(name, version=version, policy=policy, at=time, actor=actor, reason=reason, **values)
    show_one(Rows(tm).changed_definition(after), json_wanted=as_json)


@click.command(
    help="Show the instants that an edit of NAME would bring, take and keep, or those of a --schedule alone.",
    epilog=example('definitions preview --schedule "30 2 * * *" --timezone America/New_York --since 2026-03-07 --count 3'),
)
@definition_argument(required=False)
@click.option("--task", help="Name of the task, for a NAME that is not there yet.")
@schedule_option
@stating_options
@click.option("--gap", metavar="POLICY", help="A local time that clocks skip: shift or skip.")
@click.option("--fold", metavar="POLICY", help="A local time that comes twice: first, second or both.")
@within_option
@click.option(
    "--since", metavar="ISO", help="Without NAME: from when on; without an offset it is in --timezone. Default: now."
)
@click.option("--count", type=int, metavar="N", help="Without NAME: how many instants; default: 5.")
@limit_option
@as_json
@with_tm
def preview(
    tm: TimeManagement,
    name: str | None,
    within: str | None,
    since: str | None,
    count: int | None,
    limit: int,
    as_json: bool,
    **options: Any,
) -> None:
    """Show what would come."""
    values = read_values(**options)
    if name is not None:
        if since is not None or count is not None:
            raise click.UsageError("--since and --count are for a --schedule alone; with NAME use --within")
        _show_difference(tm, name, values, within, limit=limit, json_wanted=as_json)
        return
    if within is not None:
        raise click.UsageError("--within goes with a NAME; a --schedule alone takes --since and --count")
    _show_schedule(tm, values, since=since, count=5 if count is None else count, json_wanted=as_json)


def _show_schedule(tm: TimeManagement, values: dict[str, Any], *, since: str | None, count: int, json_wanted: bool) -> None:
    if "schedule" not in values:
        raise click.UsageError("name a definition, or pass --schedule")
    for field in values:
        if field not in ALONE:
            raise click.UsageError(f"{field} says nothing about when a schedule fires; it needs a NAME")
    zone = read_zone(values.get("timezone", default_zone(tm.app)))
    start = read_instant(since, field="since", zone=zone)
    instants = tm.preview(**values, since=start, count=count)
    clocks = check_values({name: values[name] for name in ("gap", "fold") if name in values}, zone=Zone())
    rule = read_schedule(values["schedule"], Zone(name=zone, **clocks))
    rows = [both_times(instant, zone, rule) for instant in instants]
    columns = ("utc", "local", "timezone", *(["rule"] if any(row["rule"] for row in rows) else []))
    show(rows, columns=columns, json_wanted=json_wanted, empty="it yields no instant after that")


def _show_difference(
    tm: TimeManagement,
    name: str,
    values: dict[str, Any],
    within: str | None,
    *,
    limit: int,
    json_wanted: bool,
    **when: Any,
) -> None:
    span = WITHIN if within is None else within
    difference = tm.definitions.preview(name, within=span, **when, **values)
    if json_wanted:
        show_one({"name": name, "within": span, **_lists(difference)}, json_wanted=True)
        return
    zone = values.get("timezone") or _zone_of(tm, name)
    rows = [
        {"change": change, **both_times(instant, zone)} for change, found in _lists(difference).items() for instant in found
    ]
    rows.sort(key=lambda row: row["utc"])
    show(rows[:limit], columns=("utc", "local", "timezone", "change"), json_wanted=False, empty=f"no instant within {span}")
    if len(rows) > limit:
        click.echo(f"… and {len(rows) - limit} more; --limit shows more, --json all")
    click.echo(", ".join(f"{change}: {len(found)}" for change, found in _lists(difference).items()))


def _time(tm: TimeManagement, name: str, at: str | None) -> datetime | None:
    return None if at is None else read_instant(at, field="at", zone=tm.definitions.get(name).timezone)


@click.command(
    help="Make a new version of a definition that says what a stored one did. Whether it is enabled or paused stays.",
    epilog=example("definitions restore nightly --version 3"),
)
@definition_argument()
@click.option("--version", type=int, metavar="N", required=True, help="The version; `definitions versions` lists them.")
@at_option
@actor_option
@reason_option
@as_json
@with_tm
def restore(
    tm: TimeManagement, name: str, version: int, at: str | None, actor: str | None, reason: str | None, as_json: bool
) -> None:
    """Restore a version."""
    after = tm.definitions.restore(name, version=version, at=_time(tm, name, at), actor=actor, reason=reason)
    show_one(Rows(tm).changed_definition(after), json_wanted=as_json)


def _lists(difference: Difference) -> dict[str, list[Any]]:
    return {"added": list(difference.added), "removed": list(difference.removed), "kept": list(difference.kept)}


def _zone_of(tm: TimeManagement, name: str) -> str:
    try:
        return tm.definitions.get(name).timezone
    except DefinitionNotFound:
        return default_zone(tm.app)
