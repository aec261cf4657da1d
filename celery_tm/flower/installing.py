"""Hangs our pages, files and routes into Flower, before it starts.

Flower has no plug-ins, but its addresses are a list (`flower.urls.handlers`) and its settings a mapping
(`flower.urls.settings`) that the application reads once. Only these two are extended; nothing of Flower is replaced, and
where they are not what we know, `install` says so instead of guessing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flower import urls
from tornado import template
from tornado.routing import URLSpec
from tornado.web import url

from ..errors import FlowerUnfit
from .base import STATIC, StaticHandler
from .figures import install_figures
from .pages import PAGES

TEMPLATES = Path(__file__).parent / "templates"
NAVBAR = "navbar.html"
ANCHOR = "reverse_url('broker')"  # the last entry of Flower's menu; ours follows it
ENTRY = """<li class="nav-item">
  <a class="nav-link{% if active_tab == 'tm' %} active{% end %}" href="{{ reverse_url('tm') }}"
    {% if active_tab == 'tm' %}aria-current="page"{% end %}>Schedules</a>
</li>"""


class OverlayLoader(template.Loader):
    """Our templates first, then Flower's, whose menu gets one more entry; without the menu we know, it stays as it is."""

    def _create_template(self, name: str) -> template.Template:
        own = TEMPLATES / name
        text = (own if own.is_file() else Path(self.root) / name).read_text("utf-8")
        if name == NAVBAR:
            text = with_entry(text)
        return template.Template(text, name=name, loader=self)


def make_loader(flowers: str) -> OverlayLoader:
    """Return the loader of all templates. Arguments may hold halves of characters, which no page can: they become marks."""
    return OverlayLoader(flowers, autoescape="xhtml_escape", namespace={"_tt_utf8": _utf8})


def _utf8(text: Any) -> Any:
    return text.encode("utf-8", "replace") if isinstance(text, str) else text


def with_entry(navbar: str) -> str:
    """Return Flower's menu with our entry at its end."""
    head, end, tail = navbar.partition("</ul>")
    return head + ENTRY + end + tail if end and ANCHOR in head else navbar


def install() -> None:
    """Add the pages and the API to Flower; call it in `flowerconfig.py`. A second call changes nothing."""
    if any(getattr(rule, "name", None) == "tm" for rule in urls.handlers):
        return
    _check_hooks()
    urls.handlers[-1:-1] = added()  # before the last rule, which answers 404 to everything
    urls.settings["template_loader"] = make_loader(urls.settings["template_path"])
    install_figures()


def added() -> list[URLSpec]:
    """Return the rules that are added to Flower: `url`, for Flower drops the arguments of plain tuples under a prefix."""
    from .routes import api_rules

    static = url(r"/tm/static/([\w.-]+)", StaticHandler, {"path": str(STATIC)}, name="tm_static")
    pages = [url(path, handler, name=name) for path, handler, name in PAGES]
    return [static, *api_rules(), *pages]


def _check_hooks() -> None:
    """Raise where Flower is not made as we know it."""
    if not isinstance(getattr(urls, "handlers", None), list) or not isinstance(getattr(urls, "settings", None), dict):
        raise FlowerUnfit("flower.urls has no list of handlers and mapping of settings")
    if not urls.handlers or _path(urls.handlers[-1]) != r".*":
        raise FlowerUnfit("the last of flower.urls.handlers is not the one that answers 404")
    if "template_path" not in urls.settings or "template_loader" in urls.settings:
        raise FlowerUnfit("flower.urls.settings has no template_path, or somebody else's template_loader")


def _path(rule: Any) -> str:
    return rule.regex.pattern.rstrip("$") if isinstance(rule, URLSpec) else rule[0]
