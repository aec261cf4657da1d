"""What the pages say: on a full database and on an empty one, with odd names, bad filters and hidden arguments."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from html import unescape
from html.parser import HTMLParser
from urllib.parse import quote

import pytest
from celery import Celery
from sqlalchemy import delete, update
from tmtest.everything import Everything, furnish
from tmtest.flower import Answer, Client, serving

from celery_tm import TimeManagement, defer
from celery_tm.store import tables

LISTS = ("/tm", "/tm/instants", "/tm/jobs", "/tm/history", "/tm/dead-letters", "/tm/calendar", "/tm/health", "/tm/audit")
ODD = 'a/b c?d=1&"e" 100% ö'
VOID = frozenset({"input", "link", "meta", "img", "br", "hr"})


@pytest.fixture
def client(app: Celery, tm: TimeManagement) -> Iterator[Client]:
    with serving(app) as flower:
        yield flower.client()


def words(answer: Answer) -> str:
    """Return what is read on a page."""
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]+>", " ", answer.text.split("<main")[1])))


class Shape(HTMLParser):
    """What a browser would have to guess: elements that are not closed in order, and forms inside forms."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.wrong: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "form" and "form" in self.open:
            self.wrong.append("a form in a form")
        self.ids += [value for name, value in attrs if name == "id" and value]
        if any(name.startswith("on") or name == "style" for name, _ in attrs):
            self.wrong.append(f"{tag} with a script or a style of its own")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.wrong.append(f"</{tag}> in the wrong place")


def test_an_empty_database_says_so_on_every_page(client: Client) -> None:
    said = {path: words(client.open(path)) for path in LISTS}

    assert "There are no definitions yet" in said["/tm"]
    assert "No beat is running" in said["/tm"]
    assert "Nothing is owed" in said["/tm/jobs"]
    assert "Nothing has ended yet" in said["/tm/history"]
    assert "No instant has come in the last 24 hours" in said["/tm/instants"]
    assert "Nothing was given up" in said["/tm/dead-letters"]
    assert "Nothing is to come this week" in said["/tm/calendar"]
    assert "No beat and no worker was seen yet" in said["/tm/health"]
    assert "Nobody has changed anything yet" in said["/tm/audit"]


def test_every_page_is_well_formed_and_has_one_heading_and_labels(app: Celery, tm: TimeManagement, client: Client) -> None:
    here = furnish(app, tm)
    for path in pages_of(here):
        answer = client.open(path)
        shape = Shape()
        shape.feed(answer.text)

        assert answer.status == 200, path
        assert shape.wrong == [], path
        assert shape.open == [], path
        assert len(set(shape.ids)) == len(shape.ids), path
        assert answer.text.count("<h1") == 1, path
        assert 'lang="en"' in answer.text
        assert "<caption" in answer.text or "<table" not in answer.text


def pages_of(here: Everything) -> list[str]:
    names = [quote(name, safe="") for name in (here.definition, here.failing, here.workflow)]
    return [
        *LISTS,
        f"/tm?group={quote(here.group)}",
        *(f"/tm/definition/{name}" for name in names),
        *(f"/tm/definition/{name}/edit" for name in names),
        *(f"/tm/job/{id}" for id in (here.ended, here.owed, here.running, here.dead)),
        *(f"/tm/run/{id}" for id in (here.occurrence, here.run)),
        "/tm/dead-letters/preview?action=purge&all=true",
        f"/tm/dead-letters/preview?action=revive&ids={here.dead}",
    ]


def test_a_definition_with_an_odd_name_has_its_page_and_its_actions(tm: TimeManagement, client: Client) -> None:
    tm.definitions.add(name=ODD, task="t", schedule="@daily")
    address = f"/tm/definition/{quote(ODD, safe='')}"

    assert f'href="{address}"' in client.open("/tm").text
    assert ODD in words(client.open(address))
    assert client.send(f"/api/tm/definitions/{quote(ODD, safe='')}/pause", {"next": address}).status == 303
    assert "paused" in words(client.open(address))


