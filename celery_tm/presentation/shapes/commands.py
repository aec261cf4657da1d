"""The shape of the `--json` answer of each command, by the command's words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from .components import COMPONENTS
from .schema import DRAFT, Schema, flag, list_of, mapping, maybe, ref, text, thing, whole

_SCHEMA_UPGRADE = thing(
    "what became of the tables",
    {
        "database": text("where they are, without a password"),
        "before": maybe(text("their revision before; null: there were none")),
        "after": text("their revision now"),
    },
)
_SCHEMA_CHECK = thing(
    "whether the tables are of this release",
    {
        "database": text("where they are, without a password"),
        "found": maybe(text("their revision; null: there are none")),
        "needed": text("the revision that this release needs"),
        "current": flag("whether the two are the same"),
    },
)
_SCHEMA_GRANTS = thing(
    "what a user of the database needs",
    {
        "role": text("what the user is for"),
        "to": text("the user"),
        "statements": list_of(text("one GRANT"), "the SQL that the owner of the tables runs"),
    },
)
_SWITCHED = {
    "anyOf": [ref("SwitchedDefinition"), list_of(ref("SwitchedDefinition"), "with --group: those of the group")],
    "description": "the definition, or with --group a list",
}
_EFFECTIVE = mapping("settings by name", ref("EffectiveSetting"))
_RUN = thing(
    "what `run --once` did",
    {
        "planned": whole("definitions that were planned"),
        "claimed": whole("due jobs that were taken"),
        "succeeded": whole("jobs that succeeded"),
        "retried": whole("jobs that failed and are tried again"),
        "failed": whole("jobs that failed for good"),
        "skipped": whole("jobs that were settled elsewhere"),
        "expired": whole("jobs that came too late to run"),
        "swept": whole("jobs whose lease had ended"),
    },
)
_TAKE_OVER = thing(
    "whose the rows are", {"before": text("the app that had them; empty: none"), "after": text("the app that has them now")}
)
_COMPLETION = thing("a shell's script", {"shell": text("which shell"), "script": text("what it has to read")})
_ANSWERS: Mapping[str, Schema] = {
    "status": ref("Status"),
    "doctor": list_of(ref("Finding"), "what was found, the worst first"),
    "schema upgrade": _SCHEMA_UPGRADE,
    "schema downgrade": _SCHEMA_UPGRADE,
    "schema check": _SCHEMA_CHECK,
    "schema grants": _SCHEMA_GRANTS,
    "definitions list": list_of(ref("Definition"), "the definitions, by name"),
    "definitions show": ref("DefinitionInFull"),
    "definitions versions": list_of(ref("Version"), "the versions, the latest first"),
    "definitions add": ref("ChangedDefinition"),
    "definitions edit": {
        "anyOf": [ref("ChangedDefinition"), ref("Difference")],
        "description": "the definition, or with --dry-run what would change",
    },
    "definitions restore": ref("ChangedDefinition"),
    "definitions preview": {
        "anyOf": [ref("Difference"), list_of(ref("BothTimes"), "without NAME: the instants of the schedule")],
        "description": "with NAME what would change, else the instants of --schedule",
    },
    "definitions load": ref("Loaded"),
    "definitions export": ref("Exported"),
    "definitions trigger": ref("Triggered"),
    "definitions pause": _SWITCHED,
    "definitions resume": _SWITCHED,
    "definitions enable": _SWITCHED,
    "definitions disable": _SWITCHED,
    "definitions remove": ref("Removed"),
    "import": ref("Imported"),
    "calendars list": list_of(ref("Calendar"), "the calendars, by name"),
    "calendars show": ref("Calendar"),
    "calendars set": ref("Calendar"),
    "calendars remove": ref("Removed"),
    "occurrences": list_of(ref("Occurrence"), "the occurrences, the latest first"),
    "explain": ref("Explanation"),
    "backfill": ref("Backfilled"),
    "replay": ref("Replayed"),
    "report": ref("Report"),
    "effective": {
        "anyOf": [_EFFECTIVE, mapping("without STEP: the same for each step", _EFFECTIVE)],
        "description": "the settings of STEP, or without it those of each step by its name",
    },
    "jobs list": list_of(ref("Job"), "the jobs, those due first in front"),
    "jobs show": ref("JobStory"),
    "jobs cancel": ref("Cancelled"),
    "dead-letters list": list_of(ref("DeadLetter"), "the dead letters, the latest first"),
    "dead-letters show": ref("DeadLetterInFull"),
    "dead-letters revive": {
        "anyOf": [ref("Revived"), ref("Affected")],
        "description": "how many were revived, or with --dry-run what would be",
    },
    "dead-letters purge": {
        "anyOf": [ref("Purged"), ref("Affected")],
        "description": "how many were purged, or with --dry-run what would be",
    },
    "history": list_of(ref("Execution"), "the executions, the latest first"),
    "log": list_of(ref("LogLine"), "the lines, in order"),
    "audit": list_of(ref("AuditLine"), "the lines, the latest first"),
    "rows list": list_of(ref("UnreadableRow"), "the rows that cannot be read"),
    "rows remove": ref("UnreadableRow"),
    "run": _RUN,
    "prune": ref("Pruned"),
    "take-over": _TAKE_OVER,
    "completion": _COMPLETION,
}


def shape_of(answer: Schema) -> Schema:
    """Return a schema that stands on its own: the components that it points to are inside."""
    used: dict[str, Schema] = {}
    waiting = list(_kinds(answer))
    while waiting:
        kind = waiting.pop()
        if kind not in used:
            used[kind] = COMPONENTS[kind]
            waiting += _kinds(COMPONENTS[kind])
    found = {"components": {"schemas": dict(sorted(used.items()))}} if used else {}
    return {"$schema": DRAFT, **answer, **found}


def _kinds(schema: Any) -> Iterator[str]:
    """Yield the components that a schema points to."""
    if isinstance(schema, Mapping):
        if isinstance(schema.get("$ref"), str):
            yield schema["$ref"].rpartition("/")[2]
        for item in schema.values():
            yield from _kinds(item)
    elif isinstance(schema, list):
        for item in schema:
            yield from _kinds(item)


SHAPES: Mapping[str, Schema] = {command: shape_of(answer) for command, answer in _ANSWERS.items()}
