"""Celery's tests, which only its source distribution has: fetched once for the installed version, kept in a cache."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from importlib.metadata import version
from pathlib import Path

CACHE = Path(__file__).parent / ".cache"
TESTS = ("t/", "pyproject.toml", "setup.cfg")  # not celery/: what is tested is the installed one
HOW = (
    "the source distribution of Celery could not be fetched; with a package index at hand, run "
    f"`python -m pip download --no-binary celery --no-deps celery==VERSION -d {CACHE.relative_to(CACHE.parents[2])}` once"
)


class NoSource(Exception):
    """Celery's tests are not in the cache, and no package index has them."""


def unpack(folder: Path) -> Path:
    """Put the tests of the installed Celery below `folder`, and return where."""
    name = f"celery-{version('celery')}"
    with tarfile.open(_fetched(name)) as archive:
        wanted = [m for m in archive.getmembers() if m.name.partition("/")[2].startswith(TESTS)]
        archive.extractall(folder, members=wanted, filter="data")
    return folder / name


def _fetched(name: str) -> Path:
    """Return the archive from the cache, downloading it first if need be."""
    archive = CACHE / f"{name}.tar.gz"
    if not archive.exists():
        CACHE.mkdir(exist_ok=True)
        options = ["--quiet", "--disable-pip-version-check", "--no-binary", "celery", "--no-deps", "--dest", str(CACHE)]
        command = [sys.executable, "-m", "pip", "download", *options, name.replace("-", "==")]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        except subprocess.TimeoutExpired:
            raise NoSource(HOW) from None
        if done.returncode != 0 or not archive.exists():
            raise NoSource(f"{HOW}\n{done.stderr[-500:]}")
    return archive
