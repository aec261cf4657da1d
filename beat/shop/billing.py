"""Subscriptions: an invoice for each period, exactly once; frozen after the grace period; downgrades at a safe boundary.

Each renewal defers the next one in its own transaction, under a key of tenant and period: the chain does not break or fork.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from app import app
from sqlalchemy import select
from sqlalchemy.orm import Session

from celery_tm import Task, defer

from . import provider
from .durations import GRACE, PERIOD
from .models import PRICES, Invoice, Payment, Tenant, note
from .payments import PATIENT, settle


def subscribe(session: Session, tenant_id: str, plan: str, *, now: datetime) -> Tenant:
    """Begin a subscription, whose first period begins now. The caller owns the transaction."""
    tenant = Tenant(id=tenant_id, plan=plan, anchor_at=now)
    session.add(tenant)
    session.flush()
    owe(session, tenant, renew, 0, now)
    return tenant


def owe(session: Session, tenant: Tenant, task: Task, period: int, now: datetime) -> None:
    """Defer a task to the beginning of a period, once; after downtime that may be past, and then it is due at once."""
    wait = max(tenant.anchor_at + period * PERIOD - now, timedelta(0))
    key = f"{task.name}:{tenant.id}:{period}"
    defer(task.s(tenant.id, period), delay=wait, key=key, entity_id=tenant.id, session=session)


@app.task(bind=True, name="shop.renew", transactional=True, **PATIENT)
def renew(self: Task, tenant_id: str, period: int) -> str:
    """At the billing anchor: issue the invoice of a period, and owe the next one."""
    session, now = self.job.session, self.job.started_at
    tenant = session.get_one(Tenant, tenant_id, with_for_update=True)
    owe(session, tenant, renew, period + 1, now)
    change_plan_if_safe(session, tenant, period, now)
    tenant.period = period
    if tenant.state == "frozen":
        return "frozen: nothing is billed"
    invoice = Invoice(
        tenant_id=tenant.id,
        period=period,
        plan=tenant.plan,
        amount=PRICES[tenant.plan],
        issued_at=now,
        grace_until=now + GRACE,
    )
    session.add(invoice)
    session.flush()
    session.add(Payment(reference=f"invoice-{tenant.id}-{period}", invoice_id=invoice.id, created_at=now))
    note(session, "invoiced", f"{tenant.id}:{period}", now)
    defer(end_grace.s(tenant.id, period), delay=GRACE, key=f"grace:{tenant.id}:{period}", entity_id=tenant.id)
    return f"{invoice.amount / 100:.2f} for period {period}"


@app.task(bind=True, name="shop.end_grace", transactional=True, **PATIENT)
def end_grace(self: Task, tenant_id: str, period: int) -> str:
    """A day after an invoice: who has not paid it is frozen."""
    reference = f"invoice-{tenant_id}-{period}"
    has_paid = provider.is_paid(reference)  # nobody is frozen because a webhook was missed
    session, now = self.job.session, self.job.started_at
    if has_paid:
        settle(session, reference, by="polling", now=now)
        return "paid"
    payment = session.get_one(Payment, reference, with_for_update=True)
    if payment.state == "paid":
        return "paid"
    session.get_one(Invoice, payment.invoice_id).state = "overdue"
    tenant = session.get_one(Tenant, tenant_id, with_for_update=True)
    tenant.state = "frozen"
    note(session, "frozen", f"{tenant_id}:{period}", now)
    return "frozen"


def extend(session: Session, payment: Payment, now: datetime) -> str:
    """Give a tenant the period of a paid invoice; one who is frozen is active again when nothing is overdue."""
    invoice = session.get_one(Invoice, payment.invoice_id)
    tenant = session.get_one(Tenant, invoice.tenant_id, with_for_update=True)
    invoice.state = "paid"
    note(session, "extended", f"{tenant.id}:{invoice.period}", now)
    session.flush()
    if tenant.state == "frozen" and not _unpaid(session, tenant, "overdue"):
        tenant.state = "active"
        note(session, "active again", f"{tenant.id}:{invoice.period}", now)
    return f"{tenant.id} has period {invoice.period}"


def request_downgrade(session: Session, tenant_id: str, plan: str, *, now: datetime) -> None:
    """Wish for a smaller plan, from the next period on before which all is paid. The caller owns the transaction."""
    tenant = session.get_one(Tenant, tenant_id, with_for_update=True)
    tenant.wanted_plan, tenant.wanted_from = plan, (now - tenant.anchor_at) // PERIOD + 1
    owe(session, tenant, downgrade, tenant.wanted_from, now)


@app.task(bind=True, name="shop.downgrade", transactional=True, **PATIENT)
def downgrade(self: Task, tenant_id: str, period: int) -> str:
    """At the beginning of a period: change the plan, or wait for the next one while something is unpaid."""
    session, now = self.job.session, self.job.started_at
    tenant = session.get_one(Tenant, tenant_id, with_for_update=True)
    if tenant.wanted_plan is None:
        return "changed with the renewal"
    if change_plan_if_safe(session, tenant, period, now):
        return f"changed to {tenant.plan}"
    owe(session, tenant, downgrade, period + 1, now)
    return "waits: something is unpaid"


def change_plan_if_safe(session: Session, tenant: Tenant, period: int, now: datetime) -> bool:
    """Change to the wanted plan at the boundary before a period, unless it is billed or an earlier one is unpaid."""
    if tenant.wanted_plan is None or period < tenant.wanted_from:  # a renewal that is late is not what was wished for
        return False
    if tenant.period != period - 1:  # it is billed already, or an earlier one is late and would be billed as smaller
        return False
    if tenant.state == "frozen" or _unpaid(session, tenant, "open", "overdue"):
        return False
    tenant.plan, tenant.wanted_plan = tenant.wanted_plan, None
    note(session, "plan changed", f"{tenant.id}:{period}", now)
    return True


def _unpaid(session: Session, tenant: Tenant, *states: str) -> bool:
    found = select(Invoice.id).where(Invoice.tenant_id == tenant.id, Invoice.state.in_(states)).limit(1)
    return session.scalar(found) is not None
