"""The deployment around the shop: public names only, durations at the demo's speed, a health check that says no."""

from __future__ import annotations

import ast
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from importlib import import_module, reload
from types import SimpleNamespace
from typing import Any

import pytest
from tmtest.node import BEAT

import celery_tm
from celery_tm.store import nodes

PUBLIC = {"celery_tm": set(celery_tm.__all__), "celery_tm.flower": {"install"}}


@pytest.mark.parametrize("path", sorted(BEAT.rglob("*.py")), ids=lambda path: str(path.relative_to(BEAT)))
def test_it_uses_public_names_only(path: Any) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "celery_tm":
            assert {name.name for name in node.names} <= PUBLIC[node.module or ""]
        elif isinstance(node, ast.Import):
            assert not [name.name for name in node.names if name.name.split(".")[0] == "celery_tm"]
        elif isinstance(node, ast.Attribute):
            assert node.attr != "installation"


def test_the_demo_divides_every_duration_and_one_can_be_stated(node: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    durations = node.durations
    usual = {
        name: getattr(durations, name) for name in ("PAYMENT_TIMEOUT", "ORDER_LIFE", "PERIOD", "PATIENCE", "TOKEN_LIFE")
    }
    assert (usual["PAYMENT_TIMEOUT"], durations.GRACE) == (timedelta(minutes=15), timedelta(hours=24))
    with monkeypatch.context() as patch:
        patch.setenv("TM_DEMO_SPEED", "60")
        patch.setenv("SHOP_GRACE", "7")
        reload(durations)
        assert {name: getattr(durations, name) * 60 for name in usual} == usual
        assert timedelta(seconds=7) == durations.GRACE
    reload(durations)
    assert timedelta(hours=24) == durations.GRACE


def test_the_demo_furnishes_itself_and_its_definitions_fire_faster(shop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    samples = import_module("samples")
    monkeypatch.setattr(samples, "SPEED", 60)
    monkeypatch.setattr(sys.modules["demo"], "time", SimpleNamespace(sleep=lambda seconds: None))
    shop.tm.definitions.load(BEAT / "definitions.toml")
    assert set(samples.EVERY) == {definition.name for definition in shop.tm.definitions.list()}
    samples.speed_up()
    every = {definition.name: definition.schedule for definition in shop.tm.definitions.list()}
    assert (every["sync currency rates"], every["expire payments"]) == ("every 24m", "every 5s")
    for _ in range(2):
        samples.furnish(shop.now)
    shop.forward("1m")
    assert {tenant.id for tenant in shop.rows("Tenant")} == {"early-bird", "never-pays", "downgrades"}
    assert {rate.currency for rate in shop.rows("Rate")} == {"PLN", "USD", "JPY"}


def test_health_says_what_is_wrong(shop: Any) -> None:
    health = import_module("health")
    assert health.main(["beet"]) == "usage: python -m health [worker|beat]"
    assert "no beat on" in health.main(["beat"])
    database = shop.tm.installation.database
    with database.transaction() as tx:
        nodes.see(tx, f"beat@{health.socket.gethostname()}:12", "beat", started_ago=timedelta(0))
        nodes.see(tx, f"celery@{health.socket.gethostname()}0", "worker", started_ago=timedelta(0))
    assert health.main(["beat"]) is None
    assert "no worker on" in health.main(["worker"])


def test_a_provider_says_what_it_is_asked(node: Any, source: Any) -> None:
    provider = node.provider
    assert not provider.is_paid("order-1")
    provider.pay("order-1")
    assert provider.is_paid("order-1")
    provider.ask("/failing", {"failing": True})
    with pytest.raises(OSError, match="503"):
        provider.is_paid("order-1")
    provider.ask("/failing", {})
    with pytest.raises(OSError, match="404"):
        provider.ask("/elsewhere")


def test_two_webhooks_at_once_settle_a_payment_once(shop: Any) -> None:
    def settle(_: int) -> bool:
        with shop.node.database.open_session() as session, session.begin():
            return bool(shop.node.payments.settle(session, reference, by="webhook", now=datetime.now(UTC)))

    shop.clock.release()
    with shop.node.database.open_session() as session, session.begin():
        reference = shop.node.checkout.checkout(session, "ann", 5_00, now=datetime.now(UTC)).reference
    with ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(settle, range(8))) == [False] * 7 + [True]
