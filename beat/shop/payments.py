"""Finds out who has paid, by webhook or by asking, and gives them what they paid for exactly once.

That a payment is known and that its effect is owed is one commit (`settle`); that the effect is there and its job is done
is another (`apply_payment`). Whatever is killed in between, a paid payment does not stay without its effect.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from app import app
from sqlalchemy import select
from sqlalchemy.orm import Session

from celery_tm import Task, defer, defer_many

from . import provider
from .durations import PATIENCE
from .models import Order, Payment, note

# Money is worth many tries: the last one comes half a day after the first.
PATIENT: dict[str, Any] = {"max_retries": 20, "retry": {"kind": "exponential", "interval": "2s", "factor": 2.0, "cap": "1h"}}


def settle(session: Session, reference: str, *, by: str, now: datetime) -> bool:
    """Note that a payment has come and defer its effect; False if that was known. Webhooks come twice, and late."""
    payment = session.get(Payment, reference, with_for_update=True)
    if payment is None or payment.state == "paid":
        return False
    payment.state, payment.settled_by, payment.paid_at = "paid", by, now
    defer(apply_payment.s(reference), key=f"effect:{reference}", entity_id=reference, session=session)
    return True


@app.task(bind=True, name="shop.apply_payment", transactional=True, **PATIENT)
def apply_payment(self: Task, reference: str) -> str:
    """Give what was paid for."""
    from .billing import extend  # it settles payments too

    session, now = self.job.session, self.job.started_at
    payment = session.get_one(Payment, reference, with_for_update=True)
    if payment.applied_at is not None:
        return "applied already"
    payment.applied_at = now
    return _deliver(session, payment, now) if payment.order_id else extend(session, payment, now)


def _deliver(session: Session, payment: Payment, now: datetime) -> str:
    """Deliver an order, or give the money back if it has been given up."""
    order = session.get_one(Order, payment.order_id, with_for_update=True)
    if order.state == "open":
        order.state = "delivered"
    what = "delivered" if order.state == "delivered" else "refunded"
    note(session, what, payment.reference, now)
    return what


@app.task(bind=True, name="shop.reconcile", transactional=True)
def reconcile(self: Task) -> int:
    """Every few minutes: ask about each payment of which nothing was heard."""
    silent = select(Payment.reference).where(Payment.state == "pending", Payment.created_at < self.job.started_at - PATIENCE)
    found = self.job.session.scalars(silent).all()
    run = self.job.scheduled_at.isoformat()
    defer_many([(poll_payment.s(one), {"key": f"poll:{one}:{run}", "entity_id": one}) for one in found])
    self.job.report_success(f"{len(found)} payments to ask about")
    return len(found)


@app.task(bind=True, name="shop.poll_payment", transactional=True, max_retries=2)
def poll_payment(self: Task, reference: str) -> str:
    """Ask the provider, because its webhook may have been missed."""
    if not provider.is_paid(reference):  # asked before the transaction begins
        return "not paid"
    return "made up for" if settle(self.job.session, reference, by="polling", now=self.job.started_at) else "known"


@app.task(bind=True, name="shop.recover_effects", transactional=True)
def recover_effects(self: Task) -> int:
    """Every few minutes: what is paid and has had no effect, as when somebody settled it by hand or purged its job."""
    without = select(Payment.reference).where(
        Payment.state == "paid", Payment.applied_at.is_(None), Payment.paid_at < self.job.started_at - PATIENCE
    )
    found = self.job.session.scalars(without).all()
    jobs = defer_many([(apply_payment.s(one), {"key": f"effect:{one}", "entity_id": one}) for one in found])
    recovered = sum(job.created for job in jobs)  # a job that is still owed has the same key
    self.job.report_success(f"{recovered} effects recovered")
    return recovered
