"""Furnishes the demo, so that there is something to see within a minute: `python -m samples`, when all is loaded."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from app import tm
from demo import call_carrier, stocktaking
from shop.billing import request_downgrade, subscribe
from shop.database import open_session
from shop.durations import PERIOD, SPEED, TOKEN_LIFE
from shop.models import Tenant, Token

from celery_tm import defer

# How often the definitions of definitions.toml fire, roughly: at the demo's speed they fire so many times more often.
EVERY = {
    "sync currency rates": timedelta(days=1),
    "expire payments": timedelta(minutes=5),
    "reconcile invoices": timedelta(minutes=10),
    "recover effects": timedelta(minutes=15),
    "clean up tokens": timedelta(hours=1),
}
LEAST = timedelta(seconds=5)


def speed_up() -> None:
    """Let the definitions fire as often as the demo's time runs fast."""
    for name, every in EVERY.items():
        seconds = max(every / SPEED, LEAST).total_seconds()
        tm.definitions.update(name, schedule=f"every {seconds:g}s", actor="demo", reason=f"TM_DEMO_SPEED={SPEED:g}")


def furnish(now: datetime) -> None:
    """Let there be tenants whose period ends soon, customers, work in progress, a failing job, and one far away."""
    with open_session() as session, session.begin():
        if session.get(Tenant, "early-bird") is None:  # not furnished yet
            for number, (name, plan) in enumerate([("early-bird", "basic"), ("never-pays", "basic"), ("downgrades", "pro")]):
                subscribe(session, name, plan, now=now - PERIOD + timedelta(seconds=20 + 10 * number))
            request_downgrade(session, "downgrades", "basic", now=now)
            session.add(Token(value="an old login", expires_at=now - TOKEN_LIFE))
    if "customers" not in [definition.name for definition in tm.definitions.list(group="demo")]:
        tm.definitions.add(name="customers", task="demo.customers", schedule="every 10s", group="demo")
    tm.trigger("sync currency rates", actor="demo", reason="so that there are rates at once")
    defer(stocktaking.s(40), delay="3s", key="stocktaking")
    defer(call_carrier.s(42), delay="2s", key="carrier:42", entity_id="42")


if __name__ == "__main__":
    if SPEED > 1:
        speed_up()
    furnish(datetime.now(UTC))
