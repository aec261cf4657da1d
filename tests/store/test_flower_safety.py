"""Nothing of what we add to Flower is open to strangers, to other sites or to those who may not, and nothing stored runs.

Every rule that `install` adds is walked, whatever it is: a page, a file, a route of the API or its description.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from itertools import cycle
from typing import Any
from urllib.parse import quote

import pytest
from celery import Celery
from openapi_spec_validator import OpenAPIV31SpecValidator
from tmtest.everything import EVIL, Everything, furnish
from tmtest.flower import ANN, BOB, HTML, Answer, Client, Served, basic, serving
from tmtest.rows import all_rows

from celery_tm import TimeManagement
from celery_tm.flower.installing import added
from celery_tm.flower.openapi import document_of
from celery_tm.flower.operations import OPERATIONS
from celery_tm.flower.pages import PAGES

METHODS = ("GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE")
CHANGING = ("POST", "PUT", "PATCH", "DELETE")
SWITCHES = ("pause", "resume", "disable", "enable")
RANGE = {"since": "2026-01-01", "until": "2026-01-03", "overlap": "allow"}
FORM = "application/x-www-form-urlencoded"


@dataclass(frozen=True)
class Rule:
    """One address that was added."""

    pattern: str
    path: str


RULES = [Rule(rule.regex.pattern, re.sub(r"\(.*?\)", "x", rule.regex.pattern.rstrip("$"))) for rule in added()]
PATHS = [rule.path.replace("\\", "") for rule in RULES]


@pytest.fixture
def here(app: Celery, tm: TimeManagement) -> Everything:
    return furnish(app, tm)


@pytest.fixture
def flower(app: Celery, here: Everything) -> Iterator[Served]:
    with serving(app) as flower:
        yield flower


@pytest.fixture(autouse=True)
def no_exception(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Whatever is sent, Flower logs no crash."""
    yield
    crashes = [
        record for record in caplog.records if record.name == "tornado.application" and record.levelno >= logging.ERROR
    ]
    assert crashes == []


# Who gets in


def test_the_walk_meets_pages_files_routes_and_the_description() -> None:
    assert {"/tm", "/tm/job/x", "/tm/static/x", "/api/tm/openapi.json", "/api/tm/definitions/x/edit"} <= set(PATHS)
    assert len(PATHS) == len(PAGES) + len({operation.path for operation in OPERATIONS}) + 1


def test_without_credentials_everything_answers_401(flower: Served) -> None:
    stranger = flower.client(None)
    for path in PATHS:
        for method in METHODS:
            answer = Client.ask(stranger, method, path)
            assert answer.status == 401, f"{method} {path}"
            assert answer.headers["WWW-Authenticate"] == 'Basic realm="flower"'
            assert b"some works" not in answer.body


WRONG = {
    "password": basic("ann", "word"),
    "name": basic("eve", "secret"),
    "nothing": basic("", ""),
    "not ASCII": basic("ann", "sécret"),
    "not base64": "Basic ???",
    "half": "Basic",
    "another scheme": "Bearer " + basic("ann", "secret").split()[1],
    "bytes": "Basic //79",
}


def test_with_wrong_credentials_everything_answers_401(flower: Served) -> None:
    stranger = flower.client(None)
    for wrong, header in WRONG.items():
        for path in PATHS:
            for method in ("GET", "POST"):
                answer = Client.ask(stranger, method, path, Authorization=header)
                assert answer.status == 401, f"{wrong}: {method} {path}"


def test_with_credentials_it_is_another_answer(flower: Served) -> None:
    ann = flower.client(ANN)
    found = {path: Client.ask(ann, "GET", path).status for path in PATHS}
    assert set(found.values()) == {200, 400, 404, 405}, found
    assert found["/tm"] == found["/api/tm/openapi.json"] == 200


def test_files_of_other_folders_are_not_served(flower: Served) -> None:
    ann = flower.client(ANN)
    assert ann.get("/tm/static/tm.css").status == 200
    for path in ("..%2fbase.py", "../base.py", "%2e%2e/base.py", "/etc/passwd", "%2fetc%2fpasswd", "%00", "."):
        assert ann.get(f"/tm/static/{path}").status in (403, 404), path


# What other sites send

ELSEWHERE = {
    "another origin": {"Origin": "https://evil.example"},
    "no origin that is known": {"Origin": "null"},
    "another port": {"Origin": "http://127.0.0.1:1"},
    "another site": {"Sec_Fetch_Site": "cross-site"},
    "a sister site": {"Sec_Fetch_Site": "same-site"},
    "no page at all": {"Sec_Fetch_Site": "none"},
    "two stories": {"Sec_Fetch_Site": "cross-site", "Origin": "own"},
}


