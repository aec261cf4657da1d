"""Beat's side: plan what definitions yield, dispatch what is due, sweep what was left lying."""

from .scheduler import Scheduler

__all__ = ["Scheduler"]
