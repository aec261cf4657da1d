"""A short part of the storm: the cases of one stage, on real workers of every pool. `make storm` is the whole."""

from __future__ import annotations

from pathlib import Path

import pytest
from tmtest import services

from storm import plan
from storm.run import SEED, go

pytestmark = [pytest.mark.alone, pytest.mark.timeout(240)]
STAGE = "postgresql redis quiet"


def test_every_answer_is_right_whatever_is_combined(tmp_path: Path) -> None:
    for name in ("postgresql", "redis"):
        if not services.find(name):
            pytest.skip(services.why_missing(name))
    cases = [case for case in plan.make(SEED) if case.stage == STAGE]
    assert len({case.pool for case in cases}) == 4
    said: list[str] = []
    report = go(cases, tmp_path, say=said.append, settles=60)
    assert report.is_good, "\n".join(report.lines())
