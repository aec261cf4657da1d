"""`celery -A app tm report`: how a run of a workflow stands, or how it ended, step by step."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import click

from ..domain.workflow import StepState
from ..management import TimeManagement
from ..presentation.rows import counted
from .common import as_json, example, with_tm
from .output import show, show_one

HEADER = ("run", "state", "reason", "strategy", "mode", "started_at", "ended_at", "seconds")
TRIES = ("step", "attempt", "outcome", "started_at", "took", "next_delay", "worker", "error")
COLUMNS = ("step", "task", "state", "attempts", "seconds", "why")


@click.command(
    name="report",
    help="Show a run of a workflow: how it stands or ended, and each of its steps. "
    "OCCURRENCE is its id, which for a deferred workflow is the job's.",
    epilog=example("report 4e0a44f4-6a5b-5d4c-9a57-3f5a4d1c0b7e"),
)
@click.argument("occurrence")
@as_json
@with_tm
def command(tm: TimeManagement, occurrence: str, as_json: bool) -> None:
    """Show a run."""
    report = tm.report(occurrence)
    if as_json:
        show_one(report, json_wanted=True)
        return
    header = {name: _told(name, report[name]) for name in HEADER if report.get(name) is not None}
    show_one(header | {"steps": counted(report["counts"])}, json_wanted=False)
    click.echo()
    show([_row(step) for step in report["steps"]], columns=COLUMNS, json_wanted=False, empty="")
    tries = [_try(step, one) for step in report["steps"] for one in step.get("tries") or () if len(step["tries"]) > 1]
    if tries:
        click.echo()
        show(tries, columns=TRIES, json_wanted=False, empty="")


def _try(step: Mapping[str, Any], one: Mapping[str, Any]) -> dict[str, Any]:
    """Return an attempt of a step that was tried more than once."""
    times = {"started_at": _told("started_at", one["started_at"]) if one.get("started_at") else None}
    return {**one, **times, "step": step["name"], "took": one.get("seconds") and round(one["seconds"], 3)}


def _told(name: str, value: Any) -> Any:
    if name == "seconds":
        return round(value, 3)
    return datetime.fromisoformat(value) if name.endswith("_at") else value


def _row(step: Mapping[str, Any]) -> dict[str, Any]:
    kept = f"as it ended in {step['kept_from']}" if step.get("kept_from") else None
    tries = step.get("tries") or []
    last = tries[-1].get("error") if tries and step["state"] == StepState.OWED else None  # it is tried again
    why = step.get("error") or step.get("cancelled_by") or kept or last
    seconds = None if step.get("seconds") is None else round(step["seconds"], 3)
    attempts = step["attempts"] or (len(tries) if last else 0)
    return {**step, "step": step["name"], "attempts": attempts, "seconds": seconds, "why": why}
