"""Every command of the README, typed as it stands: run to its end, or started until it is ready and stopped."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from tmtest.walkthrough import PATIENCE, Command, Walkthrough, fenced, free_port

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "docs/tutorial.md")
# What an app of a reader has: the README's own first block is run by tests/contract/test_docs.py.
APP = """
from celery_tm import TimeManagement, easy_app

app = easy_app("shop")
tm = TimeManagement(app)


@app.task(name="shop.expire_payment")
def expire_payment(order_id):
    return f"order {order_id} expired"
"""
DEFINITIONS = '[[definitions]]\nname = "nightly"\ntask = "shop.expire_payment"\nargs = [1]\nschedule = "30 2 * * *"\n'
# What goes on until it is stopped, and what it shows first. Worker and beat say no more at this log level.
LASTING = {
    "celery -A app worker": "… [queues]",
    "celery -A app beat -S celery_tm.Scheduler": "celery beat … is starting.",
    "celery -A app tm flower": "… Visit me at …",
    "celery -A app tm status --watch": "definitions …",
}


def commands(page: str) -> list[str]:
    """Return the commands in the console blocks of a page, without prompts and comments."""
    lines = [
        line for language, block in fenced((ROOT / page).read_text()) if language == "console" for line in block.splitlines()
    ]
    return [re.sub(r"\s+# .*$", "", line) for line in lines if line.strip()]


def starting_with(word: str, pages: tuple[str, ...] = PAGES) -> list[str]:
    """Return the commands of these pages that start with a word."""
    return [text.removeprefix("$ ") for page in pages for text in commands(page) if text.removeprefix("$ ").startswith(word)]


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Walkthrough]:
    folder = tmp_path / "shop"
    folder.mkdir()
    (folder / "app.py").write_text(APP)
    (folder / "definitions.toml").write_text(DEFINITIONS)
    reader = Walkthrough(folder, ROOT)
    reader.env["FLOWER_PORT"] = str(free_port())
    yield reader
    reader.close()


@pytest.mark.timeout(600)
def test_every_celery_command_of_the_readme_runs(reader: Walkthrough) -> None:
    typed = starting_with("celery", ("README.md",))
    for text in typed:
        if text in LASTING:
            reader.type(Command(text, terminal=f"terminal{len(reader.terminals)}", shown=["…", LASTING[text]]))
        else:
            reader.type(Command(text, shown=["…"]))
    assert set(LASTING) < set(typed)
    for kind in ("worker", "beat"):
        reader.type(
            Command("celery -A app tm status", shown=["…", f"{kind if kind == 'beat' else 'celery'}@… {kind} …", "…"])
        )
    reader.press_ctrl_c()


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
@pytest.mark.parametrize("text", starting_with("make"))
def test_make_knows_its_targets(text: str) -> None:
    done = subprocess.run([*text.split(), "--dry-run"], cwd=ROOT, capture_output=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("text", starting_with("pip install"))
def test_what_is_to_be_installed_is_this_package_with_extras_it_has(text: str) -> None:
    wanted = Requirement(text.split("'")[1])
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert wanted.name == project["name"]
    assert wanted.extras <= set(project["optional-dependencies"])


def test_no_other_command_is_in_the_readme() -> None:
    assert {text.split()[0] for text in commands("README.md")} == {"make", "pip", "celery"}


def test_the_first_block_is_fifteen_lines_at_most() -> None:
    first = next(block for language, block in fenced((ROOT / "README.md").read_text()) if language == "python")
    assert len([line for line in first.splitlines() if line.strip()]) <= 15
