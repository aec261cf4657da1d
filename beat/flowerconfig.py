"""What Flower reads when it starts here: `celery -A app flower` then has the pages of celery_tm under /tm."""

from celery_tm.flower import install

install()
