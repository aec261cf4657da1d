"""Servers of a test's own, on free ports, so that faults hurt nobody else: PostgreSQL and Redis."""

from __future__ import annotations

import contextlib
import getpass
import glob
import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

import pytest


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def wait_for_port(port: int, *, seconds: float = 20) -> None:
    """Wait until somebody listens."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=0.5):
            return
        time.sleep(0.05)
    raise AssertionError(f"nobody listens on port {port}")


class OwnRedis:
    """A Redis server that keeps nothing on disk: stopping it loses every message."""

    def __init__(self, folder: Path) -> None:
        self.binary = shutil.which("redis-server")
        if not self.binary:
            pytest.skip("redis-server is not installed: apt-get install redis-server")
        self.folder, self.port = folder, free_port()
        self._popen: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        options = [
            "--port",
            str(self.port),
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--appendonly",
            "no",
            "--dir",
            str(self.folder),
        ]
        with (self.folder / "redis.log").open("a") as log:
            self._popen = subprocess.Popen([self.binary or "", *options], stdout=log, stderr=log)
        wait_for_port(self.port)

    def stop(self) -> None:
        if self._popen is not None:
            self._popen.kill()
            self._popen.wait(10)
            self._popen = None


class OwnPostgreSQL:
    """A PostgreSQL cluster in a folder. It refuses to run as root, so root runs it as the `postgres` user."""

    def __init__(self, folder: Path) -> None:
        places = [shutil.which("initdb"), *sorted(glob.glob("/usr/lib/postgresql/*/bin/initdb"), reverse=True)]
        initdb = next((place for place in places if place), None)
        if not initdb:
            pytest.skip("initdb is not installed: apt-get install postgresql")
        self.bin, self.folder, self.port = Path(initdb).parent, folder, free_port()
        self.data = folder / "pg"
        self.user = "postgres" if getpass.getuser() == "root" else getpass.getuser()
        if getpass.getuser() == "root":
            for place in [folder, *folder.parents][:4]:
                if str(place).startswith("/tmp/") and place != Path("/tmp"):
                    os.chmod(place, 0o755)  # so that the postgres user can get there
            shutil.chown(folder, "postgres")
        self._run("initdb", "-D", str(self.data), "-A", "trust", "-U", "tester", "--no-sync", "-E", "UTF8")
        settings = f"listen_addresses='127.0.0.1'\nport={self.port}\nunix_socket_directories=''\nfsync=off\n"
        with (self.data / "postgresql.conf").open("a") as file:
            file.write(settings)

    @property
    def url(self) -> str:
        return f"postgresql://tester@127.0.0.1:{self.port}/postgres"

    def _run(self, program: str, *arguments: str) -> None:
        as_user = ["runuser", "-u", self.user, "--"] if getpass.getuser() == "root" else []
        command = [*as_user, str(self.bin / program), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd="/")
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"

    def start(self) -> None:
        self._run("pg_ctl", "-D", str(self.data), "-l", str(self.data / "server.log"), "-w", "start")

    def stop(self, *, mode: str = "immediate") -> None:
        if (self.data / "postmaster.pid").exists():
            self._run("pg_ctl", "-D", str(self.data), "-m", mode, "-w", "stop")
