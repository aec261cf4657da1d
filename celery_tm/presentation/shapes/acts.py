"""Shapes of what is told after a change: added, edited, switched, triggered, replayed, backfilled, imported, pruned."""

from __future__ import annotations

from collections.abc import Mapping

from ...domain.occurrence import OccurrenceState
from .schema import Schema, anything, flag, instant, list_of, mapping, maybe, one_of, ref, text, thing, whole

NAMES = list_of(text("a name"), "names")

CHANGED = thing(
    "a definition after it was added or edited",
    {
        "name": text("its name"),
        "version": whole("its version now"),
        "is": text("on, paused, disabled or retired, and `edit waits`"),
        "schedule": text("the rule as it is written"),
        "meaning": text("the rule in words"),
        "next_run_at": maybe(instant("the next instant")),
        "edit_waits_until": instant("the run after which the edit takes over, if it waits"),
    },
    optional=("edit_waits_until",),
)
SWITCHED = thing(
    "a definition after it was switched on or off",
    {
        "name": text("its name"),
        "is": text("on, paused, disabled or retired, and `edit waits`"),
        "enabled": flag("whether it is switched on"),
        "paused": flag("whether it is stopped for a while"),
        "version": whole("its version now"),
        "next_run_at": maybe(instant("the next instant")),
    },
)
TRIGGERED = thing(
    "what was decided about a run that a person asked for",
    {
        "occurrence": text("id of the occurrence"),
        "state": one_of("where it stands", OccurrenceState),
        "reason": maybe(text("why")),
    },
)
REPLAYED = thing(
    "what was decided about a run that is to be repeated",
    {**TRIGGERED["properties"], "replay_of": text("the occurrence that it repeats")},
)
BACKFILLED = thing(
    "what a backfill did, or with a dry run would do",
    {
        "name": text("name of the definition"),
        "since": instant("begin of the range"),
        "until": instant("end of the range, not included"),
        "dry_run": flag("whether nothing was done"),
        "counts": thing(
            "how many instants",
            {"instants": whole("in the range"), "created": whole("to run"), "left_out": whole("left out")},
        ),
        "created": list_of(
            thing(
                "an instant that is to run",
                {
                    "instant": instant("the instant"),
                    "occurrence": text("id of its occurrence"),
                    "replay_of": maybe(text("the occurrence that it repeats")),
                },
            ),
            "those that are to run",
        ),
        "left_out": list_of(
            thing("an instant that is not to run", {"instant": instant("the instant"), "why": text("why not")}),
            "those that are not",
        ),
    },
)
ENTRY = thing(
    "an entry of another scheduler, and what became of it",
    {
        "name": text("its name"),
        "outcome": text("added, changed, unchanged, differs, left out or refused"),
        "changes": mapping("fields that changed: [before, after]", list_of(anything("a value"), "before and after")),
        "notes": list_of(text("a note"), "what is to be known about it"),
        "error": maybe(text("why it was refused")),
        "task": maybe(text("name of the task")),
        "schedule": maybe(text("the rule as it is written here")),
        "timezone": maybe(text("zone of its local times")),
        "enabled": maybe(flag("whether it is switched on")),
        "planned_until": maybe(instant("the last instant that is decided")),
        "next_run_at": maybe(instant("the next instant")),
    },
)
IMPORTED = thing(
    "what an import did, or in a dry run would do",
    {
        "source": text("the other scheduler"),
        "where": text("where its entries were read"),
        "dry_run": flag("whether nothing was written"),
        "entries": list_of(ref("ImportedEntry"), "the entries"),
        "notes": list_of(text("a note"), "what is to be known about all of them"),
        "counts": mapping("how many entries by outcome", whole("how many")),
    },
)
LOADED = thing(
    "what loading a file did",
    {
        "added": {**NAMES, "description": "definitions that are new"},
        "changed": {**NAMES, "description": "definitions that were edited"},
        "unchanged": {**NAMES, "description": "definitions that were so already"},
        "calendars": {**NAMES, "description": "calendars that were written"},
        "conflicts": list_of(
            thing(
                "a field that the file and a person have changed",
                {
                    "name": text("name of the definition, or of the calendar"),
                    "field": text("the field"),
                    "file": anything("what the file says"),
                    "database": anything("what stays"),
                    "task": maybe(text("task of the definition; null: a calendar")),
                },
            ),
            "fields that were left as they are",
        ),
    },
)
EXPORTED = thing(
    "definitions and calendars as `load` takes them back; arguments are not redacted",
    {
        "calendars": list_of(mapping("a calendar as it is stated"), "the calendars that they name"),
        "definitions": list_of(mapping("a definition as it is stated"), "the definitions"),
    },
    optional=("calendars",),
)
PRUNED = thing(
    "how many rows were deleted",
    {
        "executions": whole("of executions"),
        "occurrences": whole("of occurrences"),
        "steps": whole("of steps of workflows"),
        "runs": whole("of runs of workflows"),
        "logs": whole("of log lines"),
        "keys": whole("of keys"),
        "audit": whole("of the audit"),
        "lanes": whole("of lanes that nothing uses"),
        "by_count": mapping("of those, how many were beyond `tm_keep_rows` and not too old, by kind", whole("how many")),
        "finished": flag("whether there was time for all of it"),
    },
)
REMOVED = thing("what was removed", {"removed": text("its name")})
CANCELLED = thing(
    "whether a job was cancelled", {"job": text("its id"), "cancelled": flag("whether there was anything to cancel")}
)

ACTS: Mapping[str, Schema] = {
    "ChangedDefinition": CHANGED,
    "SwitchedDefinition": SWITCHED,
    "Triggered": TRIGGERED,
    "Replayed": REPLAYED,
    "Backfilled": BACKFILLED,
    "ImportedEntry": ENTRY,
    "Imported": IMPORTED,
    "Loaded": LOADED,
    "Exported": EXPORTED,
    "Pruned": PRUNED,
    "Removed": REMOVED,
    "Cancelled": CANCELLED,
    "Revived": thing("how many dead letters were revived", {"revived": whole("how many")}),
    "Purged": thing("how many dead letters were purged", {"purged": whole("how many")}),
}
