"""What is handed out: wheel and sdist as they are built, installed where nothing else is, and typed as users see them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tarfile
from importlib import import_module
from pathlib import Path
from zipfile import ZipFile

import pytest
from tmtest.clean_room import BARE, CleanRoom, closure, requirements_of

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "celery_tm"
EXTRAS = {"postgres": "psycopg", "mysql": "pymysql", "redis": "redis", "flower": "flower", "metrics": "prometheus_client",
          "yaml": "yaml", "solar": "ephem"}  # fmt: skip
IMPORT_LIMIT = 50.0  # milliseconds; about 15 where nothing else runs

pytestmark = pytest.mark.xdist_group("packaging")

APP = """
from celery_tm import TimeManagement, easy_app

app = easy_app("shop", tm_database_url="sqlite:///shop.db")
tm = TimeManagement(app)


@app.task(name="shop.greet")
def greet(name):
    return f"hello {name}"
"""

USER = """
from datetime import timedelta

from celery_tm import TimeManagement, TmError, cancel, current_job, defer, defer_many, easy_app, workflow

tm = TimeManagement(easy_app("shop"))
handle = defer("shop.expire", args=[42], delay=timedelta(minutes=15), key="order:42")
reveal_type(handle)
reveal_type(handle.state)
reveal_type(handle.run_at)
reveal_type(defer_many([]))
reveal_type(cancel(id=handle.id))
reveal_type(current_job())
reveal_type(tm.run_due_jobs())
reveal_type(tm.run_due_jobs().succeeded)
reveal_type(tm.job(handle.id))
reveal_type(tm.jobs(task="shop.expire"))
reveal_type(tm.preview(schedule="@daily"))
reveal_type(tm.definitions.get("nightly"))
reveal_type(tm.trigger("nightly"))
reveal_type(str(TmError("x")))
tm.jobs(tusk="shop.expire")
tm.job(42)
"""

REVEALED = [
    "JobHandle", "Status", "datetime", "list[JobHandle]", "bool", "JobContext", "RunSummary", "int", "JobStory", "Page[Job]",
    "list[datetime]", "Definition", "Occurrence", "str",
]  # fmt: skip


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with wheel and sdist."""
    folder = tmp_path_factory.mktemp("built")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    [found] = built.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def room(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> CleanRoom:
    """An environment with the wheel and what it requires."""
    room = CleanRoom(tmp_path_factory.mktemp("room") / "venv")
    room.install(wheel)
    return room


def of_the_package() -> set[str]:
    """Return the files that make the package work: code, pages, styles, migrations, the mark that it is typed."""
    files = (path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {str(path.relative_to(ROOT)) for path in files}


def test_the_wheel_has_the_whole_package_and_nothing_else(wheel: Path) -> None:
    with ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}

    assert names == of_the_package()
    assert "celery_tm/py.typed" in names
    assert any(name.startswith("celery_tm/flower/templates/") for name in names)
    assert any(name.startswith("celery_tm/flower/static/") for name in names)
    assert any(name.startswith("celery_tm/store/migrations/versions/") for name in names)


def test_the_sdist_has_what_the_wheel_is_built_from(built: Path) -> None:
    [sdist] = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames()}

    assert of_the_package() <= names
    assert {name.split("/")[0] for name in names} == {
        "celery_tm", "pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "PKG-INFO", ".gitignore",
    }  # fmt: skip


def test_the_wheel_works_where_only_its_requirements_are(room: CleanRoom, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)

    assert str(room.packages) in room.run(room.python, "-c", "import celery_tm; print(celery_tm.__file__)", folder=tmp_path)
    assert "definitions" in room.run(room.celery, "-A", "app", "tm", "--help", folder=tmp_path)
    room.run(room.celery, "-A", "app", "tm", "schema", "upgrade", folder=tmp_path)
    room.run(
        room.python,
        "-c",
        "from app import *; from celery_tm import defer; defer(greet.s('you'), delay=0.01)",
        folder=tmp_path,
    )
    code = "import time; from app import *; time.sleep(0.05); print(tm.run_due_jobs().succeeded)"
    assert room.run(room.python, "-c", code, folder=tmp_path).strip() == "1"
    assert json.loads(room.run(room.celery, "-A", "app", "tm", "status", "--json", folder=tmp_path))


@pytest.mark.parametrize("extra", EXTRAS)
def test_each_extra_names_what_it_is_for(wheel: Path, extra: str) -> None:
    more = closure(requirements_of(wheel), {extra}) - closure(
        [r for r in requirements_of(wheel) if "extra ==" not in r], set()
    )

    assert import_module(EXTRAS[extra])
    assert more or extra == "redis"  # Celery's own extra brings that already


@pytest.mark.thorough
@pytest.mark.parametrize("extra", EXTRAS)
def test_each_extra_can_be_installed(wheel: Path, extra: str, tmp_path: Path) -> None:
    room = CleanRoom(tmp_path / "venv")
    room.install(wheel, extra)

    room.run(room.python, "-c", f"import celery_tm.management, {EXTRAS[extra]}")


def test_the_public_names_are_typed_for_those_who_use_them(room: CleanRoom, tmp_path: Path) -> None:
    (tmp_path / "user.py").write_text(USER)
    command = [sys.executable, "-m", "mypy", "--strict", "--python-executable", str(room.python), "--no-incremental"]
    done = subprocess.run(
        [*command, "user.py"], cwd=tmp_path, env=BARE, capture_output=True, text=True, timeout=240, check=False
    )

    revealed = re.findall(r'Revealed type is "(.*)"', done.stdout)
    assert [re.sub(r"[\w.]+\.(\w+)", r"\1", kind) for kind in revealed] == REVEALED, done.stdout + done.stderr
    errors = re.findall(r"user.py:\d+: error: .*\[([\w-]+)\]", done.stdout)
    assert errors == ["call-arg", "arg-type"], done.stdout


def test_importing_the_package_takes_no_time(room: CleanRoom) -> None:
    # The quickest of several: on a busy machine the others measure the machine.
    assert min(import_times(room, "celery_tm")) < IMPORT_LIMIT


def import_times(room: CleanRoom, module: str) -> list[float]:
    """Return how many milliseconds the import takes beyond a bare interpreter, measured a few times."""
    took = []
    for _ in range(7):
        command = [str(room.python), "-X", "importtime", "-c", f"import {module}"]
        done = subprocess.run(command, env=BARE, capture_output=True, text=True, check=True, timeout=60)
        [line] = [line for line in done.stderr.splitlines() if line.endswith(f" {module}")]
        took.append(int(line.split("|")[1]) / 1000)
    return took
