"""Column types that mean the same on every database."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import BigInteger, DateTime, Dialect, Double, Text
from sqlalchemy.dialects import mysql
from sqlalchemy.types import TypeDecorator, TypeEngine

from ..domain.codec import decode, encode


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

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class Duration(TypeDecorator[timedelta]):
    """A duration, kept as seconds that people can read in SQL."""

    impl = Double
    cache_ok = True

    def process_bind_param(self, value: timedelta | None, dialect: Dialect) -> float | None:  # noqa: ARG002
        return None if value is None else value.total_seconds()

    def process_result_value(self, value: float | None, dialect: Dialect) -> timedelta | None:  # noqa: ARG002
        return None if value is None else timedelta(seconds=value)


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

    def process_result_value(self, value: str | None, dialect: Dialect) -> Any:  # noqa: ARG002
        return decode(value)


class LongText(TypeDecorator[str]):
    """Text that may be longer than MySQL's 64 KB."""

    impl = Text
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return dialect.type_descriptor(long_text(dialect))


def long_text(dialect: Dialect) -> TypeEngine[Any]:
    return mysql.LONGTEXT() if dialect.name in ("mysql", "mariadb") else Text()
