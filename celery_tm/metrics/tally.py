"""Numbers that only grow, by figure and labels: in memory, and for pools of processes in files that outlive them.

A file is what prometheus_client's multiprocess mode writes, so in a folder that is stated by `PROMETHEUS_MULTIPROC_DIR` an
exporter of the user's own finds ours too. Values are written through to a shared mapping: a process that is killed loses
none. The main process adds up what its children counted, and takes over what the dead ones left.
"""

from __future__ import annotations

import os
import threading
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any
from weakref import WeakSet

from .names import Kind, Metric

LE = "le"


class Tally:
    """What one process has counted. Keys are those of prometheus_client's files: figure, sample, labels."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._values: dict[str, float] = {}
        self._lock = threading.Lock()
        _tallies.add(self)

    def count(self, metric: Metric, *labels: str, by: float = 1.0) -> None:
        """Add to a counter."""
        self.add(key_of(metric, f"{metric.name}_total", labels), by)

    def observe(self, metric: Metric, *labels: str, seconds: float) -> None:
        """Add a duration to a histogram."""
        place = bisect_left(metric.buckets, seconds)
        upper = repr(metric.buckets[place]) if place < len(metric.buckets) else "+Inf"
        self.add(key_of(metric, f"{metric.name}_bucket", labels, upper), 1.0)
        self.add(key_of(metric, f"{metric.name}_sum", labels), seconds)

    def add(self, key: str, by: float) -> None:
        """Add to one number."""
        with self._lock:
            self._values[key] = value = self._values.get(key, 0.0) + by
            self._keep(key, value)

    def values(self) -> dict[str, float]:
        """Return all numbers."""
        with self._lock:
            return dict(self._values)

    def _keep(self, key: str, value: float) -> None:
        """Do nothing: memory is enough for one process."""

    def begin_anew(self) -> None:
        """Start from nothing in a forked child: what its parent counted is the parent's."""
        self._lock = threading.Lock()  # a thread of the parent may have held it
        self._values = {}


class SharedTally(Tally):
    """What a worker and its pool processes have counted, in files of one folder, one pair for each process."""

    def __init__(self, folder: str, owner: int | None = None) -> None:
        super().__init__()
        self.folder = Path(folder)
        self.owner = owner or os.getpid()  # the worker's main process; workers may share a folder
        self._files: dict[Kind, Any] = {}
        self._merging = threading.Lock()

    def _keep(self, key: str, value: float) -> None:
        kind = Kind.COUNTER if '_total", ' in key else Kind.HISTOGRAM
        file = self._files.get(kind) or self._open(kind)
        file.write_value(key, value, 0.0)

    def _open(self, kind: Kind) -> Any:
        from prometheus_client.mmap_dict import MmapedDict

        file = self._files[kind] = MmapedDict(str(self.folder / f"{kind}_{self._mark}{os.getpid()}.db"))
        for key, before, _ in list(file.read_all_values()):  # of a process that had the same id
            self._values[key] = self._values.get(key, 0.0) + before
        return file

    @property
    def _mark(self) -> str:
        return f"tm{self.owner}x"

    def begin_anew(self) -> None:
        """Start from nothing, in files of its own."""
        super().begin_anew()
        self._merging = threading.Lock()
        self.close()

    def close(self) -> None:
        """Let go of this process' files."""
        for file in self._files.values():
            file.close()
        self._files = {}

    def values(self) -> dict[str, float]:
        """Return the numbers of all processes of this worker; for its main process."""
        with self._merging:
            dead = [path for path, pid in self._others() if not _is_alive(pid)]
            for path in dead:
                self._take_over(path)
            total = super().values()
            for path, _ in self._others():
                for key, value in _read(path):
                    total[key] = total.get(key, 0.0) + value
            return total

    def _others(self) -> Iterator[tuple[Path, int]]:
        for path in self.folder.glob(f"*_{self._mark}*.db"):
            pid = int(path.stem.rpartition("x")[2])
            if pid != os.getpid():
                yield path, pid

    def _take_over(self, path: Path) -> None:
        """Count what a dead process left as our own, so that files do not pile up."""
        for key, value in _read(path):
            self.add(key, value)
        path.unlink(missing_ok=True)


def _read(path: Path) -> Iterator[tuple[str, float]]:
    from prometheus_client.mmap_dict import MmapedDict

    with suppress(FileNotFoundError):
        for key, value, *_ in MmapedDict.read_all_values_from_file(str(path)):
            yield key, value


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


@lru_cache(maxsize=100_000)
def key_of(metric: Metric, sample: str, labels: tuple[str, ...], upper: str | None = None) -> str:
    """Return the key of one number."""
    from prometheus_client.mmap_dict import mmap_key

    names, values = list(metric.labels), list(labels)
    if upper is not None:
        names, values = [*names, LE], [*values, upper]
    return mmap_key(metric.name, sample, names, values, metric.about)


_tallies: WeakSet[Tally] = WeakSet()


def _after_fork() -> None:
    for tally in list(_tallies):
        tally.begin_anew()


os.register_at_fork(after_in_child=_after_fork)
