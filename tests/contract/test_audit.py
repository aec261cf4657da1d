"""The audit fails for what is vulnerable or left out, and says so where nobody could be asked."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest
from audit import run
from audit.run import Answer, ask_in_turn, installed, judge, read

WANTED = {"celery": "5.7.0", "redis": "8.1.0"}
CLEAN = [{"name": "celery", "version": "5.7.0", "vulns": []}, {"name": "Redis", "version": "8.1.0", "vulns": []}]
BAD = {"id": "PYSEC-2021-858", "aliases": ["CVE-2021-23727"], "fix_versions": ["5.2.2"], "description": "…"}
UNKNOWN = {"name": "redis", "skip_reason": "Dependency not found on PyPI and could not be audited: redis (8.1.0)"}


def said(*dependencies: dict[str, Any]) -> str:
    return json.dumps({"dependencies": dependencies, "fixes": []})


def test_a_clean_answer_about_all_passes() -> None:
    verdict = judge(WANTED, [read("pypi", said(*CLEAN), "No known vulnerabilities found")])
    assert verdict.code == 0
    assert verdict.lines == ["audited 2 of 2 packages with pypi", "no known vulnerability"]


def test_what_is_vulnerable_fails_with_its_ids() -> None:
    told = said(CLEAN[0] | {"vulns": [BAD, BAD | {"id": "GHSA-1", "aliases": [], "fix_versions": []}]}, CLEAN[1])
    verdict = judge(WANTED, [read("pypi", told, "Found 2 known vulnerabilities in 1 package")])
    assert verdict.code == 1
    assert verdict.lines[1:] == [
        "VULNERABLE: 2 found",
        "  celery 5.7.0: PYSEC-2021-858 (CVE-2021-23727), fixed in 5.2.2",
        "  celery 5.7.0: GHSA-1, no fix yet",
    ]


@pytest.mark.parametrize("told", [said(CLEAN[0], UNKNOWN), said(CLEAN[0])], ids=["passed over", "left out"])
def test_a_package_that_the_service_passes_over_fails_by_name(told: str) -> None:
    verdict = judge(WANTED, [read("pypi", told, "No known vulnerabilities found")])
    assert verdict.code == 1
    assert verdict.lines[-1] == "NOT AUDITED: redis 8.1.0"


def test_where_nobody_can_be_asked_it_is_said_that_nothing_was_audited() -> None:
    away = read("osv", "", "Traceback …\nrequests.exceptions.ConnectionError: Name or service not known\n")
    verdict = judge(WANTED, [Answer(service="pypi", trouble="no answer in 180 seconds"), away])
    assert verdict.code == 0
    assert verdict.lines[0].startswith("NOT AUDITED: nothing is known about 2 packages")
    assert "pypi: no answer in 180 seconds; osv: requests.exceptions.ConnectionError" in verdict.lines[1]
    assert "no known vulnerability" not in "\n".join(verdict.lines)


def test_a_service_that_has_heard_of_no_package_has_audited_nothing() -> None:
    told = said(UNKNOWN, UNKNOWN | {"name": "celery"})
    verdict = judge(WANTED, [read("pypi", told, "No known vulnerabilities found")])
    assert (verdict.code, verdict.lines[0][:11]) == (0, "NOT AUDITED")


@pytest.mark.parametrize(
    ("first", "asked"), [(said(*CLEAN), ["pypi"]), ("", ["pypi", "osv"]), (said(UNKNOWN), ["pypi", "osv"])]
)
def test_the_next_service_is_asked_where_one_has_nothing_to_say(
    monkeypatch: pytest.MonkeyPatch, first: str, asked: list[str]
) -> None:
    monkeypatch.setattr(run, "ask", lambda service, _: read(service, first if service == "pypi" else said(*CLEAN), "away"))
    answers = ask_in_turn(WANTED)
    assert [one.service for one in answers] == asked
    assert judge(WANTED, answers).code == 0


def test_what_is_audited_is_what_runs_and_not_what_tests_and_builds() -> None:
    found = installed(run.PACKAGE)
    assert {
        "celery",
        "kombu",
        "sqlalchemy",
        "alembic",
        "redis",
        "psycopg",
        "pymysql",
        "flower",
        "tornado",
        "billiard",
    } <= set(found)
    assert found.keys().isdisjoint({"pytest", "ruff", "mypy", "hypothesis", "mkdocs", "pip-audit", run.PACKAGE})


def test_packages_that_do_not_fit_together_fail(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    done = subprocess.CompletedProcess(
        [], 1, stdout="celery 5.7.0 requires kombu>=5.7, but you have kombu 5.5.\n", stderr=""
    )
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
    assert run.main() == 1
    assert "requires kombu>=5.7" in capsys.readouterr().out
