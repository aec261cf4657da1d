"""Who may do what: Flower's own authentication on everything, administrators, read-only mode, and no forged requests.

The order is the same everywhere: a request that another site has sent is refused first, then one without credentials, then
one without a token, then one by somebody who may not. docs/adr/0031 says why each is there. `Guarded` is mixed into every
handler that we add to Flower, so that a handler cannot forget to ask.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any
from urllib.parse import urlparse

from flower.views import BaseHandler
from tornado.web import HTTPError, RequestHandler

from .failures import Refusal

ANONYMOUS = "anonymous"
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
JSON = "application/json"
LOOPBACK = ("127.0.0.1", "::1", "localhost")
EVERYBODY = ("*",)
NOBODY = (
    "no administrators are named; list them in tm_admins in the Celery app's settings, e.g. tm_admins = ['ann'], "
    "or ['*'] for everybody Flower lets in"
)
RELOAD = (
    "the token is missing, or the page is older than its cookie: reload the page and try again. "
    "A program sends its credentials in Authorization and a JSON body, or asks /api/tm/token"
)


class Guarded(BaseHandler):
    """A handler that lets nobody in whom Flower would not let in, and tells who it is."""

    def get_current_user(self) -> Any:
        """Return whom Flower lets in. Credentials that it cannot compare are wrong ones, not an error of the server."""
        try:
            return super().get_current_user()
        except TypeError:  # Flower compares text that must be ASCII
            raise HTTPError(401) from None

    @property
    def is_open(self) -> bool:
        """Say whether Flower has no authentication configured at all."""
        options = self.application.options
        return not (options.basic_auth or options.auth)

    @property
    def actor(self) -> str:
        """Return who does this, for the audit: the e-mail address, or the name of basic authentication."""
        user = self.current_user
        if isinstance(user, str):
            return user
        if self.application.options.basic_auth:
            return basic_name(self.request.headers.get("Authorization", ""))
        return ANONYMOUS

    def require_user(self) -> None:
        """Refuse whoever is not logged in, with 401; there is no redirect, for programs cannot follow it."""
        if not self.current_user:
            raise HTTPError(401)

    def check_xsrf_cookie(self) -> None:
        """Refuse a change that another site, or a page of long ago, has sent. Flower itself is more lenient."""
        refuse_other_sites(self.request)
        self.require_user()
        if is_from_program(self.request):
            return
        try:
            RequestHandler.check_xsrf_cookie(self)
        except HTTPError:
            raise Refusal(403, "token_missing", RELOAD) from None

    @property
    def is_local(self) -> bool:
        """Say whether only this machine can reach Flower."""
        return self.application.options.address in LOOPBACK

    def why_not(self, admins: Sequence[str]) -> str | None:
        """Return why this user may change nothing, or None."""
        if self.application.options.read_only:
            return "Flower is in read-only mode; start it without --read-only to change anything"
        if self.is_open and not self.unauthenticated_api:
            return "Flower has no authentication, so nothing can be changed; start it with --basic-auth or --auth"
        if not admins:
            return NOBODY
        if not is_admin(self.actor, admins):
            return f"{self.actor} is not an administrator; tm_admins in the Celery app's settings lists them"
        return None

    def require_change(self, admins: Sequence[str]) -> None:
        """Refuse a change by whoever may not change anything."""
        reason = self.why_not(admins)
        if reason:
            code = "read_only" if self.application.options.read_only else "not_administrator"
            raise Refusal(403, code, reason)


def administrators(stated: Sequence[str] | None, *, is_embedded: bool, is_closed: bool) -> Sequence[str]:
    """Return who may change things: those whom `tm_admins` names.

    Unset, that is everybody on an embedded database whose Flower is closed to strangers, and nobody on a server.
    """
    if stated is not None:
        return stated
    return EVERYBODY if is_embedded and is_closed else ()


def is_admin(actor: str, admins: Sequence[str]) -> bool:
    """Say whether somebody is one of the administrators, whose names may have wildcards."""
    return any(fnmatchcase(actor.lower(), one.lower()) for one in admins)


def basic_name(header: str) -> str:
    """Return the user's name in the header of basic authentication, which Flower has checked by then."""
    try:
        return b64decode(header.split()[1]).decode().partition(":")[0] or ANONYMOUS
    except (ValueError, IndexError):
        return ANONYMOUS


def refuse_other_sites(request: Any) -> None:
    """Refuse what a browser says it sends for another site. Origin is asked only where the browser says nothing better,
    for behind a proxy the host may be written otherwise."""
    site, origin = request.headers.get("Sec-Fetch-Site"), request.headers.get("Origin")
    if site is not None:
        foreign = site != "same-origin"
    else:
        foreign = origin is not None and urlparse(origin).netloc != request.host
    if foreign:
        raise Refusal(403, "cross_site", "this request was sent by another site; open the page in Flower itself")


def is_from_program(request: Any) -> bool:
    """Say whether no browser can have sent this on behalf of another site: it names its credentials itself, in JSON."""
    headers = request.headers
    by_browser = any(name in headers for name in ("Cookie", "Origin", "Sec-Fetch-Site"))
    return not by_browser and "Authorization" in headers and media_type(request) == JSON


def media_type(request: Any) -> str:
    """Return the type of a request's body, without its parameters."""
    return str(request.headers.get("Content-Type", "")).partition(";")[0].strip().lower()
