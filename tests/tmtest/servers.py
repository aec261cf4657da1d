"""Servers of a test's own, on free ports, so that faults hurt nobody else: PostgreSQL, MariaDB, Redis and RabbitMQ."""

from __future__ import annotations

import atexit
import contextlib
import getpass
import glob
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import pytest


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def wait_for_port(port: int, *, seconds: float = 60) -> None:
    """Wait until somebody listens."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=0.5):
            return
        time.sleep(0.05)
    raise AssertionError(f"nobody listens on port {port}")


def wait_for_silence(port: int, *, seconds: float = 20) -> None:
    """Wait until nobody listens any more."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=0.5).close()
        except ConnectionRefusedError:
            return
        except OSError:
            pass
        time.sleep(0.02)
    raise AssertionError(f"somebody still listens on port {port}")


def folder_of(user: str, folder: Path) -> Path:
    """Return a folder that a server's own user can reach.

    Under a folder of pytest's nothing stays reachable: each new pytest of this user closes their root to others.
    """
    if getpass.getuser() != "root" or user == "root":
        return folder
    place = Path(tempfile.mkdtemp(prefix="tm-server-"))
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    place.chmod(0o755)
    shutil.chown(place, user)
    return place


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

    @property
    def pid(self) -> int:
        return self._popen.pid if self._popen is not None else 0

    def stop(self) -> None:
        if self._popen is not None:
            self._popen.kill()
            self._popen.wait(10)
            self._popen = None


class OwnPostgreSQL:
    """A PostgreSQL cluster in a folder. It refuses to run as root, so root runs it as the `postgres` user."""

    def __init__(self, folder: Path, *, settings: str = "fsync=off\n") -> None:
        places = [shutil.which("initdb"), *sorted(glob.glob("/usr/lib/postgresql/*/bin/initdb"), reverse=True)]
        initdb = next((place for place in places if place), None)
        if not initdb:
            pytest.skip("initdb is not installed: apt-get install postgresql")
        self.user = "postgres" if getpass.getuser() == "root" else getpass.getuser()
        self.bin, self.folder, self.port = Path(initdb).parent, folder_of(self.user, folder), free_port()
        self.data = self.folder / "pg"
        self._run("initdb", "-D", str(self.data), "-A", "trust", "-U", "tester", "--no-sync", "-E", "UTF8")
        here = f"listen_addresses='127.0.0.1'\nport={self.port}\nunix_socket_directories=''\n"
        with (self.data / "postgresql.conf").open("a") as file:
            file.write(here + settings)

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


class OwnPgBouncer:
    """A PgBouncer in transaction mode before a PostgreSQL. It refuses to run as root too."""

    def __init__(self, folder: Path, server: OwnPostgreSQL, *, settings: str = "", size: int = 3) -> None:
        binary = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
        if not binary:
            pytest.skip("pgbouncer is not installed: apt-get install pgbouncer")
        self.binary, self.port, self.user = binary, free_port(), server.user
        self.folder = folder_of(self.user, folder)
        self.config = self.folder / "pgbouncer.ini"
        self.config.write_text(
            f"[databases]\npostgres = host=127.0.0.1 port={server.port} dbname=postgres user=tester\n"
            f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {self.port}\nunix_socket_dir =\nauth_type = any\n"
            f"pool_mode = transaction\ndefault_pool_size = {size}\nmax_client_conn = 200\n{settings}"
        )
        self._popen: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"postgresql://tester@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        as_user = ["runuser", "-u", self.user, "--"] if getpass.getuser() == "root" else []
        with (self.folder / "pgbouncer.log").open("a") as log:
            argv = [*as_user, self.binary, str(self.config)]
            self._popen = subprocess.Popen(argv, stdout=log, stderr=log, cwd="/", start_new_session=True)
        wait_for_port(self.port)

    def stop(self) -> None:
        if self._popen is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._popen.pid, signal.SIGKILL)
            self._popen.wait(10)
            self._popen = None


