"""Brings each mended defect back and looks who notices: `python -m storm.put_back` (`make storm-put-back`).

For each `put_back/<ID>.patch` the package is copied, the patch is applied to the copy, and the storm, the planted-row test
and the lock test are run against it, each until its first complaint. What the package as it is complains about does not
count. The table says which of the three went red, how, and after how many seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PATCHES = Path(__file__).parent / "put_back"
IDS = (*(f"W{n}" for n in range(1, 17)), *(f"O{n}" for n in range(1, 6)), *(f"B{n}" for n in range(1, 7)), "I3")
COPIED = ("celery_tm", "tests", "pyproject.toml", "beat")
PLANTED, LOCKS = "tests/store/test_planted_rows.py", "tests/storm/test_locks.py"
QUIET = ("postgresql redis quiet", "mysql rabbitmq quiet")
# Where a defect can show: the others would only take time. Those that are not named have the quiet stages.
STAGES = {
    "W5": ("postgresql redis outage", "mysql redis outage"),
    "W6": ("postgresql redis read-only", "mysql rabbitmq read-only"),
    "W11": ("postgresql redis snapshots", "postgresql redis quiet"),
    "W14": ("mysql rabbitmq quiet",),
    "W16": ("sqlite files inline",),
    "O4": ("mysql rabbitmq quiet",),
    "O5": ("mysql rabbitmq quiet",),
    "B5": ("postgresql redis behind",),
    "B6": ("postgresql redis two-apps",),
}
FIRST = {"locks": ("W3", "O2", "O4"), "planted": ("O3", "B1", "B2")}  # who is asked first


@dataclass(frozen=True)
class Outcome:
    """What one of the three said of a copy."""

    id: str
    who: str
    complaint: str  # empty: it noticed nothing
    seconds: float


def patches(ids: Iterable[str] = ()) -> dict[str, Path]:
    """Return the patches that there are, in the order of the findings."""
    return {id: path for id in (ids or IDS) if (path := PATCHES / f"{id}.patch").exists()}


def copy_tree(target: Path) -> None:
    """Copy what is needed to run the package and its tests."""
    for name in COPIED:
        source = ROOT / name
        ignore = shutil.ignore_patterns("__pycache__", "*.pyc", ".celery_tm")
        shutil.copytree(source, target / name, ignore=ignore) if source.is_dir() else shutil.copy(source, target / name)


def apply(patch: Path, target: Path, *, check: bool = False) -> str:
    """Apply a patch to a copy, or only see whether it applies; return what is wrong with it."""
    command = ["git", "apply", *(["--check"] if check else []), str(patch)]
    outside = os.environ | {"GIT_CEILING_DIRECTORIES": str(target.parent)}  # the copy is no work tree
    done = subprocess.run(command, cwd=target, env=outside, capture_output=True, text=True, timeout=60, check=False)
    return "" if done.returncode == 0 else done.stderr.strip()


class Copy:
    """A copy of the package, with a defect or without, and the three who may notice it."""

    def __init__(self, id: str, folder: Path, known: set[str]) -> None:
        self.id, self.folder, self.known = id, folder, known

    def ask(self, who: str, seconds: float) -> Outcome:
        """Run one of the three, at most for so long."""
        begun = time.monotonic()
        complaint = self._storm(seconds) if who == "storm" else self.failure(LOCKS if who == "locks" else PLANTED, seconds)
        return Outcome(self.id, who, complaint, time.monotonic() - begun)

    def complaints(self, stages: Sequence[str], seconds: float) -> list[str]:
        """Return what the storm says of some stages."""
        told = self.folder / "violations.json"
        told.unlink(missing_ok=True)
        options = ["--dense", "--stage", *stages, "--settles", "45", "--seconds", str(seconds), "--json", str(told)]
        self._run(["-m", "storm.run", "--folder", str(self.folder / "records"), *options], seconds + 240)
        return list(json.loads(told.read_text())) if told.exists() else ["the storm did not come to its end"]

    def _storm(self, seconds: float) -> str:
        for stage in STAGES.get(self.id, QUIET):
            new = [one for one in self.complaints([stage], seconds) if same(one) not in self.known]
            if new:
                return new[0]
        return ""

    def failure(self, file: str, seconds: float) -> str:
        """Return the first failure of a test file that is new, if any."""
        if not (self.folder / file).exists():
            return ""
        code, text = self._run(["-m", "pytest", "-x", "-q", "--thorough", "-p", "no:cacheprovider", file], seconds)
        failed = [line for line in text.splitlines() if line.startswith(("FAILED", "ERROR"))]
        if code in (0, 5) or not failed or same(failed[0]) in self.known:
            return ""
        return failed[0]

    def _run(self, arguments: Sequence[str], seconds: float) -> tuple[int, str]:
        env = os.environ | {"PYTHONPATH": os.pathsep.join([str(self.folder / "tests"), str(self.folder)])}
        command = [sys.executable, *arguments]
        with (self.folder / "output.txt").open("w+") as output:
            popen = subprocess.Popen(command, cwd=self.folder, env=env, stdout=output, stderr=output)
            try:
                code = popen.wait(seconds)
            except subprocess.TimeoutExpired:
                popen.terminate()
                popen.wait(30)
                code = 124
            output.seek(0)
            return code, output.read()


def same(complaint: str) -> str:
    """Return a complaint without what differs from run to run."""
    return re.sub(r"[0-9a-f]{8}-[0-9a-f-]{20,}|\d+", "#", complaint.splitlines()[-1] if complaint else "")[:200]


def baseline(ids: Sequence[str], seconds: float) -> set[str]:
    """Return what the package as it is complains about: nothing, once all is mended."""
    with tempfile.TemporaryDirectory(prefix="put-back-") as place:
        folder = Path(place)
        copy_tree(folder)
        whole = Copy("as it is", folder, set())
        stages = sorted({stage for id in ids for stage in STAGES.get(id, QUIET)})
        found = whole.complaints(stages, seconds * len(stages))
        found += [one for file in (PLANTED, LOCKS) if (one := whole.failure(file, seconds))]
        return {same(one) for one in found}


def put_back(id: str, patch: Path, known: set[str], *, seconds: float, whole: bool) -> list[Outcome]:
    """Return who notices a defect; without `whole` it is enough that one does."""
    with tempfile.TemporaryDirectory(prefix=f"put-back-{id}-") as place:
        folder = Path(place)
        copy_tree(folder)
        trouble = apply(patch, folder)
        if trouble:
            return [Outcome(id, "git apply", trouble, 0.0)]
        found: list[Outcome] = []
        order = sorted(("storm", "planted", "locks"), key=lambda who: id not in FIRST.get(who, ()))
        for who in order:
            found.append(Copy(id, folder, known).ask(who, seconds))
            if found[-1].complaint and not whole:
                break
        return found


def table(outcomes: Sequence[Outcome]) -> str:
    """Return the outcomes as a table in Markdown."""
    lines = ["| finding | went red | how | seconds |", "|---|---|---|---|"]
    for id in dict.fromkeys(one.id for one in outcomes):
        mine = [one for one in outcomes if one.id == id]
        red = [one for one in mine if one.complaint]
        how = "; ".join(" ".join(one.complaint.split())[:160] for one in red).replace("|", "/")
        took = round(sum(one.seconds for one in mine))
        lines.append(f"| {id} | {', '.join(one.who for one in red) or 'NOTHING'} | {how} | {took} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Put defects back, and print who noticed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ids", nargs="*", help="findings; all that have a patch if none is named")
    parser.add_argument("--seconds", type=float, default=240, help="for each of the three, at most")
    parser.add_argument("--whole", action="store_true", help="ask all three, also when one has noticed")
    parser.add_argument("--no-baseline", action="store_true", help="take it that the package as it is is in order")
    parser.add_argument("--output", type=Path)
    said = parser.parse_args(arguments)
    chosen = patches(said.ids)
    known = set() if said.no_baseline else baseline(list(chosen), said.seconds)
    print(f"{len(chosen)} patches; {len(known)} complaints about the package as it is", flush=True)
    outcomes: list[Outcome] = []
    for id, patch in chosen.items():
        outcomes += put_back(id, patch, known, seconds=said.seconds, whole=said.whole)
        print(table([one for one in outcomes if one.id == id]).splitlines()[-1], flush=True)
        if said.output:
            said.output.write_text(table(outcomes) + "\n")
    print(table(outcomes))
    return 0 if all(any(one.complaint for one in outcomes if one.id == id) for id in chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
