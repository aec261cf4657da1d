"""Making what belongs to another app this one's, in batches, each with its audit."""

from __future__ import annotations

from ..domain.job import checked_actor
from ..errors import InvalidValue, nearest, shown
from ..installation import Installation
from ..scheduler.seeding import origin_of
from ..store import apps
from ..store.database import UNNAMED, Transaction


def take_over(installation: Installation, app: str, *, actor: str | None, reason: str | None) -> None:
    """Make the definitions, jobs and dead letters of another app this one's; a name that nothing belongs to is refused."""
    checked_actor(actor)
    with installation.database.transaction(write=False) as tx:
        _refuse_own(tx, app)
        _refuse_unknown(tx, app)

    def work(tx: Transaction) -> bool:
        _refuse_own(tx, app)
        apps.forget(tx, app)
        return apps.take_over(tx, app, origin=origin_of(installation.app), actor=actor, reason=reason)

    while installation.database.run(work):
        pass


def _refuse_own(tx: Transaction, app: str) -> None:
    if app == tx.app:
        raise InvalidValue("app", f"{shown(app)} is this app", "give the name that it had")


def _refuse_unknown(tx: Transaction, app: str) -> None:
    if app == UNNAMED or apps.has_anything(tx, app):  # there may be no unnamed rows left: that is no mistake
        return
    close = nearest(app, sorted(apps.registered(tx) | apps.strays(tx)))
    hint = f"did you mean {close!r}? " if close else ""
    remedy = f"{hint}`celery -A app tm doctor` names the apps that have no beat"
    raise InvalidValue("app", f"nothing belongs to an app called {shown(app)}", remedy)
