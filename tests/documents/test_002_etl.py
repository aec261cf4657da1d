"""Document 002: an ETL in steps, paused, edited, crashed, recovered and replayed, with real processes."""

from __future__ import annotations

import time
from collections import Counter
from datetime import timedelta
from itertools import pairwise
from typing import Any

STEPS = [
    [
        {"name": "orders", "task": "etl.extract", "args": ["orders"]},
        {"name": "users", "task": "etl.extract", "args": ["users"]},
    ],
    {"name": "transform", "task": "etl.transform"},
    {"name": "load", "task": "etl.load"},
    {"name": "tidy", "task": "etl.tidy", "cleanup": True},
]


def runs(site: Any, state: str) -> list[Any]:
    return list(site.tm.occurrences("nightly", state=state, limit=200))


def test_a_nightly_etl_is_paused_edited_crashed_recovered_and_replayed(open_site: Any) -> None:
    site = open_site("etl", tm_lease=2)
    site.tm.definitions.add(name="nightly", schedule="every 2s", steps=STEPS, overlap="queue", recovery="all")
    begun = site.tm.definitions.get("nightly").next_run_at
    beat, worker = site.beat(), site.worker(concurrency=4)

    # It runs, each step once, in order.
    site.wait(lambda: runs(site, "completed"), seconds=60, what="the first run")
    first = runs(site, "completed")[-1]
    report = site.tm.report(first.id)
    assert {step["name"]: step["state"] for step in report["steps"]} == dict.fromkeys(
        ("orders", "users", "transform", "load", "tidy"), "succeeded"
    )

    # Paused, nothing starts; resumed, it goes on with what comes.
    site.tm.pause("nightly", actor="ann", reason="maintenance")
    site.wait(lambda: not unfinished(site), what="the end of what ran")
    before = len(runs(site, "completed"))
    time.sleep(3)
    assert len(runs(site, "completed")) == before
    site.tm.resume("nightly", actor="ann")

    # Edited, the next run has the new rule, and the version that it was planned with.
    edited = [{**step, "args": ["v2"]} if isinstance(step, dict) and step["name"] == "transform" else step for step in STEPS]
    version = site.tm.definitions.update("nightly", steps=edited, actor="bob", reason="new rule").version
    site.wait(lambda: site.seen("transform", "v2"), what="a run with the new rule")
    site.wait(lambda: [one for one in runs(site, "completed") if one.version == version], what="its end")

    # A worker dies in a step and every beat for a while: the step runs again, what was done does not.
    hold = site.effects_file.with_name("hold")
    hold.touch()
    running = site.wait(lambda: [one for one in runs(site, "running") if site.seen("load", 1, one_at(one))], what="a load")[
        0
    ]
    beat.kill(), worker.kill()
    time.sleep(13)  # instants up to ten seconds old still count as on time
    hold.unlink()
    site.beat(), site.worker(concurrency=4)
    site.wait(lambda: site.tm.report(running.id)["state"] == "completed", seconds=60, what="the run that was cut off")
    at = one_at(running)
    counts = Counter(line[0] for line in site.effects() if line[-1] == at)
    assert counts == {"extract": 2, "transform": 1, "load": 2, "tidy": 1}

    # What was missed is made up for, flagged, and every instant is accounted for.
    site.wait(lambda: [one for one in runs(site, "completed") if one.is_recovery], what="the recovery run")
    site.tm.disable("nightly")
    site.wait(lambda: not unfinished(site), what="the end of all")
    planned = sorted(one.scheduled_at for one in site.tm.occurrences("nightly", limit=500) if one.replay_of is None)
    assert planned[0] == begun
    assert {later - earlier for earlier, later in pairwise(planned)} == {timedelta(seconds=2)}

    # Replayed from a step on, with a reason; what came before is kept.
    again = site.tm.replay(first.id, from_step="load", reason="the warehouse lost it", actor="ann")
    site.wait(lambda: again.id in [one.id for one in runs(site, "completed")], what="the replay")
    states = {step["name"]: step["state"] for step in site.tm.report(again.id)["steps"]}
    assert (states["load"], states["tidy"]) == ("succeeded", "succeeded")
    assert Counter(line[0] for line in site.effects() if line[-1] == one_at(first))["extract"] == 2
    assert "the warehouse lost it" in {line.reason for line in site.tm.audit(limit=50)}


def unfinished(site: Any) -> list[Any]:
    return [one for one in site.tm.occurrences("nightly", limit=500) if one.state in ("pending", "queued", "running")]


def one_at(occurrence: Any) -> str:
    return str(occurrence.scheduled_at.timestamp())
