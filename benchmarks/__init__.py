"""Measurements of celery_tm, each against itself at another size or against a peer: `python -m benchmarks`."""
