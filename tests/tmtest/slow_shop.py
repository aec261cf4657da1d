"""Lets the shop's bodies take their time between writing and their commit: `celery -A app worker -I tmtest.slow_shop`.

They take milliseconds otherwise, and hardly ever would a kill hit one.
"""

from __future__ import annotations

import random
import time
from typing import Any

from sqlalchemy import event
from sqlalchemy.orm import Session


@event.listens_for(Session, "after_flush")
def dawdle(_session: Any, _context: Any) -> None:
    """Wait, with all locks held."""
    time.sleep(random.uniform(0, 0.1))
