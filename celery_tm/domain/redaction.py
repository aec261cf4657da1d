"""Which arguments are not to be shown, and what is shown in their place. Pure: rules and arguments go in.

A rule is `[task:]argument`, both globs that do not mind case; the argument is a name, at any depth, or a position from 0.
What cannot be told is hidden: a position whose name nobody knows, or text that is no JSON, where a rule might mean it.
Progress, messages, errors and results are the body's own words, and are left as they are.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import translate
from typing import Any

from ..errors import InvalidValue

HIDDEN = "***"
ARGUED = ("args", "kwargs", "steps", "options")  # the fields of a definition that may hold arguments
CALL = frozenset({"args", "kwargs", "argsrepr", "kwargsrepr"})  # what makes a mapping with a task the call of it
Names = Sequence[str] | None  # of a task's positions; the last one may be `*rest`; None: not known


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule as it was written, ready to be asked."""

    task: re.Pattern[str]
    argument: re.Pattern[str]
    position: int | None

    def is_about(self, task: str | None) -> bool:
        """Say whether it may mean arguments of this task; of one that is not known it may."""
        return task is None or self.task.match(task) is not None

    def hits(self, name: str) -> bool:
        """Say whether it means an argument, or a key in one, of this name."""
        return self.position is None and self.argument.match(name) is not None

    def hits_position(self, position: int, names: Names) -> bool:
        """Say whether it means, or might mean, the argument at a position."""
        if self.position is not None:
            return self.position == position
        name = _name_at(position, names)
        return name is None or self.hits(name)


def read_rule(text: str) -> Rule:
    """Return a rule that the settings have checked."""
    task, _, argument = text.rpartition(":")
    position = int(argument) if argument.isascii() and argument.isdigit() else None
    return Rule(_pattern(task or "*"), _pattern(argument), position)


def _pattern(glob: str) -> re.Pattern[str]:
    return re.compile(translate(glob), re.IGNORECASE)


def _name_at(position: int, names: Names) -> str | None:
    if names and (position < len(names) or names[-1].startswith("*")):
        return names[min(position, len(names) - 1)].lstrip("*")
    return None


def names_of(task: Any) -> Names:
    """Return the names of a task's positions; None where nobody here knows them."""
    if task is None:
        return None
    try:
        parameters = inspect.signature(task.run).parameters.values()
    except (TypeError, ValueError):
        return None
    names = [one.name for one in parameters if one.kind in _POSITIONAL]
    return names + [f"*{one.name}" for one in parameters if one.kind is inspect.Parameter.VAR_POSITIONAL]


_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def _nobody_knows(task: str | None) -> Names:  # noqa: ARG001
    return None


@dataclass(frozen=True, slots=True)
class Redaction:
    """The rules of one installation. `names_of` tells the names of a task's positions, where somebody knows them."""

    rules: Sequence[str] = ()
    names_of: Callable[[str | None], Names] = _nobody_knows
    _read: Sequence[Rule] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_read", tuple(read_rule(text) for text in self.rules))

    def concerns(self, task: str | None) -> bool:
        """Say whether any rule may mean arguments of this task; of one that is not known it may."""
        return any(rule.is_about(task) for rule in self._read)

    def apply(self, task: str | None, args: Any, kwargs: Any, names: Names = None) -> tuple[Any, Any]:
        """Return arguments as they may be shown: JSON text as text, lists and mappings as such."""
        if not self.concerns(task):
            return self._calls_in(args), self._calls_in(kwargs)
        rules = [rule for rule in self._read if rule.is_about(task)]
        asked = _Asked(rules, self.names_of(task) if names is None else names, self)
        return _shown(args, asked.args), _shown(kwargs, asked.kwargs)

    def _calls_in(self, given: Any) -> Any:
        """Return arguments that no rule is about, but for calls of other tasks in them."""
        if not isinstance(given, str):
            return self.apply_to_calls(given)
        return given if not self._read or '"task"' not in given else _shown(given, self.apply_to_calls)

    def apply_to_calls(self, value: Any) -> Any:
        """Return a plain value with the arguments of every call of a task that is somewhere in it hidden."""
        return _Asked((), (), self).within(value) if self._read else value

    def stated(self, values: Mapping[str, Any] | None, task: str | None = None) -> Any:
        """Return what a person states of a definition, or a part of it, also where that is kept inside something else."""
        if not values or not self.rules:
            return values
        task = values.get("task") or task
        args, kwargs = self.apply(task, values.get("args"), values.get("kwargs"))
        shown = {"args": args, "kwargs": kwargs, "steps": self.steps(values.get("steps"))}
        return {name: shown[name] if name in shown else self._rest(item, task) for name, item in values.items()}

    def _rest(self, item: Any, task: str | None) -> Any:
        if isinstance(item, (list, tuple)):
            return [self._rest(one, task) for one in item]
        return self.apply_to_calls(self.stated(item, task)) if isinstance(item, Mapping) else item

    def steps(self, steps: Any) -> Any:
        """Return the steps of a workflow, groups of them included."""
        if isinstance(steps, (list, tuple)):
            return [self.steps(one) for one in steps]
        return self.stated(steps) if isinstance(steps, Mapping) else steps

    def refuse_hidden(self, values: Mapping[str, Any]) -> None:
        """Refuse stated values that have what is shown in place of a hidden one: it was read somewhere and is sent back."""
        for name in ARGUED if self.rules else ():
            if _is_hidden(values.get(name)):
                remedy = "leave the field out to keep it, or state all of it"
                raise InvalidValue(name, f"it has a value that was hidden ({HIDDEN})", remedy)


