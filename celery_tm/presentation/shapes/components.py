"""The shape of each kind of thing that is shown, by the name that the API's document gives it."""

from __future__ import annotations

from collections.abc import Mapping

from .acts import ACTS
from .records import RECORDS
from .schema import Schema
from .states import STATES

COMPONENTS: Mapping[str, Schema] = {**RECORDS, **STATES, **ACTS}
