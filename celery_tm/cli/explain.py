"""`celery -A app tm explain`: why a definition ran, ran late or did not run."""

from __future__ import annotations

import click

from ..errors import DefinitionNotFound
from ..management import TimeManagement
from ..presentation import Rows
from .common import as_json, example, read_moment, with_tm
from .completing import definition_argument
from .output import printable, show_one


@click.command(
    name="explain",
    help="Say in plain words why a definition ran, ran late or did not run at an instant.",
    epilog=example("explain nightly --at 2026-03-29T02:30"),
)
@definition_argument()
@click.option(
    "--at",
    metavar="ISO",
    help="The instant, without an offset in the definition's own time zone (UTC if it was removed). Default: its latest.",
)
@as_json
@with_tm
def command(tm: TimeManagement, name: str, at: str | None, as_json: bool) -> None:
    """Say why."""
    explanation = tm.explain(name, at=None if at is None else read_moment(at, field="at", zone=_zone_of(tm, name)))
    if as_json:
        show_one(Rows(tm).explanation(explanation), json_wanted=True)
        return
    click.secho(printable(explanation.answer), bold=True)
    for line in explanation.lines:
        click.echo(f"  {printable(line)}")


def _zone_of(tm: TimeManagement, name: str) -> str:
    try:
        return tm.definitions.get(name).timezone
    except DefinitionNotFound:  # removed perhaps: the audit may still know why
        return "UTC"
