"""Everything that the API does, as data; `routes` serves it, `openapi` and the reference page describe it."""

from __future__ import annotations

from .acting import ACTING
from .asking import Asked, Operation, Parameter
from .defining import DEFINING
from .reading import READING

OPERATIONS: tuple[Operation, ...] = (*READING, *DEFINING, *ACTING)

__all__ = ["OPERATIONS", "Asked", "Operation", "Parameter"]
