"""Celery's own test suites, unmodified, with `celery_tm.Task` as the base class of every task: see `run.py`."""
