"""The app of one document, for real processes: `celery -A documents.main`; TM_TEST_APP says which."""

import json
import os
from importlib import import_module

from celery_tm import embedded

embedded.register()
app = import_module(os.environ["TM_TEST_APP"]).make(json.loads(os.environ["TM_TEST_CONF"]))
