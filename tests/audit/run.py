"""Asks public advisories about every package that celery_tm runs on, with all its extras for running, as installed here.

    PYTHONPATH=tests python -m audit.run

The exit code is 1 where packages do not fit together, where one has a known vulnerability, and where the service has
answered but not for all of them. A service that cannot be asked is no failure, but it is said that nothing was audited.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PACKAGE = "celery-tm"
FOR_WORK_ON_IT = frozenset({"test", "suites", "bench", "docs", "dev", "fuzz"})  # extras that no installation has
SERVICES = ("pypi", "osv")
PATIENCE = 180.0  # seconds for a service to answer about all of them


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What came of asking one service: what it said of each package, or why it said nothing."""

    service: str
    told: Mapping[str, Any] | None = None
    trouble: str = ""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What to say, and how to exit."""

    code: int
    lines: Sequence[str]


def main() -> int:
    """Check, ask, and say what came of it."""
    broken = subprocess.run([sys.executable, "-m", "pip", "check"], capture_output=True, text=True, check=False)
    if broken.returncode:
        print(f"packages do not fit together:\n{broken.stdout}{broken.stderr}")
        return 1
    wanted = installed(PACKAGE)
    verdict = judge(wanted, ask_in_turn(wanted))
    print("\n".join(verdict.lines))
    return verdict.code


def installed(package: str) -> dict[str, str]:
    """Return what a package needs when it runs, with all of its extras for that, as installed: versions by name."""
    extras = set(distribution(package).metadata.get_all("Provides-Extra") or ()) - FOR_WORK_ON_IT
    found: dict[str, str] = {}
    left = [(package, frozenset(extras))]
    seen = set(left)
    while left:
        name, extras_of = left.pop()
        for needed in _needs(name, extras_of):
            try:
                found[canonicalize_name(needed.name)] = distribution(needed.name).version
            except PackageNotFoundError:
                raise SystemExit(f"{name} needs {needed}, which is not installed; run `make .venv/.installed`") from None
            step = (needed.name, frozenset(needed.extras))
            if step not in seen:
                seen.add(step)
                left.append(step)
    return dict(sorted(found.items()))


def _needs(name: str, extras: frozenset[str]) -> list[Requirement]:
    stated = [Requirement(text) for text in distribution(name).requires or ()]
    asked = [{"extra": extra} for extra in (*extras, "")]
    return [one for one in stated if one.marker is None or any(one.marker.evaluate(extra) for extra in asked)]


def ask_in_turn(wanted: Mapping[str, str]) -> list[Answer]:
    """Ask one service after the other, until one has something to say."""
    answers: list[Answer] = []
    for service in SERVICES:
        answers.append(ask(service, wanted))
        if known(answers[-1]):
            break
    return answers


def ask(service: str, wanted: Mapping[str, str]) -> Answer:
    """Ask a service about packages."""
    with tempfile.TemporaryDirectory() as folder:
        listed = Path(folder) / "requirements.txt"
        listed.write_text("".join(f"{name}=={version}\n" for name, version in wanted.items()))
        command = [sys.executable, "-m", "pip_audit", "--requirement", str(listed), "--no-deps", "--disable-pip"]
        command += ["--vulnerability-service", service, "--format", "json", "--progress-spinner", "off", "--timeout", "10"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            return Answer(service=service, trouble=f"no answer in {PATIENCE:.0f} seconds")
    if "No module named pip_audit" in done.stderr:
        raise SystemExit("pip-audit is not installed; run `make .venv/.installed`")
    return read(service, done.stdout, done.stderr)


def read(service: str, out: str, errors: str) -> Answer:
    """Return what pip-audit printed as an answer; without a report its last line is the trouble."""
    try:
        told = {canonicalize_name(one["name"]): one for one in json.loads(out)["dependencies"]}
    except (ValueError, KeyError, TypeError):
        return Answer(service=service, trouble=(errors.strip().splitlines() or ["it said nothing"])[-1])
    return Answer(service=service, told=told)


def known(answer: Answer) -> dict[str, Any]:
    """Return what a service knows, by package; one that it has never heard of has only a reason."""
    return {name: one for name, one in (answer.told or {}).items() if "skip_reason" not in one}


def judge(wanted: Mapping[str, str], answers: Sequence[Answer]) -> Verdict:
    """Decide what the last answer means; those before it were of no use."""
    last = answers[-1]
    about = known(last)
    if not about:
        why = "; ".join(f"{one.service}: {one.trouble or 'it knows none of the packages'}" for one in answers)
        return Verdict(code=0, lines=[f"NOT AUDITED: nothing is known about {len(wanted)} packages, for no service answered",
                                      f"  {why}"])  # fmt: skip
    found = [
        f"  {name} {wanted.get(name, '?')}: {bad['id']}{_fix(bad)}"
        for name, one in sorted(about.items())
        for bad in one.get("vulns", ())
    ]
    missing = sorted(set(wanted) - set(about))
    lines = [f"audited {len(about)} of {len(wanted)} packages with {last.service}"]
    if found:
        lines += [f"VULNERABLE: {len(found)} found", *found]
    if missing:
        lines += [f"NOT AUDITED: {', '.join(f'{name} {wanted[name]}' for name in missing)}"]
    return Verdict(code=int(bool(found or missing)), lines=lines if found or missing else [*lines, "no known vulnerability"])


def _fix(bad: Mapping[str, Any]) -> str:
    aliases, fixed = ", ".join(bad.get("aliases") or ()), ", ".join(bad.get("fix_versions") or ())
    return (f" ({aliases})" if aliases else "") + (f", fixed in {fixed}" if fixed else ", no fix yet")


if __name__ == "__main__":
    sys.exit(main())
