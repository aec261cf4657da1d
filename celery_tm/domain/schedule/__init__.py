"""When: schedules as pure values that yield instants.

`read_schedule` turns what a person wrote (a cron expression, "every 5m", a timedelta, a mapping with a kind) into a
`Schedule`; `kind` and `expression` are what the database keeps, and `load_schedule` reads them back.
"""

from .base import KINDS, Schedule, Zone, load_schedule, read_schedule, read_zone
from .cron import Cron
from .interval import Interval

__all__ = ["KINDS", "Cron", "Interval", "Schedule", "Zone", "load_schedule", "read_schedule", "read_zone"]
