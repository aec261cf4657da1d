"""Editing a definition: a form, a preview of what the edit would bring, and only then the button that saves it.

Nothing is written here. The form that saves goes to the API with the version that it was made on, so that an edit on top
of somebody else's is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from zoneinfo import available_timezones

from ...domain.definition import Definition, stated
from ...domain.dst import Fold, Gap
from ...domain.overlap import Overlap
from ...domain.recovery import Recovery
from ...errors import TmError
from ...management import TimeManagement
from ...presentation import Rows
from ...scheduler.editing import Policy
from ...scheduler.horizon import Difference
from ..operations.asking import NESTED, Operation, mapping, read_form, text, whole
from .common import Page
from .reading import present
from .words import as_json, changes

WITHIN = "7d"
SHOWN = 12  # instants of each kind


@dataclass(frozen=True, kw_only=True, slots=True)
class Field:
    """One field of the form."""

    name: str
    label: str
    value: str
    hint: str = ""
    choices: tuple[tuple[str, str], ...] = ()
    is_long: bool = False


# What can be edited here, by heading; the rest is for files and the command line.
PARTS: Mapping[str, tuple[tuple[str, str, str], ...]] = {
    "When": (
        ("schedule", "Schedule", "cron like 15 2 * * *, every 5m, @daily, or ISO 8601"),
        ("timezone", "Time zone", "the clocks its local times are on"),
        ("starts_at", "Not before", "2026-01-01T00:00+00:00, or empty"),
        ("ends_at", "Not after", "empty: no end"),
        ("jitter", "Jitter", "spreads the start, e.g. 30s"),
        ("gap", "Skipped local time", "what happens when clocks go forward"),
        ("fold", "Repeated local time", "what happens when clocks go back"),
    ),
    "What": (
        ("task", "Task", ""),
        ("args", "Arguments", "a JSON list"),
        ("kwargs", "Keyword arguments", "a JSON object"),
        ("queue", "Queue", "empty: the task's own"),
        ("priority", "Priority", ""),
        ("group", "Group", ""),
    ),
    "If something goes wrong": (
        ("overlap", "If the last run has not ended", ""),
        ("recovery", "If instants were missed", ""),
        ("recovery_count", "At most so many of them", "with bounded"),
        ("recovery_within", "None older than", "with bounded, e.g. 2h"),
        ("recovery_spacing", "Time between them", "e.g. 1m"),
        ("max_retries", "Retries", "empty: the task's own"),
        ("execution_timeout", "Give up after", "of the whole run, e.g. 1h"),
        ("task_timeout", "Stop the task after", "of each attempt, e.g. 10m"),
        ("pause_after", "Pause after failures", "in a row; empty: never"),
    ),
}
CHOICES: Mapping[str, tuple[str, ...]] = {
    "overlap": tuple(map(str, Overlap)),
    "recovery": tuple(map(str, Recovery)),
    "gap": tuple(map(str, Gap)),
    "fold": ("", *map(str, Fold)),
}
MEANINGS: Mapping[str, Mapping[str, str]] = {
    "overlap": {
        "skip": "skip the new one", "queue": "run it afterwards", "queue_one": "run at most one afterwards",
        "allow": "run both", "replace": "cancel the running one",
    },
    "recovery": {
        "all": "run all of them", "last": "run the last", "skip": "run none", "bounded": "run the last few",
        "compressed": "one run stands for all",
    },
    "gap": {"shift": "run at the first valid time", "skip": "leave it out"},
    "fold": {"": "as the schedule likes", "first": "the first time", "second": "the second time", "both": "both times"},
}  # fmt: skip
LONG = frozenset({"args", "kwargs"})
FORM = Operation(
    name="preview",
    method="POST",
    path="",
    about="what an edit would bring",
    work=str,
    answer={},
    parameters=(mapping("values", "what changes"), text("policy", "when"), text("reason", "why"), whole("version", "of")),
)


class EditPage(Page):
    """The form, and with POST its preview; neither changes anything."""

    template = "tm_edit.html"
    section = "schedules"

    def gather(self, tm: TimeManagement, *path: str) -> Mapping[str, Any]:
        """Return the form as the definition stands."""
        definition = tm.definitions.get(path[0])
        return self.model(tm, definition, typed={})

    async def post(self, *path: str) -> None:
        """Show what the edit would bring."""
        self.show(self.template, **await self.call(self.preview, self.tm, *path))

    def preview(self, tm: TimeManagement, *path: str) -> Mapping[str, Any]:
        """Return the form as it was typed, with what it would change or why it is refused."""
        definition = tm.definitions.get(path[0])
        typed = {name: _text(values[-1]) for name, values in self.request.body_arguments.items()}
        if definition.recovery is Recovery.BOUNDED and typed.get(NESTED + "recovery", "bounded") != "bounded":
            typed |= dict.fromkeys((NESTED + "recovery_count", NESTED + "recovery_within"), "")  # only bounded has these
        before = {name: value for part in self.parts(tm, definition, {}).values() for name, value in _values(part)}
        changed = {name for name, value in before.items() if typed.get(NESTED + name, value).strip() != value.strip()}
        model = self.model(tm, definition, typed=typed)
        try:
            asked = {name: [value.encode()] for name, value in typed.items()}
            given = read_form(FORM, asked)
            values = {name: value for name, value in given.get("values", {}).items() if name in changed}
            return {**model, **self.previewed(tm, definition, values, given.get("policy", tm.settings.tm_update_policy))}
        except TmError as error:
            self.set_status(400)
            return {**model, "refusal": str(error)}

    def previewed(
        self, tm: TimeManagement, definition: Definition, values: Mapping[str, Any], policy: str
    ) -> Mapping[str, Any]:
        """Return what an edit would change: the fields, and the coming instants."""
        if not values:
            return {"nothing": True}
        difference = tm.definitions.preview(definition.name, within=WITHIN, policy=policy, **values)
        rows, old = Rows(tm), stated(definition)
        new = {**old, **{name: value for name, value in values.items() if value is not None}}
        new = {name: value for name, value in new.items() if not (name in values and values[name] is None)}
        hidden = rows.redactor.stated(old), rows.redactor.stated(new)
        return {
            "changes": changes(*hidden),
            "changed_names": sorted(values),
            **self.instants(tm, definition, values, difference),
        }

    def instants(
        self, tm: TimeManagement, definition: Definition, values: Mapping[str, Any], difference: Difference
    ) -> Mapping[str, Any]:
        """Return the coming instants by what the edit does to them, in time order."""
        now, zone = present(tm), str(values.get("timezone") or definition.timezone)
        kinds = {"added": difference.added, "removed": difference.removed, "kept": difference.kept}
        rows = sorted((at, kind) for kind, some in kinds.items() for at in some[:SHOWN])
        return {
            "difference": difference,
            "counts": {kind: len(some) for kind, some in kinds.items()},
            "instants": [(kind, self.at(at, now, zone)) for at, kind in rows[: 2 * SHOWN]],
            "looked_until": self.at(difference.until, now, zone),
        }

    def model(self, tm: TimeManagement, definition: Definition, *, typed: Mapping[str, str]) -> dict[str, Any]:
        """Return what the form shows."""
        return {
            "definition": definition,
            "name": definition.name,
            "parts": self.parts(tm, definition, typed),
            "has_hidden": Rows(tm).redactor.hides_from(stated(definition)),
            "zones": sorted(available_timezones()),
            "policies": [str(policy) for policy in Policy],
            "policy": typed.get("policy", tm.settings.tm_update_policy),
            "reason": typed.get("reason", ""),
            "version": typed.get("version", str(definition.version)),
            "save": self.api("definitions", definition.name, "edit"),
            "back": self.to_definition(definition.name),
            "preview_at": self.address("tm_edit", definition.name),
            "refusal": None, "nothing": False, "changes": [], "changed_names": [], "difference": None,
            "counts": {}, "instants": [], "looked_until": None, "typed": typed,
        }  # fmt: skip

    def parts(self, tm: TimeManagement, definition: Definition, typed: Mapping[str, str]) -> dict[str, list[Field]]:
        """Return the fields by heading, as typed or as they stand; what is hidden is not in the form."""
        now = stated(definition)
        hidden = Rows(tm).redactor.stated(now)
        left_out = {name for name in now if hidden.get(name) != now[name]}
        if definition.steps:
            left_out |= {"task", "args", "kwargs"}
        return {
            heading: [_field(entry, now, definition, typed) for entry in fields if entry[0] not in left_out]
            for heading, fields in PARTS.items()
        }


def _field(entry: tuple[str, str, str], now: Mapping[str, Any], definition: Definition, typed: Mapping[str, str]) -> Field:
    name, label, hint = entry
    value = now.get(name, str(getattr(definition, name)) if name in CHOICES and getattr(definition, name) else None)
    if name == "timezone":
        value = definition.timezone
    default = "" if value is None else value if isinstance(value, str) else as_json(value) if name in LONG else str(value)
    if isinstance(value, dict):
        default = as_json(value)
    shown = typed.get(NESTED + name, default)
    return Field(
        name=name, label=label, value=shown, hint=hint, choices=_choices(name), is_long=name in LONG or "\n" in shown
    )


def _choices(name: str) -> tuple[tuple[str, str], ...]:
    """Return what a field can be, each with what it means."""
    meanings = MEANINGS.get(name, {})
    known = CHOICES.get(name, ())
    return tuple((one, f"{one}: {meanings[one]}" if one and one in meanings else meanings.get(one, one)) for one in known)


def _text(value: bytes) -> str:
    """Return a field as it was typed; browsers end a line with CR and LF."""
    return value.decode(errors="replace").replace("\r\n", "\n")


def _values(fields: list[Field]) -> list[tuple[str, str]]:
    return [(field.name, field.value) for field in fields]
