"""Pages and a JSON API inside Flower: `from celery_tm.flower import install; install()` in `flowerconfig.py`.

Nothing else of celery_tm imports this package. It needs Flower, and says so where that is missing.
"""

from __future__ import annotations

from ..errors import FlowerMissing

try:
    import flower as _flower  # noqa: F401
except ImportError as error:
    raise FlowerMissing("celery_tm.flower") from error

from .installing import install

__all__ = ["install"]
