"""What is kept, as people and programs are shown it: plain values, arguments redacted, shapes documented."""

from .plain import plain
from .redaction import Redactor
from .rows import Rows

__all__ = ["Redactor", "Rows", "plain"]
