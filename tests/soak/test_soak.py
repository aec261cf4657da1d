"""The verdict of a soak finds a planted leak and does not take noise for one; a short soak of real processes."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from soak.plot import draw
from soak.run import Plan, series_of, soak, table_of
from soak.verdict import Point, Series, judge, slope

HOUR = 3600.0


def sampled(value: float, *, per_hour: float = 0.0, noise: float = 0.0, hours: float = 1.0, seed: int = 1) -> list[Point]:
    """Return a hundred and twenty samples of something that grows so much, and is noisy."""
    chance = random.Random(seed)
    step = hours * HOUR / 120
    return [(n * step, value + per_hour * n * step / HOUR + chance.gauss(0, noise)) for n in range(120)]


def memory(points: list[Point]) -> Series:
    return Series(name="worker: memory", unit="MB", points=points, share=0.05, least=3.0)


@pytest.mark.parametrize("seed", range(20))
def test_a_leak_in_noise_is_found_and_told_by_the_hour(seed: int) -> None:
    verdict = judge(memory(sampled(100, per_hour=20, noise=3, seed=seed)))
    assert verdict.grows
    assert verdict.per_hour == pytest.approx(20, rel=0.5)
    assert verdict.words.startswith("grows +")


@pytest.mark.parametrize("seed", range(20))
def test_noise_is_no_leak(seed: int) -> None:
    assert not judge(memory(sampled(100, noise=15, seed=seed))).grows


def test_what_levels_off_is_no_leak_and_what_begins_late_is_one() -> None:
    level = [(at, min(value, 140.0)) for at, value in sampled(100, per_hour=200)]
    late = [(at, 100.0 + max(0.0, at - 0.5 * HOUR) / HOUR * 60) for at, _ in sampled(100)]
    assert not judge(memory(level)).grows
    assert judge(memory(late)).grows


def test_spikes_and_restarts_move_the_slope_little() -> None:
    points = [(at, value * (5 if n % 25 == 0 else 0.7 if n % 40 == 1 else 1)) for n, (at, value) in enumerate(sampled(100))]
    assert not judge(memory(points)).grows
    assert abs(slope(points)) * HOUR < 1


def test_a_slow_leak_of_handles_shows_in_hours() -> None:
    points = [(at, float(int(value))) for at, value in sampled(50, per_hour=4, hours=4)]
    assert judge(Series(name="worker: handles", unit="", points=points, share=0.05, least=2.0)).grows
    assert not judge(memory([(at, 50.0) for at, _ in points])).grows


def test_the_table_and_the_plot_name_what_grows_first() -> None:
    samples = [(at, {"beat: memory": 80.0, "worker: handles": value}) for at, value in sampled(10, per_hour=100)]
    verdicts = [judge(series) for series in series_of(samples)]
    assert "worker: handles" in table_of(verdicts).splitlines()[1]
    assert draw(verdicts, title="a <soak>").count("<polyline") == 2
    assert "a &lt;soak&gt;" in draw(verdicts, title="a <soak>")


def test_a_few_seconds_on_files_are_sampled_judged_and_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    said: list[str] = []
    plan = Plan(minutes=4 / 60, every=0.5, kill_every=2, pair="sqlite+files")
    names = {verdict.series.name for verdict in soak(plan, tmp_path, tell=said.append)}
    for process in ("beat", "second beat", "worker", "killed worker", "caller"):
        assert {f"{process}: memory", f"{process}: handles", f"{process}: threads"} <= names
    assert "succeeded" in next(line for line in said if line.startswith("asked for"))
    assert len((tmp_path / "samples.csv").read_text().splitlines()) > 5
    assert (tmp_path / "verdict.txt").read_text().count("\n") > len(names)
    assert (tmp_path / "plot.svg").read_text().count("<polyline") == len(names)


@pytest.mark.thorough
@pytest.mark.timeout(300)
def test_a_minute_of_everything_leaves_no_process_dead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    verdicts = {verdict.series.name: verdict for verdict in soak(Plan(minutes=1, every=3, kill_every=25), tmp_path)}
    assert {"beat: memory", "worker: handles", "tm_job: rows", "broker: keys", "database: connections"} <= set(verdicts)
    assert not verdicts["tm_job: rows"].grows
    assert not verdicts["beat: threads"].grows
    assert not verdicts["database: connections"].grows
    assert (tmp_path / "plot.svg").read_text().startswith("<svg")
    assert len((tmp_path / "samples.csv").read_text().splitlines()) > 15
