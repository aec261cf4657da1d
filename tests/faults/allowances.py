"""What looks wrong and is not: each allowance has a name and its reason, and how often it was made use of is counted."""

from __future__ import annotations

from collections.abc import Mapping

ALLOWED: Mapping[str, str] = {
    "ran again": "at least once, plus the gate: a body that was cut off, or ended, before its end was recorded runs "
    "again as another attempt, never as the same one",
    "late body": "a stopped worker's body goes on after its lease was lost; nothing of it is recorded",
    "let in before": "a body that was let in before its key succeeded may begin after that: another attempt took over",
    "died before its body": "a try may be used up without its body having run: the worker died between gate and body",
    "handed back": "a worker that stops, or that loses the process of a chunk, hands attempts back, and no try is used",
    "known before": "the same key twice returns the job that is there, or that has succeeded, with created=False",
    "replaced pending": "on_duplicate=replace gives a pending job a new time and new arguments",
    "never started": "cancelled, expired and deduplicated jobs end with a record that has no start and no worker",
    "ran though cancelled": "a body that does not look at job.cancelled runs to its end: if it returns, it has succeeded",
    "direct call": "a direct call is as safe as plain Celery makes it until its gate has written its row",
    "unknown and absent": "a commit whose answer was lost may not have happened: then nothing of it is there",
    "unknown and whole": "a commit whose answer was lost may have happened: then all promises hold for it",
    "run": "the job of a run gives way to its steps: it has no body, and a failed run leaves the dead letters of its steps",
    "published": "a plain Celery task is done once it is published: no body of ours says that it ended",
    "triggered": "an occurrence that was asked for by hand lies between the instants of its definition",
    "still counted": "the instants of a definition that is switched off are recorded as skipped, as long as a beat runs",
    "failed at its commit": "a transactional body ended, its commit did not come about, and the attempt has failed",
    "taken away": "a fault cut the worker off from its job: the lease ended, and the attempt was orphaned",
    "torn line": "a process that is killed in the middle of a write leaves part of a line",
}