def test_under_a_prefix_every_link_and_form_stays_under_it(app: Celery, tm: TimeManagement) -> None:
    here = furnish(app, tm)
    with serving(app, url_prefix="inner") as flower:
        for path in pages_of(here):
            text = flower.client().open(path).text
            targets = re.findall(r'(?:href|src|action|formaction)="(/[^"]*)"', text)
            assert targets
            assert [target for target in targets if not target.startswith("/inner/")] == [], path


def test_an_unknown_definition_is_404_with_a_suggestion_and_a_removed_one_is_told(
    tm: TimeManagement, client: Client
) -> None:
    tm.definitions.add(name="nightly rates", task="t", schedule="@daily")
    tm.definitions.add(name="gone", task="t", schedule="@daily")
    tm.definitions.remove("gone", actor="kim", reason="nobody needs it")

    unknown = client.open("/tm/definition/nightly%20rate")
    assert unknown.status == 404
    assert 'href="/tm/definition/nightly%20rates"' in unknown.text
    removed = client.open("/tm/definition/gone")
    assert removed.status == 200
    assert "removed by kim" in words(removed)


@pytest.mark.parametrize(
    "path",
    [
        "/tm/definition/d?at=yesterday", "/tm/definition/d?at=99999-01-01", "/tm/definition/d?before=nonsense",
        "/tm?standing=asleep", "/tm/jobs?state=asleep", "/tm/jobs?after=nonsense",
        "/tm/history?outcome=lost", "/tm/instants?state=lost", "/tm/instants?since=never",
        "/tm/history?since=never", "/tm/history?before=nonsense", "/tm/dead-letters?until=never",
        "/tm/dead-letters/preview?action=eat", "/tm/dead-letters/preview", "/tm/calendar?zone=Mars/Phobos",
        "/tm/calendar?hour=noon", "/tm/audit?before=nonsense",
    ],
)  # fmt: skip
def test_a_bad_filter_is_400_with_what_would_be_right(tm: TimeManagement, client: Client, path: str) -> None:
    tm.definitions.add(name="d", task="t", schedule="@daily")
    answer = client.open(path)

    assert answer.status == 400
    assert "That cannot be used" in words(answer)


@pytest.mark.parametrize("path", ["/tm/job/none", "/tm/run/none", "/tm/history?name=none"])
def test_what_is_not_there_is_404(client: Client, path: str) -> None:
    assert client.open(path).status == 404


def test_a_preview_changes_nothing_and_saving_sends_only_what_differs(tm: TimeManagement, client: Client) -> None:
    made = tm.definitions.add(name="d", task="t", schedule="0 3 * * *", timezone="Europe/Warsaw", kwargs={"a": 1})
    client.open("/tm/definition/d/edit")
    typed = {"values.schedule": "0 4 * * *", "values.timezone": "Europe/Warsaw", "values.queue": "", "version": "1"}
    page = client.send("/tm/definition/d/edit", {**typed, "policy": "immediate", "reason": "later"})

    assert page.status == 200
    assert "7 runs come to it, 7 go, 0 stay." in words(page)
    assert tm.definitions.get("d") == made
    fields = dict(re.findall(r'type="hidden" name="(values\.\w+)" value="([^"]*)"', page.text))
    assert fields == {"values.schedule": "0 4 * * *"}
    saved = client.send("/api/tm/definitions/d/edit", {**fields, "version": "1", "next": "/tm/definition/d"})
    assert saved.status == 303
    assert tm.definitions.get("d").schedule == "0 4 * * *"
    stale = client.send("/api/tm/definitions/d/edit", {**fields, "version": "1"})
    assert stale.status == 409


def test_a_preview_needs_the_token_of_a_page(tm: TimeManagement, client: Client) -> None:
    tm.definitions.add(name="d", task="t", schedule="@daily")

    assert client.send("/tm/definition/d/edit", {"values.schedule": "@hourly"}).status == 403


def test_hidden_arguments_are_neither_shown_nor_written_back(app: Celery, tm: TimeManagement) -> None:
    app.conf.tm_redact = ["*secret*"]
    tm = TimeManagement(app)
    tm.definitions.add(name="d", task="t", schedule="@daily", kwargs={"secret": "tell nobody", "open": 1})
    tm.definitions.update("d", kwargs={"secret": "still nobody", "open": 2})
    job = defer("t", kwargs={"secret": "not here either"}, delay="1h", remote=True, app=app).id
    with serving(app) as flower:
        client = flower.client()
        seen = [
            client.open(path).text for path in ("/tm/definition/d", "/tm/definition/d/edit", f"/tm/job/{job}", "/tm/audit")
        ]

    assert all("nobody" not in text and "not here" not in text for text in seen)
    assert "***" in seen[0]
    assert "values.kwargs" not in seen[1]
    assert "hidden by" in seen[1]


