"""The shop of `tmtest.shop` as it is run: worker, beat and Flower as processes of their own, on SQLite and files."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from urllib.error import URLError
from urllib.request import urlopen

from .stand import TESTS, Process

USER = ("ann", "secret")


@contextmanager
def open_shop(folder: Path, *, days: float) -> Iterator[tuple[ModuleType, str]]:
    """Furnish a shop, start all that belongs to it, and yield its module and the address of its Flower."""
    os.environ["TM_SHOP_FOLDER"] = str(folder)
    from . import shop

    assert folder.resolve() == shop.FOLDER, "a process has one shop only"
    shop.furnish(days=days)
    port = _free_port()
    processes = [
        _start(folder, "worker", "-c", "2", "-l", "INFO", "-E", "--without-gossip", "--without-mingle"),
        _start(folder, "beat", "-S", "celery_tm.Scheduler", "-l", "INFO", "--pidfile="),
        _start(
            folder, "flower", "--address=127.0.0.1", f"--port={port}", f"--basic-auth={':'.join(USER)}",
            f"--conf={TESTS / 'tmtest' / 'flowerconfig.py'}",
        ),
    ]  # fmt: skip
    try:
        root = f"http://127.0.0.1:{port}"
        _wait_for(root, processes)
        yield shop, root
    finally:
        for process in processes:
            process.close()
        shop.tm.installation.database.dispose()
        shop.app.close()


def _start(folder: Path, command: str, *options: str) -> Process:
    paths = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    env = os.environ | {"PYTHONPATH": paths, "PYTHONUNBUFFERED": "1"}
    argv = [sys.executable, "-m", "celery", "-A", "tmtest.shop", "--workdir", str(folder), command, *options]
    return Process(command, argv, folder / f"{command}.log", env)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_for(root: str, processes: list[Process]) -> None:
    """Wait until Flower answers and the worker takes tasks."""
    deadline = time.monotonic() + 60
    while True:
        for process in processes:
            assert process.is_running, f"{process.name} has ended:\n{process.text()[-3000:]}"
        try:
            with urlopen(f"{root}/healthcheck", timeout=5):
                if "ready." in processes[0].text():
                    return
        except (URLError, OSError):
            pass
        assert time.monotonic() < deadline, "\n".join(process.text()[-2000:] for process in processes)
        time.sleep(0.1)
