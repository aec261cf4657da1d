"""Serves the figures of this process over HTTP, in a thread that ends with it.

A port that is taken, or a package that is missing, is one line in the log that says what to do; the work goes on.
"""

from __future__ import annotations

import logging
import os
from typing import Any

from ..installation import Installation
from .tally import SharedTally, Tally

logger = logging.getLogger(__name__)

FOLDER, OWNER = "CELERY_TM_METRICS_FOLDER", "CELERY_TM_METRICS_OWNER"  # for pool processes that are no forks
STANDARD = "PROMETHEUS_MULTIPROC_DIR"
MISSING = "metrics are not served: prometheus_client is missing; pip install 'celery-tm[metrics]', or unset tm_metrics_port"
_servers: list[Any] = []
_counted: dict[int, Tally] = {}  # by app


def serve_beat(installation: Installation) -> None:
    """Count and serve what this beat does and how things stand, if a port is stated."""
    port = installation.settings.port_of("beat")
    if port is not None and _is_installed():
        from .collecting import StateCollector, TallyCollector

        tally = _started(installation, Tally())
        _serve(installation, port, TallyCollector(tally), StateCollector(installation))


def count_worker(installation: Installation, *, has_processes: bool) -> None:
    """Count what this worker does, if a port is stated; before its pool processes are forked."""
    if installation.settings.port_of("worker") is None or not _is_installed():
        return
    if not has_processes:
        _started(installation, Tally())
        return
    tally = _started(installation, SharedTally(_folder()))
    assert isinstance(tally, SharedTally)
    os.environ[FOLDER], os.environ[OWNER] = str(tally.folder), str(tally.owner)


def serve_worker(installation: Installation) -> None:
    """Serve what was counted, when the worker is ready."""
    port, tally = installation.settings.port_of("worker"), _counted.get(id(installation.app))
    if port is not None and tally is not None:
        from .collecting import TallyCollector

        _serve(installation, port, TallyCollector(tally))


def count_in_pool(installation: Installation) -> None:
    """Count in a pool process that is no fork of its worker and so inherited nothing."""
    folder = os.environ.get(FOLDER)
    if folder and id(installation.app) not in _counted and _is_installed():
        _started(installation, SharedTally(folder, int(os.environ[OWNER])))


def _is_installed() -> bool:
    try:
        import prometheus_client  # noqa: F401
    except ImportError:
        logger.error(MISSING)
        return False
    return True


def _started(installation: Installation, tally: Tally) -> Tally:
    """Let events be counted; a process that counts already, say a worker with a beat in a thread, goes on as it does."""
    from .counting import count_events, stop_counting

    app = installation.app
    known = _counted.get(id(app))
    if known is not None and known.pid == os.getpid():
        return known
    stop_counting(app)  # what the process that we are a fork of has set up
    _counted[id(app)] = tally
    count_events(app, tally)
    return tally


def _serve(installation: Installation, port: int, *collectors: Any) -> None:
    from prometheus_client import CollectorRegistry, start_http_server

    registry, address = CollectorRegistry(), installation.settings.tm_metrics_address
    for collector in collectors:
        registry.register(collector)
    try:
        server, _ = start_http_server(port, addr=address, registry=registry)
    except OSError as error:
        logger.error(
            "metrics are not served on %s:%d: %s; end what listens there, or give another tm_metrics_port",
            address,
            port,
            error,
        )
        return
    _servers.append(server)
    logger.info("metrics are served on http://%s:%d/metrics", address, port)


def _folder() -> str:
    """Return the folder that the counts of pool processes go to: the stated one, or one that goes with this process."""
    stated = os.environ.get(STANDARD)
    if stated:
        os.makedirs(stated, exist_ok=True)
        return stated
    from .folders import make_folder  # its locks are Unix's, as pools of processes are

    return make_folder()


def _after_fork() -> None:
    for server in _servers:
        server.socket.close()  # else a child would keep the port when its parent is gone
    _servers.clear()


os.register_at_fork(after_in_child=_after_fork)
