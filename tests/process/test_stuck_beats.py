"""A beat that hangs inside a statement or a publish says so, and a second SIGTERM ends it."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time
from pathlib import Path

import pytest
from tmtest.stand import Stand

from celery_tm import defer
from celery_tm.scheduler.wakeup import Watchdog, undisturbed


@pytest.fixture
def silent() -> str:
    """A broker that accepts connections and never answers."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(50)
        yield f"amqp://guest:guest@127.0.0.1:{listening.getsockname()[1]}//"


@pytest.mark.timeout(150)
def test_a_beat_that_hangs_in_a_publish_says_so_and_a_second_sigterm_ends_it(
    silent: str, tmp_path: Path, effects: Path, fresh_url: object
) -> None:
    url = fresh_url("postgresql")  # type: ignore[operator]
    conf = {"broker_url": silent, "tm_database_url": url, "broker_connection_timeout": 100, "broker_transport_options": {}}
    stand = Stand(conf, tmp_path, effects)
    try:
        defer(stand.app.tasks["effect"].s(1), delay=0.01, app=stand.app)
        beat = stand.beat()
        stand.wait_for_text(beat, "a round of beat has taken", seconds=90)
        os.kill(beat.pid, signal.SIGTERM)
        time.sleep(1)  # the first one waits for the end of the round
        assert beat.is_running
        os.kill(beat.pid, signal.SIGTERM)
        assert beat.wait(30) == 0
        assert "a second signal" in beat.text()
    finally:
        stand.close()


def test_one_signal_waits_for_the_end_of_a_round() -> None:
    heard: list[str] = []
    before = signal.signal(signal.SIGTERM, lambda *_: heard.append("signal"))
    try:
        with undisturbed():
            os.kill(os.getpid(), signal.SIGTERM)
            heard.append("round")
        assert heard == ["round", "signal"]
        assert callable(signal.getsignal(signal.SIGTERM))
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_round_that_ends_in_time_is_not_reported(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    watchdog = Watchdog(after=0.2)
    for _ in range(5):
        with watchdog.watching():
            pass
    assert caplog.text == ""
    stuck = threading.Event()
    with watchdog.watching():
        deadline = time.monotonic() + 30
        while "goes on" not in caplog.text and time.monotonic() < deadline:
            stuck.wait(0.05)
    assert caplog.text.count("a round of beat has taken") == 1
