"""The rules of `doctor`: from facts to findings, each with what to do about it. Pure, so each has a test without servers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from fnmatch import fnmatchcase

from ..errors import nearest
from .findings import Check, Facts, Finding, Level, names, told
from .queues import UNBLOCKING
from .workflow import TASK

SKEW, BAD_SKEW = timedelta(seconds=2), timedelta(seconds=30)
LATE = timedelta(minutes=1)
AGAIN, TOO_OFTEN = 2, 4  # how often a job was handed to the broker and did not start
LONG, TIMES_USUAL = timedelta(minutes=5), 5  # from when on an attempt may run far longer than usual
PAUSED_LONG = timedelta(days=7)
BEHIND = timedelta(days=2)
MOST = 10  # objects that a finding names
SECOND = timedelta(seconds=1)
Look = Callable[[Facts], Iterator[Finding]]


def schema(facts: Facts) -> Iterator[Finding]:
    """Are the tables there, and of this release?"""
    if facts.database_error:
        advice = "check tm_database_url (or TM_DATABASE_URL) and that the server runs"
        yield Finding(level=Level.ERROR, check="schema", text=facts.database_error, advice=advice)
    elif facts.schema_found is None:
        text = f"there are no celery_tm tables in {facts.database}"
        yield Finding(level=Level.ERROR, check="schema", text=text, advice="run `celery -A app tm schema upgrade`")
    elif facts.schema_found < facts.schema_needed:
        text = f"the tables are at {facts.schema_found}, this release needs {facts.schema_needed}"
        yield Finding(level=Level.ERROR, check="schema", text=text, advice="run `celery -A app tm schema upgrade`")
    elif facts.schema_found > facts.schema_needed:
        text = f"the tables are at {facts.schema_found}, this release knows {facts.schema_needed}: another node is newer"
        advice = "finish the upgrade: install the newer release here too"
        yield Finding(level=Level.WARNING, check="schema", text=text, advice=advice)


def clocks(facts: Facts) -> Iterator[Finding]:
    """Does this machine's clock agree with the database's?"""
    if facts.ahead is None or abs(facts.ahead) < SKEW:
        return
    way = "ahead of" if facts.ahead > timedelta(0) else "behind"
    text = f"this machine's clock is {told(abs(facts.ahead))} {way} the database's"
    advice = "start NTP or chrony on both; leases and due checks go by the database's clock, logs and ETAs by this one"
    level = Level.WARNING if abs(facts.ahead) >= BAD_SKEW else Level.NOTE
    yield Finding(level=level, check="clocks", text=text, advice=advice)


def broker(facts: Facts) -> Iterator[Finding]:
    """Does the broker answer?"""
    if facts.broker_error:
        text = f"{facts.broker} does not answer: {facts.broker_error}"
        advice = "check broker_url and that the server runs; jobs wait in the database until then, none is lost"
        yield Finding(level=Level.ERROR, check="broker", text=text, advice=advice)


def beats(facts: Facts) -> Iterator[Finding]:
    """Is a beat of ours running?"""
    assert facts.status is not None
    beats = [node for node in facts.status.nodes if node.kind == "beat"]
    seen, whose = max((node.seen_at for node in beats), default=None), ""
    if any(not node.is_silent for node in beats):
        if facts.is_served:  # else it is another app's
            return
        seen, whose = facts.beats_seen.get(facts.app), f" of the app {facts.app!r}" if facts.app else " of this app"
    text = f"no beat{whose} is running" + (f"; the last one was seen at {seen:%Y-%m-%d %H:%M:%S} UTC" if seen else "")
    advice = "run `celery -A app beat -S celery_tm.Scheduler`; without it nothing recurring fires and no retry is sent"
    yield Finding(level=Level.ERROR, check="beats", text=text, advice=advice)


def silent_nodes(facts: Facts) -> Iterator[Finding]:
    """Has a node stopped without signing off?"""
    assert facts.status is not None
    silent = [node for node in facts.status.nodes if node.is_silent]
    if silent:
        text = f"{names([node.name for node in silent])} stopped answering without signing off"
        advice = "look at its machine: it was killed, or cannot reach the database; what it ran is tried again by itself"
        objects = [node.name for node in silent][:MOST]
        yield Finding(level=Level.WARNING, check="silent nodes", text=text, advice=advice, objects=objects)


def versions(facts: Facts) -> Iterator[Finding]:
    """Do all nodes run the same release?"""
    assert facts.status is not None
    others = [node for node in facts.status.nodes if not node.is_silent and node.version != facts.version]
    if others:
        which = sorted({node.version for node in others})
        text = f"{names([node.name for node in others])} run {', '.join(which)}, this is {facts.version}"
        objects = [node.name for node in others][:MOST]
        advice = "finish the upgrade, so that all nodes run the same release"
        yield Finding(level=Level.NOTE, check="versions", text=text, advice=advice, objects=objects)


def due_work(facts: Facts) -> Iterator[Finding]:
    """Is due work claimed in time?"""
    status = facts.status
    assert status is not None
    if status.oldest_due is None or status.lag < max(LATE, facts.settings.tm_poll_interval * 10).total_seconds():
        return
    waited = told(timedelta(seconds=status.lag))
    text = f"{status.jobs['due']:,} jobs are due and not claimed; the oldest, of {status.oldest_due.task}, waits {waited}"
    advice = "see that a beat runs and reaches the broker; with much work raise tm_claim_batch or start a second beat"
    if status.max_in_flight is not None and status.in_flight >= status.max_in_flight:
        text += f"; tm_max_in_flight ({status.max_in_flight}) is reached"
        advice = "start more workers, or raise tm_max_in_flight"
    yield Finding(level=Level.ERROR, check="due work", text=text, advice=advice, objects=[status.oldest_due.id])


def dispatches(facts: Facts) -> Iterator[Finding]:
    """Do messages arrive at a worker before they are taken for lost?"""
    again = [one for one in facts.dispatched_again if one[2] >= AGAIN]
    if not again:
        return
    most = max(times for _, _, times in again)
    tasks = names(sorted({task for _, task, _ in again}))
    text = f"{len(again)} jobs ({tasks}) were handed to the broker up to {most} times and have not started"
    lease = told(facts.settings.tm_dispatch_lease)
    advice = (
        "see that a worker consumes their queue and has their tasks; "
        f"if messages wait longer than {lease} in the queue, start more workers or raise tm_dispatch_lease"
    )
    level = Level.WARNING if most >= TOO_OFTEN else Level.NOTE
    objects = [job for job, _, _ in again][:MOST]
    yield Finding(level=level, check="dispatches", text=text, advice=advice, objects=objects)


def expired_leases(facts: Facts) -> Iterator[Finding]:
    """Does beat sweep what has lost its worker?"""
    status = facts.status
    assert status is not None
    if status.expired_leases:
        text = f"the lease of {status.expired_leases:,} jobs in flight has ended and nobody has swept them yet"
        advice = "beat does it within seconds; if this stays, see that one runs and read its log"
        yield Finding(level=Level.NOTE, check="expired leases", text=text, advice=advice)


def long_running(facts: Facts) -> Iterator[Finding]:
    """Does anything run far longer than it usually does?"""
    known = [(job, task, running, usual) for job, task, running, usual in facts.running_longest if usual is not None]
    odd = [one for one in known if is_unusually_long(one[2], usual=one[3])]
    if not odd:
        return
    job, task, running, usual = odd[0]
    text = f"{task} has been running for {told(running)} (job {job}) and usually takes {told(usual)}"
    text += f"; so do {len(odd) - 1} more" if len(odd) > 1 else ""
    advice = (
        "`celery -A app tm jobs show ID` shows its worker and its progress; state max_duration= for its task, after which "
        f"an attempt is given up and retried (now {told(facts.settings.tm_stuck_after)}, tm_stuck_after, if it states none)"
    )
    objects = [one[0] for one in odd][:MOST]
    yield Finding(level=Level.WARNING, check="long running", text=text, advice=advice, objects=objects)


def is_unusually_long(running: timedelta, *, usual: timedelta) -> bool:
    """Say whether an attempt has run for at least `LONG`, and for many times as long as usual."""
    return running >= max(LONG, usual * TIMES_USUAL)


def occurrences(facts: Facts) -> Iterator[Finding]:
    """Will every occurrence that is owed end by itself?"""
    if facts.stuck:
        text = f"{len(facts.stuck)} occurrences are owed or run past their deadline, and nothing is left that ends them"
        advice = "see that a beat runs, which reaps them; then `celery -A app tm replay ID --reason …` runs one again"
        objects = list(facts.stuck)[:MOST]
        yield Finding(level=Level.WARNING, check="occurrences", text=text, advice=advice, objects=objects)


def unknown_tasks(facts: Facts) -> Iterator[Finding]:
    """Has this app every task that is to run?"""
    if facts.known_tasks is None:
        text = "this app has no tasks of its own, so it cannot tell whether those of its definitions exist"
        yield Finding(level=Level.NOTE, check="tasks", text=text, advice="run doctor with the app that the workers load")
        return
    missing = [task for task in {**facts.tasks_of_definitions, **facts.tasks_owed} if _is_missing(task, facts.known_tasks)]
    for task in sorted(missing):
        near = nearest(task, facts.known_tasks)
        who = [f"definition {name}" for name in facts.tasks_of_definitions.get(task, ())]
        who += [f"{facts.tasks_owed[task]:,} jobs"] if task in facts.tasks_owed else []
        text = f"{names(who)} would run {task!r}, which this app does not have" + (f" (it has {near!r})" if near else "")
        advice = "import its module (imports, include or autodiscover_tasks), or edit the definition"
        yield Finding(level=Level.WARNING, check="tasks", text=text, advice=advice, objects=[task])


def _is_missing(task: str, known: frozenset[str]) -> bool:
    return task != TASK and task not in known


def next_runs(facts: Facts) -> Iterator[Finding]:
    """Will every definition that is on fire again?"""
    if facts.never_again:
        text = f"{names(facts.never_again)}: on, but no instant is left to come"
        advice = "edit the schedule or its bounds, or disable it"
        objects = list(facts.never_again)[:MOST]
        yield Finding(level=Level.WARNING, check="next runs", text=text, advice=advice, objects=objects)
    if facts.spent:
        text = f"{names(facts.spent)}: ran as often as max_runs allows"
        objects = list(facts.spent)[:MOST]
        advice = "raise max_runs, or remove it if it is done"
        yield Finding(level=Level.NOTE, check="next runs", text=text, advice=advice, objects=objects)


def leases(facts: Facts) -> Iterator[Finding]:
    """Is the lease long enough for what runs?"""
    lease, renewal = facts.settings.tm_lease, timedelta(seconds=facts.settings.renew_every)
    if facts.statement is not None and facts.statement * 2 > renewal:
        text = f"a statement takes {told(facts.statement)}, and a lease of {told(lease)} is renewed every {told(renewal)}"
        advice = "raise tm_lease, or bring the database nearer"
        yield Finding(level=Level.ERROR, check="leases", text=text, advice=advice)
    if facts.orphaned:
        tasks = sorted(facts.orphaned, key=lambda task: -facts.orphaned[task])
        text = f"{sum(facts.orphaned.values()):,} executions of the last day lost their lease ({names(tasks)})"
        advice = (
            "if their workers were killed (out of memory, a deployment), see to that; if not, a body that lets no other "
            f"thread run, or a slow database, kept the lease of {told(lease)} from being renewed: raise tm_lease"
        )
        yield Finding(level=Level.WARNING, check="leases", text=text, advice=advice, objects=tasks[:MOST])


def acknowledgements(facts: Facts) -> Iterator[Finding]:
    """Does the broker wait long enough before it delivers again?"""
    if facts.visibility is None:
        return
    limit = told(facts.visibility)
    long = sorted(
        task
        for task, own in facts.late_tasks.items()
        if max(own or SECOND, facts.longest.get(task, SECOND)) > facts.visibility
    )
    if long:
        text = f"{names(long)} acknowledge late and may run longer than the broker's visibility_timeout of {limit}"
        advice = "raise broker_transport_options['visibility_timeout'], or leave out acks_late: the lease recovers the work"
        yield Finding(level=Level.WARNING, check="acknowledgements", text=text, advice=advice, objects=long[:MOST])
    if facts.settings.tm_capture_eta_after > facts.visibility:
        text = f"ETAs up to {told(facts.settings.tm_capture_eta_after)} ahead wait in workers, the broker waits only {limit}"
        advice = "lower tm_capture_eta_after: they wait in the job table then"
        yield Finding(level=Level.WARNING, check="acknowledgements", text=text, advice=advice)


def dead_letters(facts: Facts) -> Iterator[Finding]:
    """Does anything wait for a person?"""
    status = facts.status
    assert status is not None
    if not status.dead_letters or facts.last_buried_at is None:
        return
    plus = "+" if "dead_letters" in status.capped else ""
    text = f"{status.dead_letters:,}{plus} dead letters, the latest of {facts.last_buried_at:%Y-%m-%d %H:%M:%S} UTC"
    advice = "`celery -A app tm dead-letters list` shows them; revive or purge them"
    level = Level.WARNING if status.now - facts.last_buried_at < timedelta(days=1) else Level.NOTE
    yield Finding(level=level, check="dead letters", text=text, advice=advice)


def retention(facts: Facts) -> Iterator[Finding]:
    """Is what is too old deleted?"""
    assert facts.status is not None
    keep = {"executions": facts.settings.tm_keep_executions, "logs": facts.settings.tm_keep_logs}
    for kind, oldest in facts.oldest.items():
        age = facts.status.now - oldest
        if age > keep[kind] + BEHIND:
            text = f"{kind} are kept for {told(keep[kind])}, and the oldest is of {oldest:%Y-%m-%d}"
            advice = "run `celery -A app tm prune` (again until it is finished), and see that a beat runs, which prunes too"
            yield Finding(level=Level.WARNING, check="retention", text=text, advice=advice)


def keys(facts: Facts) -> Iterator[Finding]:
    """Is a key kept until the next run that may have the same one?"""
    for one in facts.short_keys[:MOST]:
        text = (
            f"the keys of {one.task} are kept for {told(one.kept)} after a success, and {one.definition} runs it every "
            f"{told(one.period)}: the same key would run again"
        )
        advice = f"give the task keep_key= of more than {told(one.period)}, or raise tm_keep_keys"
        yield Finding(level=Level.WARNING, check="keys", text=text, advice=advice, objects=[one.definition])


def paused(facts: Facts) -> Iterator[Finding]:
    """Was a definition paused and forgotten?"""
    assert facts.status is not None
    long = [(name, since) for name, since in facts.paused if facts.status.now - since > PAUSED_LONG]
    if long:
        text = f"{names([name for name, _ in long])}: paused since {min(since for _, since in long):%Y-%m-%d}"
        advice = "`celery -A app tm definitions resume NAME`, or disable it for good"
        objects = [name for name, _ in long][:MOST]
        yield Finding(level=Level.NOTE, check="paused", text=text, advice=advice, objects=objects)


def settings(facts: Facts) -> Iterator[Finding]:
    """Is anything stated that changes nothing?"""
    said = facts.settings
    without: list[tuple[str, str]] = []
    if facts.stated_late:
        text = f"{names(facts.stated_late)} changed after celery_tm had read its settings, which it does once"
        without.append((text, "state them before TimeManagement(app), or pass them to easy_app()"))
    if said.tm_schema is not None and facts.dialect != "postgresql":
        without.append(("tm_schema is set, but only PostgreSQL has schemas", "leave it out"))
    if said.tm_dispatch_lease <= said.tm_poll_interval:
        text = f"tm_dispatch_lease ({told(said.tm_dispatch_lease)}) is not longer than tm_poll_interval"
        without.append((text, "raise tm_dispatch_lease: every message would be sent again at each look"))
    if said.tm_admins is not None and not said.tm_admins:
        without.append(("tm_admins names nobody, so nobody may change anything in Flower", "name somebody, or leave it out"))
    for rule in said.tm_redact if facts.known_tasks else ():
        task = rule.rpartition(":")[0]
        if task and not any(fnmatchcase(known.lower(), task.lower()) for known in facts.known_tasks or ()):
            without.append((f"the tm_redact rule {rule!r} fits no task of this app", "check its spelling"))
    yield from (Finding(level=Level.NOTE, check="settings", text=text, advice=advice) for text, advice in without)


def unreadable_rows(facts: Facts) -> Iterator[Finding]:
    """Can this release read what is in the tables?"""
    for table in dict.fromkeys(row.table for row in facts.unreadable):
        bad = [row for row in facts.unreadable if row.table == table]
        text = f"{len(bad)} rows of {table} cannot be read, e.g. {bad[0].id}: {bad[0].error}"
        advice = f"finish the upgrade if another release wrote them, or `celery -A app tm rows remove {table} {bad[0].id}`"
        objects = [row.id for row in bad][:MOST]
        yield Finding(level=Level.WARNING, check="rows", text=text, advice=advice, objects=objects)


def definitions(facts: Facts) -> Iterator[Finding]:
    """Can every definition be planned, and is it planned in time?"""
    if facts.broken:
        found = list(facts.broken)
        text = f"{names(found)} cannot be planned here, e.g. {found[0]}: {facts.broken[found[0]]}"
        advice = (
            "install what is missing, correct it with `celery -A app tm definitions edit`, or remove it; "
            "its times are not decided until then"
        )
        yield Finding(level=Level.ERROR, check="definitions", text=text, advice=advice, objects=found[:MOST])
    late = [name for name, _ in facts.overdue if name not in facts.broken]
    if late:
        since = min(at for name, at in facts.overdue if name not in facts.broken)
        text = f"{names(late)}: due since {since:%Y-%m-%d %H:%M:%S} UTC, and no beat has decided it"
        advice = "see that a beat of this app runs, and read its log: it may lack a package, or the row may be locked"
        yield Finding(level=Level.ERROR, check="definitions", text=text, advice=advice, objects=late[:MOST])


def queues(facts: Facts) -> Iterator[Finding]:
    """Does the broker take messages for every queue?"""
    for place, (count, error) in sorted(facts.blocked.items()):
        kind, _, name = place.partition(" ")
        text = f"{place} cannot be used: {error}; {count} {'job waits' if count == 1 else 'jobs wait'}"
        advice = f"{UNBLOCKING[kind]}, or grant the broker's user the right to it; the jobs go on within a minute then"
        yield Finding(level=Level.ERROR, check="queues", text=text, advice=advice, objects=[name])


def apps(facts: Facts) -> Iterator[Finding]:
    """Has every app that has rows here a beat?"""
    if facts.strays:
        shown = names([repr(name) if name else "no app" for name in facts.strays])
        text = f"definitions or jobs of {shown} wait, and no beat of theirs is running"
        advice = (
            "start a beat of that app, or set tm_app where they are written; if the app has another name now, "
            "`celery -A app tm take-over NAME` moves them to it"
        )
        yield Finding(level=Level.WARNING, check="apps", text=text, advice=advice, objects=list(facts.strays)[:MOST])


def declared(facts: Facts) -> Iterator[Finding]:
    """Do files and code say what the definitions are?"""
    if facts.conflicts:
        first, fields = next(iter(facts.conflicts.items()))
        text = f"{names(list(facts.conflicts))}: a file or beat_schedule changes what a person has changed, e.g. {first}: "
        advice = (
            "edit the definition or the file so that both say the same, or let the file win with "
            "`celery -A app tm definitions load --force`"
        )
        objects = list(facts.conflicts)[:MOST]
        yield Finding(level=Level.WARNING, check="edits", text=text + ", ".join(fields), advice=advice, objects=objects)


CHECKS: Sequence[Check] = (
    Check("schema", "the tables are of this release", schema, needs_tables=False),
    Check("clocks", "this machine's clock agrees with the database's", clocks),
    Check("broker", "the broker answers", broker, needs_tables=False),
    Check("queues", "the broker takes messages for every queue", queues),
    Check("beats", "a beat is running", beats),
    Check("silent nodes", "every node that was seen still answers, or has signed off", silent_nodes),
    Check("versions", "all nodes run the same release", versions),
    Check("due work", "what is due is claimed", due_work),
    Check("dispatches", "messages arrive before they are taken for lost", dispatches),
    Check("expired leases", "what lost its worker is swept", expired_leases),
    Check("long running", "nothing runs far longer than usual", long_running),
    Check("occurrences", "every occurrence that is owed will end", occurrences),
    Check("rows", "every row that was looked at can be read", unreadable_rows),
    Check("definitions", "every definition can be planned, and is in time", definitions),
    Check("edits", "files and code change nothing that people have changed", declared),
    Check("apps", "every app that has definitions or jobs here has a beat", apps),
    Check("tasks", "this app has every task that is to run", unknown_tasks),
    Check("next runs", "every definition that is on will fire again", next_runs),
    Check("leases", "no lease was too short in the last day", leases),
    Check("acknowledgements", "the broker delivers nothing again that still runs", acknowledgements),
    Check("dead letters", "there are no dead letters", dead_letters),
    Check("retention", "what is too old is deleted", retention),
    Check("keys", "keys are kept until the next run that may have the same one", keys),
    Check("paused", "no definition was paused and forgotten", paused),
    Check("settings", "every setting that is stated has an effect", settings, needs_tables=False),
)
