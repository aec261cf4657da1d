"""A full disk under SQLite: beat, worker and callers survive it, and go on when there is room again; nothing is lost."""

from __future__ import annotations

import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from tmtest.servers import OwnRedis
from tmtest.stand import Stand

from celery_tm import defer
from celery_tm.errors import DatabaseUnavailable
from celery_tm.store import tables

pytestmark = [pytest.mark.alone, pytest.mark.timeout(150)]
SIZE = 4 * 2**20


class Disk:
    """A small disk that can be filled up."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._ballast = folder, folder / "ballast"

    def fill(self) -> None:
        """Leave no room at all."""
        with self._ballast.open("ab", buffering=0) as file:
            for size in (2**16, 2**12, 1):
                while True:
                    try:
                        file.write(b"\0" * size)
                    except OSError:
                        break

    def clear(self) -> None:
        """Make room again."""
        self._ballast.unlink()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    folder = tmp_path / "disk"
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip("only root can make a small disk: mount -t tmpfs")
    yield Disk(folder)
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.fixture
def stand(disk: Disk, broker: OwnRedis, tmp_path: Path, effects: Path) -> Iterator[Stand]:
    url = f"sqlite:///{disk.folder}/jobs.db"
    stand = Stand({"broker_url": broker.url, "tm_database_url": url, "tm_dispatch_lease": 3}, tmp_path, effects)
    stand.tm.upgrade()
    yield stand
    stand.close()


def test_all_go_on_when_there_is_room_again_and_nothing_is_lost(stand: Stand, disk: Disk) -> None:
    effect, sleepy = stand.app.tasks["effect"], stand.app.tasks["sleepy"]
    beat, worker = stand.beat(), stand.worker()
    stand.tm.definitions.add(name="tick", task="effect", schedule="* * * * * *", overlap="allow", recovery="all")
    asked = [defer(effect.s(f"before{n}"), delay=n % 3) for n in range(20)]
    asked += [defer(sleepy.s("sleeps", 2))]  # its end falls into the time without room
    stand.wait(lambda: stand.effects("start"), what="a body that runs when the disk gets full")

    disk.fill()
    refused: list[str] = []
    direct = [effect.delay(f"direct{n}") for n in range(5)]
    until = time.monotonic() + 5
    while time.monotonic() < until:
        try:
            asked.append(defer(effect.s(f"meanwhile{len(asked)}")))
        except DatabaseUnavailable as error:
            refused.append(str(error))
        time.sleep(0.2)
    assert "disk is full" in refused[0]
    assert beat.is_running
    assert worker.is_running

    disk.clear()
    asked += [defer(effect.s(f"after{n}")) for n in range(5)]
    stand.tm.disable("tick")
    stand.wait_until_settled()
    ids = [handle.id for handle in asked] + [result.id for result in direct]
    with stand.database.transaction(write=False) as tx:
        rows = tx.execute(tables.execution.select()).all()
    succeeded = Counter(row.job for row in rows if row.outcome == "succeeded")
    assert {id: succeeded[id] for id in ids} == dict.fromkeys(ids, 1)
    assert {row.outcome for row in rows} <= {"succeeded", "orphaned"}
    assert stand.count(tables.dead_letter) == 0
    states = {row.state for row in _occurrences(stand)}
    assert states <= {"completed", "skipped"}
    assert beat.is_running
    assert worker.is_running


def _occurrences(stand: Stand) -> list[object]:
    with stand.database.transaction(write=False) as tx:
        return list(tx.execute(tables.occurrence.select()))