def test_a_change_that_another_site_sends_is_refused(flower: Served, tm: TimeManagement, here: Everything) -> None:
    ann = flower.client(ANN)
    ann.open("/tm")
    token = {"X_XSRFToken": ann.cookies["_xsrf"]}  # even one who has stolen the token
    own = f"http://127.0.0.1:{flower.port}"
    before = all_rows(tm)
    kinds = cycle((FORM, "application/json", "text/plain"))
    for name, headers in ELSEWHERE.items():
        said = {header: own if value == "own" else value for header, value in headers.items()}
        for path in [*PATHS, *(change.path for change in changes(here, tm))]:
            answer = Client.ask(ann, "POST", path, b"{}", Content_Type=next(kinds), **said, **token)
            assert answer.status == 403, f"{name}: {path}"
    assert all_rows(tm) == before


def test_a_change_without_the_token_is_refused_and_says_to_reload(
    flower: Served, tm: TimeManagement, here: Everything
) -> None:
    ann, other = flower.client(ANN), flower.client(ANN)
    ann.open("/tm")
    other.open("/tm")
    before = all_rows(tm)
    places = cycle(({"Sec_Fetch_Site": "same-origin"}, {"Origin": f"http://127.0.0.1:{flower.port}"}, {}))
    for change in changes(here, tm):
        for token in (None, "", "2|0|0|0", "x", other.cookies["_xsrf"]):  # missing, broken, and of a cookie that is gone
            said = next(places)
            body = b"" if token is None else f"_xsrf={quote(token)}".encode()
            answer = Client.ask(ann, "POST", change.path, body, Content_Type=FORM, Accept=HTML, **said)
            assert answer.status == 403, f"{change.path} {token!r} {said}"
            assert "reload the page" in answer.text
        program = Client.ask(ann, "POST", change.path, b"{}", Content_Type="application/json")  # it has cookies
        assert (program.status, program.json["error"]["code"]) == (403, "token_missing")
    assert all_rows(tm) == before


def test_a_program_without_json_is_taken_for_a_form(flower: Served, here: Everything) -> None:
    ann = flower.client(ANN)
    for kind in (FORM, "text/plain", "multipart/form-data; boundary=x", ""):
        body = b"--x--\r\n" if "boundary" in kind else b""
        answer = Client.ask(ann, "POST", f"/api/tm/definitions/{quote(here.definition)}/pause", body, Content_Type=kind)
        assert answer.status == 403, kind


# Who may change anything


@dataclass(frozen=True)
class Change:
    """One request that changes something, and how many lines of the audit it is worth."""

    operation: str
    path: str
    body: dict[str, Any] = field(default_factory=dict)
    lines: int = 1


def changes(here: Everything, tm: TimeManagement) -> list[Change]:
    """Return one request for every operation that changes something, in an order in which all of them succeed."""
    name, group = quote(here.definition, safe=""), quote(here.group, safe="")
    first, second, third, *rest = [*(letter.id for letter in tm.dead_letters.list()), "x"]
    rest = [id for id in rest if id != "x"]
    daily = {"task": "effect", "schedule": "@daily"}
    return [
        Change("add_definition", "/api/tm/definitions", {"name": "new", "values": daily}),
        Change("preview_edit", f"/api/tm/definitions/{name}/preview", {"values": {"schedule": "0 4 * * *"}}, 0),
        Change("edit_definition", f"/api/tm/definitions/{name}/edit", {"values": {"schedule": "0 4 * * *"}}),
        Change("restore_definition", f"/api/tm/definitions/{name}/restore", {"version": 1}),
        Change("trigger_definition", f"/api/tm/definitions/{name}/trigger"),
        Change("backfill_definition", f"/api/tm/definitions/{name}/backfill", RANGE),
        *(Change(f"{act}_definition", f"/api/tm/definitions/{name}/{act}") for act in SWITCHES),
        *(Change(f"{act}_group", f"/api/tm/groups/{group}/{act}", lines=1 + (act != "pause")) for act in SWITCHES),
        Change("remove_definition", "/api/tm/definitions/new/remove"),
        Change("cancel_job", f"/api/tm/jobs/{here.owed}/cancel"),
        Change("replay_occurrence", f"/api/tm/occurrences/{here.occurrence}/replay"),
        Change("revive_dead_letter", f"/api/tm/dead-letters/{first}/revive"),
        Change("purge_dead_letter", f"/api/tm/dead-letters/{second}/purge"),
        Change("preview_dead_letters", "/api/tm/dead-letters/preview", {"ids": [third]}, 0),
        Change("revive_dead_letters", "/api/tm/dead-letters/revive", {"ids": [third]}),
        Change("purge_dead_letters", "/api/tm/dead-letters/purge", {"expected": len(rest), "all": True}, len(rest)),
    ]  # fmt: skip


