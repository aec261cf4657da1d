"""A virtual environment that has what a wheel says it needs, and nothing else, without asking an index.

The distributions are those installed here, linked by name as their metadata names them. pip then installs the wheel and
checks that its requirements are met: one that is missing, or was never stated, is found out.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from email import message_from_bytes
from importlib.metadata import Distribution, distribution
from pathlib import Path
from zipfile import ZipFile

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

HERE = Path(sysconfig.get_path("purelib"))
BARE = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent"}  # no PYTHONPATH, no settings of pip


class CleanRoom:
    """A virtual environment to install a wheel in."""

    def __init__(self, folder: Path) -> None:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=120)
        self.python = folder / "bin" / "python"
        self.celery = folder / "bin" / "celery"
        [self.packages] = folder.glob("lib/python*/site-packages")

    def run(self, *command: str | Path, folder: Path | None = None) -> str:
        """Run a program, with nothing of this environment around, and return what it wrote."""
        argv, place = [str(part) for part in command], folder or self.packages
        done = subprocess.run(argv, cwd=place, env=BARE, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def install(self, wheel: Path, extra: str = "") -> None:
        """Link what the wheel requires, and install it; pip fails where a requirement is not met."""
        for name in closure(requirements_of(wheel), {extra}):
            self._link(distribution(name))
        pip = [sys.executable, "-m", "pip", "--python", str(self.python), "install", "--quiet", "--no-index"]
        wanted = f"{wheel}[{extra}]" if extra else str(wheel)
        done = subprocess.run([*pip, wanted], capture_output=True, text=True, timeout=180, check=False)
        assert done.returncode == 0, done.stderr

    def _link(self, found: Distribution) -> None:
        for top in {Path(file).parts[0] for file in found.files or ()} - {"..", "__pycache__"}:
            target = self.packages / top
            if not target.exists():
                target.symlink_to(HERE / top)
        for point in found.entry_points:
            if point.group == "console_scripts" and point.name == "celery":
                self.celery.write_text(f"#!{self.python}\nfrom celery.__main__ import main\nraise SystemExit(main())\n")
                self.celery.chmod(0o755)


def requirements_of(wheel: Path) -> list[str]:
    """Return what a wheel's metadata says it needs."""
    with ZipFile(wheel) as archive:
        [place] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return message_from_bytes(archive.read(place)).get_all("Requires-Dist") or []


def closure(requirements: Iterable[str], extras: Iterable[str]) -> set[str]:
    """Return the names of all distributions that requirements lead to, with these extras."""
    found: set[str] = set()
    waiting = [(text, frozenset(extras) | {""}) for text in requirements]
    seen: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        text, wanted = waiting.pop()
        needed = Requirement(text)
        if (text, wanted) in seen or not _applies(needed, wanted):
            continue
        seen.add((text, wanted))
        found.add(canonicalize_name(needed.name))
        inner = frozenset(needed.extras) | {""}
        waiting += [(each, inner) for each in distribution(needed.name).requires or []]
    return found


def _applies(needed: Requirement, extras: Iterable[str]) -> bool:
    return needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in extras)
