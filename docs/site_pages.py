"""Brings the pages that lie beside docs/ (README, CHANGELOG, CONTRIBUTING) into the site, with links that hold there.

On GitHub a link leads through the repository, in the site through docs/ alone. A link to a file that is not in the site
(a test, the Makefile) becomes its name. MkDocs calls the functions; `tests/contract/test_site.py` holds the rest.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
# As MkDocs names them; a README.md would be another index.md.
BESIDE = {"README.md": "why.md", "CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s#:]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that lie beside docs/."""
    for name, uri in BESIDE.items():
        files.append(File.generated(config, uri, abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, page: Any, files: Files, **_: Any) -> str:
    """Turn links through the repository into links through the site."""
    uri = page.file.src_uri
    here = "" if uri in BESIDE.values() else posixpath.dirname(f"docs/{uri}")

    def turned(found: re.Match[str]) -> str:
        bang, text, target, anchor = found.groups()
        path = posixpath.normpath(posixpath.join(here, target))
        place = BESIDE.get(path) or path.removeprefix("docs/")
        if files.get_file_from_path(place) is None:
            return text if (ROOT / path).exists() else found[0]  # what leads nowhere is left for MkDocs to refuse
        relative = posixpath.relpath(place, posixpath.dirname(uri) or ".")
        return f"{bang}[{text}]({relative}{anchor or ''})"

    return LINK.sub(turned, markdown)