def more_dead_letters(tm: TimeManagement, here: Everything) -> None:
    """Let there be enough for every operation on them."""
    for _ in range(3):
        tm.trigger(here.failing)
        tm.run_due_jobs()
    assert tm.dead_letters.count() == 5


def with_settings(app: Celery, **settings: Any) -> None:
    """Let an app have other settings from now on."""
    app.conf.update(settings)
    app.__dict__.pop("_celery_tm").database.dispose()


def test_each_change_is_one_line_of_the_audit_with_who_what_and_why(
    flower: Served, tm: TimeManagement, here: Everything
) -> None:
    more_dead_letters(tm, here)
    ann = flower.client(ANN)
    seen = {line.id for line in tm.audit(limit=1000)}
    wanted = changes(here, tm)
    assert {change.operation for change in wanted} == {one.name for one in OPERATIONS if one.method == "POST"}
    for change in wanted:
        answer = ann.post(change.path, **change.body, reason=f"why {change.operation}")
        assert answer.status in (200, 201), f"{change}: {answer.text}"
        lines = [line for line in tm.audit(limit=1000) if line.id not in seen]
        seen |= {line.id for line in lines}
        assert len(lines) == change.lines, f"{change}: {lines}"
        for line in lines:
            assert (line.actor, line.reason) == ("ann", f"why {change.operation}")
            assert line.object
            assert line.before or line.after, f"{change}: {line}"


def test_a_change_of_a_definition_tells_what_was_and_what_is(flower: Served, tm: TimeManagement, here: Everything) -> None:
    path = f"/api/tm/definitions/{quote(here.definition)}"
    ann = flower.client(ANN)
    ann.post(f"{path}/edit", values={"schedule": "0 4 * * *"}, reason="later")
    ann.post(f"{path}/pause", reason="stop")
    paused, edited = ann.get("/api/tm/audit", limit=2).json["items"]
    assert (edited["before"]["schedule"], edited["after"]["schedule"]) == ("30 2 * * *", "0 4 * * *")
    assert (paused["before"].get("paused"), paused["after"]["paused"]) == (None, True)  # what is not stated is not so


def test_whoever_is_no_administrator_reads_everything_and_changes_nothing(
    app: Celery, tm: TimeManagement, here: Everything
) -> None:
    more_dead_letters(tm, here)
    with_settings(app, tm_admins=["ann", "*@admins.example"])
    before = all_rows(tm)
    with serving(app) as flower:
        bob = flower.client(BOB)
        bob.open("/tm")
        for change in changes(here, tm):
            told = Client(flower.port, BOB).post(change.path, **change.body)
            assert (told.status, told.json["error"]["code"]) == (403, "not_administrator")
            assert "tm_admins" in told.json["error"]["message"]
            sent = bob.send(change.path, {})
            assert sent.status == 403
            assert "tm_admins" in sent.text
        for path in PATHS:
            assert Client(flower.port, BOB).post(path).status in (403, 405), path
        assert all_rows(tm) == before
        assert bob.open("/tm").status == Client(flower.port, BOB).get("/api/tm/definitions").status == 200
        assert flower.client(ANN).post(f"/api/tm/definitions/{quote(here.definition)}/pause").status == 200


def test_nobody_changes_anything_where_flower_is_read_only(app: Celery, tm: TimeManagement, here: Everything) -> None:
    more_dead_letters(tm, here)
    before = all_rows(tm)
    with serving(app, read_only=True) as flower:
        ann = flower.client(ANN)
        for change in changes(here, tm):
            told = ann.post(change.path, **change.body)
            assert (told.status, told.json["error"]["code"]) == (403, "read_only")
        assert ann.get("/api/tm/definitions").status == ann.open("/tm").status == 200
    assert all_rows(tm) == before


# What is stored is shown as text


