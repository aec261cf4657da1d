"""Who may change things through Flower where the app names no administrators: it goes by the database."""

from __future__ import annotations

import html
from typing import Any

import pytest
from celery import Celery
from conftest import prepare
from tmtest.app import make_app
from tmtest.flower import ANN, Client, Served, serving

from celery_tm import TimeManagement

PATH = "/api/tm/definitions/nightly"


def nightly(app: Celery) -> TimeManagement:
    tm = TimeManagement(app)
    tm.definitions.add(name="nightly", task="effect", schedule="@daily")
    return tm


def pause(flower: Served, user: Any) -> Any:
    """Pause as a browser does, with the token of the page."""
    client = flower.client(user)
    token = client.get("/api/tm/token")
    client.keep_cookies(token)
    return client.ask("POST", f"{PATH}/pause", b"{}", Content_Type="application/json", X_XSRFToken=token.json["token"])


def test_unless_administrators_are_named_a_server_is_only_read(postgresql_url: str) -> None:
    prepare(postgresql_url)
    app = make_app({"tm_database_url": postgresql_url, "broker_url": "memory://", "tm_admins": None})
    tm = nightly(app)
    with serving(app) as flower:
        assert Client(flower.port, ANN).get(PATH).status == 200
        told = pause(flower, ANN)
        assert (told.status, told.json["error"]["code"]) == (403, "not_administrator")
        assert "tm_admins = [" in told.json["error"]["message"]
        assert "tm_admins = [" in html.unescape(flower.client(ANN).open("/tm").text)
    assert not tm.definitions.get("nightly").paused
    tm.installation.database.dispose()
    app.close()


@pytest.mark.parametrize(
    ("address", "auth", "status"),
    [("127.0.0.1", [], 200), ("0.0.0.0", [], 403), ("", [], 403), ("0.0.0.0", ["ann:secret"], 200)],
)
def test_an_embedded_database_is_open_to_its_own_machine_and_to_users(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, address: str, auth: list[str], status: int
) -> None:
    monkeypatch.setenv("FLOWER_UNAUTHENTICATED_API", "true")
    prepare(sqlite_url)
    app = make_app({"tm_database_url": sqlite_url, "broker_url": "memory://", "tm_admins": None})
    tm = nightly(app)
    with serving(app, basic_auth=auth, address=address) as flower:
        assert pause(flower, ANN if auth else None).status == status
    assert tm.definitions.get("nightly").paused is (status == 200)
    tm.installation.database.dispose()
    app.close()
