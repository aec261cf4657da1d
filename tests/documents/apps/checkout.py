"""Document 000: payments that time out after checkout, a currency sync, and what an administrator sees of them."""

from __future__ import annotations

from typing import Any

from celery import Celery
from tmtest.app import count_effects, log_effect

from celery_tm import Task


def make(conf: dict[str, Any]) -> Celery:
    """Return the shop's app."""
    app = Celery("checkout", set_as_current=False, task_cls=Task)
    app.conf.update(conf, broker_connection_retry_on_startup=True, worker_hijack_root_logger=False)

    @app.task(bind=True, name="PaymentTimeout", max_retries=2, shared=False)
    def payment_timeout(self: Task, order: str) -> None:
        log_effect("timeout", order, self.job.entity_id, self.job.attempt)
        self.job.report_progress("looking up the payment")
        if order == "broken":
            self.job.report_failure("the payment provider does not know it")
            return
        self.job.report_success(f"order {order} expired")

    @app.task(bind=True, name="CurrencyRateSync", max_retries=3, retry={"kind": "fixed", "delay": 0.2}, shared=False)
    def currency_rates(self: Task) -> str:
        log_effect("rates", self.job.attempt)
        if count_effects("rates", 1) == 1 and self.job.attempt == 1:
            raise ConnectionError("the bank does not answer")
        return "rates of today"

    return app
