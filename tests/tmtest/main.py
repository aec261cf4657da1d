"""The app that real workers and beats are started with: `celery -A tmtest.main worker`."""

import json
import os

from tmtest.app import make_app

app = make_app(json.loads(os.environ["TM_TEST_CONF"]))
