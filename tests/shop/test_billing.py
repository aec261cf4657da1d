"""M6's five statements in moved time: renewals, grace, effects, downgrades and missed webhooks."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import update


@pytest.fixture
def acme(shop: Any) -> str:
    shop.do(shop.node.billing.subscribe, "acme", "pro")
    shop.forward()
    return "acme"


def pay(shop: Any, period: int, *, heard: bool = True) -> None:
    shop.node.provider.pay(f"invoice-acme-{period}")
    if heard:
        shop.webhook(f"invoice-acme-{period}")
    shop.forward()


def plans(shop: Any) -> dict[int, str]:
    return {invoice.period: invoice.plan for invoice in shop.rows("Invoice")}


def test_a_renewal_invoice_is_issued_once_for_each_period_at_the_anchor(shop: Any, acme: str) -> None:
    for period in range(3):
        pay(shop, period)
        shop.forward("29d")
        assert shop.ledger("invoiced")[-1] == f"acme:{period}"
        shop.forward("1d")
    assert shop.ledger("invoiced") == [f"acme:{n}" for n in range(4)]
    assert shop.ledger("extended") == [f"acme:{n}" for n in range(3)]


def test_renewals_after_downtime_are_made_up_for_one_by_one(shop: Any, acme: str) -> None:
    pay(shop, 0)
    shop.forward("65d")
    assert shop.ledger("invoiced") == ["acme:0", "acme:1", "acme:2"]


def test_an_unpaid_grace_period_ends_frozen_after_a_day_and_paying_ends_that(shop: Any, acme: str) -> None:
    shop.forward("23h")
    assert shop.row("Tenant", acme).state == "active"
    shop.forward("1h")
    assert (shop.row("Tenant", acme).state, shop.ledger("frozen")) == ("frozen", ["acme:0"])
    shop.forward("30d")
    assert shop.ledger("invoiced") == ["acme:0"]
    pay(shop, 0)
    assert shop.row("Tenant", acme).state == "active"
    shop.forward("30d")
    assert shop.ledger("invoiced") == ["acme:0", "acme:2"]


def test_nobody_is_frozen_because_a_webhook_was_missed(shop: Any, acme: str) -> None:
    pay(shop, 0, heard=False)
    shop.forward("24h")
    assert shop.row("Tenant", acme).state == "active"
    assert (shop.ledger("extended"), shop.ledger("frozen")) == (["acme:0"], [])


def test_a_missed_webhook_is_made_up_for_by_polling(shop: Any, acme: str) -> None:
    shop.tm.definitions.add(name="reconcile", task="shop.reconcile", schedule="every 10m")
    shop.forward("10m")
    pay(shop, 0, heard=False)
    assert shop.row("Payment", "invoice-acme-0").state == "pending"
    shop.forward("10m")
    assert shop.row("Payment", "invoice-acme-0").settled_by == "polling"
    assert shop.ledger("extended") == ["acme:0"]


def test_a_paid_invoice_does_not_stay_without_its_effect(shop: Any, acme: str) -> None:
    shop.tm.definitions.add(name="recover", task="shop.recover_effects", schedule="every 15m")
    payment = shop.node.models.Payment

    def by_hand(session: Any, now: Any) -> None:
        session.execute(update(payment).values(state="paid", paid_at=now))

    shop.do(by_hand)
    shop.forward("10m")
    assert shop.ledger("extended") == []
    shop.forward("20m")
    assert shop.ledger("extended") == ["acme:0"]


def test_an_effect_that_became_a_dead_letter_is_recovered(shop: Any, acme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.tm.definitions.add(name="recover", task="shop.recover_effects", schedule="every 15m")
    monkeypatch.setattr(shop.node.billing, "extend", lambda *_: 1 / 0)
    shop.webhook("invoice-acme-0")
    for _ in range(40):
        shop.forward("1h")
    assert [letter.task for letter in shop.tm.dead_letters.list()][:1] == ["shop.apply_payment"]
    monkeypatch.undo()
    monkeypatch.setenv("SHOP_PROVIDER_URL", shop.node.provider.where())
    shop.forward("2h")
    assert shop.ledger("extended") == ["acme:0"]


def test_a_downgrade_waits_for_the_end_of_the_period(shop: Any, acme: str) -> None:
    pay(shop, 0)
    shop.forward("10d")
    shop.do(shop.node.billing.request_downgrade, acme, "basic")
    shop.forward("19d")
    assert shop.row("Tenant", acme).plan == "pro"
    shop.forward("1d")
    assert plans(shop) == {0: "pro", 1: "basic"}
    assert shop.ledger("plan changed") == ["acme:1"]


def test_a_wish_does_not_change_a_period_whose_renewal_is_late(shop: Any, acme: str) -> None:
    pay(shop, 0)
    shop.clock.forward("31d")  # no worker runs
    shop.do(shop.node.billing.request_downgrade, acme, "basic")
    shop.forward()
    pay(shop, 1)
    shop.forward("29d")
    assert plans(shop) == {0: "pro", 1: "pro", 2: "basic"}


def test_a_downgrade_waits_while_something_is_unpaid(shop: Any, acme: str) -> None:
    shop.do(shop.node.billing.request_downgrade, acme, "basic")
    shop.forward("24h")
    assert shop.row("Tenant", acme).state == "frozen"
    shop.forward("29d")
    assert shop.row("Tenant", acme).plan == "pro"
    pay(shop, 0)
    assert shop.row("Tenant", acme).plan == "pro"
    shop.forward("30d")
    assert (plans(shop), shop.ledger("plan changed")) == ({0: "pro", 2: "basic"}, ["acme:2"])


def test_a_downgrade_that_overtakes_a_late_renewal_waits(shop: Any, acme: str) -> None:
    pay(shop, 0)
    shop.forward("30d")
    pay(shop, 1)
    shop.do(shop.node.billing.request_downgrade, acme, "basic")
    billing = shop.node.billing

    def renewal_one_is_late(session: Any, now: Any) -> None:
        session.get(shop.node.models.Tenant, acme).period = 0

    shop.do(renewal_one_is_late)
    tenant = shop.row("Tenant", acme)
    assert not shop.do(lambda session, now: billing.change_plan_if_safe(session, tenant, 2, now))
    assert shop.ledger("plan changed") == []
