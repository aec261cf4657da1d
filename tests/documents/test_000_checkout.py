"""Document 000: the checkout timeout and the currency sync of a shop, with real processes."""

from __future__ import annotations

from typing import Any

from sqlalchemy import text
from sqlalchemy.orm import Session

from celery_tm import cancel, defer
from celery_tm.store import tables


def test_a_payment_times_out_unless_it_is_paid_and_survives_every_restart(open_site: Any) -> None:
    site = open_site("checkout")
    task, engine = site.app.tasks["PaymentTimeout"], site.database.engine

    def checkout(order: str) -> Any:
        with Session(engine) as session, session.begin():
            return defer(task.s(order), delay="3s", key=f"order:{order}", entity_id=order, session=session)

    checkout("paid"), checkout("unpaid"), checkout("broken")
    assert not checkout("unpaid").created  # the same checkout twice is one job
    with Session(engine) as session:
        defer(task.s("abandoned"), delay="1s", session=session)
        session.execute(text("SELECT 1"))
        session.rollback()
    assert cancel(entity_id="paid", app=site.app)
    beat, worker = site.beat(), site.worker()
    beat.kill(), worker.kill()  # nothing lives in memory
    site.beat(), site.worker()

    site.wait(lambda: site.tm.dead_letters.list(), seconds=60, what="the dead letter")
    site.wait_until_settled()
    assert site.seen("timeout", "unpaid", "unpaid") == 1
    assert site.seen("timeout", "paid") == site.seen("timeout", "abandoned") == 0
    assert [line[3] for line in site.effects("timeout") if line[1] == "broken"] == ["1", "2", "3"]
    [letter] = site.tm.dead_letters.list()
    assert (letter.job.entity_id, letter.job.attempt) == ("broken", 3)
    messages = {one.entity_id: one.message for one in site.tm.history(task="PaymentTimeout") if one.message}
    assert messages["unpaid"] == "order unpaid expired"


def test_the_currency_sync_fires_is_retried_and_can_be_run_and_switched_off_by_hand(open_site: Any) -> None:
    site = open_site("checkout")
    added = site.tm.definitions.add(
        name="CurrencyRateSync", task="CurrencyRateSync", schedule="15 12 * * *", timezone="Europe/Warsaw"
    )
    assert added.next_run_at.minute == 15
    site.beat(), site.worker()
    site.tm.trigger("CurrencyRateSync", actor="ann")
    site.wait(lambda: site.outcomes().get("succeeded"), what="the sync")
    assert site.outcomes() == {"failed": 1, "succeeded": 1}

    site.tm.definitions.update("CurrencyRateSync", schedule="every 1s")
    before = site.seen("rates")
    site.wait(lambda: site.seen("rates") >= before + 2, what="two runs on schedule")
    site.tm.disable("CurrencyRateSync", actor="ann")
    site.wait(lambda: site.count(tables.job) == 0, what="the end of what was planned")
    at_rest = site.seen("rates")
    site.beat()  # a restart keeps the switch as it is
    site.wait(lambda: site.seen("rates") == at_rest, what="silence")
    assert not site.tm.definitions.get("CurrencyRateSync").enabled
    assert {line.actor for line in site.tm.audit(limit=20)} >= {"ann"}
    assert len(site.tm.history("CurrencyRateSync", limit=50)) >= 4
