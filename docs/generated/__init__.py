"""Parts of `docs/generate.py`."""
