"""The app that real workers and beats are started with: `celery -A tmtest.main worker`."""

import json
import os
from datetime import timedelta

from celery_tm import TimeManagement, clock, embedded
from tmtest import tracing, workflow_tasks
from tmtest.app import make_app

embedded.register()
tracing.start(os.environ.get(tracing.VARIABLE))
clock.move_by(timedelta(seconds=float(os.environ.get("TM_TEST_AHEAD", "0"))))
app = make_app(json.loads(os.environ["TM_TEST_CONF"]))
workflow_tasks.add_hooks(TimeManagement(app))

if foreign := os.environ.get("TM_TEST_FOREIGN"):
    from sqlalchemy import create_engine
    from sqlalchemy.orm import sessionmaker

    from celery_tm import Task

    @app.task(base=Task, name="foreign", shared=False, transactional=True, session=sessionmaker(create_engine(foreign)))
    def foreign_task() -> None: ...
