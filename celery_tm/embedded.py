"""Celery's file broker, made safe to share: a message appears whole or not at all.

kombu writes a message into the file that readers already see, so that now and then a worker reads half of one and dies
of it. Here it is written aside and then moved into place. Everything else is kombu's.
"""

from __future__ import annotations

import os
import uuid
from time import monotonic
from typing import Any

from kombu.exceptions import ChannelError
from kombu.transport import TRANSPORT_ALIASES, filesystem
from kombu.utils.encoding import str_to_bytes
from kombu.utils.json import dumps

SCHEME = "tm-files"


class Channel(filesystem.Channel):
    """A channel whose messages are never seen half written."""

    def _put(self, queue: str, payload: Any, **_: Any) -> None:  # type: ignore[override]  # as kombu itself does
        name = f"{round(monotonic() * 1000)}_{uuid.uuid4()}"
        aside = os.path.join(self.data_folder_out, f".{name}.part")
        try:
            with open(aside, "wb") as file:
                file.write(str_to_bytes(dumps(payload)))
            os.replace(aside, os.path.join(self.data_folder_out, f"{name}.{queue}.msg"))
        except OSError as error:
            raise ChannelError(f"cannot write a message to {self.data_folder_out!r}") from error


class Transport(filesystem.Transport):
    """`tm-files://`, for the broker that `easy_app` uses where the environment names none."""

    Channel = Channel
    driver_type = driver_name = SCHEME


def register() -> str:
    """Make the transport known to kombu and return its URL."""
    TRANSPORT_ALIASES[SCHEME] = "celery_tm.embedded:Transport"
    return f"{SCHEME}://"
