"""How things stand, among the figures of Flower's own `/metrics`.

Flower starts after `install`, and with it the app is known: so the app is looked up when somebody scrapes, not before.
Flower answers scrapes in its event loop; a database that does not answer must not stop it, so it is asked in a thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as TookTooLong

import click
from prometheus_client import REGISTRY
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ..errors import TmError
from ..installation import Installation
from ..metrics.collecting import StateCollector
from ..metrics.names import UP

PATIENCE = 2.0  # seconds


class AppFigures(Collector):
    """What the database says of the app that Flower runs with; nothing while there is none."""

    def __init__(self, patience: float = PATIENCE) -> None:
        self._patience = patience
        self._found: StateCollector | None = None
        self._asked: Future[list[Metric]] | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="celery_tm-figures")

    def describe(self) -> Iterable[Metric]:
        """Return nothing: whoever registers this asks no database yet."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Return the figures; a database that takes its time counts as away until it has answered."""
        try:
            installation = _installation()
        except TmError:
            return
        if self._found is None or self._found.installation is not installation:
            self._found = StateCollector(installation)
        if self._asked is None or self._asked.done():
            self._asked = self._thread.submit(_listed, self._found)
        try:
            yield from self._asked.result(self._patience)
        except TookTooLong:
            yield GaugeMetricFamily(UP.name, UP.about, value=0.0)


def _installation() -> Installation:
    """Return that of the app which `celery -A` was started with, else of Celery's current one."""
    context = click.get_current_context(silent=True)
    app = getattr(context.obj, "app", None) if context else None
    return Installation.current() if app is None else Installation.of(app)


def _listed(collector: StateCollector) -> list[Metric]:
    return list(collector.collect())


def install_figures() -> None:
    """Add the figures to those of this process."""
    REGISTRY.register(AppFigures())
