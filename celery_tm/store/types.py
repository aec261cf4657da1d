"""Column types that mean the same on every database.

How a value is read is said by `result_processor`, not by `process_result_value`: that would be one more call for each value
of each row, and reading rows is half of what claiming costs.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import BigInteger, DateTime, Dialect, Double, Text
from sqlalchemy.dialects import mysql
from sqlalchemy.types import TypeDecorator, TypeEngine

from ..domain.codec import decode, encode

Reader = Callable[[Any], Any]


class Instant(TypeDecorator[datetime]):
    """An aware UTC datetime with microseconds; naive UTC in databases that know no zones."""

    impl = DateTime
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        if dialect.name in ("mysql", "mariadb"):
            return dialect.type_descriptor(mysql.DATETIME(fsp=6))
        return dialect.type_descriptor(DateTime(timezone=True))

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        value = value.astimezone(UTC)
        return value if dialect.name == "postgresql" else value.replace(tzinfo=None)

    def result_processor(self, dialect: Dialect, coltype: object) -> Reader:
        return (
            _read_aware
            if dialect.name == "postgresql"
            else _reading_naive(self.impl_instance.result_processor(dialect, coltype))
        )


class Duration(TypeDecorator[timedelta]):
    """A duration, kept as seconds that people can read in SQL."""

    impl = Double
    cache_ok = True

    def process_bind_param(self, value: timedelta | None, dialect: Dialect) -> float | None:  # noqa: ARG002
        return None if value is None else value.total_seconds()

    def result_processor(self, dialect: Dialect, coltype: object) -> Reader:  # noqa: ARG002
        return _read_seconds


class Microseconds(TypeDecorator[timedelta]):
    """A duration as a statement's parameter, where the database counts in microseconds."""

    impl = BigInteger
    cache_ok = True

    def process_bind_param(self, value: timedelta | None, dialect: Dialect) -> int | None:  # noqa: ARG002
        return None if value is None else value // timedelta(microseconds=1)


class Json(TypeDecorator[Any]):
    """A plain value as JSON text. Text, not a JSON type: it comes back to the letter on every database."""

    impl = Text
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return dialect.type_descriptor(long_text(dialect))

    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:  # noqa: ARG002
        return None if value is None else encode(value, field="value")

    def result_processor(self, dialect: Dialect, coltype: object) -> Reader:  # noqa: ARG002
        return decode


class LongText(TypeDecorator[str]):
    """Text that may be longer than MySQL's 64 KB."""

    impl = Text
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return dialect.type_descriptor(long_text(dialect))


def long_text(dialect: Dialect) -> TypeEngine[Any]:
    return mysql.LONGTEXT() if dialect.name in ("mysql", "mariadb") else Text()


def _read_aware(value: datetime | None) -> datetime | None:
    return value if value is None or value.tzinfo is UTC else value.astimezone(UTC)


def _reading_naive(parse: Reader | None) -> Reader:
    def read(value: Any) -> datetime | None:
        if value is None:
            return None
        instant: datetime = parse(value) if parse else value
        return instant.replace(tzinfo=UTC)

    return read


def _read_seconds(value: float | None) -> timedelta | None:
    return None if value is None else timedelta(seconds=value)