def test_an_instant_that_no_beat_has_decided_yet_is_overdue(tm: TimeManagement, client: Client) -> None:
    tm.definitions.add(name="d", task="t", schedule="every 1h")
    past = datetime.now(UTC) - timedelta(hours=3)
    behind = {"planned_until": past, "created_at": past, "next_run_at": past + timedelta(hours=1)}
    with tm.installation.database.transaction() as tx:
        tx.execute(update(tables.definition).values(**behind))

    assert "overdue, why?" in words(client.open("/tm"))
    said = words(client.open("/tm/definition/d"))
    assert "no beat has decided it yet" in said
    assert "no beat was ever seen" in said


def test_what_did_not_succeed_last_night_is_one_click_away(tm: TimeManagement, client: Client) -> None:
    tm.definitions.add(name="nightly", task="t", schedule="every 1h", paused=True, timezone="Europe/Warsaw")
    past = datetime.now(UTC) - timedelta(hours=3)
    behind = {"planned_until": past, "created_at": past, "next_run_at": past + timedelta(minutes=1)}
    with tm.installation.database.transaction() as tx:
        tx.execute(update(tables.definition).values(**behind))
    tm.run_due_jobs()
    [card] = re.findall(r'href="([^"]*troubled[^"]*)"', client.open("/tm").text)
    page = client.open(card)
    assert words(page).count("skipped") >= 3
    [why, *_] = re.findall(r'href="([^"]*)">Why[?]', page.text)
    assert "paused" in words(client.open(unescape(why)))
    assert "nightly" not in words(client.open("/tm/instants?state=completed"))


def test_ticked_letters_are_those_that_the_form_sends(app: Celery, tm: TimeManagement, client: Client) -> None:
    here = furnish(app, tm)
    page = client.open(f"/tm/dead-letters/preview?action=purge&ids={here.dead}")
    fields = re.findall(r'type="hidden" name="(ids|expected)" value="([^"]*)"', page.text)

    assert fields == [("ids", here.dead), ("expected", "1")]
    assert client.send("/api/tm/dead-letters/purge", {**dict(fields), "next": "/tm/dead-letters"}).status == 303
    assert here.dead not in client.open("/tm/dead-letters").text


@pytest.mark.parametrize("action", ["purge", "revive"])
def test_a_selection_of_nothing_is_refused(app: Celery, tm: TimeManagement, client: Client, action: str) -> None:
    here = furnish(app, tm)
    count = tm.dead_letters.count()
    page = client.open(f"/tm/dead-letters/preview?action={action}")
    assert (page.status, "no dead letter is selected" in words(page)) == (400, True)
    for form in ({"expected": str(count)}, {"ids": "", "expected": str(count)}, {"all": "no", "expected": str(count)}):
        refused = client.send(f"/api/tm/dead-letters/{action}", {**form, "next": "/tm/dead-letters"})
        assert (refused.status, "no dead letter is selected" in words(refused)) == (400, True), form
    assert (tm.dead_letters.count(), tm.audit(action=action)) == (count, [])

    links = re.findall(r'href="([^"]*preview[^"]*)"', client.open(f"/tm/dead-letters?error={here.dead}x").text)
    assert links == []  # nothing matches, so there is nothing to act on
    [all_of_them] = re.findall(rf'href="([^"]*action={action}[^"]*)"', client.open("/tm/dead-letters").text)
    page = client.open(unescape(all_of_them))
    assert f"{action.capitalize()} {count} dead letters?" in words(page)
    fields = dict(re.findall(r'type="hidden" name="(all|expected)" value="([^"]*)"', page.text))
    assert fields == {"all": "true", "expected": str(count)}
    assert client.send(f"/api/tm/dead-letters/{action}", {**fields, "next": "/tm/dead-letters"}).status == 303
    assert tm.dead_letters.count() == 0


