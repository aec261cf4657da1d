"""`celery -A app tm replay`: run an occurrence that has ended once more."""

from __future__ import annotations

from typing import Any

import click

from ..management import TimeManagement
from .common import actor_option, as_json, example, with_tm
from .output import show_one
from .stating import override_options, read_overrides


@click.command(
    name="replay",
    help="Run an occurrence that has ended once more, as a new one, under its definition's overlap rule; "
    "of a workflow all of it, one step, or one step and all that wait for it.",
    epilog=example('replay 4e0a44f4-6a5b-5d4c-9a57-3f5a4d1c0b7e --from-step load --reason "the report was empty"'),
)
@click.argument("occurrence")
@click.option("--reason", required=True, help="Why, for the audit.")
@click.option("--step", metavar="STEP", help="Only this step of it; the others keep their results.")
@click.option("--from-step", metavar="STEP", help="Only this step and all that wait for it; the others keep their results.")
@override_options
@actor_option
@as_json
@with_tm
def command(
    tm: TimeManagement,
    occurrence: str,
    reason: str,
    step: str | None,
    from_step: str | None,
    actor: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Run it once more."""
    values = read_overrides(options)
    made = tm.replay(occurrence, step=step, from_step=from_step, actor=actor, reason=reason, **values)
    value = {"occurrence": made.id, "state": str(made.state), "reason": made.reason, "replay_of": made.replay_of}
    show_one(value, json_wanted=as_json)
