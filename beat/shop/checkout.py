"""Sells: an order, its payment, and what becomes of them if nobody pays, in one transaction."""

from __future__ import annotations

from datetime import datetime

from app import app
from sqlalchemy import select
from sqlalchemy.orm import Session

from celery_tm import Task, defer, defer_many

from . import provider
from .durations import ORDER_LIFE, PAYMENT_TIMEOUT
from .models import Order, Payment, note
from .payments import PATIENT, settle


def checkout(session: Session, buyer: str, amount: int, *, now: datetime) -> Payment:
    """Place an order and return the payment it waits for. The caller owns the transaction; the jobs are part of it."""
    order = Order(buyer=buyer, amount=amount, placed_at=now)
    session.add(order)
    session.flush()
    payment = Payment(reference=f"order-{order.id}", order_id=order.id, created_at=now)
    session.add(payment)
    about = {"entity_id": str(order.id), "session": session}
    defer(time_out_payment.s(payment.reference), delay=PAYMENT_TIMEOUT, key=f"payment-timeout:{payment.reference}", **about)
    defer(expire_order.s(order.id), delay=ORDER_LIFE, key=f"order-expiry:{order.id}", **about)
    return payment


@app.task(bind=True, name="shop.time_out_payment", transactional=True, **PATIENT)
def time_out_payment(self: Task, reference: str) -> str:
    """Fifteen minutes after checkout: unless it was paid, the payment is over."""
    has_paid = provider.is_paid(reference)  # asked before the transaction begins; the webhook may have been missed
    session, now = self.job.session, self.job.started_at
    if has_paid:
        settle(session, reference, by="polling", now=now)
        return "paid"
    payment = session.get_one(Payment, reference, with_for_update=True)
    if payment.state != "pending":
        return payment.state
    payment.state = "timed out"
    note(session, "timed out", reference, now)
    return "timed out"


@app.task(bind=True, name="shop.expire_order", transactional=True, **PATIENT)
def expire_order(self: Task, order_id: int) -> str:
    """Two days after checkout: an order that is still open is given up."""
    session = self.job.session
    order = session.get_one(Order, order_id, with_for_update=True)
    if order.state == "open":
        order.state = "expired"
        note(session, "expired", f"order-{order_id}", self.job.started_at)
    return order.state


@app.task(bind=True, name="shop.expire_payments", transactional=True)
def expire_payments(self: Task) -> int:
    """Every few minutes: payments that should have timed out and have not, as when somebody cancelled their job."""
    overdue = select(Payment.reference).where(
        Payment.state == "pending", Payment.order_id.is_not(None), Payment.created_at < self.job.started_at - PAYMENT_TIMEOUT
    )
    found = self.job.session.scalars(overdue).all()
    jobs = defer_many([(time_out_payment.s(one), {"key": f"payment-timeout:{one}", "entity_id": one}) for one in found])
    late = sum(job.created for job in jobs)
    self.job.report_success(f"{late} payments were left behind")
    return late
