"""One open transaction: its connection, its clock, and the statements that each database runs in its own way."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from sqlalchemy import Executable, Select, Table, Update, select
from sqlalchemy.engine import Connection, CursorResult, Row
from sqlalchemy.exc import DataError, IntegrityError

from .. import clock
from ..domain.facts import Fact
from ..errors import InvalidValue, shown
from .clocks import Clock, GivenClock
from .dialect_base import Moment
from .prepared import Bare, Prepared, run_raw

if TYPE_CHECKING:
    from .database import Database


class Transaction:
    """One open transaction: the connection, the database's ways, and the time its statements go by."""

    def __init__(self, connection: Connection | Bare, database: Database, *, direct: bool = False) -> None:
        self.connection: Any = connection
        self.dialect = database.dialect
        self._schema = database.schema
        self._direct = direct  # ours alone, and nobody listens: prepared statements go straight to the driver
        self._options = {"schema_translate_map": {None: database.schema}} if database.schema else {}
        self._channel, self._throttle = database.channel, database.throttle
        self.app = database.app  # whose definitions and jobs it is about
        self.foreign = database.foreign_apps  # other apps that have a beat of their own
        self.wakes = False  # beat is to look when this has committed
        self.notified_at: float | None = None
        self.facts: list[Fact] = []  # what is to be told when this has committed
        # In a caller's transaction: the keys whose slots are free once it has committed, see `store.lanes`.
        self.freed: Counter[str] | None = None

    @property
    def now(self) -> Moment:
        """Return the present instant, for use in a statement."""
        return clock.moved_time() or self.dialect.now()

    def later(self, delay: timedelta) -> Moment:
        """Return the instant `delay` from now, for use in a statement."""
        moved = clock.moved_time()
        return moved + delay if moved else self.dialect.later(delay)

    def read_now(self) -> datetime:
        """Ask for the present instant."""
        now = self.now
        return now if isinstance(now, datetime) else self.execute(select(now)).scalar_one()

    def execute(
        self, statement: Executable, parameters: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None
    ) -> CursorResult[*tuple[Any, ...]]:
        """Run one statement in the tables' schema."""
        try:
            return self.connection.execute(statement, parameters, execution_options=self._options)
        except (DataError, UnicodeEncodeError, OverflowError) as error:  # an id with NUL, half a character, a huge number
            told = shown(first_line(getattr(error, "orig", error)), 200)
            raise InvalidValue("value", f"no column holds it ({told})", "give one that the database may keep") from error

    def run(self, prepared: Prepared, **values: Any) -> Sequence[Sequence[Any]]:
        """Run a statement that is made for every job; return its rows, or one that says how many it changed."""
        moved = clock.moved_time()
        kind = self.dialect.clock if moved is None else GivenClock
        if not self._direct:
            statement, time_of = prepared.statement(self.dialect, kind)
            result = self.execute(statement, [self._told(time_of, values, moved)])
            return result.all() if result.returns_rows else [(result.rowcount,)]
        text = prepared.text(self.dialect, kind, self.connection.dialect, self._schema)
        return run_raw(self.connection, text, self._told(text.clock, values, moved))

    def _told(self, time_of: Clock, values: Mapping[str, Any], moved: datetime | None) -> Mapping[str, Any]:
        return time_of.told(values, moved or clock.now()) if isinstance(time_of, GivenClock) else values

    def insert_all_new(self, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
        """Insert many rows; where a unique index knows one already, it stays as it is."""
        if rows:
            self.dialect.insert_all_new(self.connection, table, rows, execution_options=self._options)

    def insert_all(self, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
        """Insert many rows; where a unique index knows one already, the transaction fails."""
        if rows:
            self.dialect.insert_all(self.connection, table, rows, execution_options=self._options)

    def update_all(self, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
        """Change many rows, each found by its `id`."""
        if rows:
            self.dialect.update_all(self.connection, table, rows, execution_options=self._options)

    def insert_new(self, table: Table, values: Mapping[str, Any]) -> bool:
        """Insert one row and say whether it is new; where a unique index knows it already, change nothing."""
        if self.dialect.gives_back_updates:
            key = next(iter(table.primary_key.columns))
            return self.execute(self.dialect.insert_if_new(table).values(**values).returning(key)).first() is not None
        # MySQL reports an ignored duplicate like a new row, but an error there does not end the transaction.
        try:
            self.execute(table.insert().values(**values))
        except IntegrityError:
            return False
        return True

    def update_returning(self, table: Table, chosen: Select[Any], change: Update) -> Sequence[Row[Any]]:
        """Lock the rows `chosen` selects by primary key, change them, and return them as they are then."""
        key = next(iter(table.primary_key.columns))
        chosen = self.dialect.locked(chosen)
        if self.dialect.gives_back_updates:
            return self.execute(change.where(self.dialect.picked_by(key, chosen)).returning(table)).all()
        ids = [row[0] for row in self.execute(chosen)]
        if not ids:
            return []
        self.execute(change.where(key.in_(ids)))
        return self.execute(select(table).where(key.in_(ids))).all()

    def update_one(self, table: Table, key_value: str, change: Update) -> Row[Any] | None:
        """Change the row that the statement's conditions let it change, and return it as it is then."""
        key = next(iter(table.primary_key.columns))
        change = change.where(key == key_value)
        if self.dialect.gives_back_updates:
            return self.execute(change.returning(table)).first()
        if not self.execute(change).rowcount:
            return None
        return self.execute(select(table).where(key == key_value)).first()

    def wake(self) -> None:
        """Wake beat when this commits; once is enough however much was written."""
        self.wakes = True

    def notify(self, *, always: bool = False, is_last: bool = False) -> None:
        """Send the notification that was asked for, as the last statement before the commit; see `store.notifications`."""
        if self.wakes and self.notified_at is None and (always or self._throttle.is_open):
            self.notified_at = time.monotonic()
            self.dialect.wake(self.connection, self._channel, is_last=is_last)

    def tell(self, fact: Fact) -> None:
        """Let those who listen hear of something when this commits."""
        self.facts.append(fact)


def first_line(error: BaseException | None) -> str:
    """Return what an error says, without the lines that repeat the statement."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