class Elements(HTMLParser):
    """What a browser would make of a page: its scripts, its attributes and its text."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.scripts: list[str | None] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.inline: list[str] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag == "script":
            self.scripts.append(dict(attrs).get("src"))
        if tag in ("script", "style"):
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if self._open and self._open[-1] == tag:
            self._open.pop()

    def handle_data(self, data: str) -> None:
        if self._open:
            self.inline.append(data.strip())
        else:
            self.text += data


def check_harmless(answer: Answer, path: str) -> Elements:
    """Fail where a page runs, or lets run, anything but the static files of Flower and ours."""
    page = Elements(answer.text)
    assert page.scripts, path
    assert all(src and re.match(r"/(static|tm/static)/[\w./-]+[?]v=\w+$", src) for src in page.scripts), page.scripts
    assert not any(page.inline), f"{path}: {page.inline}"
    assert not [one for one in page.attributes if one[1].startswith("on") or one[1] == "srcdoc"], path
    links = [value.strip().lower() for _, name, value in page.attributes if name in ("href", "src", "action", "formaction")]
    assert not [link for link in links if link.startswith(("javascript:", "data:", "vbscript:"))], path
    policy = answer.headers["Content-Security-Policy"]
    assert "script-src 'self'" in policy
    assert "unsafe" not in policy
    assert (answer.headers["X-Frame-Options"], answer.headers["X-Content-Type-Options"]) == ("DENY", "nosniff")
    return page


def test_what_is_stored_is_shown_as_text_on_every_page(app: Celery, tm: TimeManagement) -> None:
    here = furnish(app, tm, EVIL)
    known = [here.definition, here.failing, here.workflow, here.ended, here.owed, here.running, here.dead, here.run]
    known += [here.occurrence, tm.history(limit=1)[0].id, EVIL]
    evil = quote(EVIL, safe="")
    with serving(app) as flower:
        ann = flower.client(ANN)
        for pattern, _, name in PAGES:
            filled = [re.sub(r"\(.*?\)", lambda _, one=one: quote(one, safe=""), pattern) for one in known]  # type: ignore[misc]
            more = f"?action=purge&ids={here.dead}" if name == "tm_dead_letters_preview" else ""
            asked = [ann.open(path + more) for path in dict.fromkeys(filled)]
            assert 200 in {answer.status for answer in asked}, name
            assert {answer.status for answer in asked} <= {200, 400, 404}, name
            shown = [check_harmless(answer, name) for answer in asked]
            if name not in ("tm_calendar",):
                assert any(EVIL in page.text or EVIL in str(page.attributes) for page in shown), name
            for query in (
                "search",
                "group",
                "standing",
                "task",
                "outcome",
                "at",
                "before",
                "after",
                "error",
                "since",
                "zone",
            ):
                answer = ann.open(f"{filled[0]}?{query}={evil}")
                assert answer.status in (200, 400, 404), f"{name} {query}: {answer.status}"
                check_harmless(answer, f"{name} {query}")


def test_messages_after_a_change_are_text_too(app: Celery, tm: TimeManagement) -> None:
    here = furnish(app, tm, EVIL)
    with serving(app) as flower:
        ann = flower.client(ANN)
        ann.open("/tm")
        assert ann.send(f"/api/tm/definitions/{quote(here.definition, safe='')}/pause", {"reason": EVIL}).status == 303
        assert f"{here.definition} is paused" in check_harmless(ann.open("/tm"), "/tm").text
        missing = ann.send(f"/api/tm/definitions/{quote(EVIL, safe='')}/pause", {})
        assert missing.status == 404
        assert EVIL in check_harmless(missing, "refused").text
        forged = ann.cookies | {"tm_flash": '{"kind": "success", "text": "<b>won</b>"}'}
        ann.cookies = forged
        assert "won" not in ann.open("/tm").text  # nobody else writes messages


def test_answers_in_json_are_never_a_page(app: Celery, tm: TimeManagement) -> None:
    here = furnish(app, tm, EVIL)
    fill = {"name": here.definition, "group": here.group, "id": here.dead}
    with serving(app) as flower:
        ann = flower.client(ANN)
        for operation in OPERATIONS:
            path = re.sub(r"{(\w+)}", lambda found: quote(fill[found[1]], safe=""), operation.path)
            for answer in (
                ann.ask("GET", path, Accept=HTML),
                Client.ask(ann, "POST", path, b"{", Content_Type="application/json"),
            ):
                assert answer.json  # application/json, nosniff
                assert b"<" not in answer.body, path


# The description


def test_the_description_is_valid_and_has_every_route(flower: Served) -> None:
    told = flower.client(ANN).get("/api/tm/openapi.json").json
    OpenAPIV31SpecValidator(told).validate()
    patterns = {rule.pattern.rstrip("$").replace("\\", "") for rule in RULES if "/api/tm/" in rule.pattern}
    assert {re.sub(r"{\w+}", "([^/]+)", path) for path in told["paths"]} == patterns
    named = [one["operationId"] for path in told["paths"].values() for one in path.values()]
    assert sorted(named) == sorted({operation.name for operation in OPERATIONS})
    assert told == document_of()
