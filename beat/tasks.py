"""The sample's tasks: small, but each shows one thing a scheduler is for."""

from __future__ import annotations

import time

from app import app

from celery_tm import Task


@app.task(bind=True, name="shop.sync_rates")
def sync_rates(self: Task) -> str:
    """A recurring job that reports how far it has come."""
    for currency in ("EUR", "PLN", "USD"):
        self.job.report_progress(f"fetching {currency}")
        time.sleep(0.2)
    self.job.report_success("3 rates")
    return "3 rates"


@app.task(name="shop.expire_carts")
def expire_carts() -> int:
    """A recurring job with nothing to say."""
    return 0


@app.task(bind=True, name="shop.expire_payment", max_retries=2)
def expire_payment(self: Task, order_id: int) -> str:
    """A deferred job about one order."""
    return f"payment of order {self.job.entity_id or order_id} expired"


@app.task(name="shop.expire_order")
def expire_order(order_id: int) -> str:
    """A deferred job far in the future."""
    return f"order {order_id} expired"


@app.task(name="shop.send_receipt")
def send_receipt(order_id: int) -> str:
    """A job that runs at once."""
    return f"receipt of order {order_id} sent"


@app.task(name="shop.call_carrier", max_retries=2, retry={"kind": "fixed", "delay": "5s"})
def call_carrier(order_id: int) -> None:
    """A job that fails, is tried again, and becomes a dead letter."""
    raise ConnectionError(f"the carrier does not answer about order {order_id}")
