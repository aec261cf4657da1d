"""The documentation as a site: every page is in its navigation, and MkDocs builds it without a warning."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


class Loader(yaml.SafeLoader):
    """Reads mkdocs.yml, in which a Python name stands for the drawing of diagrams."""


Loader.add_multi_constructor("tag:yaml.org,2002:python/name:", lambda loader, suffix, node: suffix)


def named(nav: Any) -> list[str]:
    """Return the pages that a navigation names, in order."""
    if isinstance(nav, str):
        return [nav]
    parts = nav.values() if isinstance(nav, dict) else nav
    return [page for part in parts for page in named(part)]


def test_the_navigation_names_every_page_once() -> None:
    pages = named(yaml.load((ROOT / "mkdocs.yml").read_text(), Loader)["nav"])  # a SafeLoader with one name
    beside = ["changelog.md", "contributing.md", "why.md"]  # docs/site_pages.py brings them
    assert sorted(pages) == sorted([*(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")), *beside])


def test_the_index_leads_to_every_page() -> None:
    index = (DOCS / "index.md").read_text()
    pages = [str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md") if page.parent.name != "adr"]
    assert [page for page in pages if page != "index.md" and f"({page})" not in index] == []


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("material")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    env = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Nothing is lost" in (tmp_path / "site" / "why.html").read_text()
    assert (tmp_path / "site" / "tutorial.html").exists()
