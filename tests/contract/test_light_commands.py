"""The command group that every `celery` command imports stays light, and each of its commands can be loaded."""

from __future__ import annotations

import subprocess
import sys

import click
import pytest

from celery_tm.cli import COMMANDS, tm

HEAVY = ("sqlalchemy", "alembic", "croniter", "rich", "flower")


def loaded_by(statement: str) -> set[str]:
    """Return the modules that a fresh interpreter has after a statement."""
    code = f"import sys\n{statement}\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_importing_the_command_group_loads_no_database_and_no_tables() -> None:
    loaded = loaded_by("import celery_tm.cli")

    assert "celery_tm.cli" in loaded
    assert not loaded & set(HEAVY)


def test_listing_the_commands_loads_none_of_them() -> None:
    help_text = "from click.testing import CliRunner; from celery_tm.cli import tm; CliRunner().invoke(tm, ['--help'])"

    assert not loaded_by(help_text) & set(HEAVY)


def test_the_commands_and_the_producer_leave_the_orm_alone_until_there_is_a_session() -> None:
    loaded = loaded_by("import celery_tm.management, celery_tm.producer, celery_tm.cli.status")

    assert "sqlalchemy" in loaded
    assert not loaded & {"sqlalchemy.orm", "alembic"}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_can_be_loaded_and_has_a_help_text(name: str) -> None:
    command = tm.get_command(click.Context(tm), name)

    assert isinstance(command, click.Command)
    assert command.get_short_help_str()
