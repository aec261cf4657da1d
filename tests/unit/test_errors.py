"""Errors: each survives a trip between processes, and its text says what to do."""

from __future__ import annotations

import copy
import inspect
import pickle

import pytest

from celery_tm import errors
from celery_tm.errors import TmError, nearest

# One of each, and the words that tell the reader what to do (or, where nothing can be done, what has happened).
EXAMPLES: list[tuple[TmError, str]] = [
    (errors.InvalidValue("delay", "'x' is not a duration", "give e.g. '15m'"), "give e.g. '15m'"),
    (errors.UnknownName("nam"), "check the spelling"),
    (errors.UnknownName("nam", "name"), "did you mean 'name'?"),
    (errors.UnknownSetting("tm_x"), "docs/reference/settings.md lists them all"),
    (errors.UnknownSetting("tm_leese", "tm_lease"), "did you mean 'tm_lease'?"),
    (errors.UnknownOption("dellay"), "check the spelling"),
    (errors.UnknownOption("dellay", "delay"), "did you mean 'delay'?"),
    (errors.UnknownTask("shop.pay"), "pass remote=True"),
    (errors.UnknownTask("shop.pay", "shop.paid"), "did you mean 'shop.paid'?"),
    (errors.UnknownTimeZone("Mars"), "use a name like 'Europe/Warsaw'"),
    (errors.DefinitionNotFound("x"), "`celery -A app tm definitions list` shows them"),
    (errors.DefinitionNotFound("x", "y"), "did you mean 'y'? `celery"),
    (errors.DefinitionExists("sync"), "change it with tm.definitions.update('sync', …)"),
    (errors.StaleVersion("sync", 3, 4), "read it again and repeat the edit"),
    (errors.JobNotFound("j-1"), "may have been pruned"),
    (errors.DeadLetterNotFound("j-1"), "`celery -A app tm dead-letters list` shows them"),
    (errors.DuplicateKey("shop.pay", "order:42", "j-1"), "use another key, or pass on_duplicate='return'"),
    (errors.SchemaMissing("sqlite:///x.db"), "run `celery -A app tm schema upgrade`"),
    (errors.SchemaOutdated("sqlite:///x.db", "0001", "0002"), "run `celery -A app tm schema upgrade`"),
    (errors.DatabaseUnavailable("postgresql://db", "refused"), "check tm_database_url and that the server runs"),
    (errors.DriverMissing("postgresql://db", "postgres"), "run `pip install 'celery-tm[postgres]'`"),
    (errors.ForeignSession("sqlite:///a.db", "sqlite:///b.db"), "or leave session= out"),
    (errors.LeaseLost("j-1", 2), "another attempt has taken over"),
    (errors.AppMissing("defer() by name"), "pass `celery -A yourapp tm …`, or app= in code"),
]
CLASSES = [
    value for _, value in inspect.getmembers(errors, inspect.isclass) if issubclass(value, TmError) and value is not TmError
]


def names(example: tuple[TmError, str] | object) -> str:
    return type(example).__name__ if isinstance(example, TmError) else "text"


def test_there_is_an_example_of_every_error() -> None:
    assert {type(error) for error, _ in EXAMPLES} == set(CLASSES)


@pytest.mark.parametrize(("error", "remedy"), EXAMPLES, ids=names)
def test_an_error_survives_pickling(error: TmError, remedy: str) -> None:
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        again = pickle.loads(pickle.dumps(error, protocol))  # noqa: S301
        assert (type(again), str(again), again.args) == (type(error), str(error), error.args)
        assert vars(again) == vars(error)


@pytest.mark.parametrize(("error", "remedy"), EXAMPLES, ids=names)
def test_an_error_can_be_made_again_from_its_arguments(error: TmError, remedy: str) -> None:
    again = type(error)(*error.args)

    assert (str(again), again.args, vars(again)) == (str(error), error.args, vars(error))
    assert str(copy.copy(error)) == str(error)


@pytest.mark.parametrize(("error", "remedy"), EXAMPLES, ids=names)
def test_the_text_of_an_error_holds_its_facts_and_says_what_to_do(error: TmError, remedy: str) -> None:
    text = str(error)

    assert remedy in text
    assert "\n" not in text
    assert all(str(fact) in text for fact in error.args if fact is not None)


@pytest.mark.parametrize("error", CLASSES, ids=lambda error: error.__name__)
def test_every_error_is_one_of_ours_and_has_a_sentence_about_it(error: type[TmError]) -> None:
    assert issubclass(error, TmError)
    assert (inspect.getdoc(error) or "").endswith(".")
    assert error.__doc__ != TmError.__doc__


@pytest.mark.parametrize(
    ("error", "builtin"),
    [
        (errors.InvalidValue, ValueError),
        (errors.UnknownOption, ValueError),
        (errors.DefinitionNotFound, LookupError),
        (errors.JobNotFound, LookupError),
        (errors.DriverMissing, ImportError),
    ],
)
def test_an_error_can_be_caught_as_what_python_calls_it(error: type[TmError], builtin: type[Exception]) -> None:
    assert issubclass(error, builtin)


@pytest.mark.parametrize(
    ("name", "meant"), [("shedule", "schedule"), ("SCHEDULE", None), ("xyzzy", None), ("", None), ("schedule", "schedule")]
)
def test_the_nearest_name_is_the_one_that_was_probably_meant(name: str, meant: str | None) -> None:
    assert nearest(name, ["schedule", "queue"]) == meant
