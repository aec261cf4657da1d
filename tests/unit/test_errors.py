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
        facts.append(_fact(number, parameter.name, str(parameter.annotation)))
    return kind(*facts)


def _fact(number: int, name: str, annotation: str) -> Any:
    if "Mapping" in annotation:
        return {f"{name}-fact": ("'mine'", "'theirs'")}
    return number if "int" in annotation or "float" in annotation else f"{name}-fact"


def words_of(fact: Any) -> list[str]:
    """Return what a text must hold to tell a fact."""
    return [*fact, *(word for pair in fact.values() for word in pair)] if isinstance(fact, dict) else [str(fact)]


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

    assert [word for fact in error.args for word in words_of(fact) if word not in str(error)] == []


HINTS = ("run `", "shows them", "did you mean", "check ", "read it again", "pass ", "change it with", "use ", "import its",
         "lists them", "cancel that job", "Point tm_database_url", "may have been pruned", "has taken over", "remedy-fact",
         "pip install", "let tm_database_url name", "call without task_id", "remove it with `", "and try again")  # fmt: skip


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
        (errors.OccurrenceNotFound, LookupError),
        (errors.ForeignSession, ValueError),
        (errors.DefinitionExists, ValueError),
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


STALE = "definition 'sync' is at version 5{}, the edit was made on version 3{}; read it again and repeat the edit"


@pytest.mark.parametrize(
    ("by", "values", "text"),
    [
        (None, None, STALE.format("", "")),
        ("ann", None, STALE.format(" by ann", "")),
        ("ann", {}, STALE.format(" by ann", "")),
        ("ann", {"queue": ("'mail'", "None")}, STALE.format(" by ann", "; queue: yours 'mail', there None")),
        (
            None,
            {"queue": ("'a'", "'b'"), "priority": ("1", "2")},
            STALE.format("", "; queue: yours 'a', there 'b'; priority: yours 1, there 2"),
        ),
    ],
)
def test_a_stale_version_says_who_was_faster_and_what_differs(
    by: str | None, values: dict[str, tuple[str, str]] | None, text: str
) -> None:
    error = errors.StaleVersion("sync", 3, 5, by, values)

    assert str(error) == text
    assert (error.name, error.given, error.current, error.by, error.values) == ("sync", 3, 5, by, values or {})
    assert str(pickle.loads(pickle.dumps(error))) == text  # noqa: S301


@pytest.mark.parametrize(("value", "text"), [("x", "'x'"), (None, "None"), ("x" * 100, "'" + "x" * 76 + "…"), (5, "5")])
def test_a_value_is_shown_in_short_whatever_it_is(value: object, text: str) -> None:
    assert errors.shown(value) == text


class Unshowable:
    def __repr__(self) -> str:
        raise RuntimeError("no")


def test_a_value_that_cannot_be_shown_is_named_by_its_kind() -> None:
    assert errors.shown(10**5000) == "<int>"
    assert errors.shown(Unshowable()) == "<Unshowable>"
