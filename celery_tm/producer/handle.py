"""What `defer` gives back."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ..domain.job import Status
from ..installation import Installation
from ..store import history
from .cancelling import cancel


@dataclass(frozen=True, kw_only=True)
class JobHandle:
    """What `defer` gives back: the job's id, whether this call created it, and a way to ask how it fares."""

    id: str
    task: str
    created: bool
    run_at: datetime
    key: str | None
    installation: Installation
    known: Status = Status.SCHEDULED
    eager: Any = None  # Celery's result, where `task_always_eager` ran the task at once and nothing was written

    @classmethod
    def made(cls, **values: Any) -> JobHandle:
        """Return a handle with these values.

        Filled at once: the `__init__` of a frozen dataclass takes half as long as the database for a row among many.
        """
        handle = cls.__new__(cls)
        object.__setattr__(handle, "__dict__", values)
        return handle

    @property
    def state(self) -> Status:
        """Ask the database where the job stands; before the caller's commit that is what was known at creation."""
        if self.eager is not None:
            return Status.SUCCEEDED if self.eager.successful() else Status.FAILED
        found = self._story()
        return found.state if found else self.known

    @property
    def result(self) -> Any:
        """Return the result that is kept with the key of a success, else None; Celery's backend has the others."""
        if self.eager is not None:
            return self.eager.result
        found = self._story()
        return found.result if found else None

    def cancel(self, *, reason: str | None = None) -> bool:
        """Cancel the job; see `cancel`."""
        return cancel(id=self.id, app=self.installation.app, reason=reason)

    def _story(self) -> history.JobStory | None:
        with self.installation.database.transaction(write=False) as tx:
            return history.story(tx, self.id)
