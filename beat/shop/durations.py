"""How long things take in this shop. `TM_DEMO_SPEED=60` lets a minute pass in a second; `SHOP_GRACE=30` states one alone."""

from __future__ import annotations

import os
from datetime import timedelta

SPEED = float(os.environ.get("TM_DEMO_SPEED") or 1)


def lasting(duration: timedelta, name: str = "") -> timedelta:
    """Return a duration at the demo's speed, or what the environment states in seconds as SHOP_NAME."""
    stated = os.environ.get(f"SHOP_{name}")
    return timedelta(seconds=float(stated)) if stated else duration / SPEED


PAYMENT_TIMEOUT = lasting(timedelta(minutes=15), "PAYMENT_TIMEOUT")
ORDER_LIFE = lasting(timedelta(hours=48), "ORDER_LIFE")
PERIOD = lasting(timedelta(days=30), "PERIOD")
GRACE = lasting(timedelta(hours=24), "GRACE")
PATIENCE = lasting(timedelta(minutes=10), "PATIENCE")  # how long to wait for a webhook, or an effect, before looking
TOKEN_LIFE = lasting(timedelta(hours=12), "TOKEN_LIFE")
