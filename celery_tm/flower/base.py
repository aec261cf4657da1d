"""The handlers that pages and API routes are made from.

Each asks `Guarded` before anything else, runs what talks to the database in threads of its own, so that Flower goes on
meanwhile, and tells every error as a page or as JSON. What the pages show is `pages`, what the API does is `operations`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

from flower.api import BaseApiHandler
from tornado.web import StaticFileHandler, authenticated

from ..errors import TmError
from ..management import TimeManagement
from .failures import Failure, Refusal, Refused, failure_of
from .guarding import SAFE_METHODS, Guarded, administrators
from .operations.asking import check_text

T = TypeVar("T")
STATIC = Path(__file__).parent / "static"
FLASH = "tm_flash"
FLASH_DAYS = 60 / 86_400  # a minute: long enough for a redirect
MAX_FLASH = 500  # characters: a cookie has room for 4,096 bytes, and these are up to four each, written as base64
THREADS = 4  # a database's pool has five connections: Flower never waits for one
POLICY = (
    "default-src 'self'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'; object-src 'none'"
)
HEADERS: Mapping[str, str] = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Content-Security-Policy": POLICY,
}
OPEN_TO_OTHERS = ("Access-Control-Allow-Origin", "Access-Control-Allow-Headers", "Access-Control-Allow-Methods")

_threads = ThreadPoolExecutor(max_workers=THREADS, thread_name_prefix="celery_tm-flower")


class TmHandler(Guarded):
    """What pages and API routes share."""

    def set_default_headers(self) -> None:
        """Tell browsers to run nothing but Flower's and our own scripts, and to let no other site read or frame this."""
        super().set_default_headers()
        for name in OPEN_TO_OTHERS:
            self.clear_header(name)
        for name, value in HEADERS.items():
            self.set_header(name, value)
        self.set_header("Cache-Control", "no-store")

    @property
    def tm(self) -> TimeManagement:
        """Return celery_tm for Flower's Celery app."""
        settings: dict[str, Any] = self.application.settings
        found: TimeManagement | None = settings.get("celery_tm")
        if found is None:
            try:
                found = TimeManagement(self.capp)
                found.installation.database  # noqa: B018  reads the settings, which may be wrong
            except TmError as error:
                raise Refused(error) from error
            settings["celery_tm"] = found
        return found

    @property
    def admins(self) -> Sequence[str]:
        """Return who may change things."""
        is_embedded = self.tm.installation.database.dialect.name == "sqlite"
        return administrators(
            self.tm.settings.tm_admins, is_embedded=is_embedded, is_closed=self.is_local or not self.is_open
        )

    async def call(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Run what blocks in a thread of ours; what it refuses becomes the answer."""
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(_threads, partial(function, *args, **kwargs))
        except TmError as error:
            raise Refused(error) from error

    def show(self, template: str, **model: Any) -> None:
        """Answer with a page; every page knows who looks at it and what that user may do."""
        try:
            reason = self.why_not(self.admins)
        except Refused as error:
            reason = str(error.error)
        known: dict[str, Any] = {
            "unreadable": [],
            "why_not": reason,
            "may_change": reason is None,
            "tm_static": self.static_file,
            "flash": self._flash(),
        }
        self.render(template, **{"active_tab": "tm", **known, **model})

    def static_file(self, name: str) -> str:
        """Return the address of one of our static files, which changes when the file does."""
        return f"{self.reverse_url('tm_static', name)}?v={_version(name)}"

    def tell_later(self, text: str, *, kind: str = "success") -> None:
        """Keep a message for the page that is opened next."""
        said = json.dumps({"kind": kind, "text": text[:MAX_FLASH]}, ensure_ascii=False)
        self.set_secure_cookie(FLASH, said, expires_days=None, path="/")

    def _flash(self) -> Mapping[str, str] | None:
        """Return the message that was kept for this page, once."""
        kept = self.get_secure_cookie(FLASH, max_age_days=FLASH_DAYS)
        if self.get_cookie(FLASH):
            self.clear_cookie(FLASH, path="/")
        return json.loads(kept) if kept else None

    def challenge(self) -> None:
        """Say how to log in, as a 401 must; only basic authentication makes a browser ask."""
        scheme = "Basic" if self.application.options.basic_auth else "Session"
        self.set_header("WWW-Authenticate", f'{scheme} realm="flower"')

    def told(self, status: int, exc_info: Any) -> Failure:
        """Return what is said about an error, once for all kinds of answers."""
        if not hasattr(self, "_current_user"):
            self.current_user = None  # Flower, too: the answer must not ask for the credentials again
        failure = failure_of(exc_info[1] if exc_info else None, status)
        self.set_status(failure.status)
        if failure.status == 401:
            self.challenge()
        return failure

    def show_failure(self, failure: Failure, back: str | None = None) -> None:
        """Answer with a page that says what is wrong and what to do."""
        if failure.status == 401:
            self.set_header("Content-Type", "text/plain; charset=UTF-8")
            self.finish(f"{failure.message}\n")
            return
        self.show("tm_error.html", failure=failure, back=back or self.reverse_url("tm"))


class PageHandler(TmHandler):
    """A page for people: `gather` reads what it shows, in a thread, and `template` shows it.

    What `gather` returns is what the template is given; `self.query(name)` is a filter as it was typed.
    """

    template = ""

    @authenticated
    def prepare(self) -> None:
        """Let in whom Flower lets in; under OAuth the others are sent to Flower's login."""
        if self.request.method not in SAFE_METHODS:
            self.check_xsrf_cookie()
            self.require_change(self.admins)
        for text in self.path_args:
            self.checked("address", text)

    async def get(self, *path: str) -> None:
        """Show the page."""
        model = await self.call(self.gather, self.tm, *path)
        self.show(self.template, **model)

    def gather(self, tm: TimeManagement, *path: str) -> Mapping[str, Any]:  # noqa: ARG002
        """Return what the template shows, unless a page says more nothing. Runs in a thread, may raise any of our errors."""
        return {}

    def query(self, name: str, default: str | None = None) -> str | None:
        """Return what the address says after `?`, or the default where it says nothing."""
        return self.checked(name, self.get_query_argument(name, "")) or default

    def checked(self, name: str, text: str) -> str:
        """Return a text that was sent, or refuse one that no database takes."""
        try:
            return check_text(name, text)
        except TmError as error:
            raise Refused(error) from error

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Tell an error as a page."""
        self.show_failure(self.told(status_code, kwargs.get("exc_info")))


class ApiHandler(TmHandler, BaseApiHandler):
    """A route for programs: JSON in, JSON out, 401 without credentials, also where Flower has no authentication."""

    def check_xsrf_cookie(self) -> None:
        """Refuse forged changes; where Flower has no authentication, that is said first."""
        self.require_authentication()
        super().check_xsrf_cookie()

    def prepare(self) -> None:
        """Let in whom Flower lets in; changes need a token and an administrator too."""
        self.require_authentication()
        self.require_user()
        if self.request.method not in SAFE_METHODS:
            self.check_xsrf_cookie()  # also where the application does not ask for it
            self.require_change(self.admins)

    def require_authentication(self) -> None:
        """Refuse everything while Flower has no authentication, as Flower's own API does."""
        if self.is_open and not self.unauthenticated_api:
            said = "start Flower with --basic-auth or --auth, or set FLOWER_UNAUTHENTICATED_API=true"
            raise Refusal(401, "unauthorized", f"the API needs authentication; {said}")

    def answer(self, body: Any, *, status: int = 200) -> None:
        """Answer in JSON that no browser takes for a page."""
        self.set_status(status)
        self.set_header("Content-Type", "application/json; charset=UTF-8")
        # `<` inside strings is written so that even a browser that guesses finds no element.
        self.finish(json.dumps(body).replace("<", "\\u003c"))

    @property
    def wants_page(self) -> bool:
        """Say whether a form of a page was sent, so that people read the answer."""
        return "text/html" in self.request.headers.get("Accept", "")

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Tell an error as JSON, or as a page to those who sent a form."""
        failure = self.told(status_code, kwargs.get("exc_info"))
        if self.wants_page and self.request.method == "POST":
            self.show_failure(failure, back=self.back)
            return
        self.answer(failure.as_json(), status=failure.status)

    @property
    def back(self) -> str | None:
        """Return the page of Flower that a form wants to go on with; another site's is not followed."""
        target = self.get_body_argument("next", None) if self.request.body_arguments else None
        return target if target and is_own_path(target) else None


class StaticHandler(TmHandler, StaticFileHandler):
    """Our style sheet and script, for those who are logged in."""

    @authenticated
    def prepare(self) -> None:
        """Let in whom Flower lets in."""

    def set_extra_headers(self, _: str) -> None:
        """Let browsers keep a file whose address changes with it."""
        private = "private, max-age=31536000" if "v" in self.request.arguments else "no-cache"
        self.set_header("Cache-Control", private)

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Tell an error in a line."""
        failure = self.told(status_code, kwargs.get("exc_info"))
        self.set_header("Content-Type", "text/plain; charset=UTF-8")
        self.finish(f"{failure.message}\n")


def is_own_path(target: str) -> bool:
    """Say whether an address is a path of this very server, however it is spelt."""
    plain = target.replace("\\", "/")
    return plain.startswith("/") and not plain.startswith("//") and all(32 < ord(c) != 127 for c in target)


@cache
def _version(name: str) -> str:
    file = STATIC / name
    return sha256(file.read_bytes()).hexdigest()[:12] if file.is_file() else "none"
