"""`celery -A app tm effective`: the settings that the steps of a definition run with, and where each comes from."""

from __future__ import annotations

from collections.abc import Mapping

import click

from ..domain.effective import Effective
from ..management import TimeManagement
from .common import as_json, example, with_tm
from .completing import definition_argument
from .output import show, show_one

COLUMNS = ("step", "setting", "value", "from")


@click.command(
    name="effective",
    help="Show the settings that each step of a definition, or one STEP, runs with, and where each comes from: "
    "the step, the definition, the task, the failure strategy, or the default.",
    epilog=example("effective nightly load"),
)
@definition_argument()
@click.argument("step", required=False)
@as_json
@with_tm
def command(tm: TimeManagement, name: str, step: str | None, as_json: bool) -> None:
    """Show the settings in force."""
    found = tm.effective(name, step)
    by_step: Mapping[str, Effective] = found if step is None else {step: found}
    if as_json:
        show_one(found, json_wanted=True)
        return
    rows = [
        {"step": one, "setting": setting, "value": said.value, "from": said.origin}
        for one, settings in by_step.items()
        for setting, said in settings.items()
    ]
    show(rows, columns=COLUMNS, json_wanted=False, empty="")
