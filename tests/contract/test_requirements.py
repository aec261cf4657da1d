"""docs/requirements.md names every delivered requirement and a test that exists for it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

PROJECT = Path(__file__).parent.parent.parent
PAGE = PROJECT / "docs" / "requirements.md"
COUNTS = {"C": 3, "T": 21, "Q": 9, "M": 10, "B": 12, "J": 28, "X": 9}
TO_COME: set[str] = set()
DELIVERED = [f"{kind}{n}" for kind, count in COUNTS.items() for n in range(1, count + 1) if f"{kind}{n}" not in TO_COME]
ROWS = dict(re.findall(r"^\| ([A-Z]\d+) \| (.*)$", PAGE.read_text(), re.MULTILINE))


@pytest.mark.parametrize("id", DELIVERED)
def test_every_delivered_requirement_is_proven_by_tests_that_exist(id: str) -> None:
    assert id in ROWS, f"docs/requirements.md has no line for {id}"
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", ROWS[id])
    assert named, f"{id} names no test"
    for path, test in named:
        assert (PROJECT / path).is_file(), f"{id}: {path} does not exist"
        if test:
            assert test in names_in(PROJECT / path), f"{id}: {path} has no {test}"


def names_in(path: Path) -> set[str]:
    return {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)}


def test_nothing_is_listed_that_is_not_delivered() -> None:
    assert sorted(ROWS) == sorted(DELIVERED)


def test_the_top_level_has_what_was_asked_for() -> None:
    wanted = ["pyproject.toml", "celery_tm", "beat", "tests", "docker-compose.yml", "Procfile", "README.md"]
    assert [name for name in wanted if not (PROJECT / name).exists()] == []
    dependencies = (PROJECT / "pyproject.toml").read_text()
    for package in ("celery", "kombu", "SQLAlchemy", "croniter", "redis", "flower", "pytest-celery"):
        assert f'"{package}' in dependencies
    assert "jango" not in dependencies
