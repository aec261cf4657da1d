"""Shapes of what is worked out when somebody asks: status, findings, explanations, reports, previews."""

from __future__ import annotations

from collections.abc import Mapping

from ...domain.execution import Outcome
from ...domain.occurrence import OccurrenceState
from ...domain.workflow import StepState
from .schema import Schema, anything, flag, instant, list_of, mapping, maybe, number, one_of, ref, text, thing, whole

LEVELS = ("ok", "note", "warning", "error")

NODE = thing(
    "a running beat or worker",
    {
        "name": text("its name"),
        "kind": text("beat or worker"),
        "started_at": instant("since when it runs"),
        "seen_at": instant("when it was last heard of"),
        "version": text("its release of celery_tm"),
        "is_silent": flag("whether it should have been heard of since"),
    },
)
OLDEST_DUE = thing(
    "the job that has waited longest",
    {"id": text("its id"), "task": text("name of its task"), "run_at": instant("when it was due")},
)
COUNT = whole("how many")
STATUS = thing(
    "how everything stands, in one screen",
    {
        "now": instant("the database's clock"),
        "schema": maybe(text("revision of the tables")),
        "definitions": mapping("how many are on, paused, disabled and retired", COUNT),
        "jobs": mapping("how many are pending, due, waiting_for_turn, dispatched and running", COUNT),
        "lag": number("how long the oldest due job has waited, in seconds"),
        "oldest_due": maybe(ref("OldestDue", "that job")),
        "in_flight": whole("how many jobs are dispatched or running"),
        "max_in_flight": maybe(whole("how many may be; null: no limit")),
        "expired_leases": whole("how many jobs in flight have a lease that has ended"),
        "dead_letters": whole("how many dead letters there are"),
        "next_run_at": maybe(instant("the next instant of any definition")),
        "recent": mapping("executions of the last hour by outcome", COUNT),
        "occurrences_recent": mapping("occurrences of the last 24 hours by state", COUNT),
        "nodes": list_of(ref("Node"), "beats and workers"),
        "cap": whole("where counts stop"),
        "capped": list_of(text("name of a count"), "counts that stopped at their limit: there are at least so many"),
    },
)
FINDING = thing(
    "something that doctor looked at",
    {
        "level": one_of("how bad it is", LEVELS),
        "check": text("what was looked at"),
        "text": text("what was found"),
        "advice": maybe(text("what to do about it")),
        "objects": list_of(text("a name or an id"), "what it is about, the first of them"),
    },
)
EXPLANATION = thing(
    "why a definition ran, ran late or did not run",
    {
        "name": text("name of the definition"),
        "at": maybe(instant("the instant that is explained")),
        "answer": text("the answer in one sentence"),
        "lines": list_of(text("a fact"), "what it rests on"),
        "occurrence": maybe(ref("Occurrence", "the occurrence, if there is one")),
    },
)
TRY = thing(
    "one attempt of a step",
    {
        "attempt": whole("which attempt, from 1"),
        "outcome": one_of("how it ended", Outcome),
        "started_at": maybe(instant("when it began; null: it did not")),
        "ended_at": instant("when it ended"),
        "seconds": maybe(number("how long it took")),
        "next_delay": maybe(number("the backoff before the next attempt, in seconds; null: none followed")),
        "error": maybe(text("what it failed with")),
        "worker": maybe(text("which worker ran it")),
    },
)
STEP_REPORT = thing(
    "one step of a run; what there is nothing to say about is left out",
    {
        "name": text("its name"),
        "task": text("name of its task"),
        "state": one_of("where it stands", StepState),
        "outcome": one_of("how its last attempt ended", Outcome),
        "strategy": text("what its failure means for the others"),
        "attempts": whole("how many attempts it took"),
        "started_at": instant("when it began"),
        "ended_at": instant("when it ended"),
        "seconds": number("how long it took with its waits"),
        "error": text("what it failed with"),
        "cancelled_by": text("what it was cancelled by"),
        "kept_from": text("the run whose result it keeps"),
        "job": text("its job"),
        "tries": list_of(ref("Try"), "its attempts"),
    },
    optional=(
        "outcome", "strategy", "started_at", "ended_at", "seconds", "error", "cancelled_by", "kept_from", "job", "tries",
    ),
)  # fmt: skip
REPORT = thing(
    "how a run of a workflow stands or ended",
    {
        "run": text("its id"),
        "state": one_of("where it stands", OccurrenceState),
        "reason": maybe(text("why")),
        "strategy": text("what a failed step means for the others"),
        "mode": text("how the steps run"),
        "stopped_by": maybe(text("what stopped it early")),
        "started_at": instant("when it began"),
        "ended_at": maybe(instant("when it ended")),
        "seconds": number("how long it took, or takes by now"),
        "counts": mapping("how many steps are in each state", COUNT),
        "steps": list_of(ref("StepReport"), "its steps, in their order"),
        "shortened": anything("there if the report was too long and says less of some steps"),
    },
    optional=("shortened",),
)
SETTING = thing(
    "a setting in force",
    {
        "value": anything("its value"),
        "origin": one_of("who states it", ("step", "definition", "workflow", "task", "strategy", "default")),
    },
)
INSTANTS = list_of(instant("an instant"), "instants")
DIFFERENCE = thing(
    "what an edit would change about the coming instants",
    {
        "name": text("name of the definition"),
        "within": text("how far was looked"),
        "added": {**INSTANTS, "description": "instants that would come"},
        "removed": {**INSTANTS, "description": "instants that would go"},
        "kept": {**INSTANTS, "description": "instants that would stay"},
    },
)
AFFECTED = thing(
    "what an act on many dead letters would change",
    {
        "count": whole("how many there are"),
        "by_task": mapping("how many of each task", COUNT),
        "oldest": maybe(instant("when the oldest of them was buried")),
        "newest": maybe(instant("when the newest of them was buried")),
        "sample": list_of(ref("DeadLetter"), "the latest of them"),
    },
)
UNREADABLE = thing(
    "a row that this release cannot read",
    {
        "table": text("table that it is in"),
        "id": text("its primary key"),
        "error": text("why it cannot be read"),
        "name": maybe(text("what people call it")),
    },
)

STATES: Mapping[str, Schema] = {
    "UnreadableRow": UNREADABLE,
    "Node": NODE,
    "OldestDue": OLDEST_DUE,
    "Status": STATUS,
    "Finding": FINDING,
    "Explanation": EXPLANATION,
    "Try": TRY,
    "StepReport": STEP_REPORT,
    "Report": REPORT,
    "EffectiveSetting": SETTING,
    "Difference": DIFFERENCE,
    "Affected": AFFECTED,
}
