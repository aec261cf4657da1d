"""How much memory a beat holds: as much with a million rows as with a thousand, and no more after many ticks."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from celery_tm import Scheduler

from .figures import Figure
from .harness import Watch, in_child, interleave, memory
from .services import own_app

MEMORY_BROKER = {"broker_url": "memory://"}
FIRST_TICKS = 20  # they seed, compile statements and check the tz database
MORE_TICKS = 200
FLAT = 0.9  # the small one's memory as a share of the large one's
MOST = 150  # MB


def figures(urls: Mapping[str, str], sizes: Mapping[str, int], of_what: str, *, rounds: int) -> list[Figure]:
    """Return the memory of beats on these databases; the first is the small one, the last the large one."""
    small, *_, large = urls
    watch = interleave([partial(_hold, name, url) for name, url in urls.items()], rounds=rounds, seconds=90)
    what = f"beat's memory, {sizes[large]:,} {of_what}"
    mb: dict[str, Any] = {"unit": "MB", "scale": 1}
    return [
        watch.figure(what, large, at_most=MOST, **mb),
        watch.figure(what, large, against=small, told=f"{sizes[small]:,} {of_what}", at_least=FLAT, **mb),
        watch.figure(f"  its growth over {MORE_TICKS} ticks", f"{large} growth", **mb),
    ]


def _hold(name: str, url: str, watch: Watch) -> None:
    before, after = in_child(held_by_beat, url)
    watch.note(name, after)
    watch.note(f"{name} growth", after - before)


def held_by_beat(url: str) -> tuple[float, float]:
    """Return the MB a beat holds after its first ticks, and after many more."""
    with own_app(MEMORY_BROKER, url) as app:
        beat = Scheduler(app)
        for _ in range(FIRST_TICKS):
            beat.work()
        before = memory()
        for _ in range(MORE_TICKS):
            beat.work()
        return before, memory()
