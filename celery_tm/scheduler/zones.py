"""A new tz database moves coming instants: when beat finds another one than the plans were made with, it plans anew.

What is decided stays decided (`Definition.resumes_after`); only the next instant of each definition is looked up again. A
definition that this node cannot read stays as it is.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from zoneinfo import TZPATH, available_timezones

from ..domain.definition import Definition
from ..errors import DatabaseBusy
from ..installation import Installation
from ..store import definitions, marks
from ..store.batches import run_parts
from ..store.database import Transaction
from . import horizon

logger = logging.getLogger(__name__)

MARK = "tzdata:"  # and the app whose definitions were looked up
PROBE = "Europe/London"  # a zone that every tz database has
TABLE = "tm_definition"
STEP = 500
APART = 0.5  # seconds of one step for definitions that could not be looked up together
AGAIN_AFTER = 1.0  # seconds until definitions that others had locked are looked at again


class ZoneWatch:
    """Looks up the next instants anew, a step per tick, if the tz database has changed."""

    def __init__(self, installation: Installation) -> None:
        self.installation = installation
        self._after = ""
        self._missed = False  # some were locked by others: another walk is needed
        self._next_at = 0.0
        self._done = False
        self._failed = set[str]()  # definitions of this step that cannot be looked up

    def check_once(self) -> None:
        """Do one step, unless all is done."""
        if not self._done and time.monotonic() >= self._next_at:
            self._done = self._step()

    def _step(self) -> bool:
        database, version = self.installation.database, tz_version()
        with database.transaction(write=False) as tx:
            if marks.read(tx, MARK + tx.app) == version:
                return True
            ids = definitions.local_ids(tx, after=self._after, limit=STEP)
        looked_at = run_parts(database, ids, self._look_up, failed=self._failed_alone, seconds=APART)
        self._missed = self._missed or sum(found for found, _ in looked_at) + len(self._failed) < len(ids)
        self._failed.clear()
        if moved := sum(moved for _, moved in looked_at):
            logger.info("the tz database is now %s: %d definitions have another next run", version, moved)
        if len(ids) == STEP:
            self._after = ids[-1]
            return False
        if self._missed:
            self._after, self._missed, self._next_at = "", False, time.monotonic() + AGAIN_AFTER
            return False
        database.run(lambda tx: marks.write(tx, MARK + tx.app, version))
        return True

    def _look_up(self, tx: Transaction, ids: Sequence[str]) -> tuple[int, int]:
        """Look up the next instants of definitions; return how many were free, and how many have another."""
        found = definitions.lock_free(tx, ids)
        moved = [after for definition in found if (after := self._moved(definition)) is not None]
        definitions.advance(tx, moved)
        for one in {one.id: one for one in (*found, *moved)}.values():
            if one.plan_ahead is not None and one.problem is None:
                horizon.extend(tx, one, now=tx.read_now())
        return len(found), len(moved)

    def _failed_alone(self, id: str, error: Exception) -> None:
        """Leave a definition as it is that cannot be looked up; one that others hold is looked at again."""
        if not isinstance(error, DatabaseBusy):
            self._failed.add(id)
            self.installation.skip_row(TABLE, id, error)

    def _moved(self, definition: Definition) -> Definition | None:
        """Return a definition with its next instant as it is now; None if that is the same, or nobody here can tell."""
        if (problem := definition.problem) is not None:
            self.installation.skip_row(TABLE, definition.id, problem, name=definition.name)
            return None
        following = definition.looked_at
        return None if following == definition.next_run_at else replace(definition, next_run_at=following)


def _fingerprint(folder: Path) -> str:
    """Return what tells the zones of a folder without a version from others: a digest of all of them."""
    digest = hashlib.sha256()
    for name in sorted(available_timezones()):
        with suppress(OSError):
            digest.update((folder / name).read_bytes())
    return digest.hexdigest()[:12]


@cache
def tz_version() -> str:
    """Return which tz database this process reads."""
    folder = next((Path(one) for one in TZPATH if (Path(one) / PROBE).is_file()), None)  # where zoneinfo finds its zones
    if folder is not None:
        for name in ("tzdata.zi", "+VERSION"):
            try:
                line = (folder / name).read_text(encoding="utf-8", errors="replace").splitlines()[0]
            except (OSError, IndexError):
                continue
            return line.removeprefix("# version ").strip()
        return f"unversioned {_fingerprint(folder)}"
    try:
        import tzdata

        return str(tzdata.IANA_VERSION)
    except ImportError:
        return "unknown"
