"""The sample node: one app for worker, beat and Flower, on SQLite and files unless the environment says otherwise."""

from __future__ import annotations

from celery_tm import TimeManagement, easy_app

app = easy_app("shop", include=["tasks"])
tm = TimeManagement(app)
