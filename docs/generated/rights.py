"""The page about rights: what each role may do with each table, from `celery_tm.store.grants`."""

from __future__ import annotations

from sqlalchemy.engine import make_url

from celery_tm.store.grants import ROLES, grants
from celery_tm.store.tables import metadata

from .markdown import code, page, table

SHORT = {"SELECT": "r", "INSERT": "i", "UPDATE": "u", "DELETE": "d"}
EXAMPLE = make_url("postgresql://shop@db/shop")


def rights_page() -> str:
    """Return the page about rights in the database."""
    return page(
        "Rights",
        "What each process or person needs of the tables, and nothing more. `celery -A app tm schema grants` prints the "
        "statements for a user; [Security](../howto/security.md#rights-in-the-database) tells how to use them.",
        table(("role", "what it does"), [(code(name), role.about) for name, role in ROLES.items()]),
        "*r* is `SELECT`, *i* `INSERT`, *u* `UPDATE`, *d* `DELETE`; *u\\** is `UPDATE` of a few columns only, with which a "
        "definition is paused that keeps failing. All of them read `tm_schema_version`. The owner of the tables, who runs "
        "`schema upgrade`, is none of these.",
        table(("table", *map(code, ROLES)), [_row(one.name) for one in metadata.sorted_tables]),
        "For example:",
        "```sql\n" + "\n".join(grants("reader", "shop_reader", url=EXAMPLE)) + "\n```",
    )


def _row(name: str) -> tuple[str, ...]:
    return (code(name), *(_marks(role.rights.get(name, "")) for role in ROLES.values()))


def _marks(rights: str) -> str:
    found = [mark for right, mark in SHORT.items() if right in rights]
    return " ".join("u\\*" if mark == "u" and "UPDATE (" in rights else mark for mark in found)
