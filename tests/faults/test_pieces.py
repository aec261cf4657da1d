"""The pieces of the harness that could be wrong themselves: schedule, proxy, clocks, records."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from faults import clocks, record
from faults.faults import KINDS, schedule
from faults.proxy import Proxies, Proxy, Weather


def test_a_seed_repeats_its_schedule_and_another_has_another() -> None:
    kinds = list(KINDS)
    assert schedule(7, 120, kinds) == schedule(7, 120, kinds)
    assert schedule(7, 120, kinds) != schedule(8, 120, kinds)


def test_a_schedule_has_every_kind_and_enough_of_them() -> None:
    planned = schedule(7, 30 * 60, list(KINDS))
    assert len(planned) >= 1200
    assert {fault.kind for fault in planned[: len(KINDS)]} == set(KINDS)
    assert [fault.at for fault in planned] == sorted(fault.at for fault in planned)
    assert all(KINDS[fault.kind].lasts[0] <= fault.lasts <= KINDS[fault.kind].lasts[1] for fault in planned)
    heavy = [fault for fault in planned if KINDS[fault.kind].heavy]
    assert 0 < len(heavy) < len(planned) / 15


class Echo:
    """A server that says back what it is told, and remembers it."""

    def __init__(self) -> None:
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        self.heard = b""
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self.socket.accept()
                threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            while said := connection.recv(1000):
                self.heard += said
                time.sleep(0.05)  # so that an answer comes after what was said
                connection.sendall(said)


@pytest.fixture
def echo() -> Iterator[Echo]:
    server = Echo()
    yield server
    server.socket.close()


@pytest.fixture
def proxy(echo: Echo) -> Iterator[Proxy]:
    proxies = Proxies()
    yield proxies.add(echo.port)
    proxies.close()


def connect(proxy: Proxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), timeout=5)


def ask(client: socket.socket, said: bytes) -> bytes:
    """Say something and return the answer; nothing if the connection was cut."""
    try:
        client.sendall(said)
        return client.recv(1000)
    except ConnectionError:
        return b""


def change(proxy: Proxy, weather: Weather) -> None:
    proxy.change(weather)
    wait_until(lambda: proxy.weather is weather)


def wait_until(look: object) -> None:
    deadline = time.monotonic() + 5
    while not look():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_proxy_carries_what_is_said_and_can_be_slow(proxy: Proxy) -> None:
    with connect(proxy) as client:
        assert ask(client, b"hello") == b"hello"
        change(proxy, Weather(delay=0.2))
        begun = time.monotonic()
        assert ask(client, b"again") == b"again"
        assert time.monotonic() - begun >= 0.4


@pytest.mark.parametrize(("direction", "heard"), [("to", b""), ("from", b"lost"), ("to from", b"")])
def test_a_proxy_swallows_and_cuts_what_it_spoilt_when_the_weather_is_fine_again(
    proxy: Proxy, echo: Echo, direction: str, heard: bytes
) -> None:
    with connect(proxy) as client:
        change(proxy, Weather(swallows=direction))
        client.sendall(b"lost")
        client.settimeout(0.3)
        with pytest.raises(TimeoutError):
            client.recv(1000)
        assert echo.heard == heard
        client.settimeout(5)
        proxy.clear()
        with suppress(ConnectionError):
            assert client.recv(1000) == b""
    with connect(proxy) as client:
        assert ask(client, b"fine") == b"fine"


def test_a_proxy_cuts_all_connections_and_refuses_new_ones(proxy: Proxy) -> None:
    with connect(proxy) as client:
        assert ask(client, b"hello") == b"hello"
        change(proxy, Weather(refuses=True))
        assert proxy.cut() == 1
        with suppress(ConnectionError):
            assert client.recv(1000) == b""
    with connect(proxy) as client:
        assert ask(client, b"hello") == b""


def test_a_commit_reaches_the_server_and_its_answer_does_not_come_back(proxy: Proxy, echo: Echo) -> None:
    with connect(proxy) as client:
        change(proxy, Weather(cuts_after=b"COMMIT", cuts=1))
        assert ask(client, b"INSERT") == b"INSERT"
        assert ask(client, b"COMMIT") == b""
    wait_until(lambda: echo.heard == b"INSERTCOMMIT")
    with connect(proxy) as client:
        assert ask(client, b"COMMIT") == b"COMMIT", "one cut was asked for"


TIMES = """
import sys, time
for line in sys.stdin:
    begun = time.monotonic()
    time.sleep(0.1)
    print(time.time(), begun, time.monotonic() - begun, flush=True)
"""


@pytest.mark.skipif(clocks.library() is None, reason="libfaketime is not installed: apt-get install faketime")
def test_the_clock_of_one_process_is_put_forwards_and_backwards_while_it_runs(tmp_path: Path) -> None:
    clock = clocks.Shifted(tmp_path / "clock")
    env = os.environ | clock.environment(os.environ.get("PYTHONPATH", ""))
    argv = [sys.executable, "-c", TIMES]
    with subprocess.Popen(argv, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin
        assert process.stdout

        def wrong() -> float:
            process.stdin.write("\n")
            process.stdin.flush()
            told, begun, slept = map(float, process.stdout.readline().split())
            assert abs(begun - time.monotonic()) < 5, "the monotonic clock must be left alone"
            assert 0.1 <= slept < 5
            return told - time.time()

        assert abs(wrong()) < 5
        for by, seconds in (("+37m", 37 * 60), ("-2h", -2 * 3600), ("+0", 0)):
            clock.shift(by)
            time.sleep(1.1)  # it looks once a second
            assert abs(wrong() - seconds) < 5
        process.stdin.close()


def test_lines_of_many_processes_do_not_mix(tmp_path: Path) -> None:
    code = "import sys; from faults import record; [record.write(sys.argv[1], 'f', {'n': n}, {'n': -n}) for n in range(300)]"
    paths = os.pathsep.join(path for path in sys.path if path)
    env = os.environ | {"PYTHONPATH": paths}
    writers = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], env=env) for _ in range(3)]
    assert [writer.wait(30) for writer in writers] == [0, 0, 0]
    lines = [json.loads(line) for line in (tmp_path / "f").read_text().splitlines()]
    assert len(lines) == 3 * 600
    assert all(line["at"] > 0 for line in lines)
    record.write(tmp_path, "f", {"at": 5, "n": 0})  # a time that is given is kept
    assert json.loads((tmp_path / "f").read_text().splitlines()[-1])["at"] == 5
