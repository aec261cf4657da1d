"""`celery -A app tm import`: the entries of another scheduler become definitions."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import click

from ..management import TimeManagement
from ..management.importing import SOURCES, Imported, ImportedEntry, Outcome
from ..presentation import Rows, plain
from .common import actor_option, as_json, example, reason_option, with_tm
from .output import show_one
from .waiting import working

WIDTH = 9


@click.command(
    "import",
    help="Take over the entries of another scheduler as definitions, in one transaction. "
    f"SOURCE is one of {', '.join(SOURCES)}. Nothing is changed there. Exit code 1 if an entry was refused.",
    epilog=example("import redbeat --from redis://localhost:6379/0 --dry-run"),
)
@click.argument("source")
@click.option("--from", "url", metavar="URL", help="Where its entries are: a database, a Redis server, or beat's file.")
@click.option("--dry-run", is_flag=True, help="Show what would be done, and write nothing.")
@click.option("--update", is_flag=True, help="Also change definitions that are there and differ.")
@click.option("--paused", is_flag=True, help="Add them paused.")
@click.option("--group", help="Group to put them in.")
@click.option(
    "--catch-up", default="1d", show_default=True, metavar="DURATION",
    help="How far back an instant that the old beat missed is made up for; 0s: not at all.",
)  # fmt: skip
@click.option("--schema", help="Schema of its tables.")
@click.option("--key-prefix", help="RedBeat's redbeat_key_prefix.")
@click.option("--timezone", metavar="ZONE", help="Zone of times in its tables that have none; default: UTC.")
@actor_option
@reason_option
@as_json
@with_tm
def command(tm: TimeManagement, source: str, as_json: bool, **options: Any) -> None:
    """Import definitions."""
    with working(f"importing from {source}"):
        imported = tm.definitions.import_from(source, **options)
    imported = _redacted(tm, imported)
    if as_json:
        show_one(_as_data(imported), json_wanted=True)
    else:
        _show(imported)
    if imported.refused:
        raise SystemExit(1)


def _redacted(tm: TimeManagement, imported: Imported) -> Imported:
    """Return what an import did with the arguments in it hidden as `tm_redact` says."""
    redactor = Rows(tm).redactor

    def shown(entry: ImportedEntry) -> ImportedEntry:
        before, after = (
            redactor.stated({name: pair[side] for name, pair in entry.changes.items()}, entry.task) for side in (0, 1)
        )
        return replace(entry, changes={name: (before[name], after[name]) for name in entry.changes})

    return replace(imported, entries=[shown(entry) for entry in imported.entries])


def _as_data(imported: Imported) -> dict[str, Any]:
    counts = {str(outcome): len(imported.names(outcome)) for outcome in Outcome}
    return {**plain(imported), "counts": counts}


def _show(imported: Imported) -> None:
    for entry in imported.entries:
        click.echo(f"{entry.outcome:<{WIDTH}}  {entry.name}{_summary(entry)}")
        for line in _details(entry):
            click.echo(f"{'':<{WIDTH}}    {line}")
    for note in imported.notes:
        click.echo(f"note: {note}")
    counts = ", ".join(f"{outcome}: {len(imported.names(outcome))}" for outcome in Outcome)
    click.echo(f"{counts} ({imported.source}, {imported.where})")
    if imported.dry_run:
        click.echo("nothing was written: this was a dry run")


def _summary(entry: ImportedEntry) -> str:
    if entry.outcome is Outcome.REFUSED:
        return f": {' '.join((entry.error or '').split())}"
    if entry.outcome is Outcome.LEFT_OUT:
        return ""
    following = f"next {entry.next_run_at:%Y-%m-%d %H:%M:%S} UTC" if entry.next_run_at else "no next run"
    off = "" if entry.enabled else ", disabled"
    return f": {' '.join((entry.schedule or '').split())} in {entry.timezone}, {following}{off}"


def _details(entry: ImportedEntry) -> list[str]:
    lines = [f"{name}: {_value(before)} → {_value(after)}" for name, (before, after) in entry.changes.items()]
    if entry.outcome is Outcome.DIFFERS:
        lines.append("not changed: use --update")
    return [*lines, *(f"note: {note}" for note in entry.notes)]


def _value(value: Any) -> str:
    return "–" if value is None else json.dumps(plain(value), ensure_ascii=False)
