"""Keeps currency rates fresh and clears away tokens that have ended."""

from __future__ import annotations

from app import app
from sqlalchemy import delete

from celery_tm import Task

from . import provider
from .models import Rate, Token


@app.task(
    bind=True,
    name="shop.sync_rates",
    transactional=True,
    max_retries=4,
    retry={"kind": "exponential", "interval": "5s", "factor": 3.0, "cap": "1h"},
)
def sync_rates(self: Task) -> int:
    """Every night: all rates or none. A source that fails is asked again later."""
    self.job.report_progress("asking for the rates")
    rates = provider.ask("/rates")
    for currency, rate in rates.items():
        self.job.session.merge(Rate(currency=currency, rate=rate, synced_at=self.job.started_at))
    self.job.report_success(f"{len(rates)} rates")
    return len(rates)


@app.task(bind=True, name="shop.clean_up_tokens", transactional=True)
def clean_up_tokens(self: Task) -> int:
    """Every hour: tokens that have ended."""
    gone = self.job.session.execute(delete(Token).where(Token.expires_at < self.job.started_at)).rowcount
    self.job.report_success(f"{gone} tokens removed")
    return gone
