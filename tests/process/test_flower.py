"""A real Flower as people start it: by the line in its configuration, and by our own command."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from tmtest.flower import Client
from tmtest.stand import Process, Stand

CONFIG = "from celery_tm.flower import install; install()\n"


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def by_configuration(stand: Stand, port: int) -> Process:
    """Start `celery flower` with our one line in its configuration."""
    config = stand.folder / "flowerconfig.py"
    config.write_text(CONFIG)
    return stand._start("flower", ["flower", f"--conf={config}", *options(port)])


def by_command(stand: Stand, port: int) -> Process:
    """Start our own command."""
    return stand._start("flower", ["tm", "flower", *options(port)])


def options(port: int) -> list[str]:
    return [f"--port={port}", "--address=127.0.0.1", "--basic-auth=ann:secret", "--url-prefix=watch"]


@pytest.mark.parametrize("start", [by_configuration, by_command], ids=["flowerconfig.py", "tm flower"])
def test_flower_shows_the_pages_the_api_and_the_figures(
    stand: Stand, start: Callable[[Stand, int], Process], tmp_path: Path
) -> None:
    stand.tm.definitions.add(name="nightly", task="effect", schedule="@daily")
    port = free_port()
    process = start(stand, port)
    stand.wait_for_text(process, "Visit me at")
    ann, stranger = Client(port, prefix="/watch"), Client(port, None, prefix="/watch")
    assert stranger.get("/tm").status == stranger.get("/api/tm/definitions").status == 401
    assert "nightly" in ann.open("/tm").text
    assert [one["name"] for one in ann.get("/api/tm/definitions").json["items"]] == ["nightly"]
    program = Client(port, prefix="/watch")  # it keeps no cookies, so it needs no token
    assert program.post("/api/tm/definitions/nightly/pause", reason="tested").json["paused"] is True
    assert stand.tm.audit(limit=1)[0].actor == "ann"
    figures = ann.get("/metrics").text
    assert 'celery_tm_definitions{standing="paused"} 1.0' in figures
    assert "flower_events_total" in figures or "# HELP flower" in figures  # Flower's own stay
    assert ">Schedules</a>" in ann.open("/workers").text
    assert "Traceback" not in process.text()
