"""Everything that can go wrong, as facts with names.

Each error keeps its facts as arguments, so it survives pickling and `type(e)(*e.args)`, and its text says what to do next.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches

LONGEST = 300  # characters; no name may have more


class TmError(Exception):
    """The base of every error celery_tm raises on purpose."""


class InvalidValue(TmError, ValueError):
    """A value that was given cannot be used."""

    def __init__(self, field: str, problem: str, remedy: str) -> None:
        super().__init__(field, problem, remedy)
        self.field, self.problem, self.remedy = field, problem, remedy

    def __str__(self) -> str:
        return f"{self.field}: {self.problem}; {self.remedy}"


class NoInstantLeft(InvalidValue):
    """A schedule that is right, but all of whose instants are past."""


class UnknownName(TmError, ValueError):
    """A name that nobody knows, with the nearest one that is known."""

    noun = "name"

    def __init__(self, name: str, suggestion: str | None = None) -> None:
        super().__init__(name, suggestion)
        self.name, self.suggestion = name, suggestion

    def __str__(self) -> str:
        hint = f", did you mean {self.suggestion!r}?" if self.suggestion else ""
        return f"unknown {self.noun} {named(self.name)}{hint or '; ' + self.where()}"

    def where(self) -> str:
        """Say where the known names can be seen."""
        return "check the spelling"


class UnknownSetting(UnknownName):
    """A `tm_` setting that does not exist."""

    noun = "setting"

    def where(self) -> str:
        return "docs/reference/settings.md lists them all"


class UnknownOption(UnknownName):
    """A keyword that a call, a definition or a file does not know."""

    noun = "option"


class UnknownTask(UnknownName):
    """A task this app has not registered."""

    noun = "task"

    def where(self) -> str:
        return "import its module; `defer` takes remote=True if only the workers have it"


class UnknownStep(UnknownName):
    """A step that a workflow does not have."""

    noun = "step"

    def where(self) -> str:
        return "its definition, or its report, lists them"


class UnknownTimeZone(UnknownName):
    """A time zone the tz database does not have."""

    noun = "time zone"

    def where(self) -> str:
        return "use a name like 'Europe/Warsaw' or 'UTC'"


class UnknownSource(UnknownName):
    """A scheduler that definitions cannot be imported from."""

    noun = "source"

    def where(self) -> str:
        return "use beat, django-celery-beat, redbeat or sqlalchemy-celery-beat"


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


class UnknownHook(UnknownName):
    """A hook that no code of this process has registered."""

    noun = "hook"

    def where(self) -> str:
        return "check that a module which the workers import registers it with @tm.hook"


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


class SchemaMissing(TmError):
    """The database has none of our tables."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.url = url

    def __str__(self) -> str:
        return f"no celery_tm tables in {self.url}; run `celery -A app tm schema upgrade`"


class SchemaOutdated(TmError):
    """The tables are of another release than the code."""

    def __init__(self, url: str, found: str, expected: str) -> None:
        super().__init__(url, found, expected)
        self.url, self.found, self.expected = url, found, expected

    def __str__(self) -> str:
        return (
            f"the celery_tm tables in {self.url} are at {self.found}, this release needs {self.expected}; "
            "run `celery -A app tm schema upgrade`"
        )


class TableInUse(TmError):
    """A table could not be changed, because somebody has worked with it in one transaction all the time."""

    def __init__(self, table: str, seconds: float) -> None:
        super().__init__(table, seconds)
        self.table, self.seconds = table, seconds

    def __str__(self) -> str:
        return (
            f"{self.table} was in use by a long transaction for {self.seconds:.0f} seconds; end it (pg_stat_activity or "
            "SHOW PROCESSLIST tells whose it is) and run `celery -A app tm schema upgrade` again, which goes on where it was"
        )


class DatabaseUnavailable(TmError):
    """The database does not answer."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(url, reason)
        self.url, self.reason = url, reason

    def __str__(self) -> str:
        return f"cannot reach the database {self.url} ({self.reason}); check tm_database_url and that the server runs"


class RightMissing(TmError):
    """The database's user may not do what this process has to do."""

    def __init__(self, url: str, right: str, object: str) -> None:
        super().__init__(url, right, object)
        self.url, self.right, self.object = url, right, object

    def __str__(self) -> str:
        return (
            f"the user of {self.url} lacks {self.right} on {self.object}; run `celery -A app tm schema grants` to see what "
            "the owner of the tables has to grant, and read docs/howto/security.md"
        )


