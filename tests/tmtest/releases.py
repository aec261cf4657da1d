"""The release before and the one after this one, as folders to import from, and a load through a change of them."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest

import celery_tm
from celery_tm.store import nodes, schema

from .stand import TESTS, Process, Stand

# The first code that runs on tables of a later release, as each release after it does. Those before refuse such tables.
PREVIOUS = "a0a4b12cd09484ecf66ddfc475cedf24938a2668"
NEXT = f"{int(schema.LATEST) + 1:04}"
MIGRATION = f'''"""What a next release might add, for a rehearsal."""

from sqlalchemy import Column, MetaData, String, Table

from celery_tm.store import online

revision = "{NEXT}"
down_revision = "{schema.LATEST}"


def _tables() -> MetaData:
    metadata = MetaData()
    Table("tm_rehearsal", metadata, Column("id", String(36), primary_key=True))
    return metadata


def upgrade() -> None:
    online.create_tables(_tables())
    for table in ("tm_job", "tm_dead_letter", "tm_execution", "tm_occurrence", "tm_definition"):
        online.add_columns(table, Column("rehearsed", String(20), server_default="no"), Column("unused", String(20)))
    online.add_index("tm_execution_rehearsed", "tm_execution", "rehearsed", "completed_at", where="rehearsed IS NOT NULL")


def downgrade() -> None:
    online.drop_index("tm_execution_rehearsed", "tm_execution")
    for table in ("tm_job", "tm_dead_letter", "tm_execution", "tm_occurrence", "tm_definition"):
        online.drop_columns(table, "rehearsed", "unused")
    online.drop_tables(_tables())
'''
PRODUCER = """
import json, sys, time
from celery_tm import TimeManagement, defer
from tmtest.main import app

name, path = sys.argv[1:]
tm, tasks, n = TimeManagement(app), app.tasks, 0
with open(path, "a", buffering=1) as file:
    while True:
        n += 1
        label, second = f"{name}-{n}", int(time.time())
        if n % 4 == 0:
            kind, key = "keyed", f"key-{second}"
            handle = defer(tasks["effect"].s(key), delay=0.3, key=key)
        elif n % 4 == 1:
            kind, key, handle = "flaky", None, defer(tasks["flaky"].s(label, 1))
        elif n % 20 == 2:
            kind, key, handle = "run", None, tm.trigger("steps")
        else:
            kind, key, handle = "plain", None, defer(tasks["effect"].s(label), delay=0.2 * (n % 5))
        file.write(json.dumps({"kind": kind, "key": key, "id": handle.id, "label": label}) + chr(10))
        time.sleep(0.05)
"""


def previous_release(folder: Path) -> Path:
    """Take the release before, with the app that its tests use, out of the history."""
    root = TESTS.parent
    asked = ["git", "-C", str(root), "archive", PREVIOUS, "celery_tm", "tests/tmtest"]
    try:
        done = subprocess.run(asked, capture_output=True, timeout=60, check=False)
    except OSError:
        pytest.skip("git is not installed, so that the release before cannot be taken out of the history")
    if done.returncode:
        pytest.skip(f"the history has no {PREVIOUS[:7]}, the release before: this is an sdist or a shallow clone")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return _known_as(folder, "previous")


def next_release(folder: Path) -> Path:
    """Make a release that is like this one, with one migration more."""
    package = folder / "celery_tm"
    shutil.copytree(Path(celery_tm.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(TESTS / "tmtest", folder / "tests" / "tmtest", ignore=shutil.ignore_patterns("__pycache__"))
    (package / "store" / "migrations" / "versions" / f"{NEXT}_rehearsal.py").write_text(MIGRATION)
    code = package / "store" / "schema.py"
    before = code.read_text()
    code.write_text(before.replace(f'LATEST = "{schema.LATEST}"', f'LATEST = "{NEXT}"'))
    assert code.read_text() != before
    return _known_as(folder, "next")


def _known_as(folder: Path, name: str) -> Path:
    """Let nodes of a release say of which they are."""
    (folder / "celery_tm" / "version.py").write_text(f'"""The version."""\n\n__version__ = "{name}"\n')
    return folder


class Rollout(Stand):
    """A stand whose processes are of one release or another."""

    asked: Path

    def use(self, release: Path) -> None:
        """Let processes that are started from now on be of a release."""
        self.paths, self.cwd = [str(release), str(release / "tests")], release

    def versions(self, kind: str) -> set[str]:
        """Return of which releases the nodes are."""
        with self.database.transaction(write=False) as tx:
            return {node["version"] for node in nodes.select_nodes(tx) if node["kind"] == kind}

    def upgrade(self) -> None:
        """Upgrade the schema by a process of the release in use."""
        told = self.python("upgrade", "-m", "celery", "-A", "tmtest.main", "tm", "schema", "upgrade")
        assert told.wait(60) == 0, told.text()

    def producer(self, name: str) -> Process:
        """Start a process that defers work until it is stopped."""
        self.asked = self.folder / "asked.jsonl"
        return self.python(name, "-c", PRODUCER, name, str(self.asked))

    def requests(self, kind: str) -> list[dict[str, Any]]:
        """Return what producers were told to have asked for."""
        lines = [json.loads(line) for line in self.asked.read_text().splitlines()]
        return [line for line in lines if line["kind"] == kind]
