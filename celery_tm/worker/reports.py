"""What a body says while it runs: its progress and its lines, written so that one that never stops talking floods nobody.

The first lines are written as they come. What comes faster than that is gathered and written together, at the latest when
the lease is renewed or the attempt ends. Of one execution so many lines are kept; then one more, which says so.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from ..domain.execution import MAX_LINES, MAX_MESSAGE, cut
from ..domain.job import Job
from ..errors import said
from ..store import jobs, logs

EVERY = 0.2  # seconds between two writes of what comes fast
AT_ONCE = 50  # writes that need not wait for each other; each is earned again after EVERY
LAST_LINE = f"no more lines are kept of this execution: there are {MAX_LINES:,}; write the others to a log file"
Write = Callable[[Callable[[Any], None]], None]


class Reports:
    """What one attempt has said. `write`, which each time is handed over, runs a transaction, and minds if it fails.

    The thread that renews leases writes too: what is taken out of the lines is taken by one of them. No lock is held
    meanwhile, for a body may fork.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._lines: deque[tuple[str, str]] = deque()
        self._kept = 0
        self._progress: str | None = None
        self._progress_at = float("-inf")
        self._allowance, self._counted_at = float(AT_ONCE), time.monotonic()

    def progress(self, message: object, write: Write) -> str:
        """Show how far the work has come, a few times a second at most; return what is shown."""
        self._progress = shown = cut(said(message), MAX_MESSAGE)
        if time.monotonic() - self._progress_at >= EVERY:
            self.flush(write)
        return shown

    def line(self, level: str, message: object, write: Write) -> None:
        """Keep a line."""
        self._keep(level, cut(said(message), MAX_MESSAGE))
        if self._may_write():
            self.flush(write)

    def _keep(self, level: str, message: str) -> None:
        self._kept += 1
        if self._kept <= MAX_LINES:
            self._lines.append((level, message))
        elif self._kept == MAX_LINES + 1:
            self._lines.append(("warning", LAST_LINE))

    def _may_write(self) -> bool:
        now = time.monotonic()
        self._allowance = min(AT_ONCE, self._allowance + (now - self._counted_at) / EVERY)
        self._counted_at = now
        if self._allowance < 1:
            return False
        self._allowance -= 1
        return True

    def flush(self, write: Write) -> None:
        """Write what is not written yet."""
        message, self._progress = self._progress, None
        if message is not None:
            self._progress_at = time.monotonic()
            self._keep("progress", message)
        lines = self._take()
        if lines or message is not None:
            write(lambda tx: _written(tx, self._job, lines, message))

    def _take(self) -> Sequence[tuple[str, str]]:
        taken: list[tuple[str, str]] = []
        while self._lines:
            try:
                taken.append(self._lines.popleft())
            except IndexError:  # the other thread was faster
                break
        return taken


def _written(tx: Any, job: Job, lines: Sequence[tuple[str, str]], progress: str | None) -> None:
    """Write what an attempt has said; one that has lost its lease has nothing more to say."""
    if progress is not None:
        if not jobs.report_progress(tx, job, progress):
            return
        logs.write_all(tx, job.execution_id, lines)
    elif len(lines) == 1:
        logs.write_if_held(tx, job, *lines[0])
    else:
        logs.write_all_if_held(tx, job, lines)
