"""The one object for people: `tm = TimeManagement(app)`, for code, tests and the command line."""

from .easy import easy_app
from .inline import RunSummary
from .tm import TimeManagement

__all__ = ["RunSummary", "TimeManagement", "easy_app"]