class OwnMariaDB:
    """A MariaDB server in a folder, as durable as it is by default. As root it is run as the `mysql` user."""

    def __init__(self, folder: Path, *, settings: Sequence[str] = ()) -> None:
        binary = shutil.which("mariadbd") or shutil.which("mariadbd", path="/usr/sbin")
        install = shutil.which("mariadb-install-db")
        if not binary or not install:
            pytest.skip("mariadbd is not installed: apt-get install mariadb-server")
        self.user = "mysql" if getpass.getuser() == "root" else getpass.getuser()
        self.binary, self.folder, self.port = binary, folder_of(self.user, folder), free_port()
        self.data, self.socket = self.folder / "mariadb", self.folder / "mariadb.sock"
        self._settings = [f"--user={self.user}", f"--datadir={self.data}", f"--socket={self.socket}", *settings]
        how = ["--no-defaults", f"--user={self.user}", f"--datadir={self.data}", "--auth-root-authentication-method=normal"]
        done = subprocess.run([install, *how, "--skip-test-db"], capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        self._popen: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"mysql://root@127.0.0.1:{self.port}/mysql"

    @property
    def pid(self) -> int:
        return self._popen.pid if self._popen is not None else 0

    def start(self) -> None:
        # A name that nobody knows would take seconds to be looked up, for each connection.
        here = [
            "--skip-name-resolve",
            "--bind-address=127.0.0.1",
            f"--port={self.port}",
            f"--pid-file={self.folder / 'mariadb.pid'}",
        ]
        with (self.folder / "mariadb.log").open("a") as log:
            argv = [self.binary, "--no-defaults", *self._settings, *here]
            self._popen = subprocess.Popen(argv, stdout=log, stderr=log)
        wait_for_port(self.port, seconds=60)

    def stop(self) -> None:
        """Kill it, as a crash would."""
        if self._popen is not None:
            self._popen.kill()
            self._popen.wait(10)
            self._popen = None


class OwnRabbitMQ:
    """A RabbitMQ node of its own, with a name, ports, folders and a port mapper that nobody else uses."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        binaries = Path("/usr/lib/rabbitmq/bin")  # past the wrapper of the system, which changes user and folder
        if not (binaries / "rabbitmq-server").exists():
            pytest.skip("rabbitmq-server is not installed: apt-get install rabbitmq-server")
        self.binary = str(binaries / "rabbitmq-server")
        self.user = "rabbitmq" if getpass.getuser() == "root" else getpass.getuser()
        self.folder = folder_of(self.user, folder)
        self._mapper = free_port()
        self._env = self._environment()
        self._popen: subprocess.Popen[bytes] | None = None

    def _environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("RABBITMQ", "ERL"))}
        config = self.folder / "rabbitmq.conf"
        config.write_text(f"listeners.tcp.local = 127.0.0.1:{self.port}\nlog.file.level = warning\n")
        (self.folder / "none.conf").write_text("")
        (self.folder / "plugins").write_text("[].\n")
        return kept | {
            "HOME": str(self.folder),  # where its cookie is
            "RABBITMQ_NODENAME": f"chaos{self.port}@localhost",
            "RABBITMQ_CONF_ENV_FILE": str(self.folder / "none.conf"),
            "RABBITMQ_CONFIG_FILE": str(config),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.folder / "plugins"),
            "RABBITMQ_MNESIA_BASE": str(self.folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(self.folder / "logs"),
            "RABBITMQ_PID_FILE": str(self.folder / "rabbitmq.pid"),
            "RABBITMQ_DIST_PORT": str(free_port()),
            "ERL_EPMD_PORT": str(self._mapper),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1} -start_epmd true +S 1:1",
        }

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}//"

    @property
    def pid(self) -> int:
        """Return the process of the node itself, below the scripts that start it."""
        return next((pid for pid in self._family() if "beam" in _name_of(pid)), 0)

    def _family(self) -> list[int]:
        """Return all processes of its group, which are those that it started."""
        if self._popen is None:
            return []
        group = self._popen.pid
        return [int(p.name) for p in Path("/proc").iterdir() if p.name.isdigit() and _group_of(int(p.name)) == group]

    def start(self) -> None:
        as_user = ["runuser", "-u", self.user, "--"] if getpass.getuser() == "root" else []
        with (self.folder / "rabbitmq.log").open("a") as log:
            argv = [*as_user, self.binary]
            self._popen = subprocess.Popen(argv, stdout=log, stderr=log, env=self._env, cwd="/", start_new_session=True)
        wait_for_port(self.port, seconds=90)

    def stop(self) -> None:
        """Kill the node; what was not on disk is gone."""
        if self._popen is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._popen.pid, signal.SIGKILL)
        self._popen.wait(10)
        wait_for_silence(self.port)  # the node is nobody's child, so its end is not told to us
        self._popen = None

    def close(self) -> None:
        """Kill the node, and the port mapper that it started, which leaves its group."""
        self.stop()
        for place in Path("/proc").iterdir():
            if place.name.isdigit() and _is_mapper(place, self._mapper):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(place.name), signal.SIGKILL)


def _name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def _group_of(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except OSError:
        return 0


def _is_mapper(place: Path, port: int) -> bool:
    """Say whether a process is the port mapper that has this port, by the environment it was started with."""
    try:
        return _name_of(int(place.name)) == "epmd" and f"ERL_EPMD_PORT={port}".encode() in (place / "environ").read_bytes()
    except OSError:
        return False
