"""The one-call setup reads the names that platforms give to their services."""

from __future__ import annotations

from pathlib import Path

import pytest
from celery import _state

from celery_tm import easy_app
from celery_tm.installation import Installation

NAMES = ("TM_BROKER_URL", "CELERY_BROKER_URL", "BROKER_URL", "REDIS_URL", "TM_DATABASE_URL", "DATABASE_URL")


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)


def found(folder: Path) -> tuple[str, str]:
    before = _state._tls.current_app
    app = easy_app("shop", folder=folder)
    try:
        return app.conf.broker_url, Installation.of(app).settings.tm_database_url
    finally:
        app.close()
        _state._tls.current_app = before  # a new app makes itself the current one


def test_redis_url_and_database_url_are_understood(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("REDIS_URL", "redis://cache:6379/3")
    monkeypatch.setenv("DATABASE_URL", "sqlite:///platform.db")
    assert found(tmp_path) == ("redis://cache:6379/3", "sqlite:///platform.db")


def test_our_own_names_win(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("REDIS_URL", "redis://cache:6379/3")
    monkeypatch.setenv("DATABASE_URL", "sqlite:///platform.db")
    monkeypatch.setenv("TM_BROKER_URL", "amqp://queue//")
    monkeypatch.setenv("TM_DATABASE_URL", "sqlite:///ours.db")
    assert found(tmp_path) == ("amqp://queue//", "sqlite:///ours.db")


def test_nothing_set_means_files(tmp_path: Path) -> None:
    broker, database = found(tmp_path)
    assert broker.startswith("tm")
    assert database == "sqlite:///celery_tm.db"
