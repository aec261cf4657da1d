"""What people start: `make run` from a fresh copy, and each command of the Procfile and of docker-compose.yml."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from tmtest.flower import Client
from tmtest.servers import free_port
from tmtest.stand import Process

PROJECT = Path(__file__).parent.parent.parent
LITERAL = {
    "worker": "celery -A app worker",
    "beat": "celery -A app beat -S celery_tm.Scheduler",
    "flower": "celery -A app flower",
}
READY = {"worker": "ready.", "beat": "beat: Starting...", "flower": "Visit me at"}
WAIT = 120.0


def procfile() -> dict[str, str]:
    lines = [line.split(": ", 1) for line in (PROJECT / "Procfile").read_text().splitlines()]
    return dict(lines)


def compose() -> dict[str, Any]:
    return yaml.safe_load((PROJECT / "docker-compose.yml").read_text())["services"]


def test_the_procfile_and_the_compose_file_name_the_commands_that_people_type() -> None:
    assert set(procfile()) == {"provider", *LITERAL}
    for name, command in LITERAL.items():
        assert f"cd beat && {command}" in procfile()[name].replace("FLOWER_UNAUTHENTICATED_API=true ", "")
        assert compose()[name]["command"].startswith(command)
    assert (compose()["worker"]["command"], compose()["beat"]["command"]) == (LITERAL["worker"], LITERAL["beat"])
    assert compose()["beat"]["deploy"]["replicas"] == compose()["worker"]["deploy"]["replicas"] == 2


def test_every_service_has_a_health_check() -> None:
    assert set(compose()) == {"postgres", "redis", "schema", "provider", *LITERAL}
    checks = {name: service["healthcheck"] for name, service in compose().items()}
    assert checks.pop("schema") == {"disable": True}  # it ends when it is done
    for name, check in checks.items():
        assert check["test"][0] == "CMD", name
        if check["test"][1:3] == ["python", "-c"]:
            compile(check["test"][3], name, "exec")
        elif check["test"][1] == "python":
            assert check["test"][1:3] == ["python", "-m"]
            assert (PROJECT / "beat" / f"{check['test'][3]}.py").is_file()
    assert "HEALTHCHECK" in (PROJECT / "beat" / "Dockerfile").read_text()


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A copy of what `make run` needs, without what earlier runs left."""
    ignored = shutil.ignore_patterns(".celery_tm", "*.db*", "__pycache__")
    shutil.copytree(PROJECT / "beat", tmp_path / "beat", ignore=ignored)
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(PROJECT / name, tmp_path)
    (tmp_path / ".venv").symlink_to(sys.prefix)
    return tmp_path


def environ(**more: str) -> dict[str, str]:
    """Return the environment of somebody who has set nothing."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TM_", "CELERY_", "SHOP_", "MAKE"))}
    paths = os.pathsep.join([str(PROJECT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return kept | {"PYTHONPATH": paths, "PYTHONUNBUFFERED": "1"} | more


def wait(look: Callable[[], Any], process: Process, what: str) -> Any:
    deadline = time.monotonic() + WAIT
    while not (found := look()):
        assert process.is_running, f"{process.name} has ended:\n{process.text()[-3000:]}"
        assert time.monotonic() < deadline, f"{what} was not seen in {WAIT} s:\n{process.text()[-3000:]}"
        time.sleep(0.2)
    return found


def run(clone: Path, *argv: str, code: int = 0) -> str:
    """Run a command of the node, as the health checks do."""
    done = subprocess.run(
        [sys.executable, *argv],
        cwd=clone / "beat",
        env=environ(TM_DEMO_SPEED="60"),
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stderr


@pytest.mark.parametrize("name", LITERAL)
def test_each_command_of_the_compose_file_starts(clone: Path, tmp_path: Path, name: str) -> None:
    command = compose()[name]["command"].replace("5555", str(port := free_port()))
    if name == "worker":
        assert "no celery_tm tables" in run(clone, "-m", "health", code=1)
    run(clone, "-m", "shop", "create")
    if name == "worker":
        assert "no worker on" in run(clone, "-m", "health", "worker", code=1)
    argv = ["env", "-C", str(clone / "beat"), sys.executable, "-m", *shlex.split(command), "--loglevel=INFO"]
    process = Process(name, argv, tmp_path / f"{name}.log", environ())
    try:
        wait(lambda: READY[name] in process.text(), process, f"{READY[name]!r}")
        if name == "flower":
            assert Client(port, None).get("/tm").status == 200, "our pages are in it"
    finally:
        process.close()


@pytest.fixture
def run_of_make(clone: Path) -> Iterator[tuple[Process, Client]]:
    """`make run`, on ports that are free."""
    port = free_port()
    (clone / "Procfile").write_text((PROJECT / "Procfile").read_text().replace("5555", str(port)))
    argv = ["make", "-C", str(clone), "-o", ".venv/.installed", "run"]
    started = Process("make", argv, clone / "make.log", environ(SHOP_PROVIDER_URL=f"http://127.0.0.1:{free_port()}"))
    yield started, Client(port, None)
    below = descendants(started.pid)  # honcho gives each process a group of its own
    started.close()
    for pid in below:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def descendants(pid: int) -> list[int]:
    """Return the processes below one."""
    try:
        children = [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
    return children + [one for child in children for one in descendants(child)]


@pytest.mark.skipif(not shutil.which("make"), reason="make is not installed: apt-get install make")
@pytest.mark.timeout(600)
def test_make_run_shows_jobs_that_ran_failed_and_go_on(clone: Path, run_of_make: tuple[Process, Client]) -> None:
    make, browser = run_of_make

    def items(path: str, **query: Any) -> list[Any]:
        with suppress(OSError):
            answer = browser.get(f"/api/tm/{path}", **query)
            return answer.json["items"] if answer.status == 200 else []
        return []

    def page() -> str:
        with suppress(OSError):
            return browser.open("/tm").text
        return ""

    wait(lambda: re.search(r"[1-9]\d* of \d+ completed", page()), make, "a page that shows a job that ran")
    assert "sync currency rates" in page()
    wait(lambda: items("history", outcome="failed", task="demo.call_carrier"), make, "a job that failed")
    wait(lambda: [job for job in items("jobs") if job["progress"]], make, "progress")
    wait(lambda: items("history", outcome="succeeded", task="shop.renew"), make, "a renewal")
    wait(lambda: items("dead-letters", task="demo.call_carrier"), make, "a dead letter")
    wait(lambda: items("history", outcome="succeeded", task="shop.apply_payment"), make, "the effect of a payment")
    for words in ([], ["worker"], ["beat"]):
        run(clone, "-m", "health", *words)
    below = descendants(make.pid)
    make.signal_all(signal.SIGINT)  # Ctrl-C
    deadline = time.monotonic() + WAIT
    while left := [pid for pid in below if Path(f"/proc/{pid}/cmdline").exists()]:
        assert time.monotonic() < deadline, f"{left} are still there:\n{make.text()[-3000:]}"
        time.sleep(0.2)
