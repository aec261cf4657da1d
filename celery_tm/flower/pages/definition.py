"""One definition: why its latest instant, or any other, did what it did; past and coming instants, settings, versions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from ...domain.definition import Definition
from ...domain.explanation import Explanation
from ...domain.occurrence import Occurrence
from ...errors import DefinitionNotFound
from ...management import TimeManagement
from ...presentation import Rows
from ...presentation.rows import coming_instants, standing
from ..charts import Mark, timeline
from .common import Action, Page
from .reading import present, success_rate
from .schedules import actions_of
from .words import When, changes, known_zone, plainly, read_moment, roughly, took

PAST, COMING, VERSIONS, NEAREST = 30, 12, 20, 3
REPLAYABLE = ("completed", "failed", "cancelled", "stale", "skipped", "missed", "coalesced")


@dataclass(frozen=True, kw_only=True, slots=True)
class Instant:
    """One instant of the table."""

    at: When | None
    state: str
    reason: str | None
    why: str
    is_asked: bool = False
    run: str | None = None
    took: str | None = None
    late: str | None = None
    note: str | None = None
    actions: Sequence[Action] = ()


class DefinitionPage(Page):
    """One definition, at its latest instant or at the one asked about."""

    template = "tm_definition.html"
    section = "schedules"

    def gather(self, tm: TimeManagement, *path: str) -> Mapping[str, Any]:
        """Return all that is known about one definition."""
        name = path[0]
        now = present(tm)
        try:
            definition = tm.definitions.get(name)
        except DefinitionNotFound:
            return self.removed(tm, name, now)
        zone = definition.timezone
        asked = self.asked(zone)
        told = tm.explain(name, at=asked)
        past = tm.occurrences(name, until=now, before=self.query("before"), limit=PAST)
        coming = coming_instants(definition, COMING)
        rows = Rows(tm)
        return {
            "definition": definition,
            "name": name,
            "standing": standing(definition),
            "meaning": definition.meaning,
            "zone": zone,
            "next": self.at(definition.next_run_at, now, zone),
            "told": told,
            "asked": asked,
            "answer_at": self.at(told.at, now, zone),
            "answer_run": self.address("tm_run", told.occurrence.id) if told.occurrence else None,
            "asked_local": (asked or told.at).astimezone(ZoneInfo(known_zone(zone))).strftime("%Y-%m-%dT%H:%M"),
            "chart": self.chart(definition, past, coming, now),
            "rate": success_rate([one.state for one in past]),
            "coming": [self.coming(definition, instant, now) for instant in nearest(coming, now)],
            "past": [self.past(definition, one, now, told) for one in past],
            "older": self.address("tm_definition", name, before=past.next) if past.next else None,
            "stated": [(field, plainly(value)) for field, value in rows.stated(definition).items()],
            "edit": self.waiting_edit(definition, rows, now),
            "versions": self.versions(tm, rows, name, now),
            "actions": actions_of(self, definition),
            "edit_page": self.address("tm_edit", name),
            "history": self.address("tm_history", name=name),
            "audit": self.address("tm_audit", object=f"definition:{name}"),
        }

    def asked(self, zone: str) -> datetime | None:
        """Return the instant that is asked about."""
        text = self.query("at")
        zone = "UTC" if self.query("zone") == "UTC" else known_zone(zone)
        return read_moment(text, field="at", zone=zone) if text else None

    def removed(self, tm: TimeManagement, name: str, now: datetime) -> Mapping[str, Any]:
        """Return what is still known of a definition that is no more; one that never was is an error."""
        told = tm.explain(name, at=self.asked("UTC"))
        history = self.address("tm_history", name=name)
        return {"definition": None, "name": name, "told": told, "history": history, "answer_at": self.at(told.at, now)}

    def chart(self, definition: Definition, past: Sequence[Occurrence], coming: Sequence[datetime], now: datetime) -> str:
        """Return the instants in a row, what was and what comes."""
        was = [self.mark(definition, one.scheduled_at, str(one.state), one.reason, now) for one in reversed(past)]
        overdue = [instant for instant in coming if instant <= now]
        was += [self.mark(definition, instant, "overdue", "no beat has decided it yet", now) for instant in overdue]
        off = None if standing(definition).startswith("on") else "will be recorded as skipped"
        state = "coming" if off is None else "skipped"
        ahead = [self.mark(definition, instant, state, off, now) for instant in coming if instant > now]
        return timeline(was, ahead)

    def mark(self, definition: Definition, at: datetime, state: str, reason: str | None, now: datetime) -> Mark:
        """Return one instant as a bar."""
        shown = self.at(at, now, definition.timezone)
        local = f" ({shown.own})" if shown and shown.own else ""
        title = f"{shown.utc if shown else ''}{local}: {state}" + (f", {reason}" if reason else "")
        return Mark(state=state, title=title, href=self.to_definition(definition.name, at))

    def coming(self, definition: Definition, instant: datetime, now: datetime) -> Instant:
        """Return an instant that is not decided yet."""
        is_on = standing(definition).startswith("on")
        if instant <= now:
            state, reason = "overdue", "its time has come and no beat has decided it yet"
        else:
            state, reason = "coming", "" if is_on else f"will be skipped: {standing(definition)}"
        why = self.to_definition(definition.name, instant)
        return Instant(at=self.at(instant, now, definition.timezone), state=state, reason=reason, why=why)

    def past(self, definition: Definition, one: Occurrence, now: datetime, told: Explanation) -> Instant:
        """Return an instant that was decided."""
        late = (one.started_at - one.scheduled_at) if one.started_at else timedelta(0)
        replay = Action(label="Replay", to=self.api("occurrences", one.id, "replay"), style="primary")
        notes = [("caught up", one.is_recovery and one.started_at is not None), ("replay", one.replay_of is not None)]
        return Instant(
            at=self.at(one.scheduled_at, now, definition.timezone),
            state=str(one.state),
            reason=one.reason,
            why=self.to_definition(definition.name, one.scheduled_at),
            is_asked=told.occurrence is not None and told.occurrence.id == one.id,
            run=self.address("tm_run", one.id),
            took=took(one.started_at, one.ended_at),
            late=roughly(late.total_seconds()) if late > timedelta(seconds=5) else None,
            note=", ".join(word for word, applies in notes if applies) or None,
            actions=[replay] if one.state in REPLAYABLE else [],
        )

    def waiting_edit(self, definition: Definition, rows: Rows, now: datetime) -> Mapping[str, Any] | None:
        """Return the edit that takes over after a coming run."""
        edit = None if definition.problem else definition.waiting_edit
        if edit is None:
            return None
        values = rows.redactor.stated(edit.values, definition.task)
        shown = [(field, plainly(value)) for field, value in values.items()]
        return {"values": shown, "after": self.at(edit.at or edit.after, now, definition.timezone), "actor": edit.actor}

    def versions(self, tm: TimeManagement, rows: Rows, name: str, now: datetime) -> list[Mapping[str, Any]]:
        """Return the versions, latest first, each with what it changed."""
        found = tm.definitions.versions(name, limit=VERSIONS + 1)
        shown = [rows.redactor.stated(one.stated) for one in found]
        return [
            {
                "version": one,
                "at": self.at(one.at, now),
                "changes": changes(shown[place + 1] if place + 1 < len(found) else {}, shown[place]),
                "is_first": one.version == 1,
            }
            for place, one in enumerate(found[:VERSIONS])
        ]


def nearest(coming: Sequence[datetime], now: datetime) -> list[datetime]:
    """Return the last instants that are overdue and the first that are still to come."""
    overdue = [instant for instant in coming if instant <= now]
    return overdue[-NEAREST:] + [instant for instant in coming if instant > now][:NEAREST]
