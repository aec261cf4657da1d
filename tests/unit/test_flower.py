"""What we rely on in Flower is there, and what we add says so where it is not."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from flower import urls
from flower.views.error import NotFoundErrorHandler
from prometheus_client import REGISTRY
from tornado.template import Loader

from celery_tm.errors import DefinitionNotFound, FlowerUnfit, InvalidValue, SchemaMissing, StaleVersion, TmError
from celery_tm.flower import base, failures, figures, install, installing
from celery_tm.flower.guarding import administrators, basic_name, is_admin
from celery_tm.installation import Installation

ROOT = Path(__file__).parents[2]


def test_the_last_of_flower_s_addresses_is_the_one_that_answers_404() -> None:
    assert isinstance(urls.handlers, list)
    assert urls.handlers[-1] == (r".*", NotFoundErrorHandler)


def test_flower_s_menu_has_the_entry_that_ours_follows() -> None:
    menu = (Path(urls.settings["template_path"]) / installing.NAVBAR).read_text()
    longer = installing.with_entry(menu)
    assert len(longer) == len(menu) + len(installing.ENTRY)
    assert longer.index("reverse_url('broker')") < longer.index("reverse_url('tm')") < longer.index("</ul>")


def test_a_menu_that_is_not_known_stays_as_it_is() -> None:
    assert installing.with_entry("<ul><li>Home</li></ul>") == "<ul><li>Home</li></ul>"
    assert installing.with_entry("nothing") == "nothing"


def test_flower_s_base_template_has_the_blocks_that_our_pages_fill() -> None:
    text = (Path(urls.settings["template_path"]) / "base.html").read_text()
    assert all(f"{{% block {name} %}}" in text for name in ("title", "navbar", "container", "extra_scripts"))


def test_every_template_of_ours_can_be_read() -> None:
    loader = installing.OverlayLoader(urls.settings["template_path"])
    names = sorted(path.name for path in installing.TEMPLATES.glob("*.html"))
    assert "tm_error.html" in names
    for name in [*names, "404.html"]:
        loader.load(name)


def test_half_a_character_becomes_a_mark_and_the_rest_is_escaped(tmp_path: Path) -> None:
    (tmp_path / "some.html").write_text("{{ said }}")
    assert installing.make_loader(str(tmp_path)).load("some.html").generate(said="\ud800<ü>") == "?&lt;ü&gt;".encode()


def test_installing_twice_changes_nothing_more() -> None:
    install()
    before = list(urls.handlers), dict(urls.settings)
    install()
    assert (urls.handlers, urls.settings) == before
    assert urls.handlers[-1] == (r".*", NotFoundErrorHandler)


@pytest.mark.parametrize(
    ("handlers", "settings", "words"),
    [
        ((), {}, "no list of handlers"),
        ([], {"template_path": "x"}, "not the one that answers 404"),
        ([("/x", None)], {"template_path": "x"}, "not the one that answers 404"),
        ([(".*", None)], {}, "no template_path"),
        ([(".*", None)], {"template_path": "x", "template_loader": Loader("x")}, "somebody else's"),
    ],
)
def test_another_flower_is_refused_in_words(
    monkeypatch: pytest.MonkeyPatch, handlers: Any, settings: Any, words: str
) -> None:
    monkeypatch.setattr(urls, "handlers", handlers)
    monkeypatch.setattr(urls, "settings", settings)
    with pytest.raises(FlowerUnfit, match=words):
        install()
    assert urls.handlers is handlers


def test_without_flower_the_package_says_what_to_install() -> None:
    code = "import sys; sys.modules['flower'] = None; import celery_tm.flower"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert "FlowerMissing: celery_tm.flower needs Flower; run `pip install 'celery-tm[flower]'`" in done.stderr


def test_nothing_else_of_the_package_imports_the_pages() -> None:
    package = ROOT / "celery_tm"
    left_out = (package / "flower", package / "store" / "migrations")
    files = [path for path in package.rglob("*.py") if not any(path.is_relative_to(one) for one in left_out)]
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in files]
    assert "celery_tm.cli.flower" in names
    code = (
        f"import importlib, sys\nfor name in {sorted(names)!r}:\n    importlib.import_module(name)\n"
        "assert not [name for name in sys.modules if name.startswith(('celery_tm.flower', 'flower'))]\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


# Who may


@pytest.mark.parametrize("is_closed", [True, False])
@pytest.mark.parametrize("is_embedded", [True, False])
@pytest.mark.parametrize("stated", [None, [], ["ann"]])
def test_unset_everybody_may_change_an_embedded_database_and_nobody_a_server(
    stated: list[str] | None, is_embedded: bool, is_closed: bool
) -> None:
    unset = ["*"] if is_embedded and is_closed else []
    found = administrators(stated, is_embedded=is_embedded, is_closed=is_closed)
    assert list(found) == (unset if stated is None else stated)


@pytest.mark.parametrize(
    ("actor", "admins", "expected"),
    [
        ("ann", ["*"], True), ("ann", [], False), ("ann", ["ann"], True), ("Ann", ["ann"], True), ("bob", ["ann"], False),
        ("kim@example.com", ["*@example.com"], True), ("kim@example.com.evil", ["*@example.com"], False),
        ("anonymous", ["ann"], False), ("ann", ["an"], False), ("ann", ["a?n"], True),
    ],
)  # fmt: skip
def test_administrators_are_named_with_wildcards(actor: str, admins: Any, expected: bool) -> None:
    assert is_admin(actor, admins) is expected


@pytest.mark.parametrize(
    ("header", "name"),
    [
        ("Basic YW5uOnNlY3JldA==", "ann"),
        ("Basic YW5uOmE6Yg==", "ann"),
        ("", "anonymous"),
        ("Basic ???", "anonymous"),
        ("Basic Og==", "anonymous"),
    ],
)
def test_who_acts_is_the_name_of_basic_authentication(header: str, name: str) -> None:
    assert basic_name(header) == name


@pytest.mark.parametrize(
    ("target", "own"),
    [
        ("/tm", True), ("/tm?search=a%20b", True), ("//evil.example", False), ("/\\evil.example", False), ("tm", False),
        ("\\\\evil.example", False), ("https://evil.example", False), ("/a\nb", False), ("/\t/evil.example", False),
        ("", False),
    ],
)  # fmt: skip
def test_only_paths_of_this_server_are_followed(target: str, own: bool) -> None:
    assert base.is_own_path(target) is own


# What is told of errors


@pytest.mark.parametrize(
    ("error", "status", "body"),
    [
        (DefinitionNotFound("nigtly", "nightly"), 404, {"code": "definition_not_found", "hint": "nightly"}),
        (StaleVersion("nightly", 1, 2), 409, {"code": "stale_version", "version": 2}),
        (InvalidValue("limit", "no", "yes"), 400, {"code": "invalid_value", "message": "limit: no; yes"}),
        (SchemaMissing("sqlite:///x"), 503, {"code": "schema_missing"}),
        (TmError("odd"), 400, {"code": "tm_error", "message": "odd"}),
    ],
)
def test_every_error_of_ours_has_a_status_and_keeps_its_words(error: TmError, status: int, body: dict[str, Any]) -> None:
    told = failures.failure_of(failures.Refused(error), 500)
    assert told.status == status
    assert {**told.as_json()["error"], **body} == told.as_json()["error"]
    assert told.message == str(error)


def test_what_nobody_foresaw_is_not_shown() -> None:
    told = failures.failure_of(RuntimeError("password=hunter2"), 500)
    assert (told.status, told.code) == (500, "unexpected")
    assert "hunter2" not in str(told.as_json())


# Figures


def test_figures_are_there_once_and_wait_for_nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    install()
    assert sum(isinstance(one, figures.AppFigures) for one in REGISTRY._collector_to_names) == 1
    app = Celery("here", set_as_current=False)
    app.conf.update(tm_database_url=f"sqlite:///{tmp_path}/jobs.db", broker_url="memory://")
    installation = Installation.of(app)
    monkeypatch.setattr(Installation, "current", classmethod(lambda cls: installation))
    found = {metric.name: metric for metric in figures.AppFigures(patience=30).collect()}
    assert found["celery_tm_up"].samples[0].value == 1
    assert "celery_tm_jobs" in found
    answered = threading.Event()
    monkeypatch.setattr(figures, "_listed", lambda _: [answered.wait(60)])
    [away] = figures.AppFigures(patience=0.01).collect()
    answered.set()
    assert (away.name, away.samples[0].value) == ("celery_tm_up", 0)
    installation.database.dispose()
