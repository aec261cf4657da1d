"""The API in a real Flower, asked over HTTP: each operation, what it answers, and what it does with bad input."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from celery import Celery
from tmtest.app import make_app
from tmtest.everything import Everything, furnish
from tmtest.flower import Answer, Client, Served, serving
from tmtest.rows import all_rows

from celery_tm import TimeManagement
from celery_tm.installation import Installation
from celery_tm.store import schema

HOUR = timedelta(hours=1)
NOBODY = "01981f6e-7c10-7a52-b1c3-0d3f5a6b7c8d"


@pytest.fixture
def here(app: Celery, tm: TimeManagement) -> Everything:
    return furnish(app, tm)


@pytest.fixture
def flower(app: Celery, here: Everything) -> Iterator[Served]:
    """A Flower that shows something of everything."""
    with serving(app) as flower:
        yield flower


@pytest.fixture
def ann(flower: Served) -> Client:
    """Somebody who may do anything."""
    return flower.client()


def of(*parts: str) -> str:
    """Return the address of a route."""
    return "/".join(["/api/tm", *(quote(part, safe="") for part in parts)])


def ok(answer: Answer, status: int = 200) -> Any:
    """Return what is answered where nothing was refused."""
    assert answer.status == status, answer.text
    return answer.json


def refused(answer: Answer, status: int, code: str) -> str:
    """Return the message of a refusal."""
    assert (answer.status, answer.json["error"]["code"]) == (status, code), answer.text
    return str(answer.json["error"]["message"])


def last_audit(tm: TimeManagement) -> tuple[str, str, str, str | None]:
    """Return who did what to what, and why, the last time."""
    [line] = tm.audit(limit=1)
    return line.actor, line.action, line.object, line.reason


# Reading


def test_everything_that_is_told_has_its_documented_shape(ann: Client, here: Everything) -> None:
    below = ((), ("occurrences",), ("versions",), ("history",), ("explain",), ("coming",))
    names = (here.definition, here.failing, here.workflow)
    for path in (
        of("status"), of("doctor"), of("definitions"), of("groups"), of("jobs"), of("history"), of("dead-letters"),
        of("audit"), of("forecast"), of("token"), of("openapi.json"),
        *(of("definitions", name, *more) for name in names for more in below),
        of("definitions", here.workflow, "effective"), of("jobs", here.ended), of("jobs", here.owed), of("jobs", here.dead),
        of("jobs", here.running), of("jobs", here.ended, "log"), of("occurrences", here.occurrence),
        of("occurrences", here.run), of("occurrences"), of("dead-letters", here.dead),
    ):  # fmt: skip
        ok(ann.get(path))


def test_lists_come_in_pages_that_together_are_the_whole(ann: Client) -> None:
    for path, place in (
        (of("definitions"), "after"), (of("jobs"), "after"), (of("history"), "before"), (of("dead-letters"), "before"),
        (of("audit"), "before"),
    ):  # fmt: skip
        whole = [one.get("id", one.get("name")) for one in ok(ann.get(path, limit=100))["items"]]
        assert len(whole) >= 2
        found, cursor = [], None
        while True:
            page = ok(ann.get(path, limit=1, **({place: cursor} if cursor else {})))
            found += [one.get("id", one.get("name")) for one in page["items"]]
            cursor = page["next"]
            if cursor is None:
                break
        assert found == whole


def test_filters_leave_what_they_say(ann: Client, here: Everything) -> None:
    def names(path: str, field: str, **query: Any) -> set[str]:
        return {one[field] for one in ok(ann.get(path, **query))["items"]}

    assert names(of("definitions"), "name", search="fall") == {here.failing}
    assert names(of("definitions"), "name", group=here.group, standing="on") == {here.definition}
    assert names(of("definitions"), "name", standing="paused") == {here.failing}
    assert names(of("jobs"), "id", state="running") == {here.running}
    assert names(of("jobs"), "id", key="some waits") == {here.owed}
    assert names(of("history"), "outcome", definition=here.failing) == {"failed"}
    assert names(of("definitions", here.definition, "history"), "outcome") == {"succeeded"}
    assert names(of("history"), "task", outcome="failed", task="some falls") == {"some falls"}
    assert names(of("history"), "task", since=(datetime.now(UTC) + HOUR).isoformat()) == set()
    assert names(of("dead-letters"), "id", definition=here.failing) == {here.dead}
    assert names(of("audit"), "action", object=f"definition:{here.definition}", action="trigger") == {"trigger"}
    assert names(of("history"), "task", task="", outcome="") >= {"some works"}  # a form sends what is empty, too


def test_an_instant_without_an_offset_is_on_the_definition_s_own_clocks(ann: Client, here: Everything) -> None:
    told = ok(ann.get(of("definitions", here.definition, "explain"), at="2026-06-01T02:30"))
    assert told["at"] == "2026-06-01T00:30:00+00:00"
    raw = ann.ask("GET", of("definitions", here.definition, "explain") + "?at=2026-06-01T02:30:00+02:00")  # no %2B
    assert ok(raw)["at"] == "2026-06-01T00:30:00+00:00"


def test_arguments_are_hidden_where_the_settings_say_so(app: Celery, here: Everything) -> None:
    app.conf.tm_redact = ["secret"]
    app.__dict__.pop("_celery_tm").database.dispose()
    with serving(app) as flower:
        ann = flower.client()
        assert json.loads(ok(ann.get(of("jobs", here.owed)))["job"]["kwargs"]) == {"secret": "***"}
        stated = ok(ann.get(of("definitions", here.definition)))["stated"]
        assert stated["kwargs"] == {"secret": "***"}
        back = ann.post(of("definitions", here.definition, "edit"), values={"kwargs": stated["kwargs"], "queue": "fast"})
        assert "hidden" in refused(back, 400, "invalid_value")
        assert ok(ann.get(of("definitions", here.definition)))["queue"] is None


# Changing definitions


def test_a_definition_is_added_edited_switched_and_removed(ann: Client, tm: TimeManagement) -> None:
    path = of("definitions", "nightly")
    values = {"task": "effect", "schedule": "30 2 * * *", "timezone": "Europe/Warsaw", "args": [1]}
    made = ok(ann.post(of("definitions"), name="nightly", values=values, reason="new"), 201)
    assert (made["version"], made["meaning"]) == (1, "at 02:30 every day in Europe/Warsaw")
    assert last_audit(tm) == ("ann", "add", "definition:nightly", "new")
    difference = ok(ann.post(f"{path}/preview", values={"schedule": "30 3 * * *"}, within="2d", version=1))
    assert len(difference["added"]) == len(difference["removed"]) == 2
    assert tm.definitions.get("nightly").schedule == "30 2 * * *"
    edited = ok(ann.post(f"{path}/edit", values={"schedule": "30 3 * * *"}, version=1, reason="later"))
    assert edited["version"] == 2
    assert last_audit(tm) == ("ann", "edit", "definition:nightly", "later")
    for action, field, value in (
        ("pause", "paused", True), ("resume", "paused", False), ("disable", "enabled", False), ("enable", "enabled", True),
    ):  # fmt: skip
        assert ok(ann.post(f"{path}/{action}", reason=action))[field] is value
        assert last_audit(tm) == ("ann", action, "definition:nightly", action)
    assert ok(ann.post(f"{path}/remove", reason="gone")) == {"removed": "nightly"}
    assert last_audit(tm) == ("ann", "remove", "definition:nightly", "gone")
    assert ann.get(path).status == 404


def test_a_definition_is_triggered_replayed_and_backfilled(ann: Client, tm: TimeManagement, here: Everything) -> None:
    path = of("definitions", here.definition)
    made = ok(ann.post(f"{path}/trigger", reason="now"))
    assert made["state"] == "pending"
    assert last_audit(tm) == ("ann", "trigger", f"definition:{here.definition}", "now")
    tm.run_due_jobs()
    again = ok(ann.post(of("occurrences", made["occurrence"], "replay"), reason="again"))
    assert again["replay_of"] == made["occurrence"]
    assert last_audit(tm) == ("ann", "replay", f"occurrence:{made['occurrence']}", "again")
    tm.run_due_jobs()
    since, until = (datetime.now(UTC) - timedelta(days=3)).isoformat(), datetime.now(UTC).isoformat()
    dry = ok(ann.post(f"{path}/backfill", since=since, until=until, dry_run=True))
    assert (dry["dry_run"], dry["counts"]["created"]) == (True, 3)
    assert last_audit(tm)[1] == "replay"
    assert ok(ann.post(f"{path}/backfill", since=since, until=until, reason="lost"))["counts"]["created"] == 3
    assert last_audit(tm) == ("ann", "backfill", f"definition:{here.definition}", "lost")
    step = ok(ann.post(of("occurrences", here.run, "replay"), from_step="second", reason="once more"))
    assert step["replay_of"] == here.run


def test_a_group_is_switched_as_a_whole(ann: Client, tm: TimeManagement, here: Everything) -> None:
    path = of("groups", here.group)
    for action, field, value in (
        ("pause", "paused", True), ("resume", "paused", False), ("disable", "enabled", False), ("enable", "enabled", True),
    ):  # fmt: skip
        changed = ok(ann.post(f"{path}/{action}", reason="all"))["items"]
        assert {(one["name"], one[field]) for one in changed} == {(here.definition, value), (here.failing, value)}
        assert last_audit(tm)[0::3] == ("ann", "all")
    assert refused(ann.post(of("groups", "none", "pause")), 400, "invalid_value")


# Changing work


def test_a_job_is_cancelled_once(ann: Client, tm: TimeManagement, here: Everything) -> None:
    assert ok(ann.post(of("jobs", here.owed, "cancel"), reason="refunded")) == {"job": here.owed, "cancelled": True}
    assert last_audit(tm) == ("ann", "cancel", f"job:{here.owed}", "refunded")
    assert ok(ann.get(of("jobs", here.owed)))["state"] == "CANCELED"
    assert "nothing to cancel" in refused(ann.post(of("jobs", here.owed, "cancel")), 409, "not_owed")
    assert ok(ann.post(of("jobs", here.running, "cancel")))["cancelled"] is True  # it is asked to stop
    assert ok(ann.get(of("jobs", here.running)))["job"]["cancel_requested"] is True


def test_one_dead_letter_is_revived_or_purged(ann: Client, tm: TimeManagement, here: Everything) -> None:
    assert ok(ann.post(of("dead-letters", here.dead, "revive"), reason="fixed")) == {"revived": 1}
    assert last_audit(tm) == ("ann", "revive", f"job:{here.dead}", "fixed")
    refused(ann.post(of("dead-letters", here.dead, "revive")), 404, "dead_letter_not_found")
    [other] = tm.dead_letters.list()
    assert ok(ann.post(of("dead-letters", other.id, "purge"), reason="old")) == {"purged": 1}
    assert last_audit(tm) == ("ann", "purge", f"job:{other.id}", "old")


def test_many_dead_letters_are_revived_and_purged_as_previewed(ann: Client, tm: TimeManagement, here: Everything) -> None:
    seen = ok(ann.post(of("dead-letters", "preview"), task="some falls"))
    assert (seen["count"], seen["by_task"]) == (2, {"some falls": 2})
    before = all_rows(tm)
    assert "missing" in refused(ann.post(of("dead-letters", "purge"), task="some falls"), 400, "invalid_value")
    changed = ann.post(of("dead-letters", "purge"), task="some falls", expected=3)
    assert "2 dead letters" in refused(changed, 409, "count_changed")
    assert changed.json["error"]["count"] == 2
    assert all_rows(tm) == before
    assert ok(ann.post(of("dead-letters", "revive"), ids=[here.dead], reason="fixed")) == {"revived": 1}
    assert ok(ann.post(of("dead-letters", "purge"), error="some", expected=1, reason="old")) == {"purged": 1}
    assert tm.dead_letters.count() == 0


# Bad input: the right status, words that help, nothing half done

WORKS, QUEUE, DAILY = "definitions/some works", {"queue": "q"}, {"task": "effect", "schedule": "@daily"}
BAD: dict[str, tuple[str, str, dict[str, Any], int, str, str]] = {
    "unknown name": ("GET", "definitions/some workz", {}, 404, "definition_not_found", "'some works'"),
    "unknown job": ("GET", f"jobs/{NOBODY}", {}, 404, "job_not_found", "pruned"),
    "unknown letter": ("GET", f"dead-letters/{NOBODY}", {}, 404, "dead_letter_not_found", "dead-letters list"),
    "unknown occurrence": ("GET", f"occurrences/{NOBODY}", {}, 404, "occurrence_not_found", "explain"),
    "unknown log": ("GET", f"jobs/{NOBODY}/log", {}, 404, "job_not_found", "pruned"),
    "unknown history": ("GET", "definitions/some workz/history", {}, 404, "definition_not_found", "'some works'"),
    "unknown step": ("GET", "definitions/some flow/effective", {"step": "frist"}, 400, "unknown_step", "'first'"),
    "unknown filter": ("GET", "history", {"outcom": "failed"}, 400, "unknown_option", "'outcome'"),
    "malformed outcome": ("GET", "history", {"outcome": "fialed"}, 400, "invalid_value", "failed"),
    "malformed state": ("GET", "jobs", {"state": "runing"}, 400, "invalid_value", "running"),
    "malformed standing": ("GET", "definitions", {"standing": "of"}, 400, "invalid_value", "paused"),
    "malformed since": ("GET", "history", {"since": "yesterday"}, 400, "invalid_value", "ISO 8601"),
    "naive since": ("GET", "history", {"since": "2026-06-01T00:00"}, 400, "invalid_value", "no time zone"),
    "malformed cursor": ("GET", "history", {"before": "???"}, 400, "invalid_value", "cursor"),
    "huge page": ("GET", "history", {"limit": 100_000}, 400, "invalid_value", "1000"),
    "empty page": ("GET", "jobs", {"limit": 0}, 400, "invalid_value", "1000"),
    "many versions": ("GET", "definitions/some works/versions", {"limit": 100_000}, 400, "invalid_value", "1000"),
    "wordy page": ("GET", "jobs", {"limit": "all"}, 400, "invalid_value", "whole number"),
    "many instants": ("GET", "definitions/some works/coming", {"count": 10**9}, 400, "invalid_value", "1000"),
    "NUL in a name": ("GET", "definitions/a\x00b", {}, 400, "invalid_value", "NUL"),
    "NUL in a filter": ("GET", "history", {"task": "a\x00b"}, 400, "invalid_value", "NUL"),
    "endless name": ("GET", "definitions/" + "x" * 5000, {}, 404, "definition_not_found", "definitions list"),
    "edit of nobody": ("POST", "definitions/some workz/edit", {"values": QUEUE}, 404, "definition_not_found", "some works"),
    "stale": ("POST", f"{WORKS}/edit", {"values": QUEUE, "version": 1}, 409, "stale_version", "version 3"),
    "stale preview": ("POST", f"{WORKS}/preview", {"values": QUEUE, "version": 1}, 409, "stale_version", "version 3"),
    "unknown field": ("POST", f"{WORKS}/edit", {"values": {"quue": "q"}}, 400, "unknown_option", "'queue'"),
    "a keyword": ("POST", f"{WORKS}/edit", {"values": {"actor": "eve"}}, 400, "unknown_option", "actor"),
    "no field": ("POST", f"{WORKS}/edit", {"values": {}}, 400, "invalid_value", "schedule"),
    "no values": ("POST", f"{WORKS}/edit", {}, 400, "invalid_value", "missing"),
    "bad schedule": ("POST", f"{WORKS}/edit", {"values": {"schedule": "61 * * * *"}}, 400, "invalid_value", "schedule"),
    "bad zone": ("POST", f"{WORKS}/edit", {"values": {"timezone": "Europe/Warsow"}}, 400, "unknown_time_zone", "Warsaw"),
    "half good": ("POST", f"{WORKS}/edit", {"values": {"queue": "q", "priority": "high"}}, 400, "invalid_value", "priority"),
    "bad policy": ("POST", f"{WORKS}/edit", {"values": QUEUE, "policy": "soon"}, 400, "invalid_value", "graceful"),
    "unknown word": ("POST", f"{WORKS}/pause", {"why": "x"}, 400, "unknown_option", "why"),
    "wrong kind": ("POST", f"{WORKS}/pause", {"reason": 7}, 400, "invalid_value", "text"),
    "taken name": ("POST", "definitions", {"name": "some works", "values": DAILY}, 409, "definition_exists", "exists"),
    "no name": ("POST", "definitions", {"values": DAILY}, 400, "invalid_value", "name"),
    "unknown group": ("POST", "groups/some grop/disable", {}, 400, "invalid_value", "group"),
    "bad range": ("POST", f"{WORKS}/backfill", {"since": "soon"}, 400, "invalid_value", "ISO 8601"),
    "bad overlap": ("POST", f"{WORKS}/backfill", {"since": "2026-06-01", "overlap": "skp"}, 400, "invalid_value", "queue"),
    "trigger nobody": ("POST", "definitions/none/trigger", {}, 404, "definition_not_found", "none"),
    "replay nobody": ("POST", f"occurrences/{NOBODY}/replay", {}, 404, "occurrence_not_found", NOBODY),
    "cancel nobody": ("POST", f"jobs/{NOBODY}/cancel", {}, 404, "job_not_found", NOBODY),
    "revive nobody": ("POST", f"dead-letters/{NOBODY}/revive", {}, 404, "dead_letter_not_found", NOBODY),
    "bad ids": ("POST", "dead-letters/purge", {"ids": "all"}, 400, "invalid_value", "list"),
    "bad expected": ("POST", "dead-letters/purge", {"expected": "2"}, 400, "invalid_value", "whole number"),
}  # fmt: skip


def test_bad_input_is_refused_in_words_and_changes_nothing(ann: Client, tm: TimeManagement) -> None:
    before = all_rows(tm)
    for name, (method, path, said, status, code, words) in BAD.items():
        path = of(*path.split("/"))
        answer = ann.get(path, **said) if method == "GET" else ann.post(path, **said)
        assert words in refused(answer, status, code), f"{name}: {answer.text}"
    assert all_rows(tm) == before


def test_a_suggestion_and_the_present_version_are_there_for_programs(ann: Client, here: Everything) -> None:
    assert ann.get(of("definitions", "some workz")).json["error"]["hint"] == here.definition
    stale = ann.post(of("definitions", here.definition, "edit"), values={"queue": "q"}, version=1)
    assert stale.json["error"]["version"] == 3


BODIES: list[tuple[bytes, int, str]] = [
    (b"{", 400, "not JSON"),
    (b"[1]", 400, "not an object"),
    (b'{"reason": NaN}', 400, "not JSON"),
    (b"[" * 100_000, 400, "not JSON"),
    (b'{"reason": "\\ud800"}', 400, "cannot be kept"),
    (b'{"reason": "\\u0000"}', 400, "cannot be kept"),
    (b"\xff\xfe", 400, "not JSON"),
    (b'{"reason": "' + b"x" * 1_000_001 + b'"}', 413, "1,000,000"),
]


def test_bodies_that_are_none_are_refused(ann: Client, tm: TimeManagement, here: Everything) -> None:
    before = all_rows(tm)
    for body, status, words in BODIES:
        path = of("definitions", here.definition, "pause")
        answer = Client.ask(ann, "POST", path, body, Content_Type="application/json")
        assert (answer.status, words in answer.json["error"]["message"]) == (status, True), answer.text
    assert all_rows(tm) == before


def test_a_method_that_is_not_offered_is_named(ann: Client) -> None:
    for method, path in (("POST", of("status")), ("GET", of("dead-letters", "a", "purge")), ("DELETE", of("status"))):
        answer = Client.ask(ann, method, path, b"{}", Content_Type="application/json")
        assert answer.status == 405, answer.text
        assert answer.json["error"]["code"] == "method_not_allowed"


# Forms of pages


def test_a_form_is_answered_with_the_way_back_and_a_message(ann: Client, tm: TimeManagement, here: Everything) -> None:
    ann.open("/tm")
    path = of("definitions", here.definition, "pause")
    answer = ann.send(path, {"reason": "stocktaking", "next": "/tm?search=works"})
    assert (answer.status, answer.headers["Location"]) == (303, "/tm?search=works")
    assert tm.definitions.get(here.definition).paused
    page = ann.open("/tm?search=works")
    assert f"{here.definition} is paused" in page.text
    assert f"{here.definition} is paused" not in ann.open("/tm").text  # once
    name = "😀" * 100
    tm.definitions.add(name=name, task="effect", schedule="@daily")
    assert len(ann.send(of("definitions", name, "pause"), {}).headers["Set-Cookie"]) < 4096
    assert f"{name} is paused" in ann.open("/tm").text


ELSEWHERE = ("https://evil.example/", "//evil.example/", "/\\evil.example", "javascript:alert(1)", "/a\r\nb: c")


def test_a_form_does_not_lead_elsewhere(ann: Client, here: Everything) -> None:
    ann.open("/tm")
    for target in ELSEWHERE:
        answer = ann.send(of("definitions", here.definition, "resume"), {"next": target})
        assert (answer.status, urlsplit(answer.headers["Location"]).path) == (303, "/tm"), target


def test_a_form_states_the_fields_of_a_definition(ann: Client, tm: TimeManagement, here: Everything) -> None:
    ann.open("/tm")
    fields = {
        "values.schedule": "0 4 * * *", "values.queue": "123", "values.max_retries": "7", "values.args": '["a", 1]',
        "values.group": "", "values.task_timeout": "20m", "values.enabled": "true", "version": "3", "reason": "form",
    }  # fmt: skip
    assert ann.send(of("definitions", here.definition, "edit"), fields).status == 303
    found = tm.definitions.get(here.definition)
    assert (found.schedule, found.queue, found.max_retries, found.args) == ("0 4 * * *", "123", 7, '["a", 1]')
    assert (found.group, found.task_timeout, found.version) == (None, timedelta(minutes=20), 4)
    stale = ann.send(of("definitions", here.definition, "edit"), fields | {"next": "/tm/health"})
    assert stale.status == 409
    assert "is at version 4 by ann" in stale.text
    assert 'href="/tm/health"' in stale.text


def test_a_form_names_many_dead_letters(ann: Client, tm: TimeManagement) -> None:
    ann.open("/tm")
    ids = [letter.id for letter in tm.dead_letters.list()]
    answer = ann.send(of("dead-letters", "purge"), {"ids": ids, "expected": len(ids), "reason": ""})
    assert answer.status == 303, answer.text
    assert tm.dead_letters.count() == 0


# Where something is missing


def test_a_flower_without_our_tables_says_what_to_run(app: Celery, tm: TimeManagement, here: Everything) -> None:
    database = Installation.of(app).database
    with serving(app) as flower:
        _drop(tm)
        database._schema_checked = False
        try:
            for answer in (flower.client().get(of("status")), flower.client().post(of("definitions", "x", "pause"))):
                assert "tm schema upgrade" in refused(answer, 503, "schema_missing")
            page = flower.client().open("/tm")
            assert page.status == 503
            assert "tm schema upgrade" in page.text
        finally:
            schema.upgrade(database)


def test_a_database_that_is_away_is_said_and_flower_goes_on(tmp_path: Path) -> None:
    app = make_app({"broker_url": "memory://", "tm_database_url": "postgresql://nobody@127.0.0.1:1/none"})
    with serving(app) as flower:
        answer = flower.client().get(of("definitions"))
        assert "check tm_database_url" in refused(answer, 503, "database_unavailable")
        page = flower.client().open("/tm")
        assert page.status == 503
        assert "check tm_database_url" in page.text
        assert flower.client().get("/healthcheck").status == 200
    app.close()


def test_settings_that_are_wrong_are_said(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    app = make_app({"broker_url": "memory://", "tm_database_url": url, "tm_reduct": ["x"]})
    with serving(app) as flower:
        ann = flower.client()
        for answer in (ann.get(of("status")), ann.post(of("definitions", "x", "pause"))):
            assert "did you mean 'tm_redact'" in refused(answer, 503, "unknown_setting")
        page = ann.open("/tm")
        assert page.status == 503
        assert "tm_redact" in page.text
    app.close()


def test_odd_arguments_are_shown_all_the_same(ann: Client, tm: TimeManagement) -> None:
    odd = ["\ud800", "\x00", 10**400, "\u2028", {"": None}]
    tm.definitions.add(name="odd", task="effect", schedule="@daily", args=odd)
    assert ok(ann.get(of("definitions", "odd")))["stated"]["args"] == odd
    for path in ("/tm/definition/odd", "/tm/definition/odd/edit"):
        assert ann.open(path).status == 200


# Programs, prefixes, other ways to log in


def test_a_program_needs_no_more_than_curl(flower: Served, tm: TimeManagement, here: Everything) -> None:
    base = f"http://127.0.0.1:{flower.port}"
    common = ["curl", "-sS", "-u", "ann:secret", "-o", "-", "-w", "\n%{http_code}"]
    told = subprocess.run([*common, f"{base}/api/tm/status"], capture_output=True, text=True, timeout=30, check=True)
    assert told.stdout.splitlines()[-1] == "200"
    change = [
        "-H",
        "Content-Type: application/json",
        "-d",
        '{"reason": "curl"}',
        base + of("definitions", here.definition, "pause"),
    ]
    told = subprocess.run([*common, *change], capture_output=True, text=True, timeout=30, check=True)
    assert told.stdout.splitlines()[-1] == "200", told.stdout
    assert last_audit(tm) == ("ann", "pause", f"definition:{here.definition}", "curl")


def test_a_program_with_cookies_sends_the_token(flower: Served, here: Everything) -> None:
    ann = flower.client()
    answer = ann.get(of("token"))
    ann.keep_cookies(answer)
    path, said = of("definitions", here.definition, "pause"), {"Content_Type": "application/json"}
    refused(ann.ask("POST", path, b"{}", **said), 403, "token_missing")
    ok(ann.ask("POST", path, b"{}", **said, **{answer.json["header"]: answer.json["token"]}))


def test_a_prefix_is_before_every_address(app: Celery, here: Everything) -> None:
    with serving(app, url_prefix="some/flower") as flower:
        ann = flower.client()
        assert flower.prefix == "/some/flower"
        ok(Client(flower.port).get("/some/flower" + of("status")))
        assert ok(ann.get(of("openapi.json")))["servers"] == [{"url": "/some/flower"}]
        page = ann.open("/tm")
        assert page.status == 200
        assert 'href="/some/flower/tm"' in page.text
        answer = ann.send(of("definitions", here.definition, "pause"), {})
        assert (answer.status, answer.headers["Location"]) == (303, "/some/flower/tm")
        assert Client(flower.port).get("/tm").status == 404


def test_names_with_slashes_and_signs_are_found(ann: Client, tm: TimeManagement) -> None:
    for name in ("a/b", "50% off?", "..", "ünï;cödé", "a+b c#d"):
        tm.definitions.add(name=name, task="effect", schedule="@daily")
        assert ok(ann.get(of("definitions", name)))["name"] == name
        assert ok(ann.post(of("definitions", name, "pause")))["name"] == name


def test_the_api_is_open_only_where_flower_s_own_is(app: Celery, here: Everything, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(app, basic_auth=[]) as flower:
        anybody = flower.client(None)
        assert "--basic-auth" in refused(anybody.get(of("status")), 401, "unauthorized")
        assert "--basic-auth" in refused(anybody.post(of("definitions", here.definition, "pause")), 401, "unauthorized")
        assert anybody.open("/tm").status == 200  # as Flower's own pages
        monkeypatch.setenv("FLOWER_UNAUTHENTICATED_API", "true")
        answer = anybody.get(of("token"))
        assert answer.headers["Access-Control-Allow-Origin"] is None
        refused(anybody.post(of("definitions", here.definition, "pause")), 403, "token_missing")
        anybody.keep_cookies(answer)
        anybody.cookies = {name: value for name, value in anybody.cookies.items() if name == "_xsrf"}
        said = {"Content_Type": "application/json", "X_XSRFToken": answer.json["token"]}
        ok(anybody.ask("POST", of("definitions", here.definition, "pause"), b"{}", **said))
        assert ok(anybody.get(of("audit"), limit=1))["items"][0]["actor"] == "anonymous"


def test_under_oauth_the_api_says_401_and_pages_lead_to_the_login(app: Celery, tm: TimeManagement, here: Everything) -> None:
    with serving(app, basic_auth=[], auth=".*@example.com") as flower:
        stranger = flower.client(None)
        refused(stranger.get(of("status")), 401, "unauthorized")
        page = stranger.open("/tm")
        assert (page.status, page.headers["Location"]) == (302, "/login?next=%2Ftm")
        kim = flower.client(None)
        kim.cookies["user"] = flower.login("kim@example.com")
        assert kim.open("/tm").status == 200
        path = of("definitions", here.definition, "pause")
        refused(kim.ask("POST", path, b"{}", Content_Type="application/json"), 403, "token_missing")
        ok(kim.ask("POST", path, b"{}", Content_Type="application/json", X_XSRFToken=kim.cookies["_xsrf"]))
        assert last_audit(tm)[:2] == ("kim@example.com", "pause")
        kim.cookies["user"] = flower.login("eve@elsewhere.com")
        refused(kim.get(of("status")), 401, "unauthorized")


def _drop(tm: TimeManagement) -> None:
    from celery_tm.store import tables

    engine = tm.installation.database.engine
    tables.metadata.drop_all(engine)
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE tm_schema_version")
