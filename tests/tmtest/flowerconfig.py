"""What Flower reads when the browser tests start it."""

from celery_tm.flower import install

install()
