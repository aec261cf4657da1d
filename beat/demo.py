"""What a visitor sees happen: customers who pay or do not, webhooks that get lost, a carrier that never answers."""

from __future__ import annotations

import random
import time
from datetime import UTC, datetime

from app import app
from shop import provider
from shop.checkout import checkout
from shop.database import open_session
from shop.models import Invoice, Payment
from shop.payments import settle
from sqlalchemy import select

from celery_tm import Task

PAYS, IS_HEARD = 0.7, 0.6  # how likely it is that a customer pays, and that the webhook comes


@app.task(bind=True, name="demo.customers", expires=30)
def customers(self: Task) -> str:
    """Let one customer come, and let tenants pay their invoices."""
    with open_session() as session, session.begin():
        bought = checkout(session, "a visitor", random.randrange(5_00, 90_00), now=datetime.now(UTC)).reference
    with open_session() as session:
        owed = session.scalars(
            select(Payment.reference).join(Invoice).where(Payment.state == "pending", Invoice.tenant_id != "never-pays")
        ).all()
    paying = [one for one in (bought, *owed) if random.random() < PAYS]
    for reference in paying:
        self.job.report_progress(f"paying {reference}")
        provider.pay(reference)
        if random.random() < IS_HEARD:
            receive_webhook(reference)
    return f"{bought} bought, {len(paying)} paid"


def receive_webhook(reference: str) -> None:
    """Do what the shop's web server does when the provider calls."""
    with open_session() as session, session.begin():
        settle(session, reference, by="webhook", now=datetime.now(UTC))


@app.task(bind=True, name="demo.stocktaking")
def stocktaking(self: Task, shelves: int) -> str:
    """A job that takes its time and says how far it has come."""
    for shelf in range(1, shelves + 1):
        self.job.report_progress(f"shelf {shelf} of {shelves}")
        time.sleep(1)
    return f"{shelves} shelves counted"


@app.task(name="demo.call_carrier", max_retries=2, retry={"kind": "fixed", "delay": "3s"})
def call_carrier(order_id: int) -> None:
    """A job that fails, is tried again, and becomes a dead letter."""
    raise ConnectionError(f"the carrier does not answer about order {order_id}")
