"""The pages in a real browser, in a real Flower, with a real beat and worker: what people do at three in the morning."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import pytest
from selenium.webdriver.common.keys import Keys
from tmtest import services
from tmtest.browser import Browser, browsing
from tmtest.shopfront import open_shop

pytestmark = [
    pytest.mark.xdist_group("flower pages"),  # they share a shop and a browser
    pytest.mark.skipif(not services.find("chromium"), reason=services.why_missing("chromium")),
]


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ModuleType, str]]:
    with open_shop(tmp_path_factory.mktemp("shop"), days=1.1) as found:
        yield found


@pytest.fixture(scope="module")
def driven(opened: tuple[ModuleType, str]) -> Iterator[Browser]:
    with browsing(opened[1]) as browser:
        yield browser


@pytest.fixture
def shop(opened: tuple[ModuleType, str]) -> ModuleType:
    return opened[0]


@pytest.fixture
def browser(driven: Browser) -> Iterator[Browser]:
    driven.resize(1280)
    yield driven
    assert driven.problems() == []  # no script failed, and nothing was asked for that the policy forbids


def test_a_newcomer_finds_out_why_last_nights_job_did_not_run(browser: Browser, shop: ModuleType) -> None:
    browser.open("/")
    browser.click("Schedules", within="nav")
    row = browser.row("nightly rates")
    assert "missed" in row.text
    browser.click("Why?", within=f"tr[id='{row.get_attribute('id')}']")  # one click from the first of our pages

    answer = browser.text("#tm-answer")
    assert "'nightly rates' did not run for" in answer
    assert f"{shop.NIGHTLY}:00 in Europe/Warsaw" in answer
    assert "no beat is known to have been planning before" in answer


def test_the_name_leads_to_the_same_answer_and_any_other_instant_can_be_asked_about(
    browser: Browser, shop: ModuleType
) -> None:
    browser.open("/tm")
    browser.click("nightly rates")
    browser.wait_for_text("did not run", "#tm-said")
    asked = browser.find("#tm-at")
    assert asked.get_attribute(
        "value",
    ).endswith(f"T{shop.NIGHTLY}")
    browser.driver.execute_script("arguments[0].value = '2030-01-01T12:00'", asked)
    browser.click("Ask")

    browser.wait_for_text("still to come", "#tm-said")


def test_an_instant_is_told_on_three_clocks(browser: Browser, shop: ModuleType) -> None:
    browser.open("/tm/definition/nightly%20rates")
    first = browser.find("#tm-instants .tm-time")

    assert "UTC" in first.text
    assert f"{shop.NIGHTLY} Europe/Warsaw" in first.text
    assert "yours" in first.text  # the browser is in New York


def test_a_dead_letter_is_revived_and_then_succeeds(browser: Browser, shop: ModuleType) -> None:
    (shop.FOLDER / "carrier-is-back").touch()
    browser.open("/tm")
    browser.click("Dead letters")
    browser.click("4711")
    browser.wait_for_text("does not answer about order 4711")
    browser.click("Revive…")
    browser.find(".tm-act[open] input[name=reason]").send_keys("the carrier is back")
    browser.click("Revive", within=".tm-act[open] form")

    browser.wait_for_text("done", ".tm-flash")
    browser.wait_for_text("It succeeded")  # by itself, without a reload
    browser.wait_for_text("succeeded", "#tm-attempts")
    line = shop.tm.audit(action="revive", limit=1)[0]
    assert (line.actor, line.reason) == ("ann", "the carrier is back")


def test_letters_are_revived_in_bulk_after_a_look_at_what_is_affected(browser: Browser, shop: ModuleType) -> None:
    (shop.FOLDER / "carrier-is-back").touch()
    browser.open("/tm/dead-letters?task=shop.call_carrier")
    count = shop.tm.dead_letters.count(task="shop.call_carrier")
    assert count > 3
    browser.click(f"Revive all {count}")

    assert f"{count} of shop.call_carrier" in browser.text()
    assert shop.tm.dead_letters.count(task="shop.call_carrier") == count  # looking changes nothing
    browser.find("#tm-do").click()

    browser.wait_for_text("done", ".tm-flash")
    assert shop.tm.dead_letters.count(task="shop.call_carrier") == 0


def test_a_schedule_is_edited_after_a_preview(browser: Browser, shop: ModuleType) -> None:
    before = shop.tm.definitions.get("reindex search")
    browser.open("/tm/definition/reindex%20search")
    browser.click("Edit…")
    schedule = browser.find("#f-schedule")
    schedule.clear()
    schedule.send_keys("45 3 * * *")
    browser.find("#f-reason").send_keys("before the shops open")
    browser.click("Preview")

    preview = browser.text("#tm-preview")
    assert "7 runs come to it, 7 go, 0 stay." in preview
    assert "03:45" in preview
    assert shop.tm.definitions.get("reindex search") == before  # looking changes nothing
    browser.find("#tm-save").click()

    browser.wait_for_text("done", ".tm-flash")
    after = shop.tm.definitions.get("reindex search")
    assert (after.schedule, after.version, after.updated_by) == ("45 3 * * *", before.version + 1, "ann")
    assert "at 03:45 every day" in browser.text()


def test_a_bad_schedule_is_refused_in_the_preview_and_what_was_typed_stays(browser: Browser) -> None:
    browser.open("/tm/definition/stock%20levels/edit")
    schedule = browser.find("#f-schedule")
    schedule.clear()
    schedule.send_keys("61 * * * *")
    browser.click("Preview")

    assert "61" in browser.text("#tm-refusal")
    assert browser.find("#f-schedule").get_attribute("value") == "61 * * * *"
    assert not browser.find_all("#tm-save")
    assert [line for line in browser.problems() if "400" not in line] == []


def test_a_definition_is_run_by_keyboard_alone(browser: Browser, shop: ModuleType) -> None:
    browser.open("/tm/definition/stock%20levels")
    _tab_to(browser, "Run now…")
    _press(browser, Keys.ENTER)
    browser.wait(lambda: browser.driver.switch_to.active_element.get_attribute("name") == "reason", what="the open form")
    _press(browser, "by keyboard")
    _tab_to(browser, "Run now")
    _press(browser, Keys.ENTER)

    browser.wait_for_text("done", ".tm-flash")
    assert shop.tm.audit(action="trigger", limit=1)[0].reason == "by keyboard"


def _tab_to(browser: Browser, text: str) -> None:
    for _ in range(60):
        _press(browser, Keys.TAB)
        if browser.driver.switch_to.active_element.text == text:
            return
    raise AssertionError(f"{text!r} is not reached by keyboard")


def _press(browser: Browser, keys: str) -> None:
    browser.driver.switch_to.active_element.send_keys(keys)


def test_progress_is_seen_without_a_reload(browser: Browser, shop: ModuleType) -> None:
    browser.open("/tm/jobs")
    browser.driver.execute_script("window.opened = true")
    shop.tm.app.tasks["shop.reindex_search"].apply_async(kwargs={"seconds": 30}, task_id="live-job")

    browser.wait_for_text("of 10000 products", "#tm-jobs")
    browser.click("Cancel…", within="#tm-j-live-job")  # what is open stays open while the rest is live
    browser.find("#tm-j-live-job input[name=reason]").send_keys("typed ")
    seen = _products(browser)
    browser.wait(lambda: _products(browser) > seen, what="more progress")

    assert browser.find("#tm-j-live-job input[name=reason]").get_attribute("value") == "typed "
    assert browser.driver.switch_to.active_element.get_attribute("name") == "reason"
    assert browser.driver.execute_script("return window.opened")
    browser.click("Cancel it", within="#tm-j-live-job")
    browser.wait_for_text("done", ".tm-flash")


def _products(browser: Browser) -> int:
    return int(browser.text("#tm-j-live-job .tm-progress").split()[0])


PAGES = (
    "/tm", "/tm/instants", "/tm/jobs", "/tm/history", "/tm/dead-letters", "/tm/dead-letters/preview?action=purge&all=true",
    "/tm/calendar", "/tm/health", "/tm/audit", "/tm/definition/print%20labels", "/tm/definition/print%20labels/edit",
)  # fmt: skip


def test_no_page_is_wider_than_a_phone_and_none_asks_another_site(browser: Browser, shop: ModuleType) -> None:
    browser.resize(375)
    run = shop.tm.occurrences("invoice run", limit=1)[0].id
    job = shop.tm.dead_letters.list(definition="invoice run", limit=1)[0].id
    for page in (*PAGES, f"/tm/run/{run}", f"/tm/job/{job}"):
        browser.open(page)
        assert browser.find_all(".tm-page h1"), page
        assert browser.overflow == 0, page
        assert browser.asked, page
        assert [address for address in browser.asked if not address.startswith(browser.root)] == []


def test_a_definition_is_paused_without_scripts(opened: tuple[ModuleType, str]) -> None:
    shop, root = opened
    with browsing(root, scripts=False) as browser:
        browser.open("/tm")
        assert not browser.find_all("#tm-live:not([hidden])")  # no script ran
        browser.find("main").find_element("link text", "expire carts").click()
        browser.find("details[data-key='do-Pause'] > summary").click()
        browser.find("details[data-key='do-Pause'] input[name=reason]").send_keys("without scripts")
        browser.find("details[data-key='do-Pause'] button").click()

        assert "done" in browser.text(".tm-flash")
        assert "paused" in browser.text("h1")
    line = shop.tm.audit(action="pause", limit=1)[0]
    assert (line.object, line.actor, line.reason) == ("definition:expire carts", "ann", "without scripts")
