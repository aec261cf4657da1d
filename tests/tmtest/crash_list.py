"""The list of all boundaries that the scenarios come to, each with the scenario that a process dies at it in.

It is committed, so that a new statement shows as a new line. `make crash-points` writes it anew. A line begins with the
databases it is for (s, p, m), since what is one statement in PostgreSQL may be five elsewhere.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory

from celery_tm.settings import read_settings
from celery_tm.store import schema
from celery_tm.store.database import Database

from . import points, services
from .crash_scenarios import SCENARIOS, Scenario
from .crash_world import CrashWorld, opened

PATH = Path(__file__).with_name("crash_points.txt")
RUNS = 5  # of each scenario: the order of a few steps goes by random ids, and so do the points of some runs
LETTERS = {"sqlite": "s", "postgresql": "p", "mysql": "m"}
HEAD = """\
# Every boundary at which a process may die, under the scenario in which one does (tests/store/test_crash_points.py).
# s: SQLite, p: PostgreSQL, m: MariaDB. Written by `make crash-points`.
"""
Listed = Mapping[str, list[str]]  # names by scenario


def read(database: str) -> Listed:
    """Return what is listed for a kind of database."""
    listed: dict[str, list[str]] = defaultdict(list)
    scenario = ""
    for line in PATH.read_text().splitlines():
        if line.startswith("["):
            scenario = line.strip("[]")
        elif line and not line.startswith("#"):
            letters, name = line.split(maxsplit=1)
            if LETTERS[database] in letters:
                listed[scenario].append(name)
    return listed


def passed(world: CrashWorld, scenario: Scenario) -> list[points.Boundary]:
    """Return the boundaries that a process comes to in a scenario, in order."""
    world.set_up(scenario.prepare)
    died = points.run(world.database, lambda: scenario.act(world))
    assert not died.error, died.error
    return died.passed


def where_certain(runs: Mapping[str, list[list[str]]]) -> Listed:
    """Return the names of several runs of each scenario, without those that are random here and certain in another."""
    always = {scenario: set.intersection(*map(set, names)) for scenario, names in runs.items()}
    certain = set().union(*always.values())
    return {
        scenario: [name for name in dict.fromkeys(chain(*names)) if name in always[scenario] or name not in certain]
        for scenario, names in runs.items()
    }


def write(found: Mapping[str, Listed]) -> None:
    """Write what was found, by database and scenario; a name is listed once for each database."""
    lines: dict[str, dict[str, str]] = {str(scenario): {} for scenario in SCENARIOS}
    for database, by_scenario in found.items():
        known: set[str] = set()
        for scenario, names in by_scenario.items():
            for name in names:
                if name not in known:
                    known.add(name)
                    lines[scenario][name] = lines[scenario].get(name, "") + LETTERS[database]
    sections = [f"\n[{scenario}]\n" + "".join(_lines(names)) for scenario, names in lines.items()]
    PATH.write_text(HEAD + "".join(sections))


def _lines(names: Mapping[str, str]) -> Iterable[str]:
    return (f"{letters:<3} {name}\n" for name, letters in names.items())


@contextmanager
def database_of(kind: str) -> Iterator[str]:
    """Make an upgraded database of a kind."""
    with TemporaryDirectory() as folder:
        if kind == "sqlite":
            yield _upgraded(f"sqlite:///{folder}/jobs.db")
        else:
            with services.own_database(kind) as url:
                yield _upgraded(url)


def _upgraded(url: str) -> str:
    database = Database(read_settings({"tm_database_url": url}, {}))
    schema.upgrade(database)
    database.dispose()
    return url


def main() -> None:
    """Go through all scenarios on all databases, and write the list."""
    found: dict[str, Listed] = {}
    for kind in LETTERS:
        with database_of(kind) as url, closing(opened(url)) as world:
            found[kind] = where_certain(
                {str(one): [[point.name for point in passed(world, one)] for _ in range(RUNS)] for one in SCENARIOS}
            )
    write(found)
    print(*(f"{kind}: {len(set().union(*names.values()))} names" for kind, names in found.items()), sep="\n")


if __name__ == "__main__":
    main()
