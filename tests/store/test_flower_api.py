"""The API in a real Flower, asked over HTTP: each operation, what it answers, and what it does with bad input."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote

import pytest
from celery import Celery
from tmtest.everything import Everything, furnish
from tmtest.flower import Client, serving

from celery_tm import TimeManagement


@pytest.fixture
def here(app: Celery, tm: TimeManagement) -> Everything:
    return furnish(app, tm)


@pytest.fixture
def ann(app: Celery, here: Everything) -> Iterator[Client]:
    """Somebody who asks a Flower that shows something of everything."""
    with serving(app) as flower:
        yield flower.client()


def of(*parts: str) -> str:
    """Return the address of a route."""
    return "/".join(["/api/tm", *(quote(part, safe="") for part in parts)])


# Reading


def test_everything_that_is_told_has_its_documented_shape(ann: Client, here: Everything) -> None:
    name = here.definition
    for path in (
        of("status"), of("definitions"), of("groups"), of("jobs"), of("history"), of("dead-letters"), of("audit"),
        of("token"), of("openapi.json"),
        *(of("definitions", one, *more) for one in (name, here.failing, here.workflow) for more in (
            (), ("occurrences",), ("versions",), ("history",), ("explain",), ("coming",))),
        of("definitions", here.workflow, "effective"), of("jobs", here.ended), of("jobs", here.owed), of("jobs", here.dead),
        of("jobs", here.running), of("jobs", here.ended, "log"), of("occurrences", here.occurrence),
        of("occurrences", here.run), of("dead-letters", here.dead),
    ):  # fmt: skip
        answer = ann.get(path)
        assert answer.status == 200, f"{path}: {answer.text}"
