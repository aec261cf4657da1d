"""Parsers that need no database, fed by atheris: what it sends next depends on which lines were reached so far.

`make fuzz SECONDS=60` gives each target so long, one after the other. What breaks the promise of a parser (a value, or an
error of ours that a person can read, soon) ends the run, and its input is kept: `python -m fuzz.guided TARGET FILE` tries
it again.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from types import SimpleNamespace

import atheris
from celery import Celery

FEEDING = "--feed" in sys.argv

with atheris.instrument_imports(include=["celery_tm", "tomllib", "yaml"]) if FEEDING else nullcontext():
    from celery_tm.clock import format_duration, parse_duration
    from celery_tm.domain.calendar import checked_entries, closures_of
    from celery_tm.domain.codec import decode, encode
    from celery_tm.domain.paging import read_cursor, write_cursor
    from celery_tm.domain.schedule import Zone, load_schedule, read_schedule
    from celery_tm.domain.timeline import Timeline
    from celery_tm.errors import TmError
    from celery_tm.management.files import read_file
    from celery_tm.management.reading_yaml import read_yaml  # noqa: F401  # else it is loaded when first needed
    from celery_tm.worker.incoming import fault_in
    from fuzz.limits import check_told, limited

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
ZONES = [Zone(), Zone(name="Europe/Warsaw"), Zone(name="Australia/Lord_Howe")]
SLOW = 30  # seconds after which libFuzzer says that an input hangs; instrumented code takes a multiple of its time
APP = Celery("guided", broker="memory://", set_as_current=False)


def schedules(data: bytes) -> None:
    """Read a schedule in a zone, walk it, and read it back from what the database keeps."""
    zone = ZONES[data[0] % len(ZONES)] if data else ZONES[0]
    rule = read_schedule(data[1:].decode(errors="surrogateescape"), zone, name="nightly")
    found = list(islice(rule.between(NOON, NOON + timedelta(days=40_000)), 3))
    assert found == sorted(set(found))
    assert load_schedule(rule.kind, rule.expression, zone, name="nightly") == rule
    assert rule.describe()


def durations(data: bytes) -> None:
    """Read a duration, and write it so that it is read back."""
    read = parse_duration(data.decode(errors="surrogateescape"), field="delay")
    assert parse_duration(format_duration(read), field="delay") == read


def exclusions(data: bytes) -> None:
    """Read times at which nothing fires, and look for one at which something does."""
    entries = checked_entries(data.decode(errors="surrogateescape").split(","), field="excluded")
    assert checked_entries(entries, field="excluded") == entries
    for zone in ZONES:
        Timeline(rule=read_schedule("0 * * * *", zone), closures=closures_of(entries, zone.name)).next_after(NOON)


def cursors(data: bytes) -> None:
    """Read a place in a list, and write it so that it is read back."""
    for timed, numbered in ((True, False), (False, True)):
        place = read_cursor("jobs", data.decode(errors="surrogateescape"), field="after", timed=timed, numbered=numbered)
        assert read_cursor("jobs", write_cursor("jobs", place), field="after", timed=timed, numbered=numbered) == place


def messages(data: bytes) -> None:
    """Look for what is wrong with a message: headers and body, each in JSON, with a NUL between."""
    headers, _, body = data.partition(b"\0")
    try:
        message = SimpleNamespace(headers=json.loads(headers), payload=json.loads(body or b"null"))
    except (ValueError, RecursionError):
        return
    found = fault_in(APP, message)
    assert found is None or 0 < len(found) < 1000


def arguments(data: bytes) -> None:
    """Read arguments as a command does, store them, and read them back."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return
    text = encode(value, field="args")
    assert encode(decode(text), field="args") == text


def files(data: bytes) -> None:
    """Read a file of definitions; its first byte says in which format."""
    path = Path(FOLDER.name) / f"file{('.toml', '.yaml', '.json')[data[0] % 3 if data else 0]}"
    path.write_bytes(data[1:])
    read_file(path)


