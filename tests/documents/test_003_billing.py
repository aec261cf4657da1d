"""Document 003: a month of billing, AC-1 to AC-5, with real workers that are killed and webhooks that get lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import select
from tmtest.node import opened_node
from tmtest.servers import OwnRedis
from tmtest.street import BY_HAND, PAYERS, SEED, Street

from celery_tm.store import tables

DURATIONS = {"PERIOD": 5, "GRACE": 2, "PATIENCE": 1, "PAYMENT_TIMEOUT": 3, "ORDER_LIFE": 6}
CLOCKS = timedelta(seconds=1)  # the server's clock and ours may differ a little
MONEY = ("renew", "end_grace", "downgrade", "apply_payment", "time_out_payment", "expire_order")


@pytest.fixture
def street(broker: OwnRedis, tmp_path: Path, own_url: str) -> Iterator[Street]:
    """The shop on PostgreSQL and Redis, with empty tables."""
    environ = {f"SHOP_{name}": str(seconds) for name, seconds in DURATIONS.items()}
    environ |= {"TM_DATABASE_URL": own_url, "TM_BROKER_URL": broker.url, "TM_DEMO_SPEED": "60"}
    with opened_node(environ) as node, pytest.MonkeyPatch.context() as patch:
        node.models.Base.metadata.drop_all(node.database.engine())
        node.database.create()
        provider = node.provider.Provider()
        patch.setenv("SHOP_PROVIDER_URL", provider.start())
        street = Street(node, tmp_path, provider)
        yield street
        street.close()
        provider.shutdown()
        provider.server_close()
        node.models.Base.metadata.drop_all(node.database.engine())


@pytest.mark.timeout(600)
def test_the_shop_keeps_its_promises_whoever_is_killed_and_whatever_gets_lost(street: Street) -> None:
    print(f"TM_TEST_SEED={SEED}")  # shown where it fails
    street.open()
    street.live()
    for process in street.processes:
        process.kill()
    print(f"{street.killed} kills, {len(street.dropped)} of {len(street.paid_at)} webhooks lost, {dict(street.outcomes())}")
    an_invoice_is_issued_once_for_each_tenant_and_period(street)  # AC-1
    an_unpaid_grace_period_ends_frozen(street)  # AC-2
    what_is_paid_has_its_effect_once(street)  # AC-3
    a_downgrade_has_waited_for_a_safe_boundary(street)  # AC-4
    a_missed_webhook_is_made_up_for(street)  # AC-5
    what_nobody_pays_is_given_up_once(street)
    nothing_is_buried_that_is_about_money(street)


def an_invoice_is_issued_once_for_each_tenant_and_period(street: Street) -> None:
    invoiced, invoices = street.ledger("invoiced"), street.rows("Invoice")
    assert invoiced == Counter(f"{one.tenant_id}:{one.period}" for one in invoices)
    assert set(invoiced.values()) == {1}
    anchors = {tenant.id: tenant.anchor_at for tenant in street.rows("Tenant")}
    for one in invoices:
        assert one.issued_at >= anchors[one.tenant_id] + one.period * street.node.durations.PERIOD - CLOCKS
    frozen = {subject.partition(":")[0] for subject in street.ledger("frozen")}
    for tenant in set(PAYERS) - frozen:  # a busy machine may let one of them pay too late
        periods = sorted(one.period for one in invoices if one.tenant_id == tenant)
        assert periods == list(range(len(periods))), f"{tenant} was not billed for each period"


def an_unpaid_grace_period_ends_frozen(street: Street) -> None:
    frozen, invoices = street.entries("frozen"), {f"{one.tenant_id}:{one.period}": one for one in street.rows("Invoice")}
    assert {"never:0", "late:0"} <= set(frozen)
    assert set(street.ledger("frozen").values()) == {1}
    for subject, entry in frozen.items():
        assert entry.at >= invoices[subject].grace_until
        paid_at = street.paid_at.get("invoice-" + subject.replace(":", "-"))
        assert paid_at is None or paid_at >= entry.at - CLOCKS, f"{subject} was frozen though it was paid"
    billed = [entry.id for subject, entry in street.entries("invoiced").items() if subject.startswith("never:")]
    assert max(billed) < frozen["never:0"].id, "who is frozen was billed"
    states = {tenant.id: tenant.state for tenant in street.rows("Tenant")}
    assert (states["never"], states["late"]) == ("frozen", "active")


def what_is_paid_has_its_effect_once(street: Street) -> None:
    effects = Counter(f"invoice-{subject.replace(':', '-')}" for subject in street.ledger("extended").elements())
    effects += street.ledger("delivered") + street.ledger("refunded")
    assert effects == Counter(street.paid_at.keys())
    assert effects[BY_HAND] == 1  # nobody had deferred it
    assert {payment.reference for payment in street.rows("Payment") if payment.state == "paid"} == set(effects)


def a_downgrade_has_waited_for_a_safe_boundary(street: Street) -> None:
    anchors = {tenant.id: tenant.anchor_at for tenant in street.rows("Tenant")}
    extended = street.entries("extended")
    for tenant in ("pays-1", "late"):
        [change] = street.changes(tenant)
        period = int(change.subject.partition(":")[2])
        assert period >= 1
        assert change.at >= anchors[tenant] + period * street.node.durations.PERIOD - CLOCKS
        for invoice in (one for one in street.rows("Invoice") if one.tenant_id == tenant):
            assert invoice.plan == ("basic" if invoice.period >= period else "pro")
            # Both lines are written with the tenant locked, so their ids are in the order in which it happened.
            assert invoice.period >= period or extended[f"{tenant}:{invoice.period}"].id < change.id
    assert street.changes("never") == []


def a_missed_webhook_is_made_up_for(street: Street) -> None:
    by = {payment.reference: payment.settled_by for payment in street.rows("Payment")}
    assert street.dropped, "no webhook got lost: then this shows nothing"
    assert {by[reference] for reference in street.dropped} == {"polling"}


def what_nobody_pays_is_given_up_once(street: Street) -> None:
    orders = {reference for reference in street.unpaid if reference.startswith("order-")}
    assert len(orders) == 3
    for what in ("timed out", "expired"):
        assert {reference: street.ledger(what)[reference] for reference in orders} == dict.fromkeys(orders, 1)
    for reference, entry in street.entries("timed out").items():
        assert reference not in street.paid_at or street.paid_at[reference] >= entry.at - CLOCKS


def nothing_is_buried_that_is_about_money(street: Street) -> None:
    with street.node.database.engine().connect() as connection:
        buried = set(connection.scalars(select(tables.dead_letter.c.task)))
    assert not buried & {f"shop.{name}" for name in MONEY}
