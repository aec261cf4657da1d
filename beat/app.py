"""The shop's node: one app for worker, beat and Flower, on SQLite and files unless the environment says otherwise."""

from __future__ import annotations

from shop.durations import SPEED

from celery_tm import TimeManagement, easy_app

# In the demo a visitor who kills a worker need not wait a minute to see that nothing is lost.
QUICK = {"tm_lease": "5s", "tm_dispatch_lease": "10s", "tm_poll_interval": "500ms"} if SPEED > 1 else {}

app = easy_app("shop", include=["shop.checkout", "shop.payments", "shop.billing", "shop.upkeep", "demo"], **QUICK)
tm = TimeManagement(app)