TARGETS: dict[str, tuple[Callable[[bytes], None], list[str]]] = {
    "schedules": (
        schedules,
        ["\0*/5 * * * *", "\0010 0 L * 5#3", "\1H H(0-6) 15W jan-mar/2 mon-fri", "\0every 1h 30m from 2026-01-01T00:00:00Z",
         "\1R5/2026-01-01T00:00:00Z/P1M", "\2at 2026-10-25T02:30:00", "\1every 2h from 22:00 until 02:00 on fri-mon",
         "\1DTSTART:20260101T090000 RRULE:FREQ=MONTHLY;BYDAY=-1FR;COUNT=5 EXDATE:20260130T090000", "\0sunset at 52.2,21.0",
         "\0@daily"],
    ),
    "durations": (durations, ["15m", "1h 30m", "0.5s", "36500d", "1w2d3h4m5s6ms"]),
    "exclusions": (exclusions, ["2026-12-24,12-25,sat", "2026-12-24/2027-01-02", "2026-06-01T10:00/2026-06-01T14:00"]),
    "cursors": (cursors, [write_cursor("jobs", (NOON, "x")), write_cursor("jobs", (None, 7))]),
    "messages": (
        messages,
        ['{"task": "effect", "id": "x", "retries": 0, "tm": {"job": "x", "attempt": 1}}\0[[1], {}, {"callbacks": null}]',
         '{"task": "effect", "id": "x", "eta": "2026-01-01T00:00:00", "timelimit": [null, 5]}\0[[], {}, {}]',
         '{"tm": {"chunk": [["x", 1]]}}\0{"task": "effect", "id": "x", "args": [], "kwargs": {}}'],
    ),
    "arguments": (arguments, ['[1, "a", null, 1.5]', '{"__type__": "uuid", "__value__": "7"}', '{"a": [{}]}']),
    "files": (
        files,
        ['\0[[definitions]]\nname = "a"\ntask = "b"\nschedule = "@daily"\n', 
         "\1definitions:\n- {name: a, <<: &x {task: b}}\n", '\2{"definitions": [{"name": "a"}]}',
         "\1a: &a [1, *a]", "\0[a.b]\nc = 2026-01-01T00:00:00Z\nd = 0x1F"],
    ),
}  # fmt: skip
FOLDER = TemporaryDirectory(prefix="tm-fuzz-")


def promised(target: Callable[[bytes], None]) -> Callable[[bytes], None]:
    """Return a target that may refuse what it is given, in words."""

    def check(data: bytes) -> None:
        try:
            target(data)
        except TmError as error:
            check_told(error, lines=12)

    return check


def run(name: str, seconds: int) -> bool:
    """Run a target in a process of its own, for libFuzzer ends its process; print how much was tried."""
    with TemporaryDirectory(prefix="tm-fuzz-") as corpus:
        for number, seed in enumerate(TARGETS[name][1]):
            (Path(corpus) / str(number)).write_bytes(seed.encode())
        limits = [f"-max_total_time={seconds}", f"-timeout={SLOW}", "-print_final_stats=1", "-max_len=2000"]
        where = f"-artifact_prefix={gettempdir()}/tm-fuzz-{name}-"
        command = [sys.executable, "-m", "fuzz.guided", name, "--feed", corpus, where, *limits]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    said = done.stdout + done.stderr
    tried = re.search(r"number_of_executed_units:\s*(\d+)", said)
    print(
        f"{name}: {int(tried[1]) if tried else 0:,} inputs" + ("" if done.returncode == 0 else f", FAILED\n{said[-4000:]}")
    )
    return done.returncode == 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", nargs="?", choices=TARGETS, help="one of them only")
    parser.add_argument("file", nargs="?", type=Path, help="try just what this file holds")
    parser.add_argument("--seconds", type=int, default=60, help="for each target")
    parser.add_argument("--feed", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.feed:
        atheris.Setup([sys.argv[0], *given.feed], promised(TARGETS[given.target][0]))
        atheris.Fuzz()
    elif given.file:
        with limited(SLOW):
            promised(TARGETS[given.target][0])(given.file.read_bytes())
    else:
        names = [given.target] if given.target else list(TARGETS)
        failed = [name for name in names if not run(name, given.seconds)]
        sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
