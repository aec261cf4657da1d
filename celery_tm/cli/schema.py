"""`celery -A app tm schema`: the tables."""

from __future__ import annotations

import click

from ..management import TimeManagement
from ..store import grants as store_grants
from ..store import schema as store_schema
from ..store.grants import ROLES
from . import Group
from .common import Word, as_json, example, with_tm
from .output import show_one


@click.group(name="schema", cls=Group, help="Create, upgrade or check the tables, or say who needs which rights.")
def command() -> None:
    """The tables."""


@command.command(
    help="Bring the tables to this release. Safe to repeat, and on several nodes at once.", epilog=example("schema upgrade")
)
@as_json
@with_tm
def upgrade(tm: TimeManagement, as_json: bool) -> None:
    """Upgrade the tables."""
    before = store_schema.current(tm.installation.database)
    after = tm.upgrade()
    show_one({"database": tm.installation.database.safe_url, "before": before, "after": after}, json_wanted=as_json)


@command.command(
    help="Take the tables back by one revision, or to REVISION. What only later ones keep is lost; the release before runs "
    "on later tables too, so this is seldom needed. Stop all nodes of this release first.",
    epilog=example("schema downgrade 0004 --yes"),
)
@click.argument("revision", required=False)
@click.option("--yes", is_flag=True, help="Do not ask.")
@as_json
@with_tm
def downgrade(tm: TimeManagement, revision: str | None, yes: bool, as_json: bool) -> None:
    """Take the tables back."""
    database = tm.installation.database
    before = store_schema.current(database)
    if not yes:
        click.confirm(f"Take the tables in {database.safe_url} back from {before}?", abort=True, err=True)
    after = store_schema.downgrade(database, revision)
    show_one({"database": database.safe_url, "before": before, "after": after}, json_wanted=as_json)


@command.command(
    help="Print the SQL that gives a user of the database what a role needs, and no more. Nothing is run.",
    epilog=example("schema grants --role worker --to shop_worker"),
)
@click.option("--role", type=Word(ROLES), required=True, help=f"What the user is for: {', '.join(ROLES)}.")
@click.option("--to", required=True, metavar="USER", help="The user; on MySQL also USER@HOST.")
@as_json
@with_tm
def grants(tm: TimeManagement, role: str, to: str, as_json: bool) -> None:
    """Print the rights of a role."""
    database = tm.installation.database
    statements = store_grants.grants(role, to, url=database.url, schema=database.schema)
    if as_json:
        show_one({"role": role, "to": to, "statements": statements}, json_wanted=True)
        return
    print(f"-- {role}: {ROLES[role].about}")
    for statement in statements:
        print(statement)


@command.command(help="Say whether the tables are of this release; exit code 1 if not.", epilog=example("schema check"))
@as_json
@with_tm
def check(tm: TimeManagement, as_json: bool) -> None:
    """Check the tables."""
    found, wanted = store_schema.current(tm.installation.database), store_schema.LATEST
    is_current = found == wanted
    value = {"database": tm.installation.database.safe_url, "found": found, "needed": wanted, "current": is_current}
    show_one(value, json_wanted=as_json)
    if not is_current:
        raise click.ClickException("run `celery -A app tm schema upgrade`")
