"""What can be combined: each dimension with its values, and which values cannot meet.

Plain data. A case is one value of each dimension. `covering` makes cases such that every valid pair of values meets in one
of them, `model` says what must come of a case, and `app`, `calls` and `stage` carry it out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

Values = Mapping[str, str]

# A stage is what all its cases share: the database, the broker, and what happens to the servers or workers meanwhile.
STAGES = (
    "postgresql redis quiet",
    "mysql rabbitmq quiet",
    "sqlite files quiet",
    "postgresql rabbitmq kill",
    "mysql redis kill",
    "sqlite redis kill",
    "postgresql redis outage",
    "mysql redis outage",
    "postgresql redis read-only",
    "mysql rabbitmq read-only",
    "postgresql redis snapshots",  # the database's default isolation is REPEATABLE READ
    "postgresql files quiet",
    "sqlite files inline",  # no worker and no beat: `run_due_jobs()`
    "postgresql redis two-apps",  # another app has its jobs and definitions in the same database
    "postgresql redis behind",  # no beat has run for a day, and many entries are to be caught up
)
OWN_SERVER = ("outage", "read-only")  # what hurts the database, which is then the stage's own

DIMENSIONS: Mapping[str, tuple[str, ...]] = {
    "stage": STAGES,
    "pool": ("prefork", "threads", "gevent", "solo", "inline"),
    "call": (
        "defer", "defer_many", "delay", "far_eta", "chain", "chord", "group", "link", "definition", "step", "chunk",
        "replay", "cancel",
    ),
    "base": ("durable", "plain"),
    "key": ("none", "by position", "by name"),
    "limit": ("none", "by position", "by name"),  # a concurrency key
    "transactional": ("no", "yes"),
    "acks": ("early", "late"),
    "retry": ("fixed", "never"),
    "chunk": ("no", "yes"),
    "time": ("none", "limit"),
    "hook": (
        "none", "before_start", "before_start raises", "on_failure", "on_success rejects", "call", "call raises",
        "call returns", "track_started", "attributes",
    ),
    "body": (
        "returns", "raises", "flaky", "retries", "replaces", "rejects", "ignores", "cancels itself", "cancels entity",
        "defers", "reports", "commits", "rolls back", "savepoints", "swallows", "overruns", "long", "nested", "async",
    ),
    "argument": ("text", "large", "nan"),
    "transaction": (
        "none", "committed", "rolled back", "savepoint rolled back", "closed", "repeatable read", "two-phase", "held open",
    ),
    "fault": ("none", "row locked", "redelivery", "queue refused"),
}  # fmt: skip

DIRECT = ("delay", "chain", "chord", "group", "link")  # calls that reach the broker as in plain Celery
JOINING = ("defer", "defer_many", "cancel")  # calls that take a session
OF_DEFINITIONS = ("definition", "replay", "step")
WRITES = ("commits", "rolls back", "savepoints", "swallows")  # what only a transactional body can do
ENDS_EARLY = ("before_start raises", "call raises", "call returns")  # hooks after which no body runs
UNDONE = ("rolled back", "savepoint rolled back", "closed")  # transactions that come to nothing
SETTLED = (
    "returns",
    "flaky",
    "retries",
    "replaces",
    "defers",
    "reports",
    "commits",
    "long",
    "nested",
)  # bodies that end well


def database_of(values: Values) -> str:
    """Return the database of a case's stage."""
    return values["stage"].split()[0]


def broker_of(values: Values) -> str:
    """Return the broker of a case's stage."""
    return values["stage"].split()[1]


def trouble_of(values: Values) -> str:
    """Return what happens to the servers or workers of a case's stage."""
    return values["stage"].split()[2]


@dataclass(frozen=True)
class Constraint:
    """A rule that some dimensions keep: it is asked only where all of them have a value."""

    about: tuple[str, ...]
    holds: Callable[[Values], bool]
    why: str


def _only(name: str, *values: str) -> Callable[[Values], bool]:
    return lambda case: case[name] in values


def _if(condition: Callable[[Values], bool], then: Callable[[Values], bool]) -> Callable[[Values], bool]:
    return lambda case: not condition(case) or then(case)


def _rule(when: tuple[str, tuple[str, ...]], then: tuple[str, tuple[str, ...]], why: str) -> Constraint:
    """Return a rule of the form: if this dimension has one of these values, that one has one of those."""
    return Constraint((when[0], then[0]), _if(_only(when[0], *when[1]), _only(then[0], *then[1])), why)


def _others(name: str, *values: str) -> tuple[str, ...]:
    return tuple(value for value in DIMENSIONS[name] if value not in values)


def _plain(name: str, *values: str) -> Constraint:
    return _rule(("base", ("plain",)), (name, values), "a plain task has none of our options, and its calls are Celery's")


