"""Celery's own tests pass with `celery_tm.Task` as the base class of every task, wherever they pass in plain Celery.

The short part of what `make celery-suites` runs: the tests of tasks, tracing and requests, and of tasks and chords on a real
worker.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import pytest
from celery_suites import run, suites
from celery_suites.sdist import NoSource, unpack
from celery_suites.suites import OURS, Report

QUICK = (
    "class_based or basic or reject or retry_switches or retry_preserves or retried or nesting_level_1 "
    "or limits_set or send_task"
)
CHORDS = (
    "reapplying_frozen or (errback_called_by_chord_from and not multiple) or propagates_to_chord or nested_chord "
    "or chord_in_chain or chord_soft_timeout"
)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Celery's tests, of the installed version."""
    try:
        return unpack(tmp_path_factory.mktemp("celery"))
    except NoSource as error:
        if os.environ.get("TM_TEST_REQUIRE"):
            raise
        pytest.skip(str(error))


def test_celerys_unit_tests_of_tasks_pass_with_our_base_class(source: Path, tmp_path: Path) -> None:
    ours, found = run.against_plain(partial(_unit, source, tmp_path), suites.CORE)
    assert not found.broken, found
    assert not found.healed, found
    assert len(ours.passed) > 300


def test_celerys_integration_tests_of_tasks_pass_with_our_base_class(source: Path, tmp_path: Path) -> None:
    ours, found = run.against_plain(partial(_integration, source, tmp_path), suites.INTEGRATION)
    assert not found.broken, found
    assert len(ours.passed) >= 15


def test_celerys_tests_of_chords_pass_with_our_base_class(source: Path, tmp_path: Path) -> None:
    chords = suites.CANVAS[0] + "::test_chord"
    ours, found = run.against_plain(partial(_integration, source, tmp_path, chosen=CHORDS), [chords])
    assert not found.broken, found
    assert len(ours.passed) >= 20


@pytest.mark.thorough
def test_a_base_class_that_loses_results_is_found_out(source: Path, tmp_path: Path) -> None:
    tests = [
        "t/unit/tasks/test_trace.py::test_trace::test_trace_successful",
        "t/unit/worker/test_request.py::test_trace_task",
    ]
    broken = suites.run_unit(source, "celery_suites.broken:Task", tests, tmp_path)
    assert suites.compare(broken, suites.run_unit(source, OURS, tests, tmp_path)).broken


def _unit(source: Path, folder: Path, base: str, tests: list[str]) -> Report:
    return suites.run_unit(source, base, tests, folder)


def _integration(source: Path, folder: Path, base: str, tests: list[str], chosen: str = QUICK) -> Report:
    return suites.run_integration(source, base, tests, folder, options=["-k", chosen])
