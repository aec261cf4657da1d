"""Running a definition by hand: an occurrence at this moment, under the definition's own rules, marked as such."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from ..clock import parse_duration
from ..domain.codec import decode, encode
from ..domain.definition import Definition
from ..domain.execution import MAX_MESSAGE, cut
from ..domain.facts import Closed
from ..domain.ids import new_id, occurrence_id
from ..domain.job import DEFAULT_RETRIES, Job, Source, checked_actor
from ..domain.occurrence import ACTIVE, Occurrence, OccurrenceState
from ..domain.overlap import Active, Overlap, apply_overlap, replaced_by
from ..domain.overrides import ARGUMENTS, check_overrides, overridden
from ..domain.planning import job_of, occurrence_of
from ..domain.recovery import Decision
from ..domain.replaying import chosen_steps
from ..domain.run import DEFERRED
from ..domain.workflow import TASK
from ..errors import DefinitionNotFound, InvalidValue, OccurrenceNotFound, nearest
from ..installation import Installation
from ..store import apps, audit, definitions, jobs, occurrences, preemption, workflows
from ..store.database import Transaction


def trigger(
    installation: Installation,
    name: str,
    *,
    values: Mapping[str, Any] | None = None,
    actor: str | None,
    reason: str | None,
) -> Occurrence:
    """Create an occurrence of the definition now and return it; `state` says whether it runs.

    `values` are arguments and settings that hold for this occurrence only.
    """

    checked_actor(actor)

    def work(tx: Transaction) -> Occurrence:
        definition = definitions.find(tx, name, lock=True)
        if definition is None:
            raise DefinitionNotFound(name, nearest(name, definitions.names(tx)))
        overrides = checked_for(installation, definition, values)
        decision = Decision(scheduled_at=tx.read_now())
        made = _run_now(installation, tx, definition, decision, Source.MANUAL, actor=actor, overrides=overrides)
        after = {"occurrence": made.id, "state": made.state} | noted(overrides)
        audit.note(tx, "trigger", f"definition:{name}", actor=actor, after=after, reason=reason)
        return made

    return installation.database.run(work)


def checked_for(
    installation: Installation,
    definition: Definition,
    values: Mapping[str, Any] | None,
    inherited: Mapping[str, Any] | None = None,
) -> dict[str, Any] | None:
    """Return the values that hold for one occurrence of a definition; refuse arguments that its task does not take."""
    installation.redaction_now().refuse_hidden(values or {})
    kept = {name: value for name, value in (inherited or {}).items() if name not in (values or {})}
    if definition.steps and any(name in kept for name in ARGUMENTS):
        problem = f"it ran with arguments of its own, which {definition.name!r} does not take since it has steps"
        raise InvalidValue("occurrence", problem, "trigger the definition instead")
    overrides = check_overrides(definition, {**kept, **(values or {})})
    task = installation.app.tasks.get(definition.task)
    if task is not None and getattr(task, "typing", False) and any(name in overrides for name in ARGUMENTS):
        plain = {name: overrides.get(name, decode(getattr(definition, name))) for name in ARGUMENTS}
        try:
            task.__header__(*plain["args"], **plain["kwargs"])
        except TypeError as error:
            raise InvalidValue("args", f"{definition.task} does not take them ({error})", "give what it takes") from None
    return overrides or None


def noted(overrides: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return what the audit says about the values of one occurrence."""
    return {"overrides": overrides} if overrides else {}


def replay(
    installation: Installation,
    occurrence: str,
    *,
    wanted: Mapping[str, str | None] | None = None,
    values: Mapping[str, Any] | None = None,
    actor: str | None,
    reason: str | None,
) -> Occurrence:
    """Run an occurrence that has ended once more, as a new one that names the original; `state` says whether it runs.

    `wanted` says which `step` of it, or `from_step` on, if not all of it; `values` are arguments and settings that hold for
    the new occurrence only.
    """
    checked_actor(actor)

    def work(tx: Transaction) -> Occurrence:
        chosen = wanted or {}
        return replay_in(tx, installation, occurrence, wanted=chosen, values=values, actor=actor, reason=reason)

    return installation.database.run(work)


