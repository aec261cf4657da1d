"""A database for each test: a copy of one that was prepared once, or the user's own, emptied.

The app under test is moved there and back. What is done with its database before and after is not seen there.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import pytest
from celery import Celery

from ..errors import InvalidValue
from ..installation import Installation
from ..settings import Settings, read_settings
from ..store import schema
from ..store.database import Database

_FOR_TESTS = re.compile(r"(?:py)?test(?:s|ing|db)?\d*|gw\d+test")  # a word of a name; 'latest' and 'contest' are none
Prepare = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class TestDatabase:
    """Where the jobs of one test live."""

    url: str
    __test__ = False  # pytest collects what is named Test…


class Source(Protocol):
    """Gives each test its database."""

    def settings(self, home: Settings, folders: pytest.TempPathFactory, /) -> Settings:
        """Return the settings of an app whose database is empty and ready."""


class Template:
    """SQLite: upgraded and prepared once, and copied for each test."""

    def __init__(self, folder: Path, prepare: Prepare) -> None:
        self._file = folder / "template.db"
        url = f"sqlite:///{self._file}"
        database = Database(read_settings({"tm_database_url": url}, {}))
        schema.upgrade(database)
        database.dispose()
        prepare(url)

    def settings(self, home: Settings, folders: pytest.TempPathFactory) -> Settings:
        """Return settings with a copy that no other test has."""
        copy = folders.mktemp("tm_database") / "jobs.db"
        shutil.copyfile(self._file, copy)
        return replace(home, tm_database_url=f"sqlite:///{copy}", tm_schema=None)


class Own:
    """A database that the user names: upgraded once, and emptied of celery_tm's rows for each test."""

    def __init__(self, url: str, prepare: Prepare) -> None:
        self._url, self._prepare, self._is_ready = url, prepare, False

    def settings(self, home: Settings, _: pytest.TempPathFactory) -> Settings:
        """Return settings with this database, which has no rows of ours then."""
        settings = replace(home, tm_database_url=self._url)
        database = Database(settings)
        _refuse_real(database)
        if not self._is_ready:
            schema.upgrade(database)
            self._prepare(self._url)
            self._is_ready = True
        schema.empty(database)
        database.dispose()
        return settings


def _refuse_real(database: Database) -> None:
    """Empty nothing that may be somebody's production."""
    name = Path(database.url.database or "").name  # SQLite's is a path
    if not any(_FOR_TESTS.fullmatch(word) for word in re.split(r"[^a-z0-9]+", f"{name} {database.schema or ''}".lower())):
        raise InvalidValue(
            "tm_database_url",
            f"{database.safe_url} would be emptied, and its name does not say that it is for tests",
            "name a database (or a tm_schema) with 'test' as a word of its name, e.g. shop_test",
        )


@contextmanager
def installed(app: Celery, source: Source, folders: pytest.TempPathFactory) -> Iterator[TestDatabase]:
    """Let an app live in a database of the source's, and afterwards at home again."""
    installation = Installation.of(app)
    home = installation.settings
    settings = source.settings(home, folders)
    installation.move_to(settings)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TM_DATABASE_URL", settings.tm_database_url)  # for code that reads it, and for processes
            yield TestDatabase(settings.tm_database_url)
    finally:
        installation.move_to(home)
