"""Prose that nobody runs goes stale: every Python block is run, every link followed, every generated page compared."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from tmtest.warm import Warm

from celery_tm.domain.codec import encode
from celery_tm.domain.job import Job, Source
from celery_tm.installation import Installation
from celery_tm.publisher import publish

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"])
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE_NAME = re.compile(r"# ([\w-]+\.\w+)\n")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
TEST_PATH = re.compile(r"\btests/[\w/.-]*\.py\b")
FUNCTION = re.compile(r"`([\w/]+\.py): (\w+)`")


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks_of(page: Path) -> list[tuple[str, str]]:
    """Return the fenced blocks of a page, as language and text."""
    return BLOCK.findall(page.read_text())


WALKED = DOCS / "tutorial.md"  # by tests/process/test_tutorial.py, with its commands
PAGES_WITH_PYTHON = [page for page in PAGES if page != WALKED and any(lang == "python" for lang, _ in blocks_of(page))]


def run(folder: Path, *command: str) -> None:
    """Run Python in a folder; fail with what it wrote."""
    done = subprocess.run([sys.executable, *command], cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def run_warm(folder: Path, *arguments: str) -> None:
    """Do the same in a process that need not import everything first."""
    log = folder / "output.log"
    code = Warm.here().start(arguments, log=log, env=os.environ, folder=folder).wait(120)
    assert code == 0, log.read_text()


@pytest.mark.parametrize("page", PAGES_WITH_PYTHON, ids=name_of)
def test_every_python_block_of_a_page_runs_in_order(page: Path, tmp_path: Path) -> None:
    script: list[str] = []
    tests: list[str] = []
    for language, text in blocks_of(page):
        named = FILE_NAME.match(text)
        if named:  # a block that starts with a file's name is that file
            (tmp_path / named[1]).write_text(text)
        if named and named[1].startswith("test_"):
            tests.append(named[1])
        elif language == "python":
            script.append(text)

    (tmp_path / "page.py").write_text("\n".join(script))
    run_warm(tmp_path, "-W", "error", "page.py")
    if tests:
        run(tmp_path, "-m", "pytest", "-q", "-p", "no:celery", "-p", "no:cacheprovider", *tests)


def test_the_generated_pages_say_what_the_code_says() -> None:
    run(ROOT, "docs/generate.py", "--check")


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    targets = [link.split("#")[0] for link in LINK.findall(page.read_text()) if not re.match(r"[a-z]+:", link)]
    assert [target for target in targets if target and not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_test_that_a_page_names_exists(page: Path) -> None:
    assert [path for path in TEST_PATH.findall(page.read_text()) if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_function_that_a_page_names_exists(page: Path) -> None:
    named = FUNCTION.findall(page.read_text())
    sources = {path: ROOT / "celery_tm" / path for path, _ in named}
    assert [path for path, source in sources.items() if not source.exists()] == []
    defined = re.compile(r"^\s*(?:def|class) (\w+)", re.MULTILINE)
    known = {path: set(defined.findall(source.read_text())) for path, source in sources.items()}
    assert [(path, name) for path, name in named if name not in known[path]] == []


def test_every_adr_is_listed_and_short() -> None:
    listed = (DOCS / "adr" / "README.md").read_text()
    records = sorted((DOCS / "adr").glob("0*.md"))
    assert [record.name for record in records if f"({record.name})" not in listed] == []
    assert [record.name for record in records if len(record.read_text().splitlines()) > 40] == []


def test_the_message_example_is_what_is_published() -> None:
    [example] = [json.loads(text) for language, text in blocks_of(DOCS / "reference" / "message.md") if language == "json"]

    published = publish_and_fetch(job_of(example))

    assert {name: published["headers"][name] for name in example["headers"]} == example["headers"]
    assert published["body"] == example["body"]


def job_of(example: Mapping[str, Any]) -> Job:
    """Return the job that a message example is about."""
    headers, contract = example["headers"], example["headers"]["tm"]
    run_at = datetime.fromisoformat(contract["scheduled_at"])
    args, kwargs, _ = example["body"]
    metadata = contract["metadata"]
    return Job(
        id=headers["id"],
        task=headers["task"],
        args=encode(args, field="args"),
        kwargs=encode(kwargs, field="kwargs"),
        run_at=run_at,
        created_at=run_at - timedelta(minutes=15),
        original_delay=timedelta(minutes=15),
        attempt=contract["attempt"],
        queue=contract["queue"],
        source=Source(contract["source"]),
        occurrence=metadata["occurrence"],
        entity_id=metadata["entity_id"],
        dedupe_key=metadata["key"],
        scope=metadata["scope"],
    )


def publish_and_fetch(job: Job) -> dict[str, Any]:
    """Publish a job and return the message as the broker holds it."""
    app = Celery("docs", broker="memory://", set_as_current=False)
    app.conf.tm_database_url = "sqlite:///:memory:"
    with app.connection_for_write() as connection:
        assert job.queue is not None
        queue = app.amqp.queues[job.queue](connection.default_channel)
        queue.declare()
        assert publish(Installation.of(app), [job]).sent == [job]
        message = queue.get(no_ack=True)
    app.close()
    return {"headers": message.headers, "body": json.loads(message.body)}
