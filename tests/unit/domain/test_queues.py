"""Which queue a job goes to (B1)."""

from __future__ import annotations

import pytest

from celery_tm.domain.queues import resolve_queue

ALIASES = {"azure": "azure-queue", "onprem": "onprem-queue"}


@pytest.mark.parametrize(
    ("queue", "resolved"),
    [
        (None, "jobs"),
        ("", "jobs"),
        ("azure", "azure-queue"),
        ("onprem", "onprem-queue"),
        ("mail", "mail"),
        ("azure-queue", "azure-queue"),
        ("Azure", "Azure"),
    ],
)
def test_no_queue_means_the_default_an_alias_its_queue_and_anything_else_itself(queue: str | None, resolved: str) -> None:
    assert resolve_queue(queue, aliases=ALIASES, default="jobs") == resolved


@pytest.mark.parametrize("queue", [None, ""])
def test_without_a_queue_and_a_default_celery_s_own_routing_decides(queue: str | None) -> None:
    assert resolve_queue(queue, aliases=ALIASES, default=None) is None


def test_an_alias_is_followed_once() -> None:
    assert resolve_queue("a", aliases={"a": "b", "b": "c"}, default=None) == "b"
