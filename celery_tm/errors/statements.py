"""What somebody stated that cannot be: values, and names that nobody knows."""

from __future__ import annotations

from .saying import named


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


class UnknownHook(UnknownName):
    """A hook that no code of this process has registered."""

    noun = "hook"

    def where(self) -> str:
        return "check that a module which the workers import registers it with @tm.hook"
