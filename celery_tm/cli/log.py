"""`celery -A app tm log`: what the bodies of a job's attempts have said."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial

import click

from ..domain.job import Status
from ..domain.paging import MAX_PAGE, Page, write_cursor
from ..errors import JobNotFound
from ..management import TimeManagement
from ..presentation import Rows, plain
from ..store.logs import LogLine
from ..store.paging import LOG
from .common import after_option, as_json, example, limit_option, many, tell_next, with_tm
from .output import cell, printable, show

EVERY = 1.0
GOING_ON = (Status.SCHEDULED, Status.RUNNING, Status.RETRY_SCHEDULED)


@click.command(
    name="log",
    help="Show the progress and log lines of all attempts of a job, or of one execution, in order.",
    epilog=example("log 0197a1f0-3c1e-7d52-9b0e-2f6c1a7e4d11 --follow"),
)
@click.argument("id")
@click.option("--follow", is_flag=True, help="Go on until the job has ended; with --json one object to a line.")
@after_option
@limit_option
@as_json
@with_tm
def command(tm: TimeManagement, id: str, follow: bool, after: str | None, limit: int, as_json: bool) -> None:
    """Show log lines."""
    if follow:
        with suppress(KeyboardInterrupt):
            for line in _following(tm, id, after):
                click.echo(json.dumps(plain(line)) if as_json else _told(line))
        return
    found = many(partial(tm.log, id), limit=limit, after=after)
    if as_json or not found:
        show_rows = Rows(tm)
        rows = [show_rows.log_line(line) for line in found]
        show(rows, columns=(), json_wanted=as_json, empty="nothing was said")
    for line in [] if as_json else found:
        click.echo(_told(line))
    tell_next(found, "--after")


def _told(line: LogLine) -> str:
    attempt = "" if line.attempt is None else f"#{line.attempt} "
    return f"{cell('at', line.at)}  {attempt}{line.level:<8}  {printable(line.message)}"


def _following(tm: TimeManagement, id: str, after: str | None) -> Iterator[LogLine]:
    """Yield lines as they come; the state is read first, so that the last words are not missed."""
    while True:
        going_on = _is_going_on(tm, id)
        page: Page[LogLine] = tm.log(id, after=after, limit=MAX_PAGE)
        yield from page
        after = write_cursor(LOG.kind, (None, page[-1].id)) if page else after
        if not going_on and page.next is None:
            return
        if page.next is None:
            time.sleep(EVERY)


def _is_going_on(tm: TimeManagement, id: str) -> bool:
    try:
        return tm.job(id).state in GOING_ON
    except JobNotFound:  # an execution's id: that has ended
        return False
