"""Takes the pictures of the pages that the docs show: `make screenshots`. Not part of the tests; run it when a page changes.

A shop with some days behind it is furnished in a folder of its own, with a real worker, beat and Flower. The pictures are
small on purpose: few colours, and only what is seen without scrolling.
"""

from __future__ import annotations

import io
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType

from PIL import Image
from selenium.webdriver.common.by import By
from tmtest.browser import Browser, browsing
from tmtest.shopfront import open_shop

IMAGES = Path(__file__).parent / "images"
WIDTH, HEIGHT, PHONE = 1280, 900, 375
COLOURS = 256
MOST = 150_000  # bytes


def main() -> None:
    """Take every picture, or those named."""
    wanted = sys.argv[1:]
    IMAGES.mkdir(exist_ok=True)
    with TemporaryDirectory(prefix="tm-shop-") as folder, open_shop(Path(folder).resolve(), days=3) as (shop, root):
        with_something_to_watch(shop)
        with browsing(root) as browser:
            for name, path in pages(shop).items():
                if not wanted or name in wanted:
                    take(browser, name, path)


def with_something_to_watch(shop: ModuleType) -> None:
    """Let two jobs run, for as long as the pictures take."""
    for entity, seconds in (("catalogue", 120), ("archive", 400)):
        job = shop.reindex_search.s(seconds=seconds)
        shop.defer(job, key=f"reindex:{entity}", entity_id=entity)
    deadline = time.monotonic() + 60
    while not all(job.progress for job in shop.tm.jobs(task="shop.reindex_search")):
        assert time.monotonic() < deadline, "the jobs did not start"
        time.sleep(0.2)


def pages(shop: ModuleType) -> dict[str, str]:
    """Return the pages by the names of their pictures; those of a phone begin with it, dark ones with that."""
    run = shop.tm.occurrences("invoice run", state="failed", limit=1)[0].id
    letter = shop.tm.dead_letters.list(definition="print labels", limit=1)[0].id
    return {
        "schedules": "/tm",
        "definition": "/tm/definition/nightly%20rates",
        "definition-edit": "/tm/definition/nightly%20rates/edit",
        "jobs": "/tm/jobs",
        "job": f"/tm/job/{letter}",
        "run": f"/tm/run/{run}",
        "instants": "/tm/instants?troubled=1",
        "history": "/tm/history",
        "dead-letters": "/tm/dead-letters",
        "dead-letters-preview": "/tm/dead-letters/preview?action=revive&task=shop.call_carrier",
        "calendar": "/tm/calendar",
        "health": "/tm/health",
        "audit": "/tm/audit",
        "phone-schedules": "/tm",
        "phone-definition": "/tm/definition/nightly%20rates",
        "dark-definition": "/tm/definition/print%20labels",
    }


def take(browser: Browser, name: str, path: str) -> None:
    """Open a page, look at it, and keep the picture."""
    theme = "dark" if name.startswith("dark") else "light"
    scheme = {"name": "prefers-color-scheme", "value": theme}
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
    browser.resize(PHONE if name.startswith("phone") else WIDTH, HEIGHT)
    browser.open(path)
    if name == "definition-edit":
        preview_of(browser)
    tall = browser.driver.execute_script("return document.querySelector('main').getBoundingClientRect().bottom")
    browser.resize(PHONE if name.startswith("phone") else WIDTH, min(HEIGHT, int(tall)))
    kept = small(browser.picture())
    assert len(kept) < MOST, f"{name}.png has {len(kept)} bytes"
    (IMAGES / f"{name}.png").write_bytes(kept)
    sys.stdout.write(f"{name}.png: {len(kept) // 1000} kB\n")


def preview_of(browser: Browser) -> None:
    """Type another schedule and look at what it would bring."""
    schedule = browser.find("#f-schedule")
    schedule.clear()
    schedule.send_keys("45 3 * * 1-5")
    browser.find("#f-reason").send_keys("the bank is late at weekends")
    browser.click("Preview")
    browser.wait(lambda: browser.driver.find_elements(By.ID, "tm-preview"))


def small(picture: bytes) -> bytes:
    """Return a picture with few colours."""
    image = Image.open(io.BytesIO(picture)).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
    kept = io.BytesIO()
    image.save(kept, "PNG", optimize=True)
    return kept.getvalue()


if __name__ == "__main__":
    main()
