"""What users may import and what other programs find: public names, a light import, entry points."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from importlib.metadata import EntryPoint, distribution
from typing import Any

import pytest

import celery_tm

ENTRY_POINTS = {("celery.commands", "tm"), ("celery.beat_schedulers", "tm"), ("pytest11", "celery_tm")}


def run_python(code: str) -> str:
    """Run code in a fresh interpreter and return what it prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("name", celery_tm.__all__)
def test_every_public_name_can_be_imported(name: str) -> None:
    assert getattr(celery_tm, name) is not None


def test_the_public_names_are_in_order_and_are_all_that_dir_shows() -> None:
    assert celery_tm.__all__ == sorted(celery_tm.__all__)
    assert dir(celery_tm) == celery_tm.__all__


def test_a_name_that_is_not_public_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match="'celery_tm' has no attribute 'Sheduler'"):
        celery_tm.Sheduler  # noqa: B018


def test_a_star_import_gives_all_public_names() -> None:
    names = run_python("from celery_tm import *; print(*sorted(n for n in dir() if n != '__builtins__'))").split()

    assert set(celery_tm.__all__) <= set(names)


@pytest.mark.parametrize("heavy", ["sqlalchemy", "celery", "kombu", "alembic", "click", "croniter"])
def test_importing_the_package_alone_loads_nothing_heavy(heavy: str) -> None:
    before = "import sys; before = set(sys.modules); import celery_tm; "

    assert run_python(f"{before}print({heavy!r} in set(sys.modules) - before)") == "False"


def test_the_pytest_plugin_alone_loads_no_celery_and_no_database() -> None:
    loaded = run_python("import sys, celery_tm.testing; print(*{'celery', 'sqlalchemy'} & set(sys.modules))")

    assert loaded == ""


def declared() -> list[EntryPoint]:
    return list(distribution("celery-tm").entry_points)


def test_the_entry_points_are_those_that_were_promised() -> None:
    assert {(point.group, point.name) for point in declared()} == ENTRY_POINTS


@pytest.mark.parametrize("group", sorted(group for group, _ in ENTRY_POINTS))
def test_every_entry_point_loads(group: str) -> None:
    points = [point for point in declared() if point.group == group]

    assert [point.load() for point in points] == [loaded_by_hand(point) for point in points]
    assert points


def loaded_by_hand(point: EntryPoint) -> Any:
    module = import_module(point.module)
    return getattr(module, point.attr) if point.attr else module


def test_beat_finds_our_scheduler_by_its_short_name() -> None:
    from celery.beat import Scheduler

    [point] = [point for point in declared() if point.group == "celery.beat_schedulers"]

    assert issubclass(point.load(), Scheduler)
    assert point.load() is celery_tm.Scheduler


def test_the_command_line_has_our_command() -> None:
    import click

    [point] = [point for point in declared() if point.group == "celery.commands"]

    assert isinstance(point.load(), click.Group)
    assert point.load().name == "tm"


def test_the_version_is_the_one_that_is_installed() -> None:
    assert celery_tm.__version__ == distribution("celery-tm").version
