"""The documented shapes (JSON Schema, draft 2020-12) of what is shown to programs.

`COMPONENTS` has one for each kind of thing, `SHAPES` one for the `--json` answer of each command. A shape names every field
and allows no other, so a field that is added, renamed or dropped is noticed by the tests.
"""

from __future__ import annotations

from .commands import SHAPES, shape_of
from .components import COMPONENTS
from .schema import DRAFT

__all__ = ["COMPONENTS", "DRAFT", "SHAPES", "shape_of"]
