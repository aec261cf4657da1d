"""A real browser without a window, for tests of pages and for pictures of them."""

from __future__ import annotations

import base64
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from selenium import webdriver
from selenium.common.exceptions import (
    ElementClickInterceptedException,
    NoSuchElementException,
    StaleElementReferenceException,
)
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

from . import services

T = TypeVar("T")
NOT_YET = (NoSuchElementException, StaleElementReferenceException, ElementClickInterceptedException)
QUIET = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--hide-scrollbars",
    "--window-size=1280,900", "--force-device-scale-factor=1",
)  # fmt: skip


class Browser:
    """A browser that is logged in, and what a person does with it."""

    def __init__(self, driver: webdriver.Chrome, root: str) -> None:
        self.driver, self.root = driver, root

    def open(self, path: str) -> None:
        """Go to a page."""
        self.driver.get(self.root + path)

    def find(self, css: str) -> WebElement:
        """Return the first element that fits."""
        return self.driver.find_element(By.CSS_SELECTOR, css)

    def find_all(self, css: str) -> list[WebElement]:
        """Return all elements that fit."""
        return self.driver.find_elements(By.CSS_SELECTOR, css)

    def click(self, text: str, *, within: str = "main", tag: str = "*") -> None:
        """Click what says this."""
        path = f".//{tag}[self::a or self::button or self::summary][starts-with(normalize-space(.), '{text}')]"
        self.wait(lambda: self._click(self.find(within).find_element(By.XPATH, path)), what=f"{text!r} to click")

    def _click(self, target: WebElement) -> bool:
        """Click once it stands still."""
        self.driver.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", target)
        target.click()
        return True

    def row(self, text: str) -> WebElement:
        """Return the row of a table that says this."""
        return self.find("main").find_element(By.XPATH, f".//tr[contains(normalize-space(.), '{text}')]")

    def text(self, css: str = "main") -> str:
        """Return what can be read there."""
        return self.find(css).text

    def wait(self, look: Callable[[], T], *, seconds: float = 20, what: str = "it") -> T:
        """Look again and again until there is something to see, or the time is over."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                if found := look():
                    return found
            except NOT_YET:
                pass
            if time.monotonic() > deadline:
                raise AssertionError(
                    f"{what} was not seen in {seconds} s on {self.driver.current_url}:\n{self.text('body')}"
                )
            time.sleep(0.05)

    def wait_for_text(self, text: str, css: str = "main", *, seconds: float = 20) -> None:
        """Wait until something can be read there."""
        self.wait(lambda: text in self.text(css), seconds=seconds, what=repr(text))

    def resize(self, width: int, height: int = 800) -> None:
        """Be as wide as a screen, or as a phone."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)

    @property
    def overflow(self) -> int:
        """Return by how many pixels the page is wider than the screen."""
        wide = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
        return int(self.driver.execute_script(wide))

    @property
    def asked(self) -> list[str]:
        """Return the addresses that the page has asked for."""
        return list(self.driver.execute_script("return performance.getEntriesByType('resource').map(one => one.name)"))

    def picture(self) -> bytes:
        """Return what is on the screen as a PNG."""
        return base64.b64decode(self.driver.execute_cdp_cmd("Page.captureScreenshot", {})["data"])

    def problems(self) -> list[str]:
        """Return what the browser complains about: scripts that fail, things that our policy forbids."""
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] == "SEVERE"]


@contextmanager
def browsing(root: str, *, user: tuple[str, str] = ("ann", "secret"), scripts: bool = True) -> Iterator[Browser]:
    """Start a browser with an empty profile, logged in as `user`, with or without scripts."""
    with TemporaryDirectory(prefix="tm-browser-") as profile:
        options = webdriver.ChromeOptions()
        options.binary_location = shutil.which(services.find("chromium") or "") or ""
        for argument in (*QUIET, f"--user-data-dir={Path(profile) / 'profile'}"):
            options.add_argument(argument)
        if not scripts:
            options.add_experimental_option("prefs", {"profile.managed_default_content_settings.javascript": 2})
        driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
        try:
            _log_in(driver, user)
            yield Browser(driver, root)
        finally:
            driver.quit()


def _log_in(driver: Any, user: tuple[str, str]) -> None:
    """Send the credentials with every request, as a browser does once its user has typed them."""
    said = "Basic " + base64.b64encode(":".join(user).encode()).decode()
    driver.execute_cdp_cmd("Network.enable", {})
    driver.execute_cdp_cmd("Network.setExtraHTTPHeaders", {"headers": {"Authorization": said}})
    driver.execute_cdp_cmd("Emulation.setTimezoneOverride", {"timezoneId": "America/New_York"})
