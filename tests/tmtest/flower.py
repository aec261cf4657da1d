"""A real Flower in this process: its own application with our pages, asked over HTTP as browsers and programs do."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from base64 import b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPMessage
from typing import Any
from urllib.parse import urlencode

import jsonschema
from celery import Celery
from flower import urls
from flower.app import Flower
from flower.options import default_options
from flower.utils import prepend_url
from jsonschema.exceptions import best_match
from tornado.httpserver import HTTPServer
from tornado.ioloop import IOLoop
from tornado.netutil import bind_sockets
from tornado.options import OptionParser
from tornado.web import create_signed_value

from celery_tm.flower import install
from celery_tm.flower.openapi import document_of

ANN, BOB = ("ann", "secret"), ("bob", "word")
HTML = "text/html,application/xhtml+xml"


@dataclass(frozen=True)
class Answer:
    """What came back."""

    status: int
    headers: HTTPMessage
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def json(self) -> Any:
        assert self.headers["Content-Type"] == "application/json; charset=UTF-8", self.headers["Content-Type"]
        assert self.headers["X-Content-Type-Options"] == "nosniff"
        return json.loads(self.body)


class Client:
    """Somebody who asks: a program with its credentials, or a browser with cookies."""

    def __init__(self, port: int, user: tuple[str, str] | None = ANN, prefix: str = "") -> None:
        self.port, self.user, self.prefix = port, user, prefix
        self.cookies: dict[str, str] = {}

    def ask(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Answer:
        """Send one request and return its answer."""
        said = {name.replace("_", "-"): value for name, value in headers.items()}
        if self.user:
            said.setdefault("Authorization", basic(*self.user))
        if self.cookies:
            said.setdefault("Cookie", "; ".join(f"{name}={value}" for name, value in self.cookies.items()))
        connection = HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(method, self.prefix + path, body=body, headers=said)
            response = connection.getresponse()
            return Answer(response.status, response.headers, response.read())
        finally:
            connection.close()

    def get(self, path: str, **query: Any) -> Answer:
        """Read."""
        return self.ask("GET", path + ("?" + urlencode(query) if query else ""))

    def post(self, path: str, **body: Any) -> Answer:
        """Change something, as a program does."""
        return self.ask("POST", path, json.dumps(body).encode(), Content_Type="application/json")

    def open(self, path: str = "/tm") -> Answer:
        """Open a page as a browser does, and keep its cookies."""
        answer = self.ask("GET", path, Accept=HTML, Sec_Fetch_Site="none")
        self.keep_cookies(answer)
        return answer

    def keep_cookies(self, answer: Answer) -> None:
        """Keep what the answer sets, and forget what it clears."""
        for line in answer.headers.get_all("Set-Cookie") or []:
            name, _, rest = line.partition("=")
            value = rest.partition(";")[0].strip('"')
            if value:
                self.cookies[name] = value
            else:
                self.cookies.pop(name, None)

    def send(self, path: str, fields: Mapping[str, Any], **headers: str) -> Answer:
        """Send a form of a page, as a browser does, with the token of the cookie."""
        body = urlencode({"_xsrf": self.cookies.get("_xsrf", ""), **fields}, doseq=True).encode()
        said = {"Accept": HTML, "Sec_Fetch_Site": "same-origin", "Content_Type": "application/x-www-form-urlencoded"}
        answer = self.ask("POST", path, body, **{**said, **headers})
        self.keep_cookies(answer)
        return answer


def basic(name: str, password: str) -> str:
    """Return the header of basic authentication."""
    return "Basic " + b64encode(f"{name}:{password}".encode()).decode()


@dataclass(frozen=True)
class Served:
    """A Flower that answers."""

    port: int
    application: Flower
    prefix: str = ""

    def client(self, user: tuple[str, str] | None = ANN) -> Client:
        """Return somebody who asks."""
        return Checked(self.port, user, self.prefix)

    def login(self, email: str) -> str:
        """Return the cookie that Flower's login leaves."""
        secret = self.application.settings["cookie_secret"]
        return create_signed_value(secret, "user", email).decode()


@contextmanager
def serving(app: Celery, **options: Any) -> Iterator[Served]:
    """Serve a real Flower application with our pages on a free port, in a thread of its own."""
    install()
    ready: threading.Event = threading.Event()
    found: dict[str, Any] = {}

    def serve() -> None:
        asyncio.set_event_loop(asyncio.new_event_loop())
        loop = found["loop"] = IOLoop.current()
        application = found["application"] = Flower(options=_options(options), capp=app, io_loop=loop, **_settings(options))
        sockets = bind_sockets(0, "127.0.0.1")
        server = HTTPServer(application)
        server.add_sockets(sockets)
        found["port"] = sockets[0].getsockname()[1]
        loop.add_callback(ready.set)
        loop.start()
        server.stop()
        application.executor.shutdown(wait=False)
        loop.close(all_fds=True)

    thread = threading.Thread(target=serve, name="flower", daemon=True)
    thread.start()
    assert ready.wait(20), "Flower did not start"
    prefix = "/" + options["url_prefix"].strip("/") if options.get("url_prefix") else ""
    try:
        yield Served(found["port"], found["application"], prefix)
    finally:
        found["loop"].add_callback(found["loop"].stop)
        thread.join(20)
        assert not thread.is_alive()


def _options(given: Mapping[str, Any]) -> OptionParser:
    """Return options of their own with Flower's defaults, so that one test says nothing to the next."""
    options = OptionParser()
    for option in default_options._options.values():  # type: ignore[attr-defined]
        if option.name not in options:
            options.define(option.name, default=option.default, type=option.type, multiple=option.multiple)
    known = {"basic_auth": ["ann:secret", "bob:word"]} | dict(given)
    for name, value in known.items():
        setattr(options, name, value)
    return options


def _settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return Flower's settings as its command makes them."""
    settings = dict(urls.settings)
    if given.get("url_prefix"):
        for name in ("login_url", "static_url_prefix"):
            settings[name] = prepend_url(settings[name], given["url_prefix"])
    return settings


class Checked(Client):
    """A program that holds every answer of the API against the OpenAPI document."""

    def ask(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Answer:
        answer = super().ask(method, path, body, **headers)
        if path.startswith("/api/tm/") and "html" not in headers.get("Accept", ""):
            check_answer(method, path.partition("?")[0], answer)
        return answer


def check_answer(method: str, path: str, answer: Answer) -> None:
    """Fail where an answer is not of the shape that is documented for its status."""
    document = document_of()
    found = [template for template in document["paths"] if re.fullmatch(re.sub(r"{\w+}", "[^/]+", template), path)]
    template = min(found, key=lambda one: one.count("{"))
    responses = document["paths"][template][method.lower()]["responses"]
    assert str(answer.status) in responses, f"{method} {template} answers {answer.status}: {answer.text}"
    response = responses[str(answer.status)]
    if "$ref" in response:
        response = document["components"]["responses"][str(answer.status)]
    schema = response["content"]["application/json"]["schema"] | {"components": document["components"]}
    wrong = best_match(jsonschema.Draft202012Validator(schema).iter_errors(answer.json))
    assert wrong is None, f"{method} {template} at {wrong.json_path}: {wrong.message[:300]}"
