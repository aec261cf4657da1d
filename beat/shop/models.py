"""The shop's own tables. They are in the database that the jobs are in, so that one transaction holds both."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import DateTime, ForeignKey, String, TypeDecorator, UniqueConstraint
from sqlalchemy.dialects import mysql
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

PRICES = {"basic": 10_00, "pro": 50_00}  # in cents, for one period


class Instant(TypeDecorator[datetime]):
    """An aware UTC datetime, also where the database knows no zones."""

    impl = DateTime(timezone=True).with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Any) -> datetime | None:
        return value and (value if dialect.name == "postgresql" else value.astimezone(UTC).replace(tzinfo=None))

    def process_result_value(self, value: datetime | None, _dialect: Any) -> datetime | None:
        return value and (value.astimezone(UTC) if value.tzinfo else value.replace(tzinfo=UTC))


class Base(DeclarativeBase):
    """The shop's tables begin with `shop_`."""

    type_annotation_map = {datetime: Instant, str: String(100)}


class Tenant(Base):
    """Who subscribes: active, or frozen because an invoice was not paid in time."""

    __tablename__ = "shop_tenant"
    id: Mapped[str] = mapped_column(primary_key=True)
    plan: Mapped[str]
    period: Mapped[int] = mapped_column(default=-1)  # the latest whose renewal is done
    wanted_plan: Mapped[str | None]  # waits for a safe boundary
    wanted_from: Mapped[int | None]  # the first period that it may begin with
    anchor_at: Mapped[datetime]  # period n begins n periods after it
    state: Mapped[str] = mapped_column(default="active")


class Invoice(Base):
    """What one tenant owes for one period: open, overdue or paid."""

    __tablename__ = "shop_invoice"
    __table_args__ = (UniqueConstraint("tenant_id", "period"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("shop_tenant.id"))
    period: Mapped[int]
    plan: Mapped[str]
    amount: Mapped[int]
    issued_at: Mapped[datetime]
    grace_until: Mapped[datetime]
    state: Mapped[str] = mapped_column(default="open")


class Order(Base):
    """One purchase: open, delivered or expired."""

    __tablename__ = "shop_order"
    id: Mapped[int] = mapped_column(primary_key=True)
    buyer: Mapped[str]
    amount: Mapped[int]
    placed_at: Mapped[datetime]
    state: Mapped[str] = mapped_column(default="open")


class Payment(Base):
    """Money that is expected for an order or an invoice: pending, paid or timed out; `applied_at` says it had its effect."""

    __tablename__ = "shop_payment"
    reference: Mapped[str] = mapped_column(primary_key=True)  # the provider knows it by this
    order_id: Mapped[int | None] = mapped_column(ForeignKey("shop_order.id"))
    invoice_id: Mapped[int | None] = mapped_column(ForeignKey("shop_invoice.id"))
    created_at: Mapped[datetime] = mapped_column(index=True)
    state: Mapped[str] = mapped_column(default="pending", index=True)
    settled_by: Mapped[str | None]  # webhook, or polling where that was missed
    paid_at: Mapped[datetime | None]
    applied_at: Mapped[datetime | None]


class Rate(Base):
    """What a euro buys."""

    __tablename__ = "shop_rate"
    currency: Mapped[str] = mapped_column(primary_key=True)
    rate: Mapped[float]
    synced_at: Mapped[datetime]


class Token(Base):
    """A login that ends by itself."""

    __tablename__ = "shop_token"
    value: Mapped[str] = mapped_column(primary_key=True)
    expires_at: Mapped[datetime] = mapped_column(index=True)


class Entry(Base):
    """One line of the ledger: an effect that happened. Nothing forbids a second one: that there is none is the proof."""

    __tablename__ = "shop_ledger"
    id: Mapped[int] = mapped_column(primary_key=True)
    what: Mapped[str]
    subject: Mapped[str] = mapped_column(index=True)
    at: Mapped[datetime]


def note(session: Session, what: str, subject: str, at: datetime) -> None:
    """Write an effect into the ledger, in the transaction that has it."""
    session.add(Entry(what=what, subject=subject, at=at))