class DatabaseReadOnly(TmError):
    """The database takes no writes on this connection: it is a replica, or the transaction was opened for reading."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(url, reason)
        self.url, self.reason = url, reason

    def __str__(self) -> str:
        return (
            f"the database {self.url} takes no writes here ({self.reason}); let tm_database_url name the primary, "
            "and give session= a transaction that may write"
        )


# What no statement can be written for at the moment: nobody's work has failed by it.
OUT_OF_REACH = (DatabaseUnavailable, RightMissing, DatabaseReadOnly)


class SourceUnavailable(TmError):
    """What definitions were to be imported from cannot be read."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(url, reason)
        self.url, self.reason = url, reason

    def __str__(self) -> str:
        return f"cannot read {self.url} ({self.reason}); check --from and that the server runs"


class SourceEmpty(TmError):
    """What definitions were to be imported from has none of its scheduler's entries."""

    def __init__(self, url: str, missing: str, remedy: str) -> None:
        super().__init__(url, missing, remedy)
        self.url, self.missing, self.remedy = url, missing, remedy

    def __str__(self) -> str:
        return f"{self.url} has no {self.missing}; {self.remedy}"


class DriverMissing(TmError, ImportError):
    """The database's driver is not installed."""

    def __init__(self, url: str, extra: str) -> None:
        super().__init__(url, extra)
        self.url, self.extra = url, extra

    def __str__(self) -> str:
        return f"no driver for {self.url}; run `pip install 'celery-tm[{self.extra}]'`"


class FlowerMissing(TmError, ImportError):
    """Flower is not installed."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what

    def __str__(self) -> str:
        return f"{self.what} needs Flower; run `pip install 'celery-tm[flower]'`"


class FlowerUnfit(TmError):
    """This Flower is not made as the pages need it."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem

    def __str__(self) -> str:
        return f"the pages do not fit this Flower ({self.problem}); run `pip install 'celery-tm[flower]'` for one that fits"


class ForeignSession(TmError, ValueError):
    """The session given is on another database than the jobs."""

    def __init__(self, given: str, expected: str) -> None:
        super().__init__(given, expected)
        self.given, self.expected = given, expected

    def __str__(self) -> str:
        return (
            f"session= is on {self.given}, but the jobs live in {self.expected}; a transaction cannot span both. "
            "Point tm_database_url at the session's database, or leave session= out"
        )


class LeaseLost(TmError):
    """The attempt is no longer this worker's: its lease ended, and what it would write is void."""

    def __init__(self, job: str, attempt: int) -> None:
        super().__init__(job, attempt)
        self.job, self.attempt = job, attempt

    def __str__(self) -> str:
        return f"attempt {self.attempt} of job {self.job} lost its lease; another attempt has taken over"


class AppMissing(TmError):
    """A command or call does not know which Celery app is meant."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what

    def __str__(self) -> str:
        return f"{self.what} needs a Celery app: pass `celery -A yourapp tm …`, or app= in code"


def shown(value: object, most: int = 80) -> str:
    """Return a value as an error may show it: short, and whatever it is."""
    try:
        text = repr(value)
    except Exception:  # a number too long to write, an object that cannot be shown
        text = f"<{type(value).__name__}>"
    return text if len(text) <= most else text[: most - 3] + "…"


def named(name: object) -> str:
    """Return a name as an error may show it: whole, unless it is longer than any name may be."""
    return shown(name, LONGEST)


def said(name: object) -> str:
    """Return a name as it was said, also one that is no text."""
    return name if isinstance(name, str) else shown(name)


def nearest(name: object, known: Iterable[str]) -> str | None:
    """Return the known name that `name` was probably meant to be; none for what is no text, or longer than any name."""
    if not isinstance(name, str) or len(name) > LONGEST:
        return None
    close = get_close_matches(name, list(known), n=1, cutoff=0.6)
    return close[0] if close else None
