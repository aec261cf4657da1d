"""Errors are facts with names: they survive other processes, and their text says what to do."""

from __future__ import annotations

import copy
import inspect
import pickle
from typing import Any

import pytest

from celery_tm import errors
from celery_tm.errors import TmError, nearest

CLASSES = [
    value
    for value in vars(errors).values()
    if inspect.isclass(value) and issubclass(value, TmError) and value is not TmError
]


def example(kind: type[TmError], *, bare: bool = False) -> TmError:
    """Return an error of this kind with a fact for each argument, or without those that may be left out."""
    facts: list[Any] = []
    for number, parameter in enumerate(inspect.signature(kind).parameters.values()):
        if bare and parameter.default is not parameter.empty:
            break
        facts.append(number if "int" in str(parameter.annotation) else f"{parameter.name}-fact")
    return kind(*facts)


EXAMPLES = [example(kind, bare=bare) for kind in CLASSES for bare in (False, True)]


def name_of(error: TmError) -> str:
    return f"{type(error).__name__}/{len(error.args)}"


def facts_of(error: TmError) -> dict[str, Any]:
    return dict(vars(error))


def test_there_are_errors_to_check() -> None:
    assert errors.InvalidValue in CLASSES
    assert len(CLASSES) > 15


@pytest.mark.parametrize("error", EXAMPLES, ids=name_of)
def test_an_error_survives_pickling(error: TmError) -> None:
    copied = pickle.loads(pickle.dumps(error))  # noqa: S301

    assert type(copied) is type(error)
    assert (str(copied), copied.args, facts_of(copied)) == (str(error), error.args, facts_of(error))


@pytest.mark.parametrize("error", EXAMPLES, ids=name_of)
def test_an_error_can_be_made_again_from_its_arguments(error: TmError) -> None:
    again = type(error)(*error.args)

    assert (str(again), facts_of(again)) == (str(error), facts_of(error))


@pytest.mark.parametrize("error", EXAMPLES, ids=name_of)
def test_an_error_can_be_copied(error: TmError) -> None:
    assert str(copy.copy(error)) == str(error)


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_an_errors_text_holds_each_of_its_facts(kind: type[TmError]) -> None:
    error = example(kind)

    assert [fact for fact in error.args if str(fact) not in str(error)] == []


HINTS = ("run `", "shows them", "did you mean", "check ", "read it again", "pass ", "change it with", "use ", "import its",
         "lists them", "cancel that job", "Point tm_database_url", "may have been pruned", "has taken over", "remedy-fact",
         "pip install")  # fmt: skip


@pytest.mark.parametrize("error", EXAMPLES, ids=name_of)
def test_an_errors_text_is_one_line_that_says_what_to_do(error: TmError) -> None:
    assert "\n" not in str(error)
    assert any(hint in str(error) for hint in HINTS), str(error)


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_every_error_says_in_its_docstring_what_it_means(kind: type[TmError]) -> None:
    assert (kind.__doc__ or "").strip().endswith(".")


@pytest.mark.parametrize(
    ("kind", "base"),
    [
        (errors.InvalidValue, ValueError),
        (errors.UnknownOption, ValueError),
        (errors.DefinitionNotFound, LookupError),
        (errors.JobNotFound, LookupError),
        (errors.DeadLetterNotFound, LookupError),
        (errors.DriverMissing, ImportError),
    ],
)
def test_an_error_can_be_caught_as_pythons_own_kind(kind: type[TmError], base: type[Exception]) -> None:
    assert isinstance(example(kind), base)


@pytest.mark.parametrize(
    ("name", "meant"),
    [("scedule", "schedule"), ("timezon", "timezone"), ("qeue", "queue"), ("xyzzy", None), ("", None)],
)
def test_the_nearest_known_name_is_the_one_probably_meant(name: str, meant: str | None) -> None:
    assert nearest(name, ["schedule", "timezone", "queue"]) == meant