RRULE = "DTSTART:20260101T090000\nRRULE:FREQ=DAILY;BYHOUR=9"


def test_a_rule_of_many_lines_is_edited(tm: TimeManagement, client: Client) -> None:
    tm.definitions.add(name="d", task="t", schedule=RRULE)
    form = client.open("/tm/definition/d/edit").text
    [shown] = re.findall(r'<textarea[^>]*name="values.schedule"[^>]*>(.*?)</textarea>', form, re.DOTALL)
    assert unescape(shown) == RRULE
    typed = {"values.schedule": RRULE.replace("\n", "\r\n"), "version": "1", "policy": "immediate"}
    assert "Nothing" in words(client.send("/tm/definition/d/edit", typed)), "a browser's line ends are no change"
    typed["values.schedule"] = typed["values.schedule"].replace("=9", "=10")
    page = client.send("/tm/definition/d/edit", typed)
    assert page.status == 200, page.text
    fields = dict(re.findall(r'type="hidden" name="(values[^"]*)" value="([^"]*)"', page.text))
    sent = {name: unescape(value).replace("\n", "\r\n") for name, value in fields.items()}
    saved = client.send("/api/tm/definitions/d/edit", {**sent, "version": "1", "next": "/tm/definition/d"})
    assert (saved.status, tm.definitions.get("d").schedule) == (303, RRULE.replace("=9", "=10"))


def test_a_bounded_recovery_is_edited(tm: TimeManagement, client: Client) -> None:
    tm.definitions.add(name="d", task="t", schedule="@hourly", recovery="bounded", recovery_count=3)
    for typed, expected in (
        ({"values.recovery": "bounded", "values.recovery_count": "5"}, ("bounded", 5)),
        ({"values.recovery": "last", "values.recovery_count": "5"}, ("last", None)),
        ({"values.recovery": "bounded", "values.recovery_count": "2"}, ("bounded", 2)),
    ):
        version = str(tm.definitions.get("d").version)
        client.open("/tm/definition/d/edit")
        page = client.send("/tm/definition/d/edit", {**typed, "version": version, "policy": "immediate"})
        assert page.status == 200, page.text
        fields = dict(re.findall(r'type="hidden" name="(values[^"]*)" value="([^"]*)"', page.text))
        saved = client.send("/api/tm/definitions/d/edit", {**fields, "version": version, "next": "/tm/definition/d"})
        now = tm.definitions.get("d")
        assert (saved.status, str(now.recovery), now.recovery_count) == (303, *expected)


def test_the_page_of_a_dead_letter_outlives_its_executions(app: Celery, tm: TimeManagement, client: Client) -> None:
    here = furnish(app, tm)
    with tm.installation.database.transaction() as tx:
        tx.execute(delete(tables.execution))
        tx.execute(delete(tables.log))
    page = client.open(f"/tm/job/{here.dead}")
    assert (page.status, "dead letter" in words(page), "Revive" in words(page)) == (200, True, True)
    assert client.get(f"/api/tm/jobs/{here.dead}/log").json["items"] == []
    assert client.open("/tm/job/unknown").status == 404


def test_all_that_match_means_the_filter(app: Celery, tm: TimeManagement, client: Client) -> None:
    here = furnish(app, tm)
    letter = tm.dead_letters.get(here.dead)
    error = (letter.last_error or "").split(":")[-1].strip()
    match = tm.dead_letters.count(error=error)
    [link] = re.findall(r'href="([^"]*action=purge[^"]*)"', client.open(f"/tm/dead-letters?error={quote(error)}").text)
    page = client.open(unescape(link))
    fields = dict(re.findall(r'type="hidden" name="(error|all|expected)" value="([^"]*)"', page.text))
    assert {name: unescape(text) for name, text in fields.items()} == {"error": error, "expected": str(match)}


def test_lists_go_on_with_the_next_page(tm: TimeManagement, client: Client) -> None:
    for number in range(60):
        tm.definitions.add(name=f"d{number:02}", task="t", schedule="@daily")
    first = client.open("/tm")
    assert words(first).count("every day") >= 50
    [following] = re.findall(r'href="([^"]*)" rel="next"', first.text)
    second = client.open(unescape(following))

    assert "d59" in words(second)
    assert "d49" not in words(second)
    assert "First page" in words(second)
