"""What Flower reads when it starts here: `celery -A app flower` then has the pages of celery_tm under /tm.

The Procfile starts it for this machine only, without a password, and lets whoever sits here act
(FLOWER_UNAUTHENTICATED_API). Elsewhere start it with --basic-auth or --auth.
"""

from celery_tm.flower import install

install()
