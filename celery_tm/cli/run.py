"""`celery -A app tm run`: plan, dispatch and execute in this process, with no broker."""

from __future__ import annotations

import logging
import os
import signal
from dataclasses import asdict
from typing import Any

import click

from ..errors import OUT_OF_REACH
from ..management import TimeManagement
from ..management.runner import Runner, run_once
from .common import as_json, example, one_line, with_tm
from .output import show_one


@click.command(
    name="run",
    help="Run beat and worker in this one process: plan, dispatch and execute what is due, with no broker. For cron jobs, "
    "tests and small installations. Any number of them may share a database with beats and workers.",
    epilog=example("run --once"),
)
@click.option("--once", is_flag=True, help="Run what is due now and exit.")
@click.option(
    "-c", "--concurrency", type=click.IntRange(1, 1000), default=4, show_default=True, help="Jobs at once, in threads."
)
@click.option(
    "-l",
    "--loglevel",
    type=click.Choice(["DEBUG", "INFO", "WARNING", "ERROR"], case_sensitive=False),
    default="INFO",
    show_default=True,
    help="What is logged.",
)
@as_json
@with_tm
def command(tm: TimeManagement, once: bool, concurrency: int, loglevel: str, as_json: bool) -> None:
    """Run what is due."""
    tm.app.log.setup(loglevel.upper())
    tm.app.loader.import_default_modules()
    tm.app.finalize()
    if not once:
        _run(Runner(tm.app, concurrency=concurrency))
        return
    try:
        done = run_once(tm.app)
    except OUT_OF_REACH as error:
        raise click.ClickException(one_line(tm.installation.hidden(error))) from None
    if as_json:
        show_one(asdict(done), json_wanted=True)
    else:
        click.echo(", ".join(f"{number} {what}" for what, number in asdict(done).items() if number) or "nothing is due")


def _run(runner: Runner) -> None:
    """Run until a signal; a second one does not wait for the bodies that run, whose leases then end."""

    def stop(number: int, _: Any) -> None:
        if runner.is_stopping:
            os._exit(128 + number)
        logging.getLogger("celery_tm").warning(
            "stopping: %d jobs are running; a second signal does not wait for them", runner.running
        )
        runner.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    click.echo(
        f"running jobs of {runner.app.main} from {runner.installation.database.safe_url}, {runner.concurrency} at once"
    )
    runner.run()
