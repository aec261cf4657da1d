"""The faults: a table of kinds, a schedule of them that a seed repeats, and who carries it out.

Each kind says how often it comes, how long it lasts, and how it begins; beginning returns how it is healed. What a fault
cannot hurt just then, for example a server that is down already, is passed over and not counted.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from faults import record
from faults.fleet import Fleet, Member
from faults.proxy import Proxy, Weather
from faults.sites import paused

EVERY = (0.6, 2.0)  # seconds between the beginnings of two faults


@dataclass
class Place:
    """All that faults can hurt."""

    folder: Path
    fleet: Fleet
    database: Any
    broker: Any
    proxies: dict[str, Proxy] = field(default_factory=dict)


@dataclass
class Begun:
    """A fault that has begun: whom it hurts, and how it is healed, if it does not pass by itself."""

    target: str
    detail: Any = ""
    pids: Sequence[int] = ()
    heal: Callable[[], Any] | None = None


@dataclass(frozen=True)
class Planned:
    """One fault of a schedule."""

    number: int
    at: float
    kind: str
    lasts: float
    seed: int


@dataclass(frozen=True)
class Kind:
    """A kind of fault. Two that hurt the same `part` do not overlap."""

    weight: float
    begin: Callable[[Place, Random], Begun | None]
    lasts: tuple[float, float] = (0, 0)
    part: str = ""
    heavy: bool = False  # takes a server away from all: rarer, and left out of short runs if need be
    needs: Callable[[Place], bool] = lambda _: True


def _member(place: Place, chance: Random, *kinds: str) -> Member | None:
    """Choose a process that has had the time to start."""
    there = [m for m in place.fleet.of(*kinds) if m.is_running and not m.stopped and time.monotonic() - m.started_at > 4]
    return chance.choice(there) if there else None


def _kill(*kinds: str) -> Callable[[Place, Random], Begun | None]:
    def begin(place: Place, chance: Random) -> Begun | None:
        victim = _member(place, chance, *kinds)
        return victim and Begun(victim.name, pids=victim.signal_all(signal.SIGKILL))

    return begin


def _tell(number: int, *kinds: str) -> Callable[[Place, Random], Begun | None]:
    """Tell a process to end, as a deployment does, which kills it if it takes too long."""

    def begin(place: Place, chance: Random) -> Begun | None:
        victim = _member(place, chance, *kinds)
        if victim is None:
            return None
        group, pids = victim.pid, [victim.pid, *victim.children()]
        os.kill(group, number)

        def heal() -> None:
            if victim.pid == group and victim.is_running:
                victim.signal_all(signal.SIGKILL)

        return Begun(victim.name, pids=pids, heal=heal)

    return begin


def _stop(*kinds: str) -> Callable[[Place, Random], Begun | None]:
    def begin(place: Place, chance: Random) -> Begun | None:
        victim = _member(place, chance, *kinds)
        if victim is None:
            return None
        pids, group = victim.signal_all(signal.SIGSTOP), victim.pid
        victim.stopped = True

        def heal() -> None:
            with suppress(ProcessLookupError):
                os.killpg(group, signal.SIGCONT)
            if victim.pid == group:
                victim.stopped = False

        return Begun(victim.name, pids=pids, heal=heal)

    return begin


def _child(place: Place, chance: Random) -> tuple[str, int] | None:
    victim = _member(place, chance, "worker")
    children = victim.children() if victim else []
    return (victim.name, chance.choice(children)) if victim and children else None


def _kill_child(place: Place, chance: Random) -> Begun | None:
    found = _child(place, chance)
    if found is None:
        return None
    with suppress(ProcessLookupError):
        os.kill(found[1], signal.SIGKILL)
    return Begun(found[0], pids=[found[1]])


def _stop_child(place: Place, chance: Random) -> Begun | None:
    found = _child(place, chance)
    if found is None:
        return None
    with suppress(ProcessLookupError):
        return Begun(found[0], pids=[found[1]], heal=paused(found[1]))
    return None


def _shift_clock(place: Place, chance: Random) -> Begun | None:
    there = [member for member in place.fleet.members if member.clock is not None]
    if not there:
        return None
    victim = chance.choice(there)
    by = chance.choice(["+37m", "-2h", "+9s", "-9s", "+1d", "-40s", "+3m"])
    assert victim.clock is not None
    victim.clock.shift(by)
    return Begun(victim.name, detail=by, heal=lambda: victim.clock and victim.clock.shift("+0"))


def _proxy(place: Place, chance: Random, part: str) -> tuple[str, Proxy]:
    """Choose a way to the database, or to the broker."""
    ends = f" to {getattr(place, part).name}"
    name = chance.choice(sorted(name for name in place.proxies if name.endswith(ends)))
    return name, place.proxies[name]


def _weather(part: str, make: Callable[[Random], Weather]) -> Callable[[Place, Random], Begun | None]:
    def begin(place: Place, chance: Random) -> Begun | None:
        (name, proxy), weather = _proxy(place, chance, part), make(chance)
        if proxy.weather != Weather():
            return None
        proxy.change(weather)
        return Begun(name, detail=str(weather), heal=proxy.clear)

    return begin


def _cut(part: str) -> Callable[[Place, Random], Begun | None]:
    def begin(place: Place, chance: Random) -> Begun | None:
        name, proxy = _proxy(place, chance, part)
        return Begun(name, detail=proxy.cut())

    return begin


def _slow(chance: Random) -> Weather:
    return Weather(delay=chance.uniform(0.02, 0.5))


def _swallowing(chance: Random) -> Weather:
    return Weather(swallows=chance.choice(["to", "from", "to from"]), refuses=chance.random() < 0.5)


def _after_commit(chance: Random) -> Weather:
    return Weather(cuts_after=chance.choice([b"COMMIT", b"COMMIT", b""]), cuts=chance.randint(1, 3))


def _crash(part: str) -> Callable[[Place, Random], Begun | None]:
    def begin(place: Place, chance: Random) -> Begun | None:
        server = getattr(place, part)
        return Begun(server.name, heal=server.crash())

    return begin


def _end_sessions(place: Place, chance: Random) -> Begun | None:
    share = chance.choice([0.1, 0.3, 1.0])
    return Begun(place.database.name, detail=place.database.end_sessions(chance, share))


def _lock_rows(place: Place, chance: Random) -> Begun | None:
    return Begun(place.database.name, heal=place.database.lock_rows(chance))


def _fill(place: Place, chance: Random) -> Begun | None:
    return Begun(place.database.name, heal=place.database.fill(chance))


def _lose_messages(place: Place, chance: Random) -> Begun | None:
    place.broker.lose_messages()
    return Begun(place.broker.name)


def _pause_broker(place: Place, chance: Random) -> Begun | None:
    return Begun(place.broker.name, heal=place.broker.pause())


def _has_clocks(place: Place) -> bool:
    return any(member.clock is not None for member in place.fleet.members)


# The lease is 4 seconds: what lasts longer takes work from whoever held it.
KINDS: dict[str, Kind] = {
    "sigkill worker": Kind(7, _kill("worker")),
    "sigkill beat": Kind(7, _kill("beat")),
    "sigkill load": Kind(3, _kill("load")),
    "sigterm worker": Kind(3, _tell(signal.SIGTERM, "worker"), lasts=(12, 12)),
    "sigquit worker": Kind(3, _tell(signal.SIGQUIT, "worker"), lasts=(8, 8)),
    "sigterm beat": Kind(2, _tell(signal.SIGTERM, "beat"), lasts=(8, 8)),
    "sigkill pool process": Kind(13, _kill_child),
    "sigstop worker": Kind(5, _stop("worker"), lasts=(0.5, 8)),
    "sigstop beat": Kind(5, _stop("beat"), lasts=(0.5, 8)),
    "sigstop pool process": Kind(8, _stop_child, lasts=(0.5, 8)),
    "clock shifted": Kind(8, _shift_clock, lasts=(2, 12), part="clock", needs=_has_clocks),
    "database network slow": Kind(4, _weather("database", _slow), lasts=(1, 4)),
    "database network swallows": Kind(4, _weather("database", _swallowing), lasts=(1, 7)),
    "database network cut": Kind(5, _cut("database")),
    "database network cut after commit": Kind(9, _weather("database", _after_commit), lasts=(2, 3)),
    "broker network slow": Kind(2, _weather("broker", _slow), lasts=(1, 4)),
    "broker network swallows": Kind(3, _weather("broker", _swallowing), lasts=(1, 7)),
    "broker network cut": Kind(4, _cut("broker")),
    "database sessions ended": Kind(9, _end_sessions, part="database"),
    "database rows locked": Kind(7, _lock_rows, lasts=(1, 5), part="database"),
    "database full": Kind(3, _fill, lasts=(1, 3), part="database"),
    "database crashed": Kind(2.5, _crash("database"), lasts=(0.2, 2), part="database", heavy=True),
    "broker lost messages": Kind(4, _lose_messages, part="broker"),
    "broker paused": Kind(4, _pause_broker, lasts=(0.5, 3), part="broker"),
    "broker crashed": Kind(1.5, _crash("broker"), lasts=(0.2, 2), part="broker", heavy=True),
}


def schedule(seed: int, seconds: float, kinds: Sequence[str], every: tuple[float, float] = EVERY) -> list[Planned]:
    """Return the faults of a run: the same for the same seed. Each kind comes once before chance alone decides."""
    chance, planned, at = Random(seed), [], 0.0
    first = list(kinds)
    chance.shuffle(first)
    while True:
        at += chance.uniform(*every)
        if at > seconds:
            return planned
        name = first.pop() if first else chance.choices(kinds, weights=[KINDS[kind].weight for kind in kinds])[0]
        lasts = chance.uniform(*KINDS[name].lasts)
        planned.append(Planned(len(planned) + 1, round(at, 3), name, round(lasts, 3), chance.randrange(2**32)))


class Injector:
    """Carries a schedule out: each fault in a thread of its own, which begins it, waits, and heals it."""

    def __init__(self, place: Place, planned: Sequence[Planned]) -> None:
        self.place, self.planned = place, list(planned)
        self.counts: Counter[str] = Counter()
        self.passed_over: Counter[str] = Counter()
        self.troubles: list[str] = []
        self._over = threading.Event()
        self._parts = {part: threading.Lock() for part in {kind.part for kind in KINDS.values()} if part}
        self._threads: list[threading.Thread] = []
        self._walk = threading.Thread(target=self._begin_all, name="faults", daemon=True)

    def start(self) -> None:
        """Begin with the first."""
        self._walk.start()

    def _begin_all(self) -> None:
        begun = time.monotonic()
        for fault in self.planned:
            if self._over.wait(max(begun + fault.at - time.monotonic(), 0)):
                return
            thread = threading.Thread(target=self._live, args=(fault,), name=f"fault-{fault.number}", daemon=True)
            self._threads = [one for one in self._threads if one.is_alive()] + [thread]
            thread.start()

    def _live(self, fault: Planned) -> None:
        kind = KINDS[fault.kind]
        part = self._parts.get(kind.part)
        if part is not None and not part.acquire(blocking=False):
            self.passed_over[fault.kind] += 1
            return
        try:
            self._hurt(fault, kind)
        finally:
            if part is not None:
                part.release()

    def _hurt(self, fault: Planned, kind: Kind) -> None:
        before = time.monotonic_ns()
        try:
            begun = kind.begin(self.place, Random(fault.seed))
        except Exception as error:  # a server that another fault has made deaf: then there is nothing to hurt
            self.troubles.append(f"{fault.kind}: {error!r}")
            begun = None
        if begun is None:
            self.passed_over[fault.kind] += 1
            return
        told = {"fault": fault.number, "kind": fault.kind, "target": begun.target, "pids": list(begun.pids)}
        told |= {"detail": str(begun.detail)}
        record.write(self.place.folder, record.FAULTS, {"at": before, "what": "fault"} | told)
        self.counts[fault.kind] += 1
        if begun.heal is not None:
            self._over.wait(fault.lasts)
            self._heal(fault, begun.heal)
        record.write(self.place.folder, record.FAULTS, {"what": "healed"} | told)

    def _heal(self, fault: Planned, heal: Callable[[], Any]) -> None:
        for _ in range(3):
            try:
                heal()
                return
            except Exception as error:
                self.troubles.append(f"healing {fault.kind}: {error!r}")
                time.sleep(0.5)

    def stop(self) -> None:
        """Begin no more, and heal all that are there."""
        self._over.set()
        if self._walk.is_alive():
            self._walk.join(10)
        for thread in self._threads:
            thread.join(120)
