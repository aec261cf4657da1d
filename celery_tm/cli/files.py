"""`definitions load|export`: definitions and calendars as files that live next to the code."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from ..errors import InvalidValue
from ..management import TimeManagement
from ..presentation import Rows
from .common import Word, actor_option, as_json, example, with_tm
from .completing import group_option
from .output import show, show_one
from .toml import plain_values, write_toml
from .waiting import working


class File(click.Path):
    """The path of a file, which shells complete; what is wrong with it is said by whoever reads it."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:  # noqa: ARG002
        """Return the path; click itself would ask the system for it, which some texts are too odd for."""
        return Path(value)


@click.command(
    help="Add or change the definitions of a TOML or YAML file. Idempotent; one bad entry changes nothing. "
    "What a person has changed since the last load stays; if the file has changed it too, that is listed as a conflict.",
    epilog=example("definitions load definitions.toml --strict --actor deployment"),
)
@click.argument("file", type=File(path_type=Path))
@click.option("--only-new", is_flag=True, help="Only add what is missing; change nothing that is there.")
@click.option("--force", is_flag=True, help="The file wins, also over what a person has changed.")
@click.option("--strict", is_flag=True, help="Exit with 1 if there is a conflict; everything else is loaded.")
@actor_option
@as_json
@with_tm
def load(
    tm: TimeManagement, file: Path, only_new: bool, force: bool, strict: bool, actor: str | None, as_json: bool
) -> None:
    """Load a file."""
    if only_new and force:
        raise click.UsageError("--only-new and --force exclude each other")
    with working(f"loading {file}"):
        loaded = tm.definitions.load(file, only_new=only_new, force=force, actor=actor)
    told = Rows(tm).loaded(loaded)
    if as_json:
        show_one(told, json_wanted=True)
    else:
        _show_loaded(told)
    if strict and loaded.conflicts:
        raise click.exceptions.Exit(1)


def _show_loaded(told: Mapping[str, Any]) -> None:
    conflicts = told["conflicts"]
    for what, names in told.items():
        if what != "conflicts" and (names or what != "calendars"):
            click.echo(f"{what}: {len(names)}" + (f" ({', '.join(names)})" if names else ""))
    if conflicts:
        click.echo(f"conflicts: {len(conflicts)}; the database's values stay, --force lets the file win")
        show(conflicts, columns=("name", "field", "file", "database"), json_wanted=False, empty="")


@click.command(
    help="Write the definitions, and the calendars they name, as a file that `load` takes back.",
    epilog=example("definitions export --group reports > definitions.toml"),
)
@group_option
@click.option("--format", "form", type=Word(["toml", "yaml", "json"]), default="toml", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
@with_tm
def export(tm: TimeManagement, group: str | None, form: str, as_json: bool) -> None:
    """Write a file."""
    content = tm.definitions.export(group=group)
    if as_json or form == "json":
        text = json.dumps(plain_values(content, dates=False), indent=2) + "\n"
    elif form == "yaml":
        text = _yaml(plain_values(content, dates=False))
    else:
        text = write_toml(plain_values(content, dates=True))
    click.echo(text, nl=False)


def _yaml(content: Any) -> str:
    try:
        import yaml
    except ImportError:
        raise InvalidValue("format", "writing YAML needs PyYAML", "run `pip install 'celery-tm[yaml]'`") from None
    text: str = yaml.safe_dump(content, allow_unicode=True, sort_keys=False)
    return text
