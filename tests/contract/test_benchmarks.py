"""The benchmarks compare as they say, and what is published of them is what was measured. Nothing is timed here."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from benchmarks import __main__ as benchmarks
from benchmarks import plot, report
from benchmarks.figures import Figure, Size, as_data, from_data, missed
from benchmarks.harness import Watch, interleave

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "benchmarks"
RATIO = Figure(what="defer", value=2.0, unit="ms", ratio=1.5, against="a peer", at_least=1.0)
LIMIT = Figure(what="tick", value=6.0, unit="ms", at_most=5.0)
RESULTS = {"one": [RATIO], "two": [LIMIT, Figure(what="alone", value=3.0, unit="s")]}


@pytest.fixture
def watch() -> Watch:
    laps = Watch()
    for ours, theirs in ((1.0, 2.0), (2.0, 8.0), (3.0, 6.0), (2.0, 4.0)):
        laps.note("ours", ours)
        laps.note("theirs", theirs)
    return laps


def test_a_ratio_is_how_many_times_as_fast_the_first_is(watch: Watch) -> None:
    figure = watch.figure("it", "ours", against="theirs")

    assert figure.ratio == pytest.approx(5.0 / 2.0)
    assert watch.figure("it", "theirs", against="ours").ratio == pytest.approx(2.0 / 5.0)
    assert (figure.low, figure.high) == pytest.approx((2.0, 2.5))


def test_a_figure_with_nothing_beside_it_has_no_ratio(watch: Watch) -> None:
    assert watch.figure("it", "ours").ratio is None
    assert watch.figure("it", "ours", against="nobody").ratio is None


@pytest.mark.parametrize(("ratio", "reached"), [(0.79, False), (0.8, True), (3.0, True)])
def test_a_ratio_is_to_be_at_least_what_is_wanted(ratio: float, reached: bool) -> None:
    figure = replace(RATIO, ratio=ratio, at_least=0.8)

    assert (figure.reached, figure.wanted) == (reached, "≥ 0.8 ×")


@pytest.mark.parametrize(("value", "reached"), [(5.1, False), (5.0, True), (0.0, True)])
def test_a_value_is_to_be_at_most_what_is_wanted(value: float, reached: bool) -> None:
    figure = replace(LIMIT, value=value)

    assert (figure.reached, figure.wanted) == (reached, "≤ 5 ms")


def test_a_target_without_a_ratio_is_refused() -> None:
    with pytest.raises(ValueError, match="one thing is wanted"):
        Figure(what="it", value=1.0, unit="ms", at_least=1.0)


def test_the_one_that_begins_changes_with_each_round_and_warming_up_is_not_kept() -> None:
    order: list[str] = []

    def variant(name: str) -> Any:
        def run(watch: Watch) -> None:
            order.append(name)
            watch.note(name, float(len(order)))

        return run

    watch = interleave([variant("a"), variant("b")], rounds=2, seconds=60, warm_up=1)

    assert order == ["b", "a", "a", "b", "b", "a"]
    assert dict(watch.laps) == {"a": [3.0, 6.0], "b": [4.0, 5.0]}


def test_the_table_shows_ratio_target_and_whether_it_is_reached() -> None:
    console = Console(width=150, file=StringIO())
    console.print(report.table_of(RESULTS))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    lines = {line.split("│")[1].strip(): line for line in shown.splitlines() if "│" in line}

    assert re.search(r"1\.5 .*≥ 1 × │ ✓ │ a peer", lines["defer"])
    assert re.search(r"6 ms .*≤ 5 ms │ ✗", lines["tick"])
    assert "✓" not in lines["alone"]
    assert "✗" not in lines["alone"]


def test_figures_survive_json_and_results_of_other_benchmarks_stay(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    report.write_json(path, RESULTS, size=Size.FULL)
    report.write_json(path, {"two": [RATIO]}, size=Size.QUICK)

    data = json.loads(path.read_text())
    assert report.from_json(data) == {"one": [RATIO], "two": [RATIO]}
    assert {name: part["size"] for name, part in data["benchmarks"].items()} == {"one": "full", "two": "quick"}
    assert from_data(json.loads(json.dumps(as_data(LIMIT)))) == LIMIT


class Fake:
    """A benchmark that misses one of its targets."""

    def run(self, *, size: Size, say: Any) -> list[Figure]:
        assert size is Size.QUICK
        say("measuring")
        return [RATIO, LIMIT]


@pytest.mark.parametrize(("more", "code"), [([], 0), (["--strict"], 1)])
def test_a_missed_target_is_an_error_only_if_asked_for(monkeypatch: pytest.MonkeyPatch, more: list[str], code: int) -> None:
    monkeypatch.setattr(benchmarks, "_module", lambda _: Fake())
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr("sys.argv", ["benchmarks", "defer", "--quick", *more])

    assert benchmarks.main() == code
    assert missed(RESULTS) == [LIMIT]


def test_every_benchmark_is_listed_explained_and_asked_for_by_name() -> None:
    has_run = {path.stem for path in FOLDER.glob("*.py") if re.search(r"^def run\(", path.read_text(), re.MULTILINE)}
    parts = {name for name in has_run if "_" in name}  # tick_due is a part of tick
    readme = (FOLDER / "README.md").read_text()

    assert has_run - parts == set(benchmarks.BENCHMARKS)
    assert {part.split("_")[0] for part in parts} <= set(benchmarks.BENCHMARKS)
    assert [name for name in benchmarks.BENCHMARKS if f"| `{name}` |" not in readme] == []
    for name in has_run:
        assert (FOLDER / f"{name}.py").read_text().startswith('"""'), name


def test_no_result_is_written_into_the_code() -> None:
    """What a benchmark reports comes from a watch or a process; the only numbers given are targets."""
    literal = re.compile(r"\b(ratio|value|low|high|p99|cpu_ratio)=-?[\d.]+\b")

    assert [path.name for path in FOLDER.glob("*.py") if literal.search(path.read_text())] == []


# What is published


@pytest.fixture(scope="module")
def published() -> dict[str, Any]:
    if not plot.RESULTS.exists():
        pytest.skip("nothing is published yet; make bench")
    return json.loads(plot.RESULTS.read_text())


def test_all_benchmarks_are_published_in_full_size(published: dict[str, Any]) -> None:
    assert {name: part["size"] for name, part in published["benchmarks"].items()} == dict.fromkeys(
        benchmarks.BENCHMARKS, "full"
    )


def test_the_page_says_what_was_measured(published: dict[str, Any]) -> None:
    page = plot.PAGE.read_text()

    assert plot.with_tables(page, published) == page, "run python -m benchmarks.plot"


def test_the_plot_shows_what_was_measured(published: dict[str, Any]) -> None:
    assert f"drawn from {plot.digest_of(published)}" in plot.PLOT.read_text(), "run python -m benchmarks.plot"


def test_the_same_results_draw_the_same_plot(published: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs the extra bench")
    for name in ("a.svg", "b.svg"):
        plot.draw(published, tmp_path / name)

    drawn = (tmp_path / "a.svg").read_text()
    assert drawn == (tmp_path / "b.svg").read_text()
    for figure in plot.wanted_of(published):
        assert figure.what.split(" → ")[0].strip()[:20] in drawn
