"""The rule of `domain.redaction` on what an app shows: it knows the tasks, and so the names of their positions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from celery import Celery

from ..domain.redaction import HIDDEN, Names, Redaction, names_of


class Redactor:
    """Hides arguments as `tm_redact` says, by the signatures of an app's tasks."""

    def __init__(self, app: Celery, rules: Sequence[str]) -> None:
        self._app = app
        self._names: dict[str, Names] = {}
        self.redaction = Redaction(tuple(rules), self._names_of)

    def arguments(self, task: str | None, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Return arguments of a call as they may be shown."""
        return self.redaction.apply(task, args, kwargs)

    def calls(self, value: Any) -> Any:
        """Return a plain value with the arguments of every call of a task that is somewhere in it hidden."""
        return self.redaction.apply_to_calls(value)

    def stated(self, values: Mapping[str, Any] | None, task: str | None = None) -> Any:
        """Return what a person states of a definition, or a part of it, also where that is kept inside something else."""
        return self.redaction.stated(values, task)

    def steps(self, steps: Any) -> Any:
        """Return the steps of a workflow, groups of them included."""
        return self.redaction.steps(steps)

    def hides_from(self, stated: Mapping[str, Any]) -> bool:
        """Say whether anything of what is stated is hidden: a form that shows it must not write it back."""
        return bool(self.stated(stated) != stated)

    def _names_of(self, task: str | None) -> Names:
        if task is None:
            return None
        if task not in self._names:
            self._names[task] = names_of(self._app.tasks.get(task))
        return self._names[task]


__all__ = ["HIDDEN", "Redactor"]
