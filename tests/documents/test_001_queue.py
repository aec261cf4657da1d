"""Document 001: enqueue, run, visibility timeout, backoff, dead letters, and one command that does it all."""

from __future__ import annotations

from typing import Any

from celery_tm import defer


def runner(site: Any) -> Any:
    process = site._start(f"run{len(site.processes)}", ["tm", "run", "-c", "2"])
    site.wait_for_text(process, "running jobs of")
    return process


def test_the_queue_is_worked_off_by_one_command(open_site: Any) -> None:
    site = open_site("queue", broker_url="redis://127.0.0.1:1/0", tm_publish_retry={"max_retries": 0})
    webhook = site.app.tasks["webhook"]
    handle = defer(webhook.s("at once"))
    later = defer(webhook.s("later"), delay="1500ms")
    job = site.tm.job(later.id).job
    assert (job.task, job.args, job.attempt, job.max_retries, job.last_error) == ("webhook", '["later"]', 1, 2, None)
    assert job.run_at == later.run_at
    runner(site)

    site.wait(lambda: site.seen("later"), what="the later one")
    assert site.seen("at", "once") == site.seen("later") == 1
    site.wait_until_settled()
    assert site.tm.job(handle.id).state == "SUCCEEDED"  # acknowledged: it is gone from the queue


def test_what_its_holder_does_not_finish_becomes_visible_again(open_site: Any) -> None:
    site = open_site("queue", broker_url="redis://127.0.0.1:1/0", tm_lease=2)
    defer(site.app.tasks["webhook"].s("slow"))
    first = runner(site)
    site.wait(lambda: site.seen("slow", 1), what="its beginning")
    first.kill()
    runner(site)

    site.wait(lambda: site.seen("slow", 2), what="the second holder")
    site.wait_until_settled()
    assert site.outcomes() == {"orphaned": 1, "succeeded": 1}


def test_failures_back_off_by_base_times_attempts_and_end_as_a_dead_letter(open_site: Any) -> None:
    site = open_site("queue", broker_url="redis://127.0.0.1:1/0")
    handle = defer(site.app.tasks["webhook"].s("refused"))
    runner(site)

    site.wait(lambda: site.tm.dead_letters.list(), what="the dead letter")
    tries = [float(line[2]) for line in site.effects("refused")]
    assert len(tries) == 3
    assert tries[1] - tries[0] >= 0.4
    assert tries[2] - tries[1] >= 0.8
    [letter] = site.tm.dead_letters.list()
    assert letter.job.id == handle.id
    assert "503 Service Unavailable" in letter.job.last_error
    site.tm.dead_letters.revive(handle.id)
    site.wait(lambda: len(site.effects("refused")) == 6, what="three more tries")
    site.wait(lambda: site.tm.dead_letters.list(), what="the dead letter, again")
    site.tm.dead_letters.purge(all=True)
    assert not site.tm.dead_letters.list()
    assert len(site.tm.job(handle.id).executions) == 6  # what happened stays on record
