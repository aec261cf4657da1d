"""Finding the app that a suite tests."""

from __future__ import annotations

import pytest
from celery import Celery, current_app
from celery.app.utils import find_app

HOW_TO_NAME = (
    "celery_tm does not know which Celery app is tested; set `tm_app = shop:app` in pytest's settings "
    "([tool.pytest.ini_options] of pyproject.toml), or override the fixture `tm_app` in conftest.py"
)


def find(name: str) -> Celery:
    """Return the app of this name, as `celery -A` takes it, else the current one; fail where there is none."""
    if name:
        return _named(name)
    app: Celery = current_app._get_current_object()
    if app.main in (None, "default", "__main__") and not app.conf.broker_url:
        raise pytest.UsageError(HOW_TO_NAME)
    return app


def _named(name: str) -> Celery:
    try:
        app: Celery = find_app(name)
    except (ImportError, AttributeError) as error:
        raise pytest.UsageError(f"tm_app = {name} in pytest's settings leads to no app: {error}") from error
    app.finalize()
    return app
