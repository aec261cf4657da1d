"""`definitions pause|resume|enable|disable|trigger|remove`: one definition, or a whole group, on and off."""

from __future__ import annotations

from typing import Any

import click

from ..management import TimeManagement
from ..presentation import Rows
from .common import actor_option, as_json, example, reason_option, with_tm
from .completing import complete_groups, definition_argument
from .output import show, show_one
from .stating import override_options, read_overrides


def _switch(action: str, about: str, line: str) -> click.Command:
    @click.command(action, help=about, epilog=example(line))
    @definition_argument(required=False)
    @click.option(
        "--group", shell_complete=complete_groups, help="Instead of NAME: every definition of this group, all or none."
    )
    @actor_option
    @reason_option
    @as_json
    @with_tm
    def switch(
        tm: TimeManagement, name: str | None, group: str | None, actor: str | None, reason: str | None, as_json: bool
    ) -> None:
        if (name is None) == (group is None):
            raise click.UsageError("name one definition, or pass --group")
        changed = getattr(tm, action)(name, group=group, actor=actor, reason=reason)
        show_rows = Rows(tm)
        if name is not None:
            show_one(show_rows.switched_definition(changed), json_wanted=as_json)
            return
        columns = ("name", "is", "version", "next_run_at")
        rows = [show_rows.switched_definition(one) for one in changed]
        show(rows, columns=columns, json_wanted=as_json, empty="")

    return switch


pause = _switch(
    "pause",
    "Stop a definition for a while; its instants meanwhile are recorded as skipped.",
    "definitions pause nightly --reason stocktaking",
)
resume = _switch("resume", "Let a paused definition go on with its next instant.", "definitions resume --group reports")
enable = _switch("enable", "Switch a definition on.", "definitions enable nightly")
disable = _switch(
    "disable", "Switch a definition off; its instants meanwhile are recorded as skipped.", "definitions disable nightly"
)


@click.command(
    help="Run a definition now, once, under its own overlap rule.",
    epilog=example("""definitions trigger nightly --args '["sales"]' --queue fast --reason "the boss asked\""""),
)
@definition_argument()
@override_options
@actor_option
@reason_option
@as_json
@with_tm
def trigger(tm: TimeManagement, name: str, actor: str | None, reason: str | None, as_json: bool, **options: Any) -> None:
    """Run a definition now."""
    occurrence = tm.trigger(name, actor=actor, reason=reason, **read_overrides(options))
    value = {"occurrence": occurrence.id, "state": str(occurrence.state), "reason": occurrence.reason}
    show_one(value, json_wanted=as_json)


@click.command(
    help="Delete a definition; its history stays, and a job of it that is owed still runs.",
    epilog=example("definitions remove nightly --yes"),
)
@definition_argument()
@click.option("--yes", is_flag=True, help="Do not ask.")
@actor_option
@reason_option
@as_json
@with_tm
def remove(tm: TimeManagement, name: str, yes: bool, actor: str | None, reason: str | None, as_json: bool) -> None:
    """Delete a definition."""
    tm.definitions.get(name)  # an unknown name is said before anybody is asked
    if not yes:
        click.confirm(f"Delete the definition {name!r} for good? Its history stays.", abort=True, err=True)
    tm.definitions.remove(name, actor=actor, reason=reason)
    show_one({"removed": name}, json_wanted=as_json)
