"""docs/explanation/reliability.md lists every finding from outside with its commit and a test that exists."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

PROJECT = Path(__file__).parent.parent.parent
PAGE = PROJECT / "docs" / "explanation" / "reliability.md"
FINDINGS = (
    [f"W{n}" for n in range(1, 20)]
    + [f"O{n}" for n in range(1, 12)]
    + [f"B{n}" for n in range(1, 16)]
    + ["I3", "I11", "I13", "I16", "I17"]
    + [f"P{n}" for n in range(1, 7)]
    + [f"R{n}" for n in range(1, 8)]
)
ROWS = dict(re.findall(r"^\| ([A-Z]\d+) \| (.*)$", PAGE.read_text(), re.MULTILINE))


@pytest.mark.parametrize("id", FINDINGS)
def test_every_finding_names_its_commit_and_tests_that_exist(id: str) -> None:
    assert id in ROWS, f"reliability.md has no line for {id}"
    assert re.search(r"`[0-9a-f]{7,12}`", ROWS[id]), f"{id} names no commit"
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", ROWS[id])
    assert named, f"{id} names no test"
    for path, test in named:
        assert test in _tests_in(PROJECT / path), f"{id}: {path} has no {test}"


def test_every_commit_that_the_page_names_is_in_the_history() -> None:
    if not (PROJECT / ".git").exists() or _git("rev-parse", "--is-shallow-repository") != "false":
        pytest.skip("needs a clone with its whole history")
    for commit in sorted(set(re.findall(r"`([0-9a-f]{7,12})`", PAGE.read_text()))):
        assert _git("cat-file", "-t", commit) == "commit", f"{commit} is no commit of this history"


def _git(*command: str) -> str:
    done = subprocess.run(["git", *command], cwd=PROJECT, capture_output=True, text=True, timeout=60, check=False)
    return done.stdout.strip()


def _tests_in(path: Path) -> set[str]:
    return {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)}


def test_every_test_that_the_page_names_exists() -> None:
    for path, test in sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE.read_text()))):
        assert test in _tests_in(PROJECT / path), f"{path} has no {test}"
