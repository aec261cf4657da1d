"""Beat as people meet it: edits count at once, short delays are not rounded up to the poll, signals end it politely."""

from __future__ import annotations

import signal
import time
from datetime import timedelta

import pytest
from sqlalchemy import select
from tmtest.stand import Stand

from celery_tm import defer
from celery_tm.domain.job import Status
from celery_tm.store import tables

pytestmark = pytest.mark.alone


def test_definitions_added_edited_and_paused_count_without_a_restart(stand: Stand) -> None:
    beat = stand.beat()
    stand.worker(concurrency=1)
    stand.tm.definitions.add(name="tick", task="effect", args=["old"], schedule="0 0 1 1 *")
    stand.tm.definitions.update("tick", args=["new"], schedule="* * * * * *", overlap="allow")
    stand.wait(lambda: len(stand.effects("effect")) >= 3, what="three ticks of the edited definition")
    assert {line[1] for line in stand.effects("effect")} == {"new"}
    stand.tm.pause("tick")
    stand.wait_until_settled()
    ran = len(stand.effects("effect"))
    stand.wait(lambda: stand.count(tables.occurrence, tables.occurrence.c.state == "skipped") >= 2, what="skipped instants")
    assert len(stand.effects("effect")) == ran
    assert beat.is_running


def test_instants_are_dispatched_on_time_whenever_beat_was_started(stand: Stand) -> None:
    """In each quarter of a second there is one: a beat that sleeps for a fixed time is late for most of them."""
    stand.worker(concurrency=1)
    time.sleep(0.37)
    stand.beat()
    quarters = [f"every 1s from 2026-01-01T00:00:00.{part}+00:00" for part in ("000000", "250000", "500000", "750000")]
    for n, schedule in enumerate(quarters):
        stand.tm.definitions.add(name=f"tick{n}", task="effect", schedule=schedule, overlap="allow", recovery="all")
    stand.wait(lambda: len(stand.effects("effect")) >= 6 * len(quarters), what="six ticks of each")
    for n in range(len(quarters)):
        stand.tm.disable(f"tick{n}")
    stand.wait_until_settled()
    occurrence = tables.occurrence
    query = select(occurrence.c.definition, occurrence.c.scheduled_at, occurrence.c.started_at)
    late: dict[str, list[timedelta]] = {}
    with stand.database.transaction(write=False) as tx:
        for row in tx.execute(query.where(occurrence.c.state == "completed")):
            late.setdefault(row.definition, []).append(row.started_at - row.scheduled_at)
    assert len(late) == len(quarters)
    assert all(wait >= timedelta(0) for waits in late.values() for wait in waits), "nothing starts before its instant"
    for waits in late.values():
        assert sorted(waits)[len(waits) // 2] < timedelta(seconds=0.6), f"half of them start within 0.6 s: {late}"


def test_beat_goes_on_while_a_body_runs(stand: Stand) -> None:
    stand.worker(concurrency=2)
    stand.beat()
    defer(stand.app.tasks["sleepy"].s("long", 20))
    stand.wait(lambda: stand.effects("start"), what="the long body")
    stand.tm.definitions.add(name="tick", task="effect", schedule="* * * * * *", overlap="allow")
    stand.wait(lambda: len(stand.effects("effect")) >= 3, what="three ticks")
    assert stand.effects("end") == [], "none of them waited for the long body"


@pytest.fixture
def lazy_stand(stand: Stand) -> Stand:
    """A stand whose beat looks every twenty seconds only, unless it is woken."""
    if not stand.pair.startswith("postgresql"):
        pytest.skip("only PostgreSQL can wake a beat; the others poll")
    stand.conf["tm_poll_interval"] = 20
    stand.tm.installation.settings = stand.tm.installation.settings.__class__(
        **{
            name: getattr(stand.tm.settings, name)
            for name in stand.tm.settings.__dataclass_fields__
            if name != "tm_poll_interval"
        },
        tm_poll_interval=timedelta(seconds=20),
    )
    return stand


def test_postgresql_wakes_beat_for_short_delays_and_edits(lazy_stand: Stand) -> None:
    stand = lazy_stand
    stand.beat()
    stand.worker(concurrency=1)
    time.sleep(1)  # beat has looked, and would look again in twenty seconds
    began = time.monotonic()
    handle = defer(stand.app.tasks["effect"].s("short"), delay=0.3)
    stand.wait(lambda: handle.state == Status.SUCCEEDED, seconds=10, what="the short delay")
    stand.tm.definitions.add(name="tick", task="effect", args=["tick"], schedule="* * * * * *", overlap="allow")
    stand.wait(
        lambda: [line for line in stand.effects("effect") if line[1] == "tick"], seconds=10, what="the new definition"
    )
    assert time.monotonic() - began < 12


def test_beat_ends_politely_and_signs_off(stand: Stand) -> None:
    beat = stand.beat()
    stand.wait(lambda: stand.count(tables.node, tables.node.c.kind == "beat") == 1, what="beat's row")
    beat.signal_all(signal.SIGTERM)
    stand.wait(lambda: not beat.is_running, seconds=15, what="the end of beat")
    assert stand.count(tables.node) == 0
    assert "Traceback" not in beat.text()


def test_the_entry_point_names_the_same_scheduler(stand: Stand) -> None:
    process = stand._start("beat-tm", ["beat", "-S", "tm", "-l", "INFO", "--pidfile", str(stand.folder / "tm.pid")])
    stand.wait_for_text(process, "celery_tm.scheduler.scheduler.Scheduler")
    stand.wait_for_text(process, "beat: Starting")
