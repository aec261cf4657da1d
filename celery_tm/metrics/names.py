"""Every figure there is: its name, what it tells, and its labels. docs/reference/metrics.md is made from it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

PREFIX = "celery_tm_"
# Seconds. Bodies take from milliseconds to hours, statements and publishing far less.
BODY = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 1800.0, 7200.0)
WAIT = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0, 300.0, 3600.0)
SHORT = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)


class Kind(StrEnum):
    """How a figure behaves."""

    COUNTER = "counter"
    HISTOGRAM = "histogram"
    GAUGE = "gauge"


@dataclass(frozen=True, slots=True)
class Metric:
    """One figure. A counter's name ends in `_total` where it is read, as Prometheus has it."""

    short: str
    kind: Kind
    about: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()

    @property
    def name(self) -> str:
        """Return the name, without what its samples add to it."""
        return PREFIX + self.short

    @property
    def samples(self) -> tuple[str, ...]:
        """Return the names under which it is read."""
        if self.kind is Kind.COUNTER:
            return (f"{self.name}_total",)
        if self.kind is Kind.HISTOGRAM:
            return tuple(f"{self.name}_{part}" for part in ("bucket", "count", "sum"))
        return (self.name,)


def _counter(short: str, about: str, *labels: str) -> Metric:
    return Metric(short, Kind.COUNTER, about, labels)


def _histogram(short: str, about: str, *labels: str, buckets: tuple[float, ...]) -> Metric:
    return Metric(short, Kind.HISTOGRAM, about, labels, buckets)


def _gauge(short: str, about: str, *labels: str) -> Metric:
    return Metric(short, Kind.GAUGE, about, labels)


# Counted by the process in which it happens: bodies in workers; sweeps, runs' starts and decisions in beat.
EXECUTIONS = _counter("executions", "Attempts that have ended, each a row of tm_execution", "definition", "task", "outcome")
EXECUTION_SECONDS = _histogram(
    "execution_seconds", "How long bodies took", "definition", "task", "step", buckets=BODY
)  # fmt: skip
ATTEMPTS = _counter("attempts", "Attempts that the gate has let in", "definition", "task")
START_DELAY = _histogram(
    "start_delay_seconds", "From when an attempt was due until the gate let it in", "definition", "task", buckets=WAIT
)  # fmt: skip
OCCURRENCES = _counter("occurrences", "Instants of definitions by how they ended", "definition", "state")
RECOVERY_RUNS = _counter("recovery_runs", "Runs of missed instants by how they ended", "definition", "state")
PLANNED_RUNS = _counter(
    "planned_runs", "Runs of definitions that beat has planned, by the recovery policy of those missed", "recovery"
)  # fmt: skip
RUNS = _counter("runs", "Runs of workflows by how they ended", "definition", "state")
RUN_SECONDS = _histogram("run_seconds", "How long runs of workflows took", "definition", buckets=BODY)
DEFERRED = _counter("deferred", "Jobs created by hand in this process", "task")
BURIED = _counter("buried", "Jobs that have become dead letters", "definition", "task")
REVIVED = _counter("revived", "Dead letters that were given another chance in this process")
PURGED = _counter("purged", "Dead letters that were deleted in this process")
REFUSALS = _counter("gate_refusals", "Deliveries that the gate did not let in", "reason")
LEASE_LOSSES = _counter("lease_losses", "Attempts whose worker found that they were no longer its own", "task")
DISPATCHED = _counter("dispatched", "Jobs that beat handed to the broker")
PUBLISH_REFUSED = _counter("publish_refused", "Jobs that the broker did not take; they wait again")
CLAIM_SECONDS = _histogram("claim_seconds", "How long it took to claim a batch of due jobs", buckets=SHORT)
PUBLISH_SECONDS = _histogram("publish_seconds", "How long it took to publish a batch", buckets=SHORT)
TICK_SECONDS = _histogram("tick_seconds", "How long a round of beat took; its count is the number of rounds", buckets=SHORT)
PLANNED = _counter("planned", "Definitions whose due instants beat has decided, each time anew")
SWEPT = _counter("swept", "Jobs put back because their lease had ended: redispatched, orphaned or stale", "kind")
OUTAGES = _counter("outages", "Times that the database or the broker did not answer", "what")
QUEUES_BLOCKED = _counter(
    "queues_blocked", "Reports that a queue cannot be used, at most one a minute for the same error; its jobs wait", "queue"
)  # fmt: skip
SET_ASIDE = _counter("rows_set_aside", "Rows that could not be read or handled, each time one was set aside", "table")
COUNTED = (
    EXECUTIONS, EXECUTION_SECONDS, ATTEMPTS, START_DELAY, OCCURRENCES, RECOVERY_RUNS, PLANNED_RUNS, RUNS, RUN_SECONDS,
    DEFERRED, BURIED, REVIVED, PURGED, REFUSALS, LEASE_LOSSES, DISPATCHED, PUBLISH_REFUSED, CLAIM_SECONDS, PUBLISH_SECONDS,
    TICK_SECONDS, PLANNED, SWEPT, OUTAGES, QUEUES_BLOCKED, SET_ASIDE,
)  # fmt: skip

# Asked of the database by beat and Flower, at most every few seconds. All but `up` are absent while it is away.
UP = _gauge("up", "1 if the database answers, else 0")
INFO = _gauge("info", "Always 1; the labels tell the release and the revision of the tables", "version", "schema")
JOBS = _gauge("jobs", "Jobs that are owed; pending ones that are due, or wait for a turn, are counted there too", "state")
RUNNING = _gauge("running", "Jobs whose body runs")
QUEUED = _gauge("queued", "Jobs that are due or dispatched and do not run yet")
PAUSED = _gauge("paused", "Definitions that are paused")
DEFINITIONS = _gauge("definitions", "Definitions by where they stand", "standing")
DUE_LAG = _gauge("due_lag_seconds", "How long the oldest due job has waited for a beat to claim it")
IN_FLIGHT = _gauge("in_flight", "Jobs that are dispatched or running")
EXPIRED_LEASES = _gauge("expired_leases", "Jobs whose lease has ended and that no beat has put back yet")
DEAD_LETTERS = _gauge("dead_letters", "Dead letters")
NODES = _gauge("nodes", "Beats and workers that were seen lately", "kind")
SILENT_NODES = _gauge("silent_nodes", "Beats and workers that went without signing off", "kind")
NEXT_RUN = _gauge("next_run_timestamp_seconds", "When the next definition fires, as Unix time")
BROKEN = _gauge("definitions_broken", "Definitions that this process could not read or plan lately")
OVERDUE = _gauge("definitions_overdue", "Definitions whose time came over a minute ago and is not decided, up to 1000")
CAPPED = _gauge("capped", "1 if a count has reached its cap and there may be more, else 0")
ASKED = (
    UP, INFO, JOBS, RUNNING, QUEUED, PAUSED, DEFINITIONS, DUE_LAG, IN_FLIGHT, EXPIRED_LEASES, DEAD_LETTERS, NODES,
    SILENT_NODES, NEXT_RUN, BROKEN, OVERDUE, CAPPED,
)  # fmt: skip
METRICS = (*COUNTED, *ASKED)
