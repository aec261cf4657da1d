"""Being woken by PostgreSQL: LISTEN on a connection of its own."""

from __future__ import annotations

from typing import Any

from .database import Database


class Listener:
    """One connection that waits for notifications of an installation."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._connection: Any = None

    @property
    def is_open(self) -> bool:
        """Say whether a connection is there."""
        return self._connection is not None

    def open(self) -> None:
        """Connect and listen."""
        import psycopg

        url = self._database.url.set(drivername="postgresql")
        self._connection = psycopg.connect(
            url.render_as_string(hide_password=False), autocommit=True, **self._database.dialect.connect_args()
        )
        self._connection.execute(f'LISTEN "{self._database.channel}"')

    def wait(self, seconds: float) -> bool:
        """Wait for a notification at most so long, and say whether one came; several count as one."""
        return len(list(self._connection.notifies(timeout=seconds, stop_after=1))) > 0

    def close(self) -> None:
        """Disconnect."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