CONSTRAINTS: tuple[Constraint, ...] = (
    _plain("call", "defer", "defer_many", "delay", "definition"),
    _plain("key", "none"),
    _plain("limit", "none"),
    _plain("transactional", "no"),
    _plain("chunk", "no"),
    _plain("retry", "never"),
    _plain("time", "none"),
    _plain("hook", "none", "attributes"),
    _plain("body", "returns", "raises"),
    _plain("argument", "text"),
    _plain("fault", "none"),
    _rule(("hook", ("attributes",)), ("base", ("plain",)), "attributes of a foreign task that are named as ours"),
    _rule(("transactional", ("yes",)), ("chunk", ("no",)), "a transactional body commits alone"),
    _rule(("body", WRITES), ("transactional", ("yes",)), "only a transactional body has a session"),
    _rule(("transaction", _others("transaction", "none")), ("call", JOINING), "the others take no session"),
    _rule(("call", ("chunk",)), ("chunk", ("yes",)), "that is what the call is about"),
    _rule(("hook", ENDS_EARLY), ("body", ("returns",)), "the body does not run"),
    _rule(("hook", ("call returns",)), ("key", ("none",)), "nothing ran that a key could stand for"),
    _rule(("body", ("overruns",)), ("time", ("limit",)), "there must be a limit to overrun"),
    _rule(("body", ("overruns",)), ("pool", ("prefork",)), "other pools have no limits"),
    _rule(("body", ("overruns", "long")), ("chunk", ("no",)), "a chunk runs its jobs one after the other"),
    _rule(("body", ("long",)), ("pool", ("prefork", "threads", "gevent")), "a solo worker would do nothing else"),
    _rule(("argument", ("large", "nan")), ("call", DIRECT), "defer refuses what it cannot keep"),
    _rule(
        ("argument", ("large", "nan")), ("body", ("returns", "reports", "ignores", "rejects", "long", "defers")), "no retry"
    ),
    _rule(("argument", ("large",)), ("stage", tuple(s for s in STAGES if "files" not in s)), "files are slow with it"),
    _rule(("call", OF_DEFINITIONS), ("key", ("none",)), "an occurrence is what makes a run unique"),
    _rule(("call", OF_DEFINITIONS), ("limit", ("none",)), "a definition states its own"),
    _rule(("body", ("async",)), ("call", _others("call", *OF_DEFINITIONS)), "a task that is refused cannot be planned"),
    _rule(("call", ("cancel",)), ("body", ("returns", "reports", "defers", "commits")), "the body is not to run"),
    _rule(("call", ("cancel",)), ("hook", ("none", "before_start", "on_failure", "call")), "the body is not to run"),
    _rule(
        ("call", ("chord",)), ("body", _others("body", "ignores", "cancels itself", "cancels entity")), "it waits, as plain"
    ),
    _rule(
        ("call", ("definition", "replay")),
        ("body", _others("body", "cancels itself", "cancels entity", "long")),
        "runs meet",
    ),
    _rule(("fault", ("row locked",)), ("body", ("long",)), "it must run when its row is locked"),
    _rule(("fault", ("row locked",)), ("call", ("defer", "defer_many", "delay")), "whose ids are known"),
    _rule(("fault", ("row locked",)), ("transaction", ("none", "committed")), "it must run"),
    _rule(("fault", ("row locked",)), ("key", ("none",)), "each call is a job"),
    _rule(("fault", ("row locked",)), ("limit", ("none",)), "they run at one time"),
    _rule(("fault", ("queue refused",)), ("call", ("defer", "defer_many")), "the caller sees that a direct call is refused"),
    _rule(("fault", ("queue refused",)), ("body", ("returns",)), "it is about the way there"),
    _rule(("fault", ("queue refused",)), ("transaction", ("none", "committed")), "it must be published"),
    _rule(("body", ("long",)), ("limit", ("none",)), "one after the other would take minutes"),
    _rule(("body", ("long",)), ("time", ("none",)), "it would overrun"),
    _rule(("transaction", UNDONE), ("body", ("returns", "raises", "defers", "async")), "nothing is to run"),
    _rule(("transaction", UNDONE), ("hook", ("none", "before_start")), "nothing is to run"),
    Constraint(
        ("stage", "pool"),
        lambda case: (trouble_of(case) == "inline") == (case["pool"] == "inline"),
        "inline is a stage without workers",
    ),
    Constraint(
        ("stage", "call"),
        lambda case: trouble_of(case) != "inline" or case["call"] in ("defer", "defer_many", "definition", "cancel"),
        "run_due_jobs() runs what is in the table",
    ),
    Constraint(
        ("stage", "body"),
        lambda case: (
            trouble_of(case) != "inline" or case["body"] not in ("replaces", "swallows", "rejects", "ignores", "async")
        ),
        "a retry or a message would need a worker",
    ),
    Constraint(
        ("stage", "fault"),
        lambda case: (
            case["fault"] == "none"
            or (
                (trouble_of(case) == "quiet" and (case["fault"] == "redelivery" or database_of(case) != "sqlite"))
                and not (case["fault"] == "queue refused" and broker_of(case) == "files")
            )
        ),
        "SQLite has one lock for all, and one trouble at a time can be explained",
    ),
    Constraint(
        ("stage", "transaction"),
        lambda case: {
            "two-phase": database_of(case) == "mysql",
            "repeatable read": database_of(case) != "sqlite",
            "held open": database_of(case) != "sqlite" and trouble_of(case) in ("quiet", "snapshots"),
            "savepoint rolled back": database_of(case) != "sqlite",
        }.get(case["transaction"], True),
        "what the database can do; SQLite has one lock for all writers",
    ),
    Constraint(
        ("stage", "body"),
        lambda case: database_of(case) != "sqlite" or case["body"] not in ("swallows", "savepoints", "long"),
        "SQLite has no deadlocks, its driver no savepoints, and a long transaction bars all others",
    ),
)


def allows(values: Values) -> bool:
    """Say whether these values can meet; dimensions without a value break no rule."""
    return all(rule.holds(values) for rule in CONSTRAINTS if all(name in values for name in rule.about))
