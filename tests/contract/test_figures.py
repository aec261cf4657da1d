"""Figures in prose are those of the last benchmark: each is looked up in benchmarks/results.json."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
RESULTS = json.loads((ROOT / "benchmarks" / "results.json").read_text())
FIGURES: list[dict[str, Any]] = [figure for one in RESULTS["benchmarks"].values() for figure in one["figures"]]
RATIO = re.compile(r"^\| (.+?) \| ([\d.]+) × (.+?) \|$", re.MULTILINE)
VALUE = re.compile(r"^\| (.+?) \| ([\d.]+) (ms) \|$", re.MULTILINE)
RATE = re.compile(r"^\| .+? \| ([\d,]+) \| (.+?) \|$", re.MULTILINE)
README = (ROOT / "README.md").read_text().split("## Measured")[1]
SIZING = (ROOT / "docs" / "howto" / "sizing.md").read_text().split("## Workers")[0]


def figure(what: str, **known: str) -> dict[str, Any]:
    """Return the first figure of this name with these values."""
    found = [one for one in FIGURES if one["what"] == what and all(one[name] == value for name, value in known.items())]
    assert found, f"no figure {what!r} {known} in benchmarks/results.json"
    return found[0]


@pytest.mark.parametrize(("what", "stated", "against"), RATIO.findall(README))
def test_each_ratio_of_the_readme_was_measured(what: str, stated: str, against: str) -> None:
    assert float(stated) == pytest.approx(figure(what, against=against)["ratio"], rel=0.02)


@pytest.mark.parametrize(("what", "stated", "unit"), VALUE.findall(README))
def test_each_time_of_the_readme_was_measured(what: str, stated: str, unit: str) -> None:
    assert float(stated) == pytest.approx(figure(what, unit=unit)["value"], rel=0.02)


@pytest.mark.parametrize(("stated", "what"), RATE.findall(SIZING))
def test_each_rate_of_the_sizing_page_was_measured(stated: str, what: str) -> None:
    assert float(stated.replace(",", "")) == pytest.approx(1_000_000 / figure(what, unit="µs each")["value"], rel=0.02)


def test_there_are_figures_to_compare() -> None:
    assert (len(RATIO.findall(README)), len(VALUE.findall(README)), len(RATE.findall(SIZING))) == (6, 2, 10)