def _is_hidden(value: Any) -> bool:
    """Say whether a value, or one in it, is what stands for a hidden one; what cannot be looked through is no JSON."""
    try:
        if isinstance(value, Mapping):
            return any(map(_is_hidden, value.values()))
        if isinstance(value, (list, tuple)):
            return any(map(_is_hidden, value))
    except RecursionError:
        return False
    return isinstance(value, str) and value == HIDDEN


def _shown(given: Any, hide: Callable[[Any], Any]) -> Any:
    """Return arguments as they were given, with what is to be hidden hidden."""
    if not isinstance(given, str):
        return given if given is None else hide(given)
    try:
        return json.dumps(hide(json.loads(given)))
    except (ValueError, RecursionError):
        return HIDDEN


@dataclass(frozen=True, slots=True)
class _Asked:
    """The rules about one task, asked about each of its arguments."""

    rules: Sequence[Rule]
    names: Names
    redaction: Redaction

    def args(self, args: Any) -> Any:
        if not isinstance(args, (list, tuple)):
            return HIDDEN
        return [HIDDEN if self._hides_position(place) else self.within(item) for place, item in enumerate(args)]

    def kwargs(self, kwargs: Any) -> Any:
        if not isinstance(kwargs, Mapping):
            return HIDDEN
        places = {name.lstrip("*"): place for place, name in enumerate(self.names or ())}

        def hides(name: str) -> bool:
            place = places.get(name)
            return self._hides(name) or any(place is not None and rule.position == place for rule in self.rules)

        return {str(name): HIDDEN if hides(str(name)) else self.within(item) for name, item in kwargs.items()}

    def within(self, value: Any) -> Any:
        """Return a value with the keys in it that a rule means, and the arguments of calls, hidden."""
        if isinstance(value, (list, tuple)):
            return [self.within(item) for item in value]
        if not isinstance(value, Mapping):
            return value
        found = {str(name): HIDDEN if self._hides(str(name)) else self.within(item) for name, item in value.items()}
        return found | self._of_call(value, found)

    def _of_call(self, value: Mapping[Any, Any], found: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of a mapping that is a call, hidden by the rules of that call's task too."""
        task = value.get("task")
        if not isinstance(task, str) or CALL.isdisjoint(value):
            return {}
        args, kwargs = self.redaction.apply(task, found.get("args"), found.get("kwargs"))
        hidden = HIDDEN if self.redaction.concerns(task) else None
        said = {"args": args, "kwargs": kwargs, **{name: hidden or found.get(name) for name in ("argsrepr", "kwargsrepr")}}
        return {name: item for name, item in said.items() if name in found}

    def _hides(self, name: str) -> bool:
        return any(rule.hits(name) for rule in self.rules)

    def _hides_position(self, position: int) -> bool:
        return any(rule.hits_position(position, self.names) for rule in self.rules)
