"""The page about metrics: every figure with its labels, from `celery_tm.metrics.names`."""

from __future__ import annotations

from collections.abc import Mapping

from celery_tm.domain.definition import Standing
from celery_tm.domain.execution import Outcome
from celery_tm.metrics.names import ASKED, COUNTED, EXECUTION_SECONDS, METRICS, PREFIX, Kind, Metric
from celery_tm.worker.decision import Refusal

from .markdown import code, page, table

WORDS_OF_LABELS: Mapping[str, str] = {
    "definition": "its name; empty for what was deferred or called directly",
    "task": "the task's name",
    "step": "the step's name; empty where the job is no step",
    "outcome": ", ".join(Outcome),
    "state": "of a job or an occurrence, as in [States](../explanation/states.md)",
    "standing": ", ".join(Standing),
    "reason": ", ".join(Refusal),
    "kind": "beat, worker; of what was swept: redispatched, orphaned, stale",
    "what": "database, broker",
    "table": "the table of the row",
    "queue": "the queue's name",
    "recovery": "all, last, bounded, compressed: the run was missed and is made up for; none: it is on time",
    "version": "the release",
    "schema": "the revision of the tables",
}


def metrics_page() -> str:
    """Return the page about metrics."""
    labels = dict.fromkeys(label for metric in METRICS for label in metric.labels)
    return page(
        "Metrics",
        "For Prometheus, where `tm_metrics_port` is stated; [Monitoring](../howto/monitoring.md) tells how to use them. "
        f"Every name begins with `{PREFIX}`. No label is an argument, a key or an entity.",
        "## Counted where it happens",
        "By beat and by each worker, its pool processes together; add them up over all of them. They begin at 0 when the "
        "process does. What is done elsewhere, say a `cancel` in a web process, is counted by nobody.",
        table(("name", "labels", "meaning"), [_metric(metric) for metric in COUNTED]),
        "## How things stand",
        "Asked of the database by each beat, and by Flower with our pages, at most every five seconds. All of them tell the "
        "same, so take the `max`, not the sum. While the database is away there is only `up`. Counts end at 10,000; "
        "`capped` tells that one did.",
        table(("name", "labels", "meaning"), [_metric(metric) for metric in ASKED]),
        "## Labels",
        table(("label", "values"), [(code(label), WORDS_OF_LABELS[label]) for label in labels]),
        "How many series there are follows from your definitions and tasks: `execution_seconds` has "
        f"{len(EXECUTION_SECONDS.buckets) + 3} for each definition, task and step that has run in the process, the others "
        "fewer. With many thousands of definitions, drop the label where you scrape.",
    )


def _metric(metric: Metric) -> tuple[str, str, str]:
    name = metric.samples[0] if metric.kind is not Kind.HISTOGRAM else metric.name
    kind = "" if metric.kind is not Kind.HISTOGRAM else " (histogram, in seconds)"
    return code(name), ", ".join(map(code, metric.labels)) or "–", metric.about + kind
