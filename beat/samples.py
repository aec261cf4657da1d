"""Defers a handful of jobs, so that there is something to see: `python -m samples`."""

from __future__ import annotations

from datetime import timedelta

from tasks import call_carrier, expire_order, expire_payment, send_receipt

from celery_tm import defer


def defer_samples() -> None:
    """Defer one job at once, some soon, one that fails until it is a dead letter, and one far away."""
    defer(send_receipt.s(41))
    for order in range(42, 47):
        wait = timedelta(seconds=10 * (order - 41))
        defer(expire_payment.s(order), delay=wait, key=f"payment:{order}", entity_id=str(order))
    defer(call_carrier.s(42), delay="5s", key="carrier:42")
    defer(expire_order.s(42), delay="48h", key="order:42", entity_id="42")


if __name__ == "__main__":
    defer_samples()
