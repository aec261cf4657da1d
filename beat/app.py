"""The sample node: one app for worker, beat and Flower, on SQLite and files unless the environment says otherwise.

`python -m app` defers a few jobs, so that there is something to see.
"""

from __future__ import annotations

from datetime import timedelta

from celery_tm import TimeManagement, defer, easy_app

app = easy_app("shop", include=["tasks"])
tm = TimeManagement(app)


def defer_samples() -> None:
    """Defer a handful of jobs: one at once, some soon, one that fails until it is a dead letter, one far away."""
    defer("shop.send_receipt", args=[41], app=app)
    for order in range(42, 47):
        defer(
            "shop.expire_payment",
            args=[order],
            delay=timedelta(seconds=10 * (order - 41)),
            key=f"payment:{order}",
            entity_id=str(order),
            app=app,
        )
    defer("shop.call_carrier", args=[42], delay="5s", key="carrier:42", app=app)
    defer("shop.expire_order", args=[42], delay="48h", key="order:42", entity_id="42", app=app)


if __name__ == "__main__":
    defer_samples()
