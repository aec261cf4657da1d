"""The oracle: a stage as it should be has no violation, and each thing that may go wrong is one."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from storm.bodies import digest
from storm.calls import argument_of
from storm.oracle import judge_stage
from storm.plan import Case
from storm.stage import Evidence
from storm.test_plan import case as make_case

SECOND = 1_000_000_000


def line(what: str, label: str, value: Any = None) -> dict[str, Any]:
    return {"what": what, "subject": "c1", "label": label, "value": value}


def good(folder: Path, case: Case) -> Evidence:
    """Return a stage whose only case went as it should: each body ran once, and each caller was answered its value."""
    sqlite3.connect(folder / "tables.db").close()
    evidence = Evidence(case.stage, folder, [case])
    evidence.callbacks = [{"what": "periodic", "subject": "", "label": "", "value": None}]
    for n in range(case.copies):
        label, at = case.label(n), n * SECOND
        seen = {"digest": digest(case.name, label, argument_of(case)), "at": at}
        evidence.callbacks += [line("saw", label, seen), line("left", label, {"at": at + SECOND // 2})]
        evidence.calls.append({"case": case.name, "copy": n, "id": f"id-{n}", "value": f"done {label}"})
        evidence.results[f"id-{n}"] = ("SUCCESS", f"done {label}")
    return evidence


def test_a_stage_as_it_should_be_has_no_violation(tmp_path: Path) -> None:
    assert judge_stage(good(tmp_path, make_case())) == []


def drop_a_body(evidence: Evidence) -> None:
    evidence.callbacks = [one for one in evidence.callbacks if one["label"] != "c1-2"]


def run_twice(evidence: Evidence) -> None:
    evidence.callbacks.append(next(one for one in evidence.callbacks if one["what"] == "saw"))


def change_arguments(evidence: Evidence) -> None:
    next(one for one in evidence.callbacks if one["what"] == "saw")["value"]["digest"] = "other"


def call_without_arguments(evidence: Evidence) -> None:
    evidence.callbacks.append({"what": "saw", "subject": "", "label": "", "value": {"digest": "", "at": 0}})


def answer_failure(evidence: Evidence) -> None:
    evidence.results["id-0"] = ("FAILURE", "ValueError()")


def answer_another_value(evidence: Evidence) -> None:
    evidence.results["id-0"] = ("SUCCESS", "12")


def call_an_errback(evidence: Evidence) -> None:
    evidence.callbacks.append(line("errback", "c1-0", "no"))


def run_a_child(evidence: Evidence) -> None:
    evidence.callbacks.append(line("plain", "c1-0"))


def refuse_the_caller(evidence: Evidence) -> None:
    evidence.calls = [{"case": "c1", "copy": None, "error": "InvalidValue: no"}]


def leave_a_job(evidence: Evidence) -> None:
    evidence.pending = ["storm.body: pending"]


def keep_a_caller_waiting(evidence: Evidence) -> None:
    evidence.stuck_callers = ["c1"]


def forget_the_periodic_entry(evidence: Evidence) -> None:
    evidence.callbacks = [one for one in evidence.callbacks if one["what"] != "periodic"]


def leave_a_transaction_open(evidence: Evidence) -> None:
    evidence.idle_transactions = 1


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (drop_a_body, "2 bodies began, 3 are right"),
        (run_twice, "4 bodies began, 3 are right"),
        (change_arguments, "got other arguments"),
        (call_without_arguments, "arguments that nobody passed"),
        (answer_failure, "right is SUCCESS"),
        (answer_another_value, "was answered '12'"),
        (call_an_errback, "1 errbacks were called"),
        (run_a_child, "1 plain children ran"),
        (refuse_the_caller, "the caller got an error"),
        (leave_a_job, "still pending"),
        (keep_a_caller_waiting, "the caller still waits"),
        (forget_the_periodic_entry, "on_after_configure"),
        (leave_a_transaction_open, "a transaction open"),
    ],
)
def test_what_goes_wrong_is_a_violation(tmp_path: Path, spoil: Callable[[Evidence], None], says: str) -> None:
    evidence = good(tmp_path, make_case())
    spoil(evidence)
    found = judge_stage(evidence)
    assert len(found) == 1, found
    assert says in str(found[0])


def test_two_bodies_of_one_concurrency_key_at_one_time_are_a_violation(tmp_path: Path) -> None:
    evidence = good(tmp_path, make_case(limit="by name"))
    for one in evidence.callbacks:
        if one["what"] == "left":
            one["value"]["at"] += SECOND
    assert "two bodies of one concurrency key" in str(judge_stage(evidence)[0])


def test_a_body_that_began_after_its_cancellation_is_a_violation(tmp_path: Path) -> None:
    evidence = good(tmp_path, make_case(body="cancels entity"))
    late = next(one for one in evidence.callbacks if one["what"] == "saw" and one["label"] == "c1-2")
    late["value"]["at"] = 10 * SECOND
    evidence.callbacks.append(line("cancelled", "c1-0", {"at": 0}))
    assert "after its cancellation" in str(judge_stage(evidence)[0])
