"""`celery -A app tm flower`: Flower with the pages of celery_tm in it."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

import click

from ..errors import TmError, nearest
from .common import example, one_line, tm_of


@click.command(
    name="flower",
    help="Run Flower with the pages of celery_tm under /tm. Takes Flower's own options, such as --port and --basic-auth; "
    "`flowerconfig.py` is read as ever.",
    epilog=example("flower --port=5555 --basic-auth=ann:secret"),
    context_settings={"ignore_unknown_options": True, "help_option_names": ["--help"]},
)
@click.argument("options", metavar="[FLOWER OPTIONS]...", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def command(ctx: click.Context, options: tuple[str, ...]) -> None:
    """Run Flower with the pages."""
    try:
        tm_of(ctx)  # no app, or settings that are wrong, are said before anything starts
        import_module("celery_tm.flower").install()  # by its name: the two are siblings, and neither needs the other
    except TmError as error:
        raise click.ClickException(one_line(str(error))) from None
    _refuse_unknown(options)
    from flower.command import flower

    ctx.find_root().invoke(flower, tornado_argv=options)


def _refuse_unknown(given: Sequence[str]) -> None:
    """Refuse an option that Flower does not have: it would leave it out without a word."""
    from flower.options import options

    known = [name.replace("_", "-") for name in options._options]
    for option in given:
        name = option.lstrip("-").partition("=")[0].replace("_", "-")
        if not option.startswith("--"):
            raise click.UsageError(f"{option!r} is not an option of Flower; write e.g. --port=5555")
        if name not in known:
            near = nearest(name, known)
            raise click.UsageError(f"Flower has no option --{name}" + (f", did you mean --{near}?" if near else ""))
