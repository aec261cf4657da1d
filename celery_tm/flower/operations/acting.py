"""What the API changes about work: cancel a job, revive and purge dead letters, replay an occurrence."""

from __future__ import annotations

from typing import Any

from ...errors import InvalidValue
from ...management.dead_letters import refuse_unselected
from ...management.rows import cancel as cancel_job
from ...presentation.shapes.schema import ref
from ..failures import Refusal
from . import asking
from .asking import Asked, Operation
from .defining import OF_ONE_RUN, change, override_values
from .reading import LETTERS

FILTERS = tuple(parameter.name for parameter in LETTERS)
ALL = asking.flag("all", "every dead letter is meant; required where there is neither a filter nor `ids`")
IDS = asking.names("ids", "only these; in a form the field comes once for each")
EXPECTED = asking.whole(
    "expected", "how many the preview told; if there are more or fewer by now, nothing is done. Required without `ids`"
)


def cancel(asked: Asked) -> Any:
    """Cancel a job that is owed; say so where there is nothing to cancel."""
    id = asked.path["id"]
    if not cancel_job(asked.tm.installation, id, **asked.act):
        story = asked.tm.job(id)  # an unknown id is said as such
        raise Refusal(409, "not_owed", f"job {id} is not owed any more, it is {story.state}; there is nothing to cancel")
    return {"job": id, "cancelled": True}


def revive(asked: Asked) -> Any:
    """Give one dead letter all its tries again."""
    asked.tm.dead_letters.revive(asked.path["id"], **asked.act)
    return {"revived": 1}


def purge(asked: Asked) -> Any:
    """Delete one dead letter for good."""
    asked.tm.dead_letters.purge(asked.path["id"], **asked.act)
    return {"purged": 1}


def preview(asked: Asked) -> Any:
    """Return how many dead letters an act on many would change."""
    return asked.rows.affected(asked.tm.dead_letters.preview(**_chosen(asked)))


def revive_many(asked: Asked) -> Any:
    """Revive the dead letters that fit."""
    return {"revived": asked.tm.dead_letters.revive_all(**_many(asked), **asked.act)}


def purge_many(asked: Asked) -> Any:
    """Delete the dead letters that fit, for good."""
    every = bool(asked.values.get("all"))
    return {"purged": asked.tm.dead_letters.purge(**_many(asked), all=every, **asked.act)}


def _chosen(asked: Asked) -> dict[str, Any]:
    return asked.given(*FILTERS, "ids")


def _many(asked: Asked) -> dict[str, Any]:
    """Return what an act on many is about; nobody acts on all without saying so and having seen how many they are."""
    refuse_unselected(_chosen(asked), all=bool(asked.values.get("all")))
    if "ids" not in asked.values and "expected" not in asked.values:
        raise InvalidValue("expected", "it is missing", "ask /api/tm/dead-letters/preview how many there are, and say so")
    return _chosen(asked) | asked.given("expected")


def replay(asked: Asked) -> Any:
    """Run an occurrence that has ended once more."""
    made = asked.tm.replay(asked.path["id"], **asked.given("step", "from_step"), **override_values(asked), **asked.act)
    return {"occurrence": made.id, "state": str(made.state), "reason": made.reason, "replay_of": made.replay_of}


ACTING: tuple[Operation, ...] = (
    change(
        "cancel_job", "/api/tm/jobs/{id}/cancel", "Cancel a job: one that waits is deleted, one that runs is asked to stop.",
        cancel, ref("Cancelled"), "job {id} was cancelled", refusals=(409,),
    ),
    change(
        "revive_dead_letter", "/api/tm/dead-letters/{id}/revive", "Give a dead letter all its tries again, now.", revive,
        ref("Revived"), "{id} was revived", refusals=(409,),
    ),
    change(
        "purge_dead_letter", "/api/tm/dead-letters/{id}/purge", "Delete a dead letter for good.", purge, ref("Purged"),
        "{id} was purged",
    ),
    change(
        "preview_dead_letters", "/api/tm/dead-letters/preview", "How many dead letters an act on many would change.",
        preview, ref("Affected"), "{count} fit", *LETTERS, IDS,
    ),
    change(
        "revive_dead_letters", "/api/tm/dead-letters/revive", "Revive the dead letters that fit; those whose key is taken "
        "stay.", revive_many, ref("Revived"), "{revived} dead letters were revived", *LETTERS, IDS, ALL, EXPECTED,
        refusals=(409,),
    ),
    change(
        "purge_dead_letters", "/api/tm/dead-letters/purge", "Delete the dead letters that fit, for good.", purge_many,
        ref("Purged"), "{purged} dead letters were purged", *LETTERS, IDS, ALL, EXPECTED, refusals=(409,),
    ),
    change(
        "replay_occurrence", "/api/tm/occurrences/{id}/replay", "Run an occurrence that has ended once more, as a new one.",
        replay, ref("Replayed"), "it was replayed: the new run is {state}",
        asking.text("step", "only this step of it; the others keep their results"),
        asking.text("from_step", "only this step and all that wait for it"), OF_ONE_RUN,
    ),
)  # fmt: skip