def replay_in(
    tx: Transaction,
    installation: Installation,
    occurrence: str,
    *,
    wanted: Mapping[str, str | None],
    values: Mapping[str, Any] | None = None,
    actor: str | None,
    reason: str | None,
) -> Occurrence:
    """Replay an occurrence in this transaction; it keeps the values of the original that are not given anew."""
    original = occurrences.find(tx, occurrence)
    if original is None:
        raise OccurrenceNotFound(occurrence)
    if original.state in ACTIVE:
        raise InvalidValue("occurrence", f"{occurrence} is still {original.state}", "wait for its end, or cancel its job")
    said, overrides = _said(tx, original, wanted), None
    given = {name: value for name, value in (values or {}).items() if value is not None}
    if given and (said is not None or original.definition == DEFERRED):
        raise InvalidValue(
            next(iter(given)), "steps are repeated with the settings they had", "replay all of a definition's run"
        )
    if original.definition == DEFERRED:
        made = _defer_again(tx, original, said or {"of": original.id}, actor=actor, reason=reason)
    else:
        definition = definitions.find_by_id(tx, original.definition, lock=True)
        if definition is None:
            raise InvalidValue("occurrence", "its definition was removed", "add the definition again and trigger it")
        decision = Decision(
            scheduled_at=tx.read_now(),
            reason=cut(reason, MAX_MESSAGE),
            covers_from=original.covers_from,
            covers_until=original.covers_until,
        )
        overrides = checked_for(installation, definition, given, original.overrides) if said is None else None
        kept: dict[str, Any] = {"replay_of": original.id, "said": said, "overrides": overrides}
        made = _run_now(installation, tx, definition, decision, Source.REPLAY, actor=actor, **kept)
    chosen = {name: value for name, value in wanted.items() if value}
    after = {"occurrence": made.id, "state": made.state} | chosen | noted(overrides)
    audit.note(tx, "replay", f"occurrence:{occurrence}", actor=actor, after=after, reason=reason)
    return made


def _said(tx: Transaction, original: Occurrence, wanted: Mapping[str, str | None]) -> Mapping[str, Any] | None:
    """Return what the job of a replay says that runs only some of the steps; None where all of it runs, as it is now."""
    chosen = {name: value for name, value in wanted.items() if value is not None}
    if not chosen:
        return None
    steps = workflows.steps_of(tx, original.id)
    if not steps:
        raise InvalidValue("step", f"no steps of {original.id} are kept", "replay all of it")
    chosen_steps(steps, **chosen)
    return {"of": original.id, **chosen}


def _defer_again(
    tx: Transaction, original: Occurrence, said: Mapping[str, Any], *, actor: str | None, reason: str | None
) -> Occurrence:
    """Replay a run that was deferred: it has no definition, only its steps as they were kept."""
    run = workflows.find(tx, original.id)
    if run is None:
        raise InvalidValue("occurrence", "its steps were pruned", "defer the workflow again")
    now, id = tx.read_now(), new_id()
    made = replace(
        original, id=id, scheduled_at=now, state=OccurrenceState.PENDING, reason=cut(reason, MAX_MESSAGE),
        replay_of=original.id, decided_at=now, started_at=None, deadline_at=None, ended_at=None, report=None,
    )  # fmt: skip
    occurrences.insert_many(tx, [made])
    limit = run.settings.get("execution_timeout")
    root = Job(
        id=id,
        task=TASK,
        args="[]",
        kwargs=encode({"replay": dict(said)}, field="replay"),
        run_at=now,
        created_at=now,
        scheduled_at=now,
        original_delay=parse_duration(run.settings["original_delay"], field="original_delay"),
        max_retries=DEFAULT_RETRIES,  # of starting it
        execution_timeout=parse_duration(limit, field="execution_timeout") if limit else None,
        entity_id=run.settings.get("entity_id"),
        scope=run.settings.get("scope"),
        occurrence=id,
        source=Source.REPLAY,
        actor=actor,
        app=run.app if run.app in apps.registered(tx) else tx.app,  # it may have another name now
    )
    jobs.insert_many(tx, [root])
    tx.wake()
    return made


def _run_now(
    installation: Installation,
    tx: Transaction,
    definition: Definition,
    decision: Decision,
    source: Source,
    *,
    actor: str | None,
    replay_of: str | None = None,
    said: Mapping[str, Any] | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> Occurrence:
    now = decision.scheduled_at
    decision = replace(decision, scheduled_at=_free_instant(tx, definition, now), run_at=now)
    active = occurrences.count_active(tx, [definition.id]).get(definition.id, Active())
    [decision] = apply_overlap([decision], policy=definition.overlap, active=active)
    if decision.runs and definition.overlap is Overlap.REPLACE:
        owed = occurrences.active_of(tx, definition.id)
        preemption.make_room(tx, owed, reason=replaced_by(decision.scheduled_at))
    made = replace(occurrence_of(definition, decision, now=now, replay_of=replay_of), overrides=overrides)
    occurrences.insert_many(tx, [made])
    if decision.runs:
        defaults = installation.task_defaults(definition.task)
        job = job_of(overridden(definition, overrides), decision, now=now, defaults=defaults, source=source)
        if said is not None:
            job = replace(job, task=TASK, args="[]", kwargs=encode({"replay": dict(said)}, field="replay"))
        jobs.insert_many(tx, [replace(job, actor=actor)])
    else:
        tx.tell(Closed(definition.name, made.state, made.id, made.reason))
    tx.wake()
    return made


def _free_instant(tx: Transaction, definition: Definition, instant: datetime) -> datetime:
    """Return the instant, or one a little later where the ledger has another run at the very same moment."""
    while occurrences.find(tx, occurrence_id(definition.id, instant)):
        instant += timedelta(microseconds=1)
    return instant
