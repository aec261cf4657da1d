"""The outside world: a server with currency rates, and who has paid. `python -m shop.provider` starts one for the demo.

It can be told to fail (`POST /failing`), and it is not to be relied on to call when somebody pays: `payments` asks it.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import quote, urlsplit
from urllib.request import Request, urlopen

RATES = {"PLN": 4.27, "USD": 1.09, "JPY": 162.5}
PATIENCE = 5.0  # seconds


def where() -> str:
    """Return the address of the provider."""
    return os.environ.get("SHOP_PROVIDER_URL") or "http://127.0.0.1:5580"


def ask(path: str, told: Mapping[str, Any] | None = None) -> Any:
    """Ask the provider, or tell it something; raises OSError where it is away or fails."""
    body = None if told is None else json.dumps(told).encode()
    with urlopen(Request(where() + path, data=body), timeout=PATIENCE) as answer:
        return json.load(answer)


def is_paid(reference: str) -> bool:
    """Say whether the provider has the money."""
    return bool(ask(f"/payments/{quote(reference, safe='')}")["paid"])


def pay(reference: str) -> None:
    """Pay, as a customer does on the provider's page. The shop hears of it by a webhook, or it does not."""
    ask(f"/payments/{quote(reference, safe='')}", {"paid": True})


class Provider(ThreadingHTTPServer):
    """The provider's server. What it knows it keeps in memory."""

    daemon_threads = True

    def __init__(self, address: str = "127.0.0.1", port: int = 0) -> None:
        super().__init__((address, port), _Answers)
        self.failing = False
        self.paid: set[str] = set()

    def start(self) -> str:
        """Answer in a thread, and return the address."""
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return f"http://127.0.0.1:{self.server_port}"

    def answer(self, path: str, told: Mapping[str, Any] | None) -> tuple[int, Any]:
        """Return the status and what to say."""
        if path == "/failing":
            self.failing = bool(told and told.get("failing"))
            return 200, {"failing": self.failing}
        if self.failing:
            return 503, {"error": "the provider is told to fail; POST /failing with {} ends that"}
        if path == "/rates":
            return 200, RATES
        if path.startswith("/payments/"):
            reference = path.removeprefix("/payments/")
            if told and told.get("paid"):
                self.paid.add(reference)
            return 200, {"paid": reference in self.paid}
        return 404, {"error": "there is /rates, /payments/REFERENCE and /failing"}


class _Answers(BaseHTTPRequestHandler):
    server: Provider

    def do_GET(self) -> None:
        self._say(*self.server.answer(self.path, None))

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self._say(*self.server.answer(self.path, json.loads(body or b"{}")))

    def _say(self, status: int, what: Any) -> None:
        body = json.dumps(what).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: the shop's logs tell enough."""


if __name__ == "__main__":
    given = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1"
    Provider(given, urlsplit(where()).port or 80).serve_forever()
