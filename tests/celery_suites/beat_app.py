"""The app of the beat beside the integration suite: it dispatches the retries that the suite's tasks ask for."""

from __future__ import annotations

import json
import os

from celery import Celery

app = Celery("suites", broker=os.environ["TEST_BROKER"], backend=os.environ["TEST_BACKEND"], task_cls="celery_tm:Task")
app.conf.update(json.loads(os.environ.get("SUITES_SETTINGS") or "{}"))
app.loader.import_task_module("t.integration.tasks")
