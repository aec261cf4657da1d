"""A worker that was killed leaves its folder of counts behind; the next one that starts removes it, and no other."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from celery_tm.metrics import folders

HOLDER = """
import os, sys, time
from celery_tm.metrics.folders import make_folder
print(make_folder(), flush=True)
if sys.argv[1] == "forks" and os.fork() == 0:
    time.sleep(60)
    os._exit(0)
print("ready", flush=True)
time.sleep(60)
"""


def start(kind: str) -> tuple[subprocess.Popen[str], Path]:
    """Start a process that holds a folder, as long ago as it takes to be looked at."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, kind], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    folder = Path(process.stdout.readline().strip())
    assert process.stdout.readline() == "ready\n"
    grow_old(folder)
    return process, folder


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait(10)
    assert process.stdout is not None
    process.stdout.close()


def grow_old(folder: Path) -> None:
    os.utime(folder, (0, 0))


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def test_the_folder_of_a_killed_process_goes_and_that_of_a_living_one_stays() -> None:
    dead, left = start("alone")
    alive, kept = start("alone")
    end(dead)
    young = left.parent / f"{folders.PREFIX}young"
    young.mkdir()
    (young / folders.LOCK).touch()
    folders._remove_left()
    assert not left.exists()
    assert kept.exists()
    assert young.exists(), "its worker may be about to lock it"
    end(alive)


def test_a_folder_stays_as_long_as_a_pool_process_counts_in_it() -> None:
    main, folder = start("forks")
    end(main)
    folders._remove_left()
    assert folder.exists()
    os.killpg(main.pid, signal.SIGKILL)
    for _ in range(100):
        folders._remove_left()
        if not folder.exists():
            return
        time.sleep(0.05)
    raise AssertionError("the folder of dead processes is still there")


def test_what_is_no_folder_of_ours_is_left_alone(place: Path) -> None:
    (place / f"{folders.PREFIX}file").touch()
    (place / f"{folders.PREFIX}without-lock").mkdir()
    grow_old(place / f"{folders.PREFIX}without-lock")
    grow_old(place / f"{folders.PREFIX}file")
    folders._remove_left()
    assert len(list(place.iterdir())) == 2
