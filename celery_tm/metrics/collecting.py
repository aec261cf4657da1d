"""Gives Prometheus the figures: what was counted, as the tally has it, and how things stand, as the database has it."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from ..domain.checkup import LATE
from ..domain.status import Status
from ..installation import Installation
from ..store.checkup import overdue_definitions
from ..store.overview import status
from ..version import __version__
from . import names
from .names import Kind
from .tally import LE, Tally

logger = logging.getLogger(__name__)

MOST_OVERDUE = 1000
FRESH_FOR = 5.0  # seconds for which an answer of the database is good enough, however many scrape
Numbers = Mapping[str, Mapping[tuple[str, ...], float]]  # by sample and the values of its labels


class TallyCollector(Collector):
    """What was counted."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally

    def collect(self) -> Iterator[Metric]:
        """Return every figure that is counted, also those that are still at nothing."""
        found: dict[str, dict[tuple[str, ...], float]] = defaultdict(dict)
        for key, value in self._tally.values().items():
            _, sample, labels, _ = json.loads(key)
            found[sample][_ordered(labels)] = value
        for metric in names.COUNTED:
            yield _histogram(metric, found) if metric.kind is Kind.HISTOGRAM else _counter(metric, found)


def _ordered(labels: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(value for _, value in sorted(labels.items()))


def _counter(metric: names.Metric, found: Numbers) -> Metric:
    family = CounterMetricFamily(metric.name, metric.about, labels=sorted(metric.labels))
    numbers = found.get(f"{metric.name}_total", {})
    for labels, value in sorted(numbers.items()):
        family.add_metric(labels, value)
    if not metric.labels and not numbers:
        family.add_metric((), 0.0)
    return family


def _histogram(metric: names.Metric, found: Numbers) -> Metric:
    family = HistogramMetricFamily(metric.name, metric.about, labels=sorted(metric.labels))
    place = sorted([*metric.labels, LE]).index(LE)
    counts: dict[tuple[str, ...], dict[str, float]] = defaultdict(dict)
    for labels, value in found.get(f"{metric.name}_bucket", {}).items():
        counts[labels[:place] + labels[place + 1 :]][labels[place]] = value
    for labels, own in sorted(counts.items()):
        total, buckets = 0.0, []
        for upper in [*map(repr, metric.buckets), "+Inf"]:
            total += own.get(upper, 0.0)
            buckets.append((upper, total))
        family.add_metric(labels, buckets, sum_value=found.get(f"{metric.name}_sum", {}).get(labels, 0.0))
    return family


class StateCollector(Collector):
    """How things stand, asked of the database at most every few seconds; one that is away is `celery_tm_up 0`."""

    def __init__(self, installation: Installation) -> None:
        self.installation = installation
        self._lock = threading.Lock()
        self._asked_at = -FRESH_FOR
        self._seen: Status | None = None
        self._overdue = 0

    def describe(self) -> Iterable[Metric]:
        """Return the names, without asking anybody."""
        return [_gauge(metric) for metric in names.ASKED]

    def collect(self) -> Iterator[Metric]:
        """Return how things stand."""
        seen = self._look()
        yield _gauge(names.UP, {(): float(seen is not None)})
        if seen is not None:
            for metric, numbers in _figures(seen).items():
                yield _gauge(metric, numbers)
            yield _gauge(names.BROKEN, {(): float(len(self.installation.skipped("tm_definition")))})
            yield _gauge(names.OVERDUE, {(): float(self._overdue)})

    def _look(self) -> Status | None:
        with self._lock:
            if time.monotonic() - self._asked_at >= FRESH_FOR:
                try:
                    self._seen = status(self.installation.database)
                    with self.installation.database.transaction(write=False) as tx:
                        self._overdue = len(overdue_definitions(tx, LATE, limit=MOST_OVERDUE))
                except Exception as error:  # whoever scrapes is told that it is away, and no more
                    logger.debug("how things stand is not known: %s", error)
                    self._seen = None
                self._asked_at = time.monotonic()
            return self._seen


def _gauge(metric: names.Metric, numbers: Mapping[tuple[str, ...], float] | None = None) -> Metric:
    family = GaugeMetricFamily(metric.name, metric.about, labels=metric.labels)
    for labels, value in (numbers or {}).items():
        family.add_metric(labels, value)
    return family


def _figures(seen: Status) -> Mapping[names.Metric, Mapping[tuple[str, ...], float]]:
    kinds = ("beat", "worker")
    live = {kind: sum(node.kind == kind and not node.is_silent for node in seen.nodes) for kind in kinds}
    silent = {kind: sum(node.kind == kind and node.is_silent for node in seen.nodes) for kind in kinds}
    single: dict[names.Metric, float] = {
        names.RUNNING: seen.jobs["running"],
        names.QUEUED: seen.jobs["due"] + seen.jobs["dispatched"],
        names.PAUSED: seen.definitions["paused"],
        names.DUE_LAG: seen.lag,
        names.IN_FLIGHT: seen.in_flight,
        names.EXPIRED_LEASES: seen.expired_leases,
        names.DEAD_LETTERS: seen.dead_letters,
        names.CAPPED: float(bool(seen.capped)),
    }
    if seen.next_run_at is not None:
        single[names.NEXT_RUN] = seen.next_run_at.timestamp()
    labelled: dict[names.Metric, Mapping[tuple[str, ...], float]] = {
        names.INFO: {(__version__, seen.schema or ""): 1.0},
        names.JOBS: {(state,): count for state, count in seen.jobs.items()},
        names.DEFINITIONS: {(standing,): count for standing, count in seen.definitions.items()},
        names.NODES: {(kind,): count for kind, count in live.items()},
        names.SILENT_NODES: {(kind,): count for kind, count in silent.items()},
    }
    return {**{metric: {(): value} for metric, value in single.items()}, **labelled}
