"""A new tz database moves coming instants: when beat finds another one than the plans were made with, it plans anew.

What is decided stays decided (`Definition.resumes_after`); only the next instant of each definition is looked up again.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import cache
from pathlib import Path
from zoneinfo import TZPATH

from ..installation import Installation
from ..store import definitions, marks
from ..store.database import Transaction

logger = logging.getLogger(__name__)

MARK = "tzdata"
STEP = 500


class ZoneWatch:
    """Looks up the next instants anew, a step per tick, if the tz database has changed."""

    def __init__(self, installation: Installation) -> None:
        self.installation = installation
        self._after = ""
        self._done = False

    def check_once(self) -> None:
        """Do one step, unless all is done."""
        if not self._done:
            self._done = self.installation.database.run(self._step)

    def _step(self, tx: Transaction) -> bool:
        version = tz_version()
        if marks.read(tx, MARK) == version:
            return True
        found = definitions.select_by_id(tx, after=self._after, limit=STEP)
        moved = []
        for definition in found:
            following = definition.following
            if following != definition.next_run_at:
                moved.append(replace(definition, next_run_at=following))
        definitions.advance(tx, moved)
        if moved:
            logger.info("the tz database is now %s: %d definitions have another next run", version, len(moved))
        if len(found) == STEP:
            self._after = found[-1].id
            return False
        marks.write(tx, MARK, version)
        return True


@cache
def tz_version() -> str:
    """Return which tz database this process reads."""
    for folder in TZPATH:
        for name in ("tzdata.zi", "+VERSION"):
            try:
                line = (Path(folder) / name).read_text(encoding="utf-8", errors="replace").splitlines()[0]
            except (OSError, IndexError):
                continue
            return line.removeprefix("# version ").strip()
    try:
        import tzdata

        return str(tzdata.IANA_VERSION)
    except ImportError:
        return "unknown"
