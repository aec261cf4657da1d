"""When: schedules as pure values that yield instants.

`read_schedule` turns what a person wrote (a cron expression, "every 5m", a timedelta, a mapping with a kind) into a
`Schedule`; `kind` and `expression` are what the database keeps, and `load_schedule` reads them back.
"""

from .base import KINDS, Schedule, Zone, read_zone
from .cron import Cron, Crontab
from .interval import Interval
from .iso8601 import Iso8601
from .once import Once
from .registry import load_schedule, read_schedule, seldom
from .rrule import Rrule
from .solar import Solar
from .union import Union, rules_at
from .window import Window

__all__ = [
    "KINDS", "Cron", "Crontab", "Interval", "Iso8601", "Once", "Rrule", "Schedule", "Solar", "Union", "Window", "Zone",
    "load_schedule", "read_schedule", "read_zone", "rules_at", "seldom",
]  # fmt: skip
