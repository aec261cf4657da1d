"""`python -m celery_suites.run [part …]`: Celery's own suites with our base class and without.

Parts: core, unit, integration, canvas, and of canvas: chain, group, chord, link_error, others. Large parts run as several
shards at once, each with a Redis, a worker and a database of its own; `--shard 1/4` runs one of them only. What plain Celery
makes of a part is kept in the cache, for that does not change with ours; `--fresh` asks again.

Exits with 1 if a test that passes in plain Celery fails with ours, unless that is intended; `make celery-suites` runs all.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path

from celery_suites import suites
from celery_suites.sdist import CACHE, unpack
from celery_suites.suites import OURS, PLAIN, Comparison, Report, compare

Run = Callable[[str, Iterable[str]], Report]  # of a base class and tests

FEW = 10  # so many failures may be bad luck: of a busy machine, or of a test that Celery itself marks as flaky
ALL = ("unit", "integration", "canvas")


@dataclass(frozen=True)
class Part:
    """Tests that are run together."""

    run: Callable[..., Report]
    tests: Sequence[str]
    shards: int = 1


def _canvas(*classes: str, shards: int) -> Part:
    return Part(suites.run_integration, [f"{suites.CANVAS[0]}::test_{name}" for name in classes], shards)


PARTS = {
    "core": Part(suites.run_unit, suites.CORE),
    "unit": Part(suites.run_unit, suites.UNIT),
    "integration": Part(suites.run_integration, suites.INTEGRATION, 2),
    "canvas": Part(suites.run_integration, suites.CANVAS, 6),
    "chain": _canvas("chain", shards=2),
    "group": _canvas("group", shards=2),
    "chord": _canvas("chord", shards=4),
    "link_error": _canvas("link_error", shards=1),
    "others": _canvas("result_set", "xmap_xstarmap", "signature_serialization", "stamping_mechanism", shards=1),
}


@dataclass(frozen=True)
class Row:
    """What is said about a part in the end."""

    name: str
    plain: Report
    ours: Report
    found: Comparison
    took: tuple[float, float]


def main(argv: Sequence[str]) -> int:
    """Run the parts named, print the figures, and return the exit code."""
    asked = _arguments(argv)
    rows = []
    with tempfile.TemporaryDirectory(prefix="celery-suites-") as place:
        source = unpack(Path(place))
        for name in asked.parts or ALL:
            rows.append(_compare_part(name, source, Path(place) / name, asked))
            print(rows[-1].found, flush=True)
    print(table(rows), flush=True)
    return int(any(row.found.broken or row.found.healed for row in rows))


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="celery_suites.run", description=__doc__.partition("\n")[0])
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS], metavar="part", help=", ".join(PARTS))
    parser.add_argument("--shard", metavar="N/OF", help="run only this share of each part")
    parser.add_argument("--shards", type=int, metavar="N", help="how many to run at once")
    parser.add_argument("--fresh", action="store_true", help="run plain Celery again, though it is in the cache")
    return parser.parse_args(argv)


def _compare_part(name: str, source: Path, folder: Path, asked: argparse.Namespace) -> Row:
    part = PARTS[name]
    count = asked.shards or part.shards
    shards = [asked.shard] if asked.shard else [f"{n}/{count}" for n in range(1, count + 1)]
    folder.mkdir()

    def run(base: str, tests: Iterable[str], shard: str = "", *, place: str = "") -> Report:
        return part.run(source, base, tests, folder / (place or shard.replace("/", "-of-") or "again"), shard=shard)

    def plainly(shard: str) -> Report:
        alone = partial(run, place=f"again-{shard.replace('/', '-of-')}")
        return _cached(f"{name} {shard}", lambda: again(alone, run(PLAIN, part.tests, shard), PLAIN), fresh=asked.fresh)

    plain, plain_took = _all(f"{name}, plain Celery", plainly, shards)
    ours, ours_took = _all(f"{name}, celery_tm.Task", lambda shard: run(OURS, part.tests, shard), shards)
    suites.check_injected(ours)
    print(f"    tasks seen: {dict(ours.seen)}")
    ours = again(run, ours, expected=plain.failed)
    return Row(name, plain, ours, compare(ours, plain), (plain_took, ours_took))


def _all(title: str, run: Callable[[str], Report], shards: Sequence[str]) -> tuple[Report, float]:
    """Run all shards at once, and return what they found together, and how long it took."""
    started = time.monotonic()
    with ThreadPoolExecutor(len(shards)) as pool:
        report = suites.merge(list(pool.map(run, shards)))
    took = time.monotonic() - started
    print(f"{title}: {report} in {took:.0f} s", flush=True)
    return report, took


def _cached(name: str, run: Callable[[], Report], *, fresh: bool) -> Report:
    """Return how a part ends in plain Celery: known from an earlier run with the same Celery and Python, or found out."""
    place = f"plain celery-{version('celery')} python-{platform.python_version()} {name}.json".replace(" ", "_")
    path = CACHE / place.replace("/", "-of-")
    if path.exists() and not fresh:
        kept: Mapping[str, Mapping[str, str]] = json.loads(path.read_text())
        return Report(kept["outcomes"], kept["reasons"])
    report = run()
    CACHE.mkdir(exist_ok=True)
    path.write_text(json.dumps({"outcomes": asdict(report)["outcomes"], "reasons": dict(report.reasons)}))
    return report


def table(rows: Sequence[Row]) -> str:
    """Return plain Celery and ours side by side."""
    lines = [f"{'part':<12} {'':<8} {'passed':>7} {'failed':>7} {'skipped':>8} {'seconds':>8}"]
    for row in rows:
        for side, report, took in (("plain", row.plain, row.took[0]), ("ours", row.ours, row.took[1])):
            skipped = len(report.outcomes) - len(report.passed) - len(report.failed)
            name = row.name if side == "plain" else ""
            lines.append(f"{name:<12} {side:<8} {len(report.passed):>7} {len(report.failed):>7} {skipped:>8} {took:>8.0f}")
        found = row.found
        lines.append(
            f"{'':<12} broken {len(found.broken)}, intended {len(found.intended)}, by itself {len(found.by_itself)}"
        )
    return "\n".join(lines)


def against_plain(run: Run, tests: Iterable[str]) -> tuple[Report, Comparison]:
    """Run with ours, and only what fails in plain Celery too: half the time, for the tests of every day."""
    ours = run(OURS, tests)
    suites.check_injected(ours)
    ours = again(run, ours)
    plain = run(PLAIN, sorted(ours.failed)) if ours.failed else Report({})
    return ours, compare(ours, plain)


def again(run: Run, report: Report, base: str = OURS, *, expected: Collection[str] = ()) -> Report:
    """Give the few that failed a second chance, by themselves; not those that are expected to fail."""
    doubtful = report.failed - suites.INTENDED.keys() - set(expected)
    if not doubtful or len(doubtful) > FEW:
        return report
    return suites.merge([report, run(base, sorted(doubtful))])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
