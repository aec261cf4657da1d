"""Says of a series of samples whether it is flat or grows, and by how much in an hour.

The slope is Theil and Sen's, the median of the slopes between all pairs, so that a spike or a restart moves it little.
Growth is believed only if it is more than noise: in the later part of the run most pairs rise, and the rise over that part
is more than what the series is allowed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median

WARM_UP = 0.4  # of a run is left out: caches fill, tables reach what retention lets them keep
RISING = 0.65  # of pairs that differ go up, where something grows; 0.5 in mere noise
MOST = 200  # samples are thinned to so many, for pairs are many
Point = tuple[float, float]  # seconds, value


@dataclass(frozen=True, kw_only=True)
class Series:
    """What was sampled, and how much it may rise over a run without anybody minding."""

    name: str
    unit: str
    points: Sequence[Point]
    share: float = 0.05  # of its usual value
    least: float = 0.0  # whatever its usual value is
    why: str = ""  # what explains it if it grows


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What became of a series."""

    series: Series
    grows: bool
    per_hour: float
    usual: float
    last: float
    rising: float

    @property
    def words(self) -> str:
        """Return the verdict for a table."""
        if not self.grows:
            return "flat"
        return f"grows {self.per_hour:+.3g} {self.series.unit}/h" + (f" ({self.series.why})" if self.series.why else "")


def judge(series: Series) -> Verdict:
    """Return whether a series grows."""
    points = _later(series.points)
    usual = median(value for _, value in points)
    per_second = slope(points)
    pairs = [b - a for (_, a), (_, b) in combinations(points, 2) if a != b]
    rising = sum(each > 0 for each in pairs) / len(pairs) if pairs else 0.5
    rise = per_second * (points[-1][0] - points[0][0])
    grows = rising >= RISING and rise > max(series.least, series.share * abs(usual))
    return Verdict(series=series, grows=grows, per_hour=per_second * 3600, usual=usual, last=points[-1][1], rising=rising)


def slope(points: Sequence[Point]) -> float:
    """Return the median of the slopes between all pairs of points."""
    found = [(b - a) / (t2 - t1) for (t1, a), (t2, b) in combinations(points, 2) if t2 > t1]
    return median(found) if found else 0.0


def _later(points: Sequence[Point]) -> Sequence[Point]:
    begin, end = points[0][0], points[-1][0]
    later = [point for point in points if point[0] >= begin + WARM_UP * (end - begin)]
    return later[:: max(1, -(-len(later) // MOST))]
