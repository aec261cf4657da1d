"""Making an app's beat known to the tables, and taking over rows that name no app."""

from __future__ import annotations

from ..installation import Installation
from ..store import apps
from ..store.database import Transaction
from .seeding import origin_of


def register(installation: Installation, tx: Transaction) -> bool:
    """Register the app, and adopt in the same transaction: a process that learns of the app finds its rows.

    Say whether there may be more to adopt.
    """
    apps.register(tx)
    return adopt(installation, tx)


def adopt(installation: Installation, tx: Transaction) -> bool:
    """Take over a batch of the rows that name no app; say whether there may be more."""
    app = installation.app
    return apps.adopt(tx, origin=origin_of(app), tasks=app.tasks)


def adopt_all(installation: Installation) -> None:
    """Take over every row that names no app and may be this one's."""
    while installation.database.run(lambda tx: adopt(installation, tx)):
        pass
