"""`python -m shop create`: bring the tables of celery_tm and of the shop to this release."""

from __future__ import annotations

import sys

from app import tm

from .database import create

if sys.argv[1:] != ["create"]:
    sys.exit("usage: python -m shop create")
tm.upgrade()
create()
