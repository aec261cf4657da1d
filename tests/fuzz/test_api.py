"""The JSON API, asked by schemathesis as its OpenAPI document describes it, and with bodies that it does not describe."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any
from urllib.parse import parse_qsl, quote, urlsplit

import pytest
import schemathesis
from celery import Celery
from hypothesis import strategies as st
from requests import Session
from schemathesis import GenerationMode, checks
from tmtest.everything import Everything, furnish
from tmtest.flower import ANN, Client, Served, basic, serving
from tmtest.rows import all_rows

from celery_tm import TimeManagement
from celery_tm.domain.stating import FIELDS
from celery_tm.flower.openapi import document_of
from celery_tm.flower.operations import OPERATIONS, Operation
from fuzz.grammar import STATEMENTS
from fuzz.values import ANY_TEXT, VALUES

CHECKS = [
    checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
    checks.negative_data_rejection,
]
# Who may ask is not the question here: all is asked with the same credentials.
SCHEMA = schemathesis.openapi.from_dict({name: part for name, part in document_of().items() if name != "security"})
ASKED = {result.ok().label: result.ok() for result in SCHEMA.get_all_operations()}
FIXED = {operation.path for operation in OPERATIONS if not operation.names}
# Where something can be said wrongly; a name in the path may be any text.
FALLIBLE = {f"{operation.method} {operation.path}" for operation in OPERATIONS if operation.parameters}


@pytest.fixture(params=["postgresql", *(pytest.param(kind, marks=pytest.mark.thorough) for kind in ("sqlite", "mysql"))])
def tm(request: pytest.FixtureRequest, app_on: Callable[[str], Celery]) -> TimeManagement:
    return TimeManagement(app_on(request.param))


@pytest.fixture
def here(tm: TimeManagement) -> Everything:
    return furnish(tm.app, tm)


@pytest.fixture
def flower(tm: TimeManagement, here: Everything) -> Iterator[Served]:
    with serving(tm.app) as flower:
        yield flower


@pytest.fixture(autouse=True)
def no_exception(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Whatever is asked, Flower logs no crash."""
    yield
    crashes = [one for one in caplog.records if one.name == "tornado.application" and one.levelno >= logging.ERROR]
    assert crashes == []


def test_schemathesis_meets_every_operation() -> None:
    assert set(ASKED) == {f"{operation.method} {operation.path}" for operation in OPERATIONS}


def test_every_operation_keeps_to_its_description(
    flower: Served, here: Everything, few: int, tried: Callable[..., Any]
) -> None:
    known = st.sampled_from([str(value) for value in asdict(here).values()])
    statuses: set[int] = set()
    with Session() as session:

        def check(case: schemathesis.Case, there: bool, value: str) -> None:
            if there and case.path_parameters:
                case.path_parameters = dict.fromkeys(case.path_parameters, value)
            response = case.call(
                base_url=f"http://127.0.0.1:{flower.port}",
                session=session,
                headers={"Authorization": basic(*ANN)},
                timeout=30,
            )
            if urlsplit(response.request.url).path in FIXED - {case.path}:
                return  # an id that is a word of another address: no id of ours is one
            statuses.add(response.status_code)
            case.validate_response(response, checks=CHECKS[:-1] if leaves_out(case, response.request.url) else CHECKS)

        for operation in ASKED.values():
            for mode in GenerationMode if operation.label in FALLIBLE else [GenerationMode.POSITIVE]:
                strategy = operation.as_strategy(generation_mode=mode)
                tried(most=few, case=strategy, there=st.booleans(), value=known)(check)
    assert statuses >= {200, 400, 404}, statuses


def leaves_out(case: schemathesis.Case, url: str) -> bool:
    """Say whether it gives a parameter without a value, which is as good as none though the types do not say so."""
    asked = [value for _, value in parse_qsl(urlsplit(url).query, keep_blank_values=True)]
    stated = list(case.body.values()) if isinstance(case.body, dict) else []
    return any(not value.strip() for value in asked) or None in stated


def test_a_filter_by_a_definition_that_is_not_there_is_answered_as_described(flower: Served) -> None:
    ann = flower.client()  # holds each answer against the document
    assert ann.get("/api/tm/jobs", definition="nobody").status == 404
    assert ann.get("/api/tm/history", definition="nobody").status in (200, 404)
    assert ann.get("/api/tm/dead-letters", definition="nobody").status in (200, 404)


# Bodies that no document describes

CHANGING = [operation for operation in OPERATIONS if operation.method == "POST"]


def bodies(operation: Operation) -> st.SearchStrategy[bytes]:
    """Return bodies of a change: with odd values for what it knows, and what is no body at all."""
    stated = st.dictionaries(st.sampled_from(FIELDS) | ANY_TEXT, VALUES | STATEMENTS, max_size=4)
    known = {parameter.name: VALUES | stated for parameter in operation.parameters}
    objects = st.fixed_dictionaries({}, optional=known) | st.dictionaries(ANY_TEXT, VALUES, max_size=3)
    return st.one_of(objects.map(as_bytes), VALUES.map(as_bytes), st.binary(max_size=50), st.just(b"[" * 100_000))


def as_bytes(value: Any) -> bytes:
    try:
        return json.dumps(value).encode()
    except (TypeError, ValueError, RecursionError):
        return b'{"values": {"schedule": "\\ud800"}}'


def test_a_body_that_is_refused_changes_nothing(
    flower: Served, here: Everything, tm: TimeManagement, few: int, tried: Callable[..., Any]
) -> None:
    ann, known = flower.client(), st.sampled_from([str(value) for value in asdict(here).values()]) | ANY_TEXT.filter(len)
    kinds = st.sampled_from(
        ["application/json"] * 4 + ["application/x-www-form-urlencoded", "text/plain", "multipart/form-data"]
    )
    seen: set[int] = set()

    def check(operation: Operation, name: str, body: bytes, kind: str) -> None:
        path = operation.path
        for one in operation.names:
            path = path.replace(f"{{{one}}}", quote(name.encode(errors="surrogatepass"), safe=""))
        before = all_rows(tm)
        answer = Client.ask(ann, "POST", path, body, Content_Type=kind)
        seen.add(answer.status)
        assert answer.status < 500, answer.text
        assert isinstance(answer.json, dict)
        if answer.status >= 400:
            assert 0 < len(answer.json["error"]["message"]) < 2000
            assert all_rows(tm) == before

    for operation in CHANGING:
        tried(most=few, operation=st.just(operation), name=known, body=bodies(operation), kind=kinds)(check)
    assert seen >= {400, 404}, seen
