"""A site: the app of one document, a database, a broker, and real processes to start on them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from conftest import broker_conf, prepare, require
from tmtest import services
from tmtest.stand import Process, Stand

from celery_tm import TimeManagement


class Site(Stand):
    """A stand whose processes have a document's app."""

    def __init__(self, module: str, conf: dict[str, Any], folder: Path, effects: Path, pair: str) -> None:
        super().__init__(conf, folder, effects, pair=pair)
        self.app.close()
        self.app = import_module(module).make(self.conf)
        self.tm = TimeManagement(self.app)

    def _start(self, name: str, arguments: list[str]) -> Process:
        return self.python(name, "-m", "celery", "-A", "documents.main", *arguments)

    def seen(self, *words: object) -> int:
        """Return how many lines of effects begin with these words."""
        wanted = [str(word) for word in words]
        return sum(line[: len(wanted)] == wanted for line in self.effects())


OpenSite = Callable[..., Site]


@pytest.fixture
def own_url() -> Iterator[str]:
    """A PostgreSQL database of this test's own: other tests have other apps in theirs."""
    require("postgresql")
    with services.own_database("postgresql", suffix=f"_doc_{os.getpid()}_{time.monotonic_ns()}") as url:
        yield url


@pytest.fixture
def open_site(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    effects: Path,
    own_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[OpenSite]:
    """Return how to open the site of a document, on Redis and a PostgreSQL database of its own: each has another app."""
    with ExitStack() as stack:

        def opened(name: str, **conf: Any) -> Site:
            prepare(own_url)
            module = f"documents.apps.{name}"
            monkeypatch.setenv("TM_TEST_APP", module)
            known = broker_conf(request, "redis", tmp_path) | {"tm_database_url": own_url}
            site = Site(module, known | conf, tmp_path, effects, "postgresql+redis")
            stack.callback(site.close)
            return site

        yield opened
