"""Arrows point down, and nothing grows too long to read."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import celery_tm

PACKAGE = Path(celery_tm.__file__).parent
ROOT = PACKAGE.parent
LONGEST_MODULE, LONGEST_FUNCTION = 400, 60
FROZEN = PACKAGE / "store" / "migrations" / "versions"
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if FROZEN not in path.parents)

Function = ast.FunctionDef | ast.AsyncFunctionDef


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def functions(path: Path) -> Iterator[Function]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, Function):
            yield node


def test_the_contracts_of_import_linter_are_kept() -> None:
    linter = Path(sys.executable).parent / "lint-imports"
    if not linter.exists():
        pytest.skip("import-linter is not installed beside this Python; pip install 'celery-tm[dev]'")

    done = subprocess.run([linter, "--no-cache"], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 kept, 0 broken" in done.stdout


def test_there_are_modules_to_check() -> None:
    assert PACKAGE / "domain" / "job.py" in MODULES
    assert len(MODULES) > 40


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_every_module_says_what_it_is_for(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text()))


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_no_module_is_longer_than_a_sitting(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= LONGEST_MODULE


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_no_function_is_longer_than_a_screen(path: Path) -> None:
    long = [f"{f.name}:{f.lineno}" for f in functions(path) if (f.end_lineno or 0) - f.lineno + 1 > LONGEST_FUNCTION]

    assert long == []


def test_no_rule_asks_the_clock() -> None:
    asking = [
        f"{name_of(path)}:{node.lineno}"
        for path in MODULES
        if PACKAGE / "domain" in path.parents and path.name != "ids.py"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("now", "utcnow", "today", "monotonic", "time_ns")
    ]

    assert asking == []
