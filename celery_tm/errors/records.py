"""What is asked of records, and is not so: it is not there, is there already, or has changed meanwhile."""

from __future__ import annotations

from collections.abc import Mapping

from .saying import named
from .statements import TmError


class DefinitionNotFound(TmError, LookupError):
    """No definition has this name."""

    def __init__(self, name: str, suggestion: str | None = None) -> None:
        super().__init__(name, suggestion)
        self.name, self.suggestion = name, suggestion

    def __str__(self) -> str:
        hint = f"did you mean {self.suggestion!r}? " if self.suggestion else ""
        return f"no definition named {named(self.name)}; {hint}`celery -A app tm definitions list` shows them"


class DefinitionExists(TmError, ValueError):
    """Another definition has this name already."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def __str__(self) -> str:
        return f"a definition named {named(self.name)} exists; change it with tm.definitions.update({named(self.name)}, …)"


class StaleVersion(TmError):
    """The definition was changed by somebody else in the meantime."""

    def __init__(
        self, name: str, given: int, current: int, by: str | None = None, values: Mapping[str, tuple[str, str]] | None = None
    ) -> None:
        super().__init__(name, given, current, by, values)
        self.name, self.given, self.current, self.by, self.values = name, given, current, by, values or {}

    def __str__(self) -> str:
        by = f" by {self.by}" if self.by else ""
        both = "".join(f"; {field}: yours {yours}, there {there}" for field, (yours, there) in self.values.items())
        return (
            f"definition {self.name!r} is at version {self.current}{by}, the edit was made on version {self.given}{both}; "
            "read it again and repeat the edit"
        )


class RowUnreadable(TmError):
    """A row of a table cannot be read by this release."""

    def __init__(self, table: str, id: str, error: str) -> None:
        super().__init__(table, id, error)
        self.table, self.id, self.error = table, id, error

    def __str__(self) -> str:
        return (
            f"row {named(self.id)} of {self.table} cannot be read ({self.error}); read it with the release that wrote it, "
            f"or remove it with `celery -A app tm rows remove {self.table} {self.id}`"
        )


class JobNotFound(TmError, LookupError):
    """No job has this id."""

    def __init__(self, job: str) -> None:
        super().__init__(job)
        self.job = job

    def __str__(self) -> str:
        return f"no job {named(self.job)}, and no record of it; its records may have been pruned"


class OccurrenceNotFound(TmError, LookupError):
    """No occurrence has this id."""

    def __init__(self, occurrence: str) -> None:
        super().__init__(occurrence)
        self.occurrence = occurrence

    def __str__(self) -> str:
        name = named(self.occurrence)
        return f"no occurrence {name}; it may have been pruned. `celery -A app tm explain NAME` shows the latest"


class StepResultMissing(TmError, KeyError):
    """A step's result that a later step asked for is not there."""

    def __init__(self, step: str, why: str) -> None:
        super().__init__(step, why)
        self.step, self.why = step, why

    def __str__(self) -> str:
        return f"the result of step {named(self.step)} {self.why}; check with `{self.step!r} in job.results`"


class DeadLetterNotFound(TmError, LookupError):
    """No dead letter has this id."""

    def __init__(self, job: str) -> None:
        super().__init__(job)
        self.job = job

    def __str__(self) -> str:
        return f"no dead letter {named(self.job)}; `celery -A app tm dead-letters list` shows them"


class DuplicateKey(TmError):
    """The key is taken by a job that is still owed, or that has succeeded and is kept."""

    def __init__(self, task: str, key: str, job: str) -> None:
        super().__init__(task, key, job)
        self.task, self.key, self.job = task, key, job

    def __str__(self) -> str:
        return (
            f"key {self.key!r} of task {self.task!r} belongs to job {self.job}; "
            "cancel that job, use another key, or pass on_duplicate='return'"
        )


class DuplicateId(TmError):
    """A call was made again with an id whose earlier call is still pending or running, as of a frozen signature."""

    def __init__(self, task: str, id: str) -> None:
        super().__init__(task, id)
        self.task, self.id = task, id

    def __str__(self) -> str:
        return (
            f"an earlier call of task {self.task!r} with the id {self.id!r} is still pending or running; "
            "wait for its end, or call without task_id (a signature: clone it before it is frozen)"
        )


class CountChanged(TmError):
    """Another number of rows would be affected than the one that was agreed to."""

    def __init__(self, what: str, expected: int, found: int) -> None:
        super().__init__(what, expected, found)
        self.what, self.expected, self.found = what, expected, found

    def __str__(self) -> str:
        return (
            f"{self.found} {self.what} are there now, not the {self.expected} that were expected, so nothing was done; "
            "check the preview again and repeat it with the number there"
        )


class LeaseLost(TmError):
    """The attempt is no longer this worker's: its lease ended, and what it would write is void."""

    def __init__(self, job: str, attempt: int) -> None:
        super().__init__(job, attempt)
        self.job, self.attempt = job, attempt

    def __str__(self) -> str:
        return f"attempt {self.attempt} of job {self.job} lost its lease; another attempt has taken over"
