"""Judges a stage: the promises, as `faults.checker` judges them, and that what callers were answered is what happened.

It compares what bodies, callbacks and callers wrote, what the result backend says and what the tables say, with what the
model expects of each case. It uses no code of the package.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from faults.checker import judge
from faults.history import SECOND, Execution, History

from storm import model
from storm.bodies import REPLACEMENT, digest
from storm.calls import argument_of
from storm.dimensions import ENDS_EARLY
from storm.model import Expected, is_once
from storm.other import JOBS
from storm.plan import Case
from storm.stage import PULSE, Evidence

CALM = ("quiet", "snapshots", "two-apps", "behind")  # troubles that excuse nothing
LATE = 6.0  # seconds by which beat may plan, or an end be written, too late on a busy machine
NOTICED = 2.0  # seconds after which a cancellation is known to whoever passes the gate
BODILESS = ("and no body says that it ended", "and no body began", "is recorded as")
KINDS_OF_CHILDREN = ("plain", "deferred", "called")


@dataclass(frozen=True)
class Violation:
    """Something that should not be, and the case that it is about."""

    case: str
    what: str

    def __str__(self) -> str:
        return f"{self.what}\n      {self.case}"


@dataclass
class Facts:
    """What was found about one case."""

    calls: list[dict[str, Any]] = field(default_factory=list)
    lines: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: defaultdict(list))

    def count(self, what: str) -> int:
        return len(self.lines[what])


def judge_stage(evidence: Evidence) -> list[Violation]:
    """Return all that was wrong with a stage."""
    history = History.read(evidence.folder, f"sqlite:///{evidence.folder}/tables.db")
    known = {case.name: case for case in evidence.cases}
    facts: dict[str, Facts] = defaultdict(Facts)
    found = list(_of_the_stage(evidence, history, known))
    for call in evidence.calls:
        facts[call["case"]].calls.append(call)
    for line in evidence.callbacks:
        facts[line["subject"]].lines[line["what"]].append(line)
    ends = _ends(history)
    for case in evidence.cases:
        wanted = model.expected(case)
        found += [Violation(str(case), what) for what in _of_a_case(case, wanted, facts[case.name], evidence, ends)]
    return found + list(_of_the_promises(evidence, history, known))


def _of_the_promises(evidence: Evidence, history: History, known: Mapping[str, Case]) -> Iterator[Violation]:
    """Hold the stage against the promises as every run of `faults` is held."""
    labels = {one.job: one.label or "" for one in history.effects}
    tasks = {one.job: one.task for one in history.executions}
    called = {call["id"]: known[call["case"]] for call in evidence.calls if call.get("id")}
    for violation in judge(history).violations:
        task = tasks.get(violation.job or "", "")
        case = called.get(violation.job or "") or known.get(labels.get(violation.job or "", "").rpartition("-")[0])
        hooks = [f".{hook.replace(' ', '_')}" for hook in ENDS_EARLY]
        without_body = any(word in task for word in (*hooks, ".plain.", "storm.async."))
        without_body = without_body or (case is not None and _may_be_refused(case))
        if (without_body or task == "storm.plain_child") and any(word in violation.what for word in BODILESS):
            continue
        yield Violation(str(case or task), f"promise {violation.promise}: {violation.what}")


# The stage as a whole


def _of_the_stage(evidence: Evidence, history: History, known: Mapping[str, Case]) -> Iterator[Violation]:
    about, trouble = evidence.stage, evidence.stage.split()[2]
    for one in evidence.pending[:10]:
        yield Violation(about, f"still pending: {one}")
    for one in evidence.held_up[:5]:
        yield Violation(about, f"waited although only another queue was refused: {one}")
    for name in evidence.stuck_callers:
        yield Violation(str(known[name]), "the caller still waits")
    if evidence.idle_transactions:
        yield Violation(about, f"{evidence.idle_transactions} sessions have a transaction open and do nothing")
    strangers = {line["subject"] for line in evidence.callbacks if line["what"] == "saw"} - set(known)
    for name in strangers:
        yield Violation(about, f"a body ran with arguments that nobody passed: {name!r}")
    if trouble == "inline":
        return
    seen = Counter(line["what"] for line in evidence.callbacks)
    if not seen["periodic"]:
        yield Violation(about, "the entry that on_after_configure added never ran")
    if trouble in CALM and trouble != "behind":
        yield from _late(evidence, history)
    if trouble == "behind":
        yield from _late_at_start(evidence, history)
    if trouble == "two-apps":
        labels = Counter(line["label"] for line in evidence.callbacks if line["what"] == "other")
        if len(labels) != JOBS or set(labels.values()) != {1}:
            yield Violation(about, f"of {JOBS} jobs of the other app {len(labels)} ran, {sum(labels.values())} times")
        if not seen["other periodic"]:
            yield Violation(about, "the other app's entry of the same name never ran")


def _late_at_start(evidence: Evidence, history: History) -> Iterator[Violation]:
    """Beat does what is due while it catches up what was missed for a day, not afterwards."""
    names = {one.id: one.name for one in history.definitions}
    decided = [(names.get(one.definition, ""), one.decided_at) for one in history.occurrences if one.decided_at]
    first = min((at for name, at in decided if name == PULSE), default=None)
    behind = [at for name, at in decided if name.startswith("behind-")]
    before = sum(first is None or at < first for at in behind)
    if before > len(behind) / 2:
        yield Violation(evidence.stage, f"beat planned {before} of {len(behind)} missed runs before anything that is due")


def _late(evidence: Evidence, history: History) -> Iterator[Violation]:
    """Beat planned every second in time, and no end waited for a stranger."""
    ids = {one.id for one in history.definitions if one.name == PULSE}
    planned = [(one.scheduled_at, one.decided_at) for one in history.occurrences if one.definition in ids and one.decided_at]
    begun = min((decided for _, decided in planned), default=None)  # what was due before there was a beat is late
    for due, decided in planned:
        late = (decided - due).total_seconds()
        if begun is not None and due > begun and late > LATE:
            yield Violation(evidence.stage, f"beat planned the second {due:%H:%M:%S} {late:.1f} s late")
            break
    ended = {(one.job, one.attempt): one.at for one in history.effects if one.what == "ended"}
    ahead = history.ahead()
    for one in history.executions:
        at = ended.get((one.job, one.attempt))
        if at is not None and one.outcome == "succeeded" and one.completed_at.timestamp() - ahead - at / SECOND > LATE:
            late = one.completed_at.timestamp() - ahead - at / SECOND
            if ".chunk" not in one.task and not _is_locked(history, one):
                yield Violation(evidence.stage, f"the end of {one.task} {one.job} was written {late:.1f} s late")


def _is_locked(history: History, one: Execution) -> bool:
    return any(fault.target == one.job for fault in history.faults)


# A case


def _ends(history: History) -> dict[str, str]:
    """Return how each job ended, as the tables say."""
    last: dict[str, Execution] = {}
    for one in history.executions:
        if one.job not in last or last[one.job].attempt < one.attempt:
            last[one.job] = one
    buried = {one.id for one in history.dead_letters}
    return {job: "buried" if job in buried else one.outcome for job, one in last.items()}


def _of_a_case(case: Case, wanted: Expected, facts: Facts, evidence: Evidence, ends: Mapping[str, str]) -> Iterator[str]:
    errors = [call["error"] for call in facts.calls if call.get("error")]
    if errors:
        # A caller that gets an error knows that nothing was promised; but without trouble there is no reason for one.
        if case.trouble in CALM and not _may_be_refused(case):
            yield f"the caller got an error: {errors[0]}"
        return
    yield from _runs(case, wanted, facts)
    yield from _arguments(case, facts)
    yield from _answers(case, wanted, facts, evidence, ends)
    yield from _callbacks(case, wanted, facts)
    if wanted.serialized:
        yield from _overlaps(facts)
    for line in facts.lines["cancelled"]:
        later = [one for one in facts.lines["saw"] if one["value"]["at"] > line["value"]["at"] + NOTICED * SECOND]
        if later:
            yield f"{later[0]['label']} began {NOTICED} s after its cancellation had been answered"


def _may_be_refused(case: Case) -> bool:
    """Say whether the caller may hear that it cannot be done: an async body, or arguments that cannot wait in the table."""
    return case.body == "async" or (case.argument != "text" and (case.limit, case.key) != ("none", "none"))


def _runs(case: Case, wanted: Expected, facts: Facts) -> Iterator[str]:
    if case.base == "plain":
        count = facts.count("plain ran")
    else:
        count = facts.count("saw")
    if wanted.once:  # each call by itself, but for the one whose row a stranger had locked
        by_label = Counter(line["label"] for line in facts.lines["saw"])
        locked = case.label(0) if case.fault == "row locked" else None
        for label, times in by_label.items():
            if times > 1 and label != locked:
                yield f"{label} was healthy and ran {times} times"
                return
        if locked and by_label[locked] > 1:
            return
    if not is_once(count, wanted.runs):
        low, high = wanted.runs
        yield f"{count} bodies began, {low if low == high else f'{low} to {high}'} are right"


def _arguments(case: Case, facts: Facts) -> Iterator[str]:
    for line in facts.lines["saw"]:
        right = {digest(case.name, line["label"], argument) for argument in (argument_of(case), REPLACEMENT)}
        if line["value"]["digest"] not in right:
            yield f"{line['label']} got other arguments than were passed"


def _answers(case: Case, wanted: Expected, facts: Facts, evidence: Evidence, ends: Mapping[str, str]) -> Iterator[str]:
    for call in facts.calls:
        id = call.get("id")
        if not id or id not in evidence.results:
            continue
        state, value = evidence.results[id]
        if wanted.states is not None and state not in wanted.states:
            yield f"call {call['copy']} was answered {state} ({value}), right is {' or '.join(sorted(wanted.states))}"
        elif state == "SUCCESS" and wanted.states is not None and value != call["value"]:
            yield f"call {call['copy']} was answered {value!r}, its body returned {call['value']!r}"
        end = ends.get(id)
        if wanted.outcomes is not None and end is not None and case.call != "step" and end not in wanted.outcomes:
            yield f"call {call['copy']} ended as {end}, right is {' or '.join(sorted(wanted.outcomes))}"
        if end == "buried" and state == "SUCCESS":
            yield f"call {call['copy']} is a dead letter, and its caller was answered SUCCESS"
        if end == "succeeded" and state in ("FAILURE", "REVOKED") and case.base != "plain":  # which is done once it is sent
            yield f"call {call['copy']} succeeded, and its caller was answered {state}"


def _callbacks(case: Case, wanted: Expected, facts: Facts) -> Iterator[str]:
    for what, right in (("callback", wanted.callbacks), ("errback", wanted.errbacks)):
        count = facts.count(what)
        if not is_once(count, right):
            yield f"{count} {what}s were called, {right[0]} to {right[1]} are right"
    returned = {f"done {line['label']}" for line in facts.lines["saw"]} | {
        f"done {line['label']}" for line in facts.lines["hook"]
    }
    for line in facts.lines["callback"]:
        value = line["value"]
        values = value if isinstance(value, list) else [value]
        if case.call != "step" and any(one not in returned for one in values if one is not None):
            yield f"the callback of {line['label']} got {str(value)[:80]!r}, which no body returned"
    kinds = KINDS_OF_CHILDREN if case.body == "defers" else KINDS_OF_CHILDREN[:1]
    for kind in kinds:
        if not is_once(facts.count(kind), wanted.children):
            yield f"{facts.count(kind)} {kind} children ran, {wanted.children[0]} to {wanted.children[1]} are right"


def _overlaps(facts: Facts) -> Iterator[str]:
    begun = {line["label"]: line["value"]["at"] for line in facts.lines["saw"]}
    spans = sorted((begun[line["label"]], line["value"]["at"]) for line in facts.lines["left"] if line["label"] in begun)
    for (_, until), (since, _) in pairwise(spans):
        if since < until:
            yield "two bodies of one concurrency key ran at one time"
            return
