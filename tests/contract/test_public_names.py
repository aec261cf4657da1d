"""What people import and what other programs look up: every public name is there, and asking for none costs nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import EntryPoint, entry_points, version
from typing import Any

import celery.beat
import click
import pytest

import celery_tm

HEAVY = ("sqlalchemy", "alembic", "celery", "kombu", "croniter", "flower", "rich")
ENTRY_POINTS = {
    ("celery.commands", "tm"): "celery_tm.cli:tm",
    ("celery.beat_schedulers", "tm"): "celery_tm.scheduler:Scheduler",
    ("pytest11", "celery_tm"): "celery_tm.testing",
}


def loaded_by(statement: str) -> set[str]:
    """Return the modules that a fresh interpreter has after a statement."""
    code = f"import json, sys\n{statement}\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


def entry_point(group: str, name: str) -> EntryPoint:
    (found,) = [point for point in entry_points(group=group) if point.name == name and point.value.startswith("celery_tm")]
    return found


# Names


@pytest.mark.parametrize("name", celery_tm.__all__)
def test_every_public_name_can_be_imported(name: str) -> None:
    assert getattr(celery_tm, name) is not None


def test_everything_public_can_be_imported_at_once() -> None:
    namespace: dict[str, Any] = {}
    exec("from celery_tm import *", namespace)  # noqa: S102

    assert set(celery_tm.__all__) <= set(namespace)


def test_the_public_names_are_in_order_and_shown_by_dir() -> None:
    assert sorted(celery_tm.__all__) == dir(celery_tm)
    assert len(set(celery_tm.__all__)) == len(celery_tm.__all__)


@pytest.mark.parametrize(
    "name",
    ["Scheduler", "Task", "TimeManagement", "easy_app", "defer", "defer_many", "cancel", "current_job", "TmError"],
)
def test_the_names_of_the_design_are_public(name: str) -> None:
    assert name in celery_tm.__all__


@pytest.mark.parametrize("name", ["nothing", "Database", "_PLACES_"])
def test_any_other_name_is_an_attribute_error_that_names_it(name: str) -> None:
    with pytest.raises(AttributeError, match=f"module 'celery_tm' has no attribute '{name}'"):
        getattr(celery_tm, name)


def test_a_public_name_is_the_same_object_each_time() -> None:
    assert celery_tm.defer is celery_tm.defer
    assert celery_tm.Task is celery_tm.Task


def test_the_version_is_the_one_of_the_installed_package() -> None:
    assert celery_tm.__version__ == version("celery-tm")


# What an import costs


def test_importing_the_package_alone_loads_neither_sqlalchemy_nor_celery() -> None:
    loaded = loaded_by("import celery_tm")

    assert "celery_tm" in loaded
    assert not loaded & set(HEAVY)


def test_looking_at_the_public_names_loads_nothing_either() -> None:
    assert not loaded_by("import celery_tm; dir(celery_tm), celery_tm.__all__, celery_tm.__version__") & set(HEAVY)


def test_an_error_can_be_imported_without_sqlalchemy_and_celery() -> None:
    assert not loaded_by("from celery_tm import TmError") & set(HEAVY)


def test_the_command_group_that_every_celery_command_imports_loads_no_sqlalchemy() -> None:
    assert not loaded_by("import celery_tm.cli") & {"sqlalchemy", "alembic", "croniter", "rich"}


def test_the_pytest_plugin_that_every_test_run_imports_loads_neither_sqlalchemy_nor_celery() -> None:
    assert not loaded_by("import celery_tm.testing") & set(HEAVY)


# Entry points


@pytest.mark.parametrize(("group", "name"), ENTRY_POINTS)
def test_an_entry_point_is_declared_and_loads(group: str, name: str) -> None:
    point = entry_point(group, name)

    assert point.value == ENTRY_POINTS[group, name]
    assert point.load() is not None


def test_the_entry_points_are_what_their_group_expects() -> None:
    assert isinstance(entry_point("celery.commands", "tm").load(), click.Group)
    assert issubclass(entry_point("celery.beat_schedulers", "tm").load(), celery.beat.Scheduler)
    assert hasattr(entry_point("pytest11", "celery_tm").load(), "tm_clock")


def test_beat_s_short_name_and_the_public_name_are_one_class() -> None:
    assert entry_point("celery.beat_schedulers", "tm").load() is celery_tm.Scheduler


def test_every_command_of_the_group_can_be_loaded() -> None:
    group = entry_point("celery.commands", "tm").load()
    context = click.Context(group)

    assert group.list_commands(context)
    assert all(isinstance(group.get_command(context, name), click.Command) for name in group.list_commands(context))
