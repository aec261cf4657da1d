"""What the API changes about definitions: add, edit, preview, switch, trigger, backfill, remove."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ...domain.overrides import FIELDS as OVERRIDES
from ...domain.stating import FIELDS
from ...errors import InvalidValue, StaleVersion, UnknownOption, nearest
from ...presentation import plain
from ...presentation.shapes.schema import ref
from . import asking
from .answers import REASON, all_of
from .asking import Asked, Operation, Parameter
from .reading import DEFINITION, own_time

WITHIN = "7d"
STATED = 'what to state, by field, e.g. {"schedule": "0 3 * * *"}; what is not stated stays'
SWITCHES: Mapping[str, tuple[str, str]] = {
    "pause": ("Stop {} for a while; instants meanwhile are recorded as skipped.", "{} is paused"),
    "resume": ("Let {} go on with the next instant.", "{} goes on"),
    "enable": ("Switch {} on.", "{} is switched on"),
    "disable": ("Switch {} off; instants meanwhile are recorded as skipped.", "{} is switched off"),
}


def add(asked: Asked) -> Any:
    """Add a definition."""
    made = asked.tm.definitions.add(name=asked.values["name"], **asked.act, **stated_values(asked))
    return asked.rows.changed_definition(made)


def edit(asked: Asked) -> Any:
    """Change what is stated about a definition."""
    values = stated_values(asked)
    if not values:
        raise InvalidValue("values", "they state nothing", 'say what to change, e.g. {"schedule": "0 3 * * *"}')
    wanted = asked.given("version", "policy", "at")
    return asked.rows.changed_definition(asked.tm.definitions.update(asked.path["name"], **wanted, **asked.act, **values))


def restore(asked: Asked) -> Any:
    """Make a new version that says what a stored one did."""
    made = asked.tm.definitions.restore(asked.path["name"], **asked.given("version", "at"), **asked.act)
    return asked.rows.changed_definition(made)


def preview(asked: Asked) -> Any:
    """Return the instants that an edit would bring, take and keep."""
    name, values, within = asked.path["name"], stated_values(asked), asked.values.get("within", WITHIN)
    version = asked.values.get("version")
    if version is not None:
        before = asked.tm.definitions.get(name)
        if before.version != version:
            raise StaleVersion(name, version, before.version, before.updated_by)
    found = asked.tm.definitions.preview(name, within=within, **asked.given("policy", "at"), **values)
    told = {"added": found.added, "removed": found.removed, "kept": found.kept}
    return {"name": name, "within": within, **plain(told)}


def stated_values(asked: Asked) -> dict[str, Any]:
    """Return the fields that were stated."""
    values: dict[str, Any] = asked.values.get("values", {})
    for field in values:
        if field not in FIELDS:  # said here, since "actor" or "version" would be a keyword of the call
            raise UnknownOption(field, nearest(field, FIELDS))
    return values


def override_values(asked: Asked) -> dict[str, Any]:
    """Return the values that hold for one run only."""
    values: dict[str, Any] = asked.values.get("values", {})
    for field in values:
        if field not in OVERRIDES:  # said here, since "actor" or "reason" would be a keyword of the call
            raise UnknownOption(field, nearest(field, OVERRIDES))
    return values


def trigger(asked: Asked) -> Any:
    """Run a definition now, once."""
    made = asked.tm.trigger(asked.path["name"], **override_values(asked), **asked.act)
    return {"occurrence": made.id, "state": str(made.state), "reason": made.reason}


def backfill(asked: Asked) -> Any:
    """Run the instants of a past range that did not run."""
    ends = {name: own_time(asked, at, field=name) for name, at in asked.given("since", "until").items()}
    wanted = asked.given("overlap", "again", "dry_run") | override_values(asked)
    return asked.rows.backfilled(asked.tm.backfill(asked.path["name"], **ends, **wanted, **asked.act))


def remove(asked: Asked) -> Any:
    """Delete a definition."""
    asked.tm.definitions.remove(asked.path["name"], **asked.act)
    return {"removed": asked.path["name"]}


def _switch_one(action: str) -> Callable[[Asked], Any]:
    def work(asked: Asked) -> Any:
        return asked.rows.switched_definition(getattr(asked.tm, action)(asked.path["name"], **asked.act))

    return work


def _switch_group(action: str) -> Callable[[Asked], Any]:
    def work(asked: Asked) -> Any:
        changed = getattr(asked.tm, action)(group=asked.path["group"], **asked.act)
        return {"items": [asked.rows.switched_definition(one) for one in changed]}

    return work


def change(
    name: str,
    path: str,
    about: str,
    work: Callable[[Asked], Any],
    answer: Any,
    done: str,
    *parameters: Parameter,
    **more: Any,
) -> Operation:
    """Return an operation that changes something; `done` is told to people, with the names of the path and the answer."""

    def told(asked: Asked, result: Any) -> str:
        return done.format_map({**asked.path, **(result if isinstance(result, dict) else {})})

    return Operation(
        name=name, method="POST", path=path, about=about, work=work, answer=answer, done=told,
        parameters=(*parameters, REASON), **more,
    )  # fmt: skip


OF_ONE_RUN = asking.mapping("values", f"values that hold for this run only: {', '.join(OVERRIDES)}")
VALUES = asking.mapping("values", STATED, required=True)
VERSION = asking.whole("version", "the version that the edit was made on; if it is another by now, nothing is changed")
POLICY = asking.text(
    "policy", "when it counts: from now on, or after the next run", enum=["immediate", "graceful", "windowed"]
)
AT = asking.instant("at", "when it takes over, instead of a policy")

DEFINING: tuple[Operation, ...] = (
    change(
        "add_definition", "/api/tm/definitions", "Add a definition; its first instant is the next one from now.", add,
        ref("ChangedDefinition"), "{name} was added", asking.text("name", "its name", required=True), VALUES,
        status=201, refusals=(409,),
    ),
    change(
        "edit_definition", f"{DEFINITION}/edit", "Change what is stated about a definition.", edit,
        ref("ChangedDefinition"), "{name} is at version {version}", VALUES, VERSION, POLICY, AT, refusals=(409,),
    ),
    change(
        "preview_edit", f"{DEFINITION}/preview", "The instants that an edit, or adding it, would bring, take and keep.",
        preview, ref("Difference"), "nothing was changed", VALUES, VERSION, POLICY, AT,
        asking.text("within", f"how far to look, e.g. 36h; unset: {WITHIN}"), refusals=(409,),
    ),
    change(
        "restore_definition", f"{DEFINITION}/restore", "Make a new version that says what a stored one did.", restore,
        ref("ChangedDefinition"), "{name} is at version {version}, which says what that one did",
        asking.whole("version", "the stored version", required=True), AT, refusals=(409,),
    ),
    change(
        "trigger_definition", f"{DEFINITION}/trigger", "Run a definition now, once, under its own overlap rule.", trigger,
        ref("Triggered"), "{name} was triggered: its run is {state}", OF_ONE_RUN,
    ),
    change(
        "backfill_definition", f"{DEFINITION}/backfill", "Run the instants of a past range that did not run.", backfill,
        ref("Backfilled"), "{counts[created]} instants of {name} are to run",
        asking.own_instant("since", "from this instant on", required=True),
        asking.own_instant("until", "up to this instant, itself not included; unset: now"),
        asking.text("overlap", "one at a time, or all at once", enum=["queue", "allow"]),
        asking.flag("again", "also run what completed, failed or became stale"),
        asking.flag("dry_run", "only say what would run"), OF_ONE_RUN,
    ),
    change(
        "remove_definition", f"{DEFINITION}/remove", "Delete a definition; its history stays, what is owed still runs.",
        remove, ref("Removed"), "{removed} was removed",
    ),
    *(
        change(
            f"{action}_definition", f"{DEFINITION}/{action}", about.format("a definition"), _switch_one(action),
            ref("SwitchedDefinition"), done.format("{name}"),
        )
        for action, (about, done) in SWITCHES.items()
    ),
    *(
        change(
            f"{action}_group", f"/api/tm/groups/{{group}}/{action}", about.format("a group, all of it or nothing"),
            _switch_group(action), all_of("SwitchedDefinition", "definitions of the group"), done.format("group {group}"),
        )
        for action, (about, done) in SWITCHES.items()
    ),
)  # fmt: skip
