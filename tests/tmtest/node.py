"""The deployment in beat/, imported afresh on a database of a test's choice."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest
from celery import _state

BEAT = Path(__file__).parent.parent.parent / "beat"
MODULES = ("app", "demo", "samples", "health", "shop")


@contextmanager
def opened_node(environ: Mapping[str, str]) -> Iterator[SimpleNamespace]:
    """Import the shop with its tables made, and forget it afterwards: its modules have names that others have too."""
    with pytest.MonkeyPatch.context() as patch, _own_shared_tasks():
        for name, value in environ.items():
            patch.setenv(name, value)
        patch.syspath_prepend(str(BEAT))
        for name in [name for name in sys.modules if name.partition(".")[0] in MODULES]:
            patch.delitem(sys.modules, name)
        app = import_module("app")
        names = ("durations", "models", "database", "provider", "payments", "billing", "checkout", "upkeep")
        node = SimpleNamespace(app=app.app, tm=app.tm, **{name: import_module(f"shop.{name}") for name in names})
        node.app.loader.import_default_modules()
        node.tm.upgrade()
        node.database.create()
        try:
            yield node
        finally:
            node.database.engine().dispose()
            node.tm.installation.database.dispose()
            node.app.close()
            for name in [name for name in sys.modules if name.partition(".")[0] in MODULES]:
                del sys.modules[name]


@contextmanager
def _own_shared_tasks() -> Iterator[None]:
    """Hide the tasks of other imports.

    Tasks are shared by default: Celery registers them with every app that is finalized later, and since 5.7 it warns
    when two of them have one name, as those of two imports of the shop do.
    """
    before = set(_state._on_app_finalizers)
    _state._on_app_finalizers.intersection_update(
        [callback for callback in before if callback.__module__ == "celery.app.builtins"]
    )
    try:
        yield
    finally:
        _state._on_app_finalizers.clear()
        _state._on_app_finalizers.update(before)
