"""`celery -A app tm completion`: the script by which a shell completes commands, options, definitions and groups."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from .common import Word, as_json, example
from .output import show_one

SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_CELERY_COMPLETE"
HOW = {
    "bash": 'eval "$(celery tm completion bash)"',
    "zsh": 'eval "$(celery tm completion zsh)"',
    "fish": "celery tm completion fish | source",
}


@click.command(
    name="completion",
    help="Print the script that completes `celery …` in a shell: commands, options, and with -A the names of definitions, "
    "groups and calendars. Put this into the shell's start file: "
    + "; ".join(f"{line} ({shell})" for shell, line in HOW.items())
    + ".",
    epilog=example("completion bash > /etc/bash_completion.d/celery"),
)
@click.argument("shell", type=Word(SHELLS), metavar="[bash|zsh|fish]")
@as_json
@click.pass_context
def command(ctx: click.Context, shell: str, as_json: bool) -> None:
    """Print the script."""
    kind = get_completion_class(shell)
    if kind is None:
        raise click.ClickException(f"this release of click knows no completion for {shell}; upgrade click")
    maker = kind(ctx.find_root().command, {}, "celery", VARIABLE)
    script = maker.source_template % maker.source_vars()
    if as_json:
        show_one({"shell": shell, "script": script}, json_wanted=True)
    else:
        click.echo(script)
