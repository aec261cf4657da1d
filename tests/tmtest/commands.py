"""`celery -A app tm …` in this process, and all that it may have written."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

from celery import Celery
from click.testing import CliRunner, Result
from sqlalchemy import Column, Table, select

from celery_tm.cli import tm as tm_group
from celery_tm.store import tables
from celery_tm.store.database import Database


class Cli:
    """`celery -A app tm …` without a process."""

    def __init__(self, app: Celery) -> None:
        self.app = app

    def run(self, *arguments: str, code: int = 0, input: str | None = None) -> Result:
        """Return what a command did that ended with that exit code."""
        done = CliRunner().invoke(tm_group, list(arguments), obj=SimpleNamespace(app=self.app), input=input)
        if done.exception and not isinstance(done.exception, SystemExit):
            raise done.exception
        assert done.exit_code == code, done.output
        return done

    def json(self, *arguments: str) -> Any:
        """Return what a command printed for programs."""
        return json.loads(self.run(*arguments, "--json").stdout)

    def refused(self, *arguments: str) -> str:
        """Return the one line of an error of ours."""
        done = self.run(*arguments, code=1)
        assert done.stdout == ""
        [line] = done.stderr.splitlines()
        assert line.startswith("Error: ")
        return line.removeprefix("Error: ")

    def misused(self, *arguments: str) -> str:
        """Return what is said about wrong usage."""
        return self.run(*arguments, code=2).stderr


def add(cli: Cli, name: str = "nightly", *more: str, schedule: str = "30 2 * * *") -> Any:
    """Add a definition by command."""
    return cli.json("definitions", "add", name, "--task", "effect", "--schedule", schedule, "--actor", "ann", *more)


def rows(database: Database) -> dict[str, list[Any]]:
    """Return everything that a definition or a calendar leaves in the database, but for what files said last."""
    kinds = (tables.definition, tables.calendar, tables.version, tables.audit, tables.occurrence)
    with database.transaction(write=False) as tx:
        return {table.name: sorted(map(repr, tx.execute(select(*_but_declared(table))))) for table in kinds}


def _but_declared(table: Table) -> list[Column[Any]]:
    return [column for column in table.columns if column.name != "declared"]
