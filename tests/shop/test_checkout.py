"""Orders and payments: what becomes of them when somebody pays, pays late, or does not."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from celery_tm import cancel
from celery_tm.testing import Deferred


@pytest.fixture
def bought(shop: Any) -> str:
    return str(shop.do(shop.node.checkout.checkout, "ann", 12_00).reference)


def test_an_order_that_is_rolled_back_leaves_no_job(shop: Any) -> None:
    def fails(session: Any, now: Any) -> None:
        shop.node.checkout.checkout(session, "ann", 12_00, now=now)
        raise RuntimeError("the card was refused")

    with pytest.raises(RuntimeError):
        shop.do(fails)
    assert shop.tm.jobs() == []
    assert shop.rows("Order") == []


def test_a_checkout_defers_what_ends_it(shop: Any, bought: str, tm_deferred: Deferred) -> None:
    tm_deferred.assert_deferred("shop.time_out_payment", delay="15m")
    tm_deferred.assert_deferred("shop.expire_order", delay="48h")


def test_a_payment_times_out_a_quarter_of_an_hour_after_checkout_unless_paid(shop: Any, bought: str) -> None:
    shop.forward("14m")
    assert shop.row("Payment", bought).state == "pending"
    shop.forward("1m")
    assert shop.row("Payment", bought).state == "timed out"
    assert shop.ledger("timed out") == [bought]


def test_a_webhook_that_comes_three_times_has_one_effect(shop: Any, bought: str) -> None:
    assert [shop.webhook(bought) for _ in range(3)] == [True, False, False]
    shop.forward()
    assert not shop.webhook(bought)
    shop.forward("15m")
    assert (shop.row("Payment", bought).state, shop.row("Order", 1).state) == ("paid", "delivered")
    assert shop.ledger("delivered") == [bought]
    assert shop.ledger("timed out") == []


def test_a_payment_whose_webhook_was_missed_does_not_time_out(shop: Any, bought: str) -> None:
    shop.node.provider.pay(bought)
    shop.forward("15m")
    assert (shop.row("Payment", bought).state, shop.row("Payment", bought).settled_by) == ("paid", "polling")
    assert shop.ledger("delivered") == [bought]


def test_an_order_expires_after_two_days_and_money_that_comes_later_goes_back(shop: Any, bought: str) -> None:
    shop.forward("47h")
    assert shop.row("Order", 1).state == "open"
    shop.forward("1h")
    assert shop.row("Order", 1).state == "expired"
    shop.webhook(bought)
    shop.forward()
    assert shop.ledger("refunded") == [bought]
    assert shop.ledger("delivered") == []


def test_payments_that_somebody_kept_from_timing_out_are_found(shop: Any, bought: str) -> None:
    shop.tm.definitions.add(name="expire payments", task="shop.expire_payments", schedule="every 5m")
    other = shop.do(shop.node.checkout.checkout, "bob", 5_00).reference
    assert cancel(key=f"payment-timeout:{bought}")
    shop.forward("15m")
    shop.forward("5m")
    assert shop.ledger("timed out") == sorted([bought, other])


def test_a_provider_that_fails_is_asked_again(shop: Any, source: Any, bought: str) -> None:
    source.failing = True
    shop.forward("15m")
    assert shop.row("Payment", bought).state == "pending"
    assert shop.outcomes("shop.time_out_payment") == ["failed"]
    source.failing = False
    shop.forward("1m")
    assert shop.row("Payment", bought).state == "timed out"


def test_rates_are_synced_all_or_none_and_tokens_cleared(shop: Any, source: Any) -> None:
    shop.tm.definitions.load("beat/definitions.toml")
    source.failing = True
    shop.clock.move_to(shop.now + timedelta(hours=12, minutes=15))  # 02:15 in Warsaw, in summer
    shop.forward()
    assert shop.rows("Rate") == []
    source.failing = False
    shop.forward("1m")
    assert {rate.currency for rate in shop.rows("Rate")} == {"PLN", "USD", "JPY"}

    def log_in(session: Any, now: Any) -> None:
        session.add(shop.node.models.Token(value="a", expires_at=now + timedelta(minutes=30)))
        session.add(shop.node.models.Token(value="b", expires_at=now + timedelta(hours=12)))

    shop.do(log_in)
    shop.forward("1h")
    assert [token.value for token in shop.rows("Token")] == ["b"]
