"""`celery -A app tm explain`: why a definition ran, ran late or did not run."""

from __future__ import annotations

import click

from ..errors import DefinitionNotFound
from ..management import TimeManagement
from .common import as_json, example, read_instant, with_tm
from .output import show_one


@click.command(
    name="explain",
    help="Say in plain words why a definition ran, ran late or did not run at an instant.",
    epilog=example("explain nightly --at 2026-03-29T02:30"),
)
@click.argument("name")
@click.option(
    "--at",
    metavar="ISO",
    help="The instant, without an offset in the definition's own time zone (UTC if it was removed). Default: its latest.",
)
@as_json
@with_tm
def command(tm: TimeManagement, name: str, at: str | None, as_json: bool) -> None:
    """Say why."""
    explanation = tm.explain(name, at=read_instant(at, field="at", zone="UTC" if at is None else _zone_of(tm, name)))
    if as_json:
        found = explanation.occurrence
        value = {"name": explanation.name, "at": explanation.at, "answer": explanation.answer}
        show_one({**value, "lines": list(explanation.lines), "occurrence": found}, json_wanted=True)
        return
    click.echo(explanation.answer)
    for line in explanation.lines:
        click.echo(f"  {line}")


def _zone_of(tm: TimeManagement, name: str) -> str:
    try:
        return tm.definitions.get(name).timezone
    except DefinitionNotFound:  # removed perhaps: the audit may still know why
        return "UTC"
