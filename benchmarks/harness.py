"""Measures variants by turns and compares their medians.

Machines are noisy, so nothing is promised in seconds: variants run interleaved in one run, the one that begins changes
with each round, and what counts is the ratio of their medians. Beside it stand the middle half of the ratios of the single
rounds, which tells how far to trust it, and the ratio of the processor time this process used, which hardly feels what else
the machine does. What a ratio shows is up to the benchmarks.
"""

from __future__ import annotations

import gc
import multiprocessing
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from .figures import Figure

Say = Callable[[str], None]
Variant = Callable[["Watch"], None]
ENOUGH_FOR_QUARTILES = 4
ENOUGH_FOR_P99 = 100


@dataclass
class Watch:
    """Collects the seconds of laps by name, and the processor's share of them."""

    laps: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    cpu: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    running: bool = True  # False while warming up: laps are run, not kept

    @contextmanager
    def lap(self, name: str, *, units: int = 1) -> Iterator[None]:
        """Time the block, as seconds per unit of what it does."""
        started, used = time.perf_counter(), time.process_time()
        yield
        self.note(name, (time.perf_counter() - started) / units, cpu=(time.process_time() - used) / units)

    def note(self, name: str, value: float, *, cpu: float | None = None) -> None:
        """Keep a value that was measured otherwise."""
        if self.running:
            self.laps[name].append(value)
        if self.running and cpu is not None:
            self.cpu[name].append(cpu)

    def note_sum(self, name: str, *parts: str) -> None:
        """Keep the sum of the last laps of these names."""
        if self.running:
            self.note(name, sum(self.laps[part][-1] for part in parts), cpu=sum(self.cpu[part][-1] for part in parts))

    def figure(
        self,
        what: str,
        lap: str,
        *,
        against: str | None = None,
        told: str | None = None,
        unit: str = "ms",
        scale: float = 1e3,
        at_least: float | None = None,
        at_most: float | None = None,
    ) -> Figure:
        """Return a lap's median and how many times as fast as another lap it is; `told` is how the table calls that one."""
        values, others = self.laps[lap], self.laps.get(against or "")
        low, high = _middle_half(values, others)
        return Figure(
            what=what,
            value=median(values) * scale,
            unit=unit,
            samples=len(values),
            p99=percentile(values, 99) * scale if len(values) >= ENOUGH_FOR_P99 else None,
            ratio=_ratio(values, others),
            low=low,
            high=high,
            cpu_ratio=_ratio(self.cpu.get(lap), self.cpu.get(against or "")),
            against=told or against,
            at_least=at_least,
            at_most=at_most,
        )


def _ratio(ours: Sequence[float] | None, theirs: Sequence[float] | None) -> float | None:
    """Return how many times as fast ours is: the less it takes, the larger."""
    return median(theirs) / median(ours) if ours and theirs and median(ours) else None


def _middle_half(ours: Sequence[float], theirs: Sequence[float] | None) -> tuple[float | None, float | None]:
    """Return the quartiles of the ratios of single rounds, where both ran in each."""
    if not theirs or len(ours) != len(theirs) or len(ours) < ENOUGH_FOR_QUARTILES:
        return None, None
    ratios = [their / our for our, their in zip(ours, theirs, strict=True) if our]
    return percentile(ratios, 25), percentile(ratios, 75)


def percentile(values: Sequence[float], share: int) -> float:
    """Return the value that `share` of a hundred do not exceed, never beyond what was measured."""
    return quantiles(values, n=100, method="inclusive")[share - 1]


def interleave(variants: Sequence[Variant], *, rounds: int, seconds: float, warm_up: int = 0) -> Watch:
    """Run the variants by turns for `rounds` rounds, or until `seconds` have passed and each has run once."""
    watch = Watch()
    until = time.monotonic() + seconds
    for turn in range(-warm_up, rounds):
        watch.running = turn >= 0
        if turn == 0:
            gc.collect()
        first = turn % len(variants)
        for variant in (*variants[first:], *variants[:first]):
            variant(watch)
        if turn >= 0 and time.monotonic() >= until:
            break
    return watch


def in_child(work: Callable[..., Any], *arguments: Any, seconds: float = 300) -> Any:
    """Return what `work` returns in a fresh process, whose memory is its own; the process never outlives this call."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=_answer, args=(theirs, work, arguments), daemon=True)
    child.start()
    theirs.close()
    try:
        if not ours.poll(seconds):
            raise TimeoutError(f"{work.__qualname__} took longer than {seconds} s")
        answer = ours.recv()
    finally:
        child.kill()  # it has answered, or will not
        child.join()
        ours.close()
    if isinstance(answer, str):
        raise RuntimeError(answer)
    return answer


def _answer(pipe: Any, work: Callable[..., Any], arguments: Sequence[Any]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent as well, which ends us
    try:
        pipe.send(work(*arguments))
    except Exception as error:
        pipe.send(f"{work.__qualname__} failed: {type(error).__name__}: {error}")


def memory(pid: int | str = "self", *, peak: bool = False) -> float:
    """Return how many MB a process holds, or has held at most. Linux only."""
    wanted = "VmHWM:" if peak else "VmRSS:"
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(wanted)) / 1024
