"""A shop with some days behind it: something of everything that the pages show. For browser tests and screenshots.

`celery -A tmtest.shop worker|beat|flower` in a folder of its own; `python -m tmtest.shop` makes the past.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from celery import Celery
from sqlalchemy import select, update

from celery_tm import Task, TimeManagement, clock, defer, easy_app
from celery_tm.domain.execution import Outcome
from celery_tm.store import tables

FOLDER = Path(os.environ.get("TM_SHOP_FOLDER", ".")).resolve()
HOUR, MINUTE, SECOND = timedelta(hours=1), timedelta(minutes=1), timedelta(seconds=1)
# What was due in the outage is the latest of its kind whatever the time is now: before seven, that is not the last night.
NIGHTLY = "02:15" if datetime.now(UTC).hour >= 7 else "14:15"  # in Warsaw
LONG = "weekly newsletter for the Nordic countries, the Baltic states and the Netherlands"

app: Celery = easy_app(
    "shop",
    folder=FOLDER / "broker",
    tm_database_url=f"sqlite:///{FOLDER / 'shop.db'}",
    tm_redact=["*token*"],
    tm_poll_interval=0.5,
    tm_lease=10,
)
tm = TimeManagement(app)


@app.task(bind=True, name="shop.sync_rates")
def sync_rates(self: Task) -> str:
    self.job.log("asking the central bank")
    self.job.log("EUR 4.2731, USD 3.9412")
    self.job.report_success("2 rates")
    return "2 rates"


@app.task(name="shop.sync_stock")
def sync_stock(warehouse: str = "all") -> int:
    return len(warehouse)


@app.task(name="shop.expire_carts")
def expire_carts() -> int:
    return 0


@app.task(bind=True, name="shop.print_labels", max_retries=1, retry={"kind": "fixed", "delay": "2s"})
def print_labels(self: Task, carrier: str, api_token: str = "") -> str:
    self.job.log(f"asking {carrier}")
    if not (FOLDER / "carrier-is-back").exists() and self.job.scheduled_at.hour % 7 == 4:
        self.job.log("no answer within 10 s", level="warning")
        raise ConnectionError(f"the carrier {carrier} does not answer")
    return "12 labels"


@app.task(name="shop.call_carrier", max_retries=0)
def call_carrier(order: int) -> str:
    if not (FOLDER / "carrier-is-back").exists():
        raise ConnectionError(f"the carrier does not answer about order {order}")
    return f"order {order} is on its way"


@app.task(bind=True, name="shop.reindex_search")
def reindex_search(self: Task, seconds: float = 0) -> str:
    for part in range(1, 41):
        self.job.report_progress(f"{part * 250} of 10000 products")
        if part % 10 == 0:
            self.job.log(f"shard {part // 10} done")
        time.sleep(seconds / 40)
    return "10000 products"


@app.task(name="shop.invoices.collect")
def collect() -> int:
    return 38


@app.task(name="shop.invoices.render")
def render(kind: str) -> str:
    return kind


@app.task(bind=True, name="shop.invoices.send", max_retries=0)
def send(self: Task) -> str:
    if not (FOLDER / "carrier-is-back").exists() and self.job.scheduled_at > datetime.now(UTC) - 25 * HOUR:
        raise OSError("smtp.example.org refused the connection <mail@example.org>")
    return "38 sent"


@app.task(name="shop.expire_payment", max_retries=2)
def expire_payment(order: int) -> str:
    return f"payment of order {order} expired"


DEFINITIONS: list[dict[str, Any]] = [
    {"name": "nightly rates", "task": "shop.sync_rates", "schedule": f"15 {int(NIGHTLY[:2])} * * *",
     "timezone": "Europe/Warsaw", "recovery": "skip", "group": "rates"},
    {"name": "stock levels", "task": "shop.sync_stock", "schedule": "0 * * * *", "kwargs": {"warehouse": "north"},
     "group": "warehouse"},
    {"name": "expire carts", "task": "shop.expire_carts", "schedule": "*/30 * * * *", "recovery": "last", "group": "orders"},
    {"name": "print labels", "task": "shop.print_labels", "schedule": "20 * * * *", "recovery": "skip", "group": "orders",
     "args": ["DHL"], "kwargs": {"api_token": "s3cr3t-t0ken"}},
    {"name": "invoice run", "schedule": "30 22 * * *", "timezone": "Europe/Warsaw", "group": "orders", "steps": [
        {"name": "collect", "task": "shop.invoices.collect"},
        [{"name": "render pdf", "task": "shop.invoices.render", "args": ["pdf"]},
         {"name": "render csv", "task": "shop.invoices.render", "args": ["csv"]}],
        {"name": "send", "task": "shop.invoices.send"},
    ]},
    {"name": "reindex search", "task": "shop.reindex_search", "schedule": "0 4 * * *", "group": "search"},
    {"name": LONG, "task": "shop.sync_stock", "schedule": "0 9 * * 1", "timezone": "America/New_York", "group": "mail"},
    {"name": "clean temporary files", "task": "shop.expire_carts", "schedule": "45 */2 * * *"},
    {"name": "legacy export", "task": "shop.sync_stock", "schedule": "0 6 * * *", "group": "warehouse"},
]  # fmt: skip


def furnish(*, days: float = 3, say: Callable[[str], None] = lambda _: None) -> None:
    """Let the shop live through some days until now. For seven hours of the last night no beat ran."""
    tm.upgrade()
    now = datetime.now(UTC)
    dark = now.replace(hour=0, minute=0) - 20 * MINUTE if NIGHTLY == "02:15" else now.replace(hour=11, minute=40) - 24 * HOUR
    start = (now - timedelta(days=days)).replace(minute=1, second=0, microsecond=0)
    with clock.moved_to(start):
        for values in DEFINITIONS:
            tm.definitions.add(actor="ann", **values)
    moment = start
    while moment < now - 2 * MINUTE:
        if not dark < moment < dark + 7 * HOUR:
            change_things(moment, hours_ago=(now - moment) / HOUR)
            tm.run_due_jobs(now=moment, limit=1000)
        moment = max(moment + MINUTE, min(one.next_run_at for one in tm.definitions.list() if one.next_run_at)) + SECOND
        say(f"{moment:%a %H:%M}")
    tm.run_due_jobs(now=now - MINUTE, limit=1000)
    add_jobs(now)
    add_durations()


def change_things(moment: datetime, *, hours_ago: float) -> None:
    """Let people do what they do, each once, when its hour has come."""
    acts: list[tuple[str, float, Callable[[], Any]]] = [
        ("pause", 20, lambda: tm.pause("clean temporary files", actor="bob", reason="the disk is being replaced")),
        ("disable", 40, lambda: tm.disable("legacy export", actor="ann", reason="replaced by the new interface")),
        ("edit", 30, lambda: tm.definitions.update(
            "stock levels", schedule="0 * * * *", queue=None, priority=3, actor="ann", reason="before the reports")),
        ("trigger", 5, lambda: tm.trigger("reindex search", actor="bob", reason="new products")),
    ]  # fmt: skip
    for name, due, act in acts:
        if due >= hours_ago > due - 1 and name not in _done:
            _done.add(name)
            with clock.moved_to(moment):
                act()


_done: set[str] = set()


def add_jobs(now: datetime) -> None:
    """Defer some jobs: in the future, and some that fail for good."""
    with clock.moved_to(now - 40 * MINUTE):
        for order in range(4711, 4717):
            defer(call_carrier.s(order), key=f"carrier:{order}", entity_id=str(order), delay=MINUTE)
    tm.run_due_jobs(now=now - 38 * MINUTE, limit=100)
    for order in range(4720, 4726):
        defer(expire_payment.s(order), delay=15 * MINUTE * (order - 4718), key=f"payment:{order}", entity_id=str(order))


def add_durations() -> None:
    """Give what ran while time stood still the durations that it would have had."""
    chance = random.Random(7)
    execution, occurrence = tables.execution, tables.occurrence
    with tm.installation.database.transaction() as tx:
        for row in list(tx.execute(select(execution).where(execution.c.outcome != str(Outcome.CANCELLED)))):
            took = timedelta(seconds=chance.lognormvariate(1, 1))
            ended = row.completed_at + took
            tx.execute(update(execution).where(execution.c.id == row.id).values(completed_at=ended))
            if row.occurrence:
                mine = occurrence.c.id == row.occurrence
                tx.execute(update(occurrence).where(mine, occurrence.c.ended_at.is_not(None)).values(ended_at=ended))


if __name__ == "__main__":
    furnish(say=lambda text: print(text, end="\r", flush=True))
