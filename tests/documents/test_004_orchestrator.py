"""Document 004: queues by environment, windows, stuck jobs, groups and logs, with real processes."""

from __future__ import annotations

from typing import Any
from zoneinfo import ZoneInfo

from celery_tm import defer

ALIASES = {"azure": "azure-queue", "onprem": "onprem-queue"}


def test_jobs_go_to_the_queue_of_their_environment_and_keep_their_logs(open_site: Any) -> None:
    site = open_site("orchestrator", tm_queue_aliases=ALIASES, tm_default_queue="azure-queue")
    prefix = site.conf["broker_transport_options"]["global_keyprefix"]
    assert prefix  # the queues below are this test's own
    site.beat()
    azure, onprem = site.worker("-Q", "azure-queue"), site.worker("-Q", "onprem-queue")
    for name, queue in (("cloud", None), ("local", "onprem"), ("broken", "azure")):
        added = {"queue": queue} if queue else {}
        site.tm.definitions.add(name=name, task="package", args=[name], schedule="@daily", **added)
        site.tm.trigger(name)
    site.wait(lambda: len(site.effects("package")) == 3, what="the three packages")

    ran_on = {line[1]: line[2] for line in site.effects("package")}
    assert ran_on == {"cloud": f"{azure.name}@test", "local": f"{onprem.name}@test", "broken": f"{azure.name}@test"}
    site.wait_until_settled()
    [execution] = site.tm.history("broken")
    lines = [(line.level, line.message) for line in site.tm.log(execution.job)]
    assert lines == [("info", "running broken"), ("error", "no code file")]


def test_windows_fire_inside_their_hours_and_groups_are_switched_together(open_site: Any) -> None:
    site = open_site("orchestrator")
    window = "every 1h from 06:00 until 09:00 on mon-fri"
    zone = "America/Los_Angeles"
    coming = [one.astimezone(ZoneInfo(zone)) for one in site.tm.preview(schedule=window, timezone=zone, count=7)]
    assert {one.hour for one in coming} == {6, 7, 8, 9}
    assert {one.weekday() for one in coming} <= set(range(5))

    add = site.tm.definitions.add
    add(name="all day", task="package", args=["all day"], schedule="every 1s from 00:00 until 23:59:59", group="stock")
    add(name="often", task="package", args=["often"], schedule="every 1s", group=["stock", "nightly"])
    add(name="other", task="package", args=["other"], schedule="every 1s", group="other")
    site.beat(), site.worker()
    site.wait(lambda: {"all day", "often", "other"} <= names(site), what="all of them")
    site.tm.pause(group="stock", reason="stocktaking")
    site.wait(lambda: not site.tm.jobs(definition="often") and not site.tm.jobs(definition="all day"), what="their end")
    counts = {name: site.seen("package", *name.split()) for name in ("all day", "often", "other")}
    site.wait(lambda: site.seen("package", "other") >= counts["other"] + 2, what="the other group")
    assert site.seen("package", "often") == counts["often"]
    assert site.seen("package", "all", "day") == counts["all day"]
    assert {one.name for one in site.tm.definitions.list(group="nightly")} == {"often"}


def test_a_stuck_job_is_recorded_and_tried_again(open_site: Any) -> None:
    site = open_site("orchestrator", tm_lease=2)
    site.beat(), site.worker("-P", "threads")
    handle = defer(site.app.tasks["hangs"].s())
    site.wait(lambda: handle.state == "SUCCEEDED", seconds=60, what="the second attempt")
    assert [one.outcome for one in reversed(site.tm.job(handle.id).executions)] == ["stale", "succeeded"]


def names(site: Any) -> set[str]:
    return {" ".join(line[1:-1]) for line in site.effects("package")}
