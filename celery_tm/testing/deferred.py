"""What is deferred, for a test to look at, and assertions that say what is there instead.

Only jobs that were deferred or called with an eta are seen, while they are owed; the instants of definitions are in
`tm.occurrences()`, and what has run is in `tm.history()`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, overload

from celery import Celery

from ..clock import as_utc, format_duration, parse_duration
from ..domain.codec import decode, encode
from ..domain.job import Job
from ..installation import Installation
from ..management import looking

NEAR = timedelta(seconds=1)  # instants and delays as near as this are the same
SHOWN = 10
_PAGE = 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class DeferredJob:
    """One job that is deferred, with its arguments as values."""

    id: str
    task: str
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    key: str | None
    entity_id: str | None
    queue: str | None
    delay: timedelta  # as it was deferred
    run_at: datetime
    state: str

    @classmethod
    def of(cls, job: Job) -> DeferredJob:
        """Return what a test wants to know of a job."""
        return cls(
            id=job.id,
            task=job.task,
            args=decode(job.args) or [],
            kwargs=decode(job.kwargs) or {},
            key=job.dedupe_key,
            entity_id=job.entity_id,
            queue=job.queue,
            delay=job.original_delay,
            run_at=job.run_at,
            state=str(job.state),
        )

    def __str__(self) -> str:
        key = f" key={self.key!r}" if self.key is not None else ""
        call = ", ".join([*map(repr, self.args), *(f"{name}={value!r}" for name, value in self.kwargs.items())])
        return f"{self.task}({call}){key} after {format_duration(self.delay)}, at {self.run_at:%Y-%m-%d %H:%M:%S}"


class Deferred(Sequence[DeferredJob]):
    """The jobs that are deferred and still owed, those due first in front; looked up anew each time."""

    def __init__(self, app: Celery) -> None:
        self.installation = Installation.of(app)

    def assert_deferred(self, task: Any, **wanted: Any) -> DeferredJob:
        """Return the first job of this task (a task, a signature or a name) that fits, or fail and name the nearest.

        `wanted`: any of args, kwargs, key, entity_id, queue, delay, run_at.
        """
        expected = _expected(task, wanted)
        found = self._all()
        fitting = next((job for job in found if not _differences(job, expected)), None)
        if fitting is None:
            raise AssertionError(_not_deferred(expected, found))
        return fitting

    def assert_not_deferred(self, task: Any, **wanted: Any) -> None:
        """Fail if a job of this task that fits is deferred."""
        expected = _expected(task, wanted)
        fitting = [job for job in self._all() if not _differences(job, expected)]
        if fitting:
            raise AssertionError(f"deferred, and should not be: {_in_words(expected)}\n{_listed(fitting)}")

    def assert_nothing_deferred(self) -> None:
        """Fail if any job is deferred."""
        found = self._all()
        if found:
            raise AssertionError(f"nothing should be deferred, and {_counted(found)}:\n{_listed(found)}")

    def of(self, task: Any) -> list[DeferredJob]:
        """Return the deferred jobs of one task."""
        name = _expected(task, {})["task"]
        return [job for job in self._all() if job.task == name]

    def _all(self) -> list[DeferredJob]:
        found: list[DeferredJob] = []
        page = looking.jobs(self.installation, state=None, after=None, limit=_PAGE)
        while True:
            found += [DeferredJob.of(job) for job in page if job.occurrence is None and job.step is None]
            if page.next is None:
                return found
            page = looking.jobs(self.installation, state=None, after=page.next, limit=_PAGE)

    def __len__(self) -> int:
        return len(self._all())

    def __iter__(self) -> Iterator[DeferredJob]:
        return iter(self._all())

    @overload
    def __getitem__(self, index: int) -> DeferredJob: ...

    @overload
    def __getitem__(self, index: slice) -> list[DeferredJob]: ...

    def __getitem__(self, index: int | slice) -> DeferredJob | list[DeferredJob]:
        return self._all()[index]

    def __repr__(self) -> str:
        found = self._all()
        return f"<{len(found)} deferred>\n{_listed(found)}" if found else "<nothing deferred>"


_READERS: Mapping[str, Any] = {
    "args": lambda value: decode(encode(list(value), field="args")),
    "kwargs": lambda value: decode(encode(dict(value), field="kwargs")),
    "key": lambda value: value,
    "entity_id": lambda value: value if value is None else str(value),
    "queue": lambda value: value,
    "delay": lambda value: parse_duration(value, field="delay"),
    "run_at": lambda value: as_utc(value, field="run_at"),
}


def _expected(task: Any, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a job must have, as values that compare with what was read back."""
    unknown = sorted(set(wanted) - set(_READERS))
    if unknown:
        raise TypeError(f"no such thing to expect of a job: {', '.join(unknown)}; there are {', '.join(_READERS)}")
    own: dict[str, Any] = {}
    if not isinstance(task, str) and hasattr(task, "args") and hasattr(task, "kwargs"):  # a signature names its call
        own = {"args": task.args, "kwargs": task.kwargs}
    name = task if isinstance(task, str) else getattr(task, "task", None) or task.name
    given = {**own, **wanted}
    return {"task": str(name)} | {field: _READERS[field](value) for field, value in given.items()}


def _differences(job: DeferredJob, expected: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a job has where something else is expected."""
    found = {field: getattr(job, field) for field in expected}
    return {field: value for field, value in found.items() if not _same(value, expected[field])}


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, datetime) and isinstance(other, datetime):
        return abs(one - other) <= NEAR
    if isinstance(one, timedelta) and isinstance(other, timedelta):
        return abs(one - other) <= NEAR
    return bool(one == other)


def _not_deferred(expected: Mapping[str, Any], found: Sequence[DeferredJob]) -> str:
    """Say what is missing, what comes nearest, and what else is there."""
    text = f"not deferred: {_in_words(expected)}"
    if not found:
        return f"{text}\nnothing is deferred"
    best = min(found, key=lambda job: ("task" in (differs := _differences(job, expected)), len(differs)))
    differs = _differences(best, expected)
    if "task" not in differs:
        parts = (f"{field} is {_shown(value)}, not {_shown(expected[field])}" for field, value in differs.items())
        text += f"\nthe nearest differs: {'; '.join(parts)}"
    others = sorted(found, key=lambda job: job is not best)
    return f"{text}\n{_counted(found)}:\n{_listed(others)}"


def _counted(found: Sequence[DeferredJob]) -> str:
    return "there is 1 job" if len(found) == 1 else f"there are {len(found)} jobs"


def _in_words(expected: Mapping[str, Any]) -> str:
    return ", ".join(
        [expected["task"], *(f"{field}={_shown(value)}" for field, value in expected.items() if field != "task")]
    )


def _shown(value: Any) -> str:
    if isinstance(value, timedelta):
        return format_duration(value)
    return value.isoformat() if isinstance(value, datetime) else repr(value)


def _listed(jobs: Sequence[DeferredJob]) -> str:
    lines = [f"  {job}" for job in jobs[:SHOWN]]
    return "\n".join([*lines, f"  and {len(jobs) - SHOWN} more"] if len(jobs) > SHOWN else lines)
