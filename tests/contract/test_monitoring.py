"""The dashboard and the alerts ask only for figures and labels that exist."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from celery_tm.metrics.names import METRICS

DOCS = Path(__file__).parents[2] / "docs"
BOARD = json.loads((DOCS / "grafana.json").read_text())
KNOWN = {sample: metric for metric in METRICS for sample in metric.samples}
SELECTED = re.compile(r"(celery_tm_\w+)(?:\{([^}]*)\})?")
GROUPED = re.compile(r"by \(([^)]*)\)")
LABELS = {label for metric in METRICS for label in metric.labels} | {"le"}


def panels(parts: list[Any]) -> Iterator[Any]:
    for one in parts:
        yield one
        yield from panels(one.get("panels", []))


def rules() -> list[Any]:
    text = (DOCS / "howto" / "monitoring.md").read_text()
    found = [yaml.safe_load(block) for block in re.findall(r"^```yaml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)]
    return [rule for page in found for group in page.get("groups", []) for rule in group["rules"]]


ASKED = [(one["title"], target["expr"]) for one in panels(BOARD["panels"]) for target in one.get("targets", [])]
ASKED += [(rule["alert"], rule["expr"]) for rule in rules()]
ASKED += [(one["name"], one["query"]["query"]) for one in BOARD["templating"]["list"] if one["type"] == "query"]


@pytest.mark.parametrize(("what", "expression"), ASKED, ids=[f"{n} {what}" for n, (what, _) in enumerate(ASKED)])
def test_only_figures_and_labels_that_exist_are_asked_for(what: str, expression: str) -> None:
    found = SELECTED.findall(expression)
    assert found
    for sample, selectors in found:
        assert sample in KNOWN, f"{what}: there is no {sample}"
        for label in re.findall(r"(\w+)\s*[=!]", selectors):
            assert label in KNOWN[sample].labels, f"{what}: {sample} has no label {label}"
    for grouped in GROUPED.findall(expression):
        labels = {label.strip() for label in grouped.split(",")} - {"le"}
        assert all(labels <= set(KNOWN[sample].labels) for sample, _ in found), f"{what}: by {grouped}"
    assert expression.count("(") == expression.count(")")


def test_the_dashboard_can_be_imported() -> None:
    ids = [one["id"] for one in panels(BOARD["panels"])]
    assert len(ids) == len(set(ids))
    assert BOARD["id"] is None if "id" in BOARD else BOARD["uid"] == "celery-tm"
    asks = [one for one in panels(BOARD["panels"]) if one["type"] != "row"]
    assert all(one["targets"] and one["datasource"]["uid"] == "${datasource}" for one in asks)


def test_every_panel_says_what_its_legend_names() -> None:
    for one in panels(BOARD["panels"]):
        for target in one.get("targets", []):
            named = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            grouped = {label.strip() for labels in GROUPED.findall(target["expr"]) for label in labels.split(",")}
            assert named <= grouped, one["title"]


def test_there_is_an_alert_for_what_people_must_know() -> None:
    assert {rule["alert"] for rule in rules()} >= {"NoBeat", "DueJobsWait", "DeadLetters", "ManyFail"}
