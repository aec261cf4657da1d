"""Definitions taken over from other schedulers: read there, shown, and written here in one transaction."""

from .sources import SOURCES, Place, read_source
from .writing import Imported, ImportedEntry, Outcome, Wishes, write

__all__ = ["SOURCES", "Imported", "ImportedEntry", "Outcome", "Place", "Wishes", "read_source", "write"]
