"""The tutorial as a newcomer walks it: in an empty folder, with a real worker and beat, and with `kill -9`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tmtest.walkthrough import Walkthrough, free_port

ROOT = Path(__file__).parents[2]
TUTORIAL = (ROOT / "docs" / "tutorial.md").read_text()
# Making the environment is not walked: that the extras exist is checked in test_readme.py.
INSTALLATION = TUTORIAL.split("```console\n", 1)[1].split("```", 1)[0]


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Walkthrough]:
    shop = tmp_path / "shop"
    shop.mkdir()
    reader = Walkthrough(shop, ROOT, {"5555": str(free_port())})
    yield reader
    reader.close()


@pytest.mark.timeout(600)  # some thirty commands, each a start of Celery
def test_the_tutorial_runs_from_an_empty_folder_to_a_killed_worker_and_back(reader: Walkthrough) -> None:
    reader.read(TUTORIAL.replace(INSTALLATION, ""))

    packed = (reader.folder / "box-43.txt").read_text().splitlines()
    attempts = [line.split("attempt ")[1] for line in packed]
    assert attempts == sorted(attempts)
    assert set(attempts) == {"1", "2"}, "the worker was killed in the middle"
    reader.press_ctrl_c()
    assert "Warm shutdown" in reader.terminals["worker"].text()
