"""pytest-celery's worker nodes as processes of this machine instead of containers, killed and restarted alike."""

from __future__ import annotations

import signal as signals
from typing import Any

import celery
from pytest_celery import CeleryTestSetup, CeleryTestWorker, CeleryWorkerCluster

from .stand import Process, Stand


class LocalContainer:
    """What a node asks of its container, answered by a process of a stand."""

    def __init__(self, stand: Stand) -> None:
        self._stand = stand
        self._process: Process = stand.worker(concurrency=1, wait=False)  # nodes start side by side
        self.name = self._process.name

    @property
    def id(self) -> str:
        return "test"

    @property
    def status(self) -> str:
        return "running" if self._process.is_running else "exited"

    def ready(self) -> bool:
        self._stand.wait_for_text(self._process, "ready.")
        return True

    def logs(self) -> str:
        return self._process.text()

    def kill(self, signal: str | int = "SIGKILL") -> None:
        number = signals.Signals[signal] if isinstance(signal, str) else signals.Signals(signal)
        if number == signals.SIGKILL:
            self._process.kill()
        else:
            self._process.stop()

    def restart(self, **_: Any) -> None:
        if self._process.is_running:
            self._process.stop()
        self._process = self._stand.worker(concurrency=1)

    def reload(self) -> None: ...

    def teardown(self) -> None: ...

    def worker_name(self) -> str:
        return self._process.name

    def worker_queue(self) -> str:
        return str(self._stand.conf["task_default_queue"])

    def log_level(self) -> str:
        return "INFO"

    def version(self) -> str:
        return str(celery.__version__)


def local_setup(stand: Stand, *, workers: int) -> CeleryTestSetup:
    """Return a setup of pytest-celery with so many local workers; broker and database are the stand's."""
    nodes = [CeleryTestWorker(LocalContainer(stand), stand.app) for _ in range(workers)]
    return CeleryTestSetup(CeleryWorkerCluster(*nodes), None, None, stand.app)
