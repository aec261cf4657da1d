"""What must come of a case, computed from its dimensions alone.

It knows what plain Celery and the promises of celery_tm say, and nothing of its code. Where more than one end is right, it
names them all; where a fault makes an answer a matter of chance, it does not ask for one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from storm.dimensions import OF_DEFINITIONS, SETTLED, UNDONE
from storm.plan import Case

TRIES = 3  # of a task with a retry policy: the first and two retries
MANY = 10**6
Range = tuple[int, int]
NONE: Range = (0, 0)
ANY: Range = (0, MANY)


@dataclass(frozen=True)
class Expected:
    """What must be found when nothing is pending any more."""

    runs: Range  # bodies that began, over all calls
    states: frozenset[str] | None  # of the result of each call; None: nobody can ask for it
    callbacks: Range = ANY  # links, tails of chains, bodies of chords
    errbacks: Range = ANY
    children: Range = ANY  # what the bodies deferred or called, of each kind
    outcomes: frozenset[str] | None = None  # the last one recorded for each job; a dead letter is `buried`
    serialized: bool = False  # no two bodies at one time
    once: bool = False  # healthy work: no body is started twice


def expected(case: Case) -> Expected:
    """Return what must come of a case."""
    if case.transaction in UNDONE and case.call != "cancel":
        return Expected(NONE, frozenset({"PENDING"}), NONE, NONE, NONE)
    if case.call == "cancel" and case.transaction not in UNDONE:
        return Expected(NONE, frozenset({"REVOKED"}), outcomes=frozenset({"cancelled"}))
    whole = _called_back(case, _keyed(case, _single(case)))
    for rule in (_replayed, _inline, _seen, _under_trouble):
        whole = rule(case, whole)
    return whole


def _single(case: Case) -> Expected:
    """Return what comes of its calls if none of them is the same work as another."""
    calls = case.copies
    tries = TRIES if case.retry == "fixed" else 1
    good = frozenset({"SUCCESS"})
    succeeded, buried = frozenset({"succeeded"}), frozenset({"buried"})
    if case.base == "plain":
        return Expected((calls, calls), None)
    if case.hook in ("before_start raises", "call raises"):
        return Expected(NONE, frozenset({"FAILURE"}), outcomes=buried)
    if case.hook == "call returns":
        return Expected(NONE, good, outcomes=succeeded)
    body = case.body
    if body == "raises":
        return Expected((calls * tries, calls * tries), frozenset({"FAILURE"}), outcomes=buried)
    if body == "overruns":  # on a busy machine the limit may be over before the body has said that it began
        return Expected((calls, calls * tries), frozenset({"FAILURE"}), outcomes=buried)
    if body == "flaky" and case.retry == "never":
        return Expected((calls, calls), frozenset({"FAILURE"}), outcomes=buried)
    if body in ("flaky", "retries"):
        return Expected((calls * 2, calls * 2), good, outcomes=succeeded)
    if body == "replaces":  # the body, and what it put in its place
        return Expected((calls * 2, calls * 2), good, outcomes=succeeded)
    if body == "rejects":
        return Expected((calls, calls), frozenset({"FAILURE"}), outcomes=buried)
    if body == "ignores":
        return Expected((calls, calls), frozenset({"PENDING", "STARTED"}), outcomes=succeeded)
    if body == "cancels itself":
        return Expected((calls, calls), frozenset({"SUCCESS", "REVOKED"}), outcomes=frozenset({"succeeded", "cancelled"}))
    if body == "cancels entity":
        return Expected((1, calls), frozenset({"SUCCESS", "REVOKED"}), outcomes=frozenset({"succeeded", "cancelled"}))
    if body == "swallows":  # whether there is a deadlock is a matter of chance
        ends = frozenset({"succeeded", "buried"})
        return Expected((calls, calls * tries), frozenset({"SUCCESS", "FAILURE"}), outcomes=ends)
    if body == "async":  # awaited, or refused; what was not awaited has not succeeded
        return Expected((0, calls * tries), frozenset({"SUCCESS", "FAILURE", "PENDING"}))
    per_call = {"defers": (calls, calls), "commits": (calls, calls), "rolls back": NONE, "savepoints": NONE}
    return Expected((calls, calls), good, children=per_call.get(body, NONE), outcomes=succeeded, once=body == "long")


def _keyed(case: Case, single: Expected) -> Expected:
    """A key runs once; who calls with a key that has succeeded is answered as if his call had returned."""
    if case.key == "none":
        return single
    low, high = single.runs
    fails = single.outcomes == frozenset({"buried"})
    if case.body not in SETTLED or fails:
        # It is free again after a failure, so how many calls run depends on which of them meet.
        low = low // case.copies
        return replace(single, runs=(low, high), states=None, outcomes=None, children=ANY)
    once = high // case.copies
    if case.body == "replaces":  # a call that gives way to another gives its key free until that begins
        return replace(single, runs=(once, high), states=None, outcomes=frozenset({"succeeded", "deduplicated"}))
    children = tuple(count // case.copies for count in single.children) if single.children[1] < MANY else ANY
    if case.argument != "text":  # one that meets a call in process would have to wait in the table, which cannot keep it
        return replace(single, runs=(once, high), states=None, outcomes=None, children=ANY)
    outcomes = None if single.outcomes is None else single.outcomes | {"deduplicated"}
    return replace(single, runs=(once, once), children=children, outcomes=outcomes, states=None)  # type: ignore[arg-type]


def _called_back(case: Case, single: Expected) -> Expected:
    """What others wait for comes for every call, also for those whose key had succeeded."""
    calls = 1 if case.call == "chord" else case.copies
    if case.call not in ("chain", "chord", "link", "step"):
        return replace(single, callbacks=NONE, errbacks=NONE)
    fails = single.outcomes == frozenset({"buried"})
    done = (calls, calls)
    if case.body in ("cancels itself", "cancels entity", "swallows", "async"):
        return single
    if case.body == "ignores":
        # A step that is ignored has succeeded; a link or a chain is not called, as in plain Celery.
        return replace(single, callbacks=done if case.call == "step" else NONE, errbacks=NONE)
    if fails or single.states == frozenset({"FAILURE"}):
        errors = NONE if case.call == "step" else (1, MANY) if case.call == "chord" else done
        return replace(single, callbacks=NONE, errbacks=errors)
    if case.key != "none" and (case.body not in SETTLED or single.outcomes is None):
        return single
    return replace(single, callbacks=done, errbacks=NONE)


def _replayed(case: Case, whole: Expected) -> Expected:
    """One run, and one more of it."""
    if case.call != "replay":
        return whole
    twice = [count * 2 // case.copies for count in whole.runs]
    children = whole.children
    if children[1] < MANY:
        children = (children[0] * 2 // case.copies, children[1] * 2 // case.copies)
    return replace(whole, runs=(twice[0], twice[1]), children=children)


def _inline(case: Case, whole: Expected) -> Expected:
    """Without beat and worker nothing is tried again later, and nothing that is sent arrives."""
    if case.pool != "inline":
        return whole
    low, high = whole.runs
    if case.base == "plain":  # here its end is seen, and it has Celery's own number of retries
        low, high = 0, high * 4
    elif case.body in ("flaky", "raises", "retries"):
        low = 1 if case.key != "none" else case.copies
    return replace(whole, states=None, children=ANY, runs=(min(low, high), high), outcomes=None)


def _seen(case: Case, whole: Expected) -> Expected:
    """Who can be asked for results, and where two bodies at one time would be seen."""
    states = None if case.call in OF_DEFINITIONS or case.chunk == "yes" else whole.states
    limited = case.limit != "none" and case.trouble in ("quiet", "two-apps")
    return replace(whole, states=states, serialized=limited)


def _under_trouble(case: Case, whole: Expected) -> Expected:
    """At least once, plus the gate: what a kill or an outage takes away runs again, as another attempt."""
    low, high = whole.runs
    trouble = case.trouble
    if trouble == "kill":
        low = 0 if case.is_direct or case.base == "plain" else low  # a direct call is as safe as plain Celery makes it
        direct = case.is_direct
        return replace(
            whole,
            runs=(low, MANY),
            states=None,
            callbacks=(0, whole.callbacks[1]) if direct else whole.callbacks,
            errbacks=ANY,
            children=(0, MANY) if case.transactional == "no" or direct else whole.children,
            outcomes=None if case.retry == "never" or case.body in ("flaky", "overruns") else whole.outcomes,
            once=False,
        )
    if trouble in ("outage", "read-only"):
        # What ended while nobody could write it runs again, and so does a body whose own transaction the outage ended; any
        # other body that outlives the outage does not.
        once = whole.once and case.transactional == "no"
        high = high if once else MANY
        children = whole.children if case.transactional == "yes" else (whole.children[0], MANY)
        return replace(whole, runs=(low, high), children=children, errbacks=(whole.errbacks[0], MANY), once=once)
    return whole


def value_of(case: Case, copy: int) -> str:
    """Return what a call returns."""
    return f"done {case.label(copy)}"


def is_once(found: int, wanted: Range) -> bool:
    """Say whether a count is within its range."""
    return wanted[0] <= found <= wanted[1]
