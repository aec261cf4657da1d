"""The `tm_…` settings: read once from the app's configuration and the environment, and typos are refused.

Each field of `Settings` is one setting; its default and its comment here are what the reference page shows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import timedelta
from typing import Any

from .clock import parse_duration
from .errors import InvalidValue, UnknownSetting, nearest, shown

MAX_IDENTIFIER = 50  # PostgreSQL's names end after 63 bytes, and a channel's name has a prefix
NODE_KINDS, MAX_PORT = ("beat", "worker"), 65_535
MAX_APP_NAME = 86
KEPT_SUCCESS = timedelta(days=7)
KEEP_OUTCOMES = ("succeeded", "failed", "cancelled")  # after which a key may be kept
MAX_KEPT = 10_000  # of each task: the row that many back is looked up by index
DEFAULT_URL = "sqlite:///celery_tm.db"
UPDATE_POLICIES = ("immediate", "graceful", "windowed")
COUNTED = ("executions", "occurrences", "logs", "audit")  # what `tm_keep_rows` may limit
FROM_ENVIRONMENT = {
    "tm_database_url": "TM_DATABASE_URL",
    "tm_schema": "TM_SCHEMA",
    "tm_lease": "TM_LEASE",
    "tm_app": "TM_APP",
}


def _setting(default: Any, about: str, kind: str, *, repr: bool = True) -> Any:
    metadata = {"about": about, "kind": kind}
    if isinstance(default, dict):
        return field(default_factory=lambda: dict(default), metadata=metadata)
    return field(default=default, metadata=metadata, repr=repr)


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """How this installation behaves."""

    tm_database_url: str = _setting(
        DEFAULT_URL, "SQLAlchemy URL of the database that keeps the jobs", "text", repr=False
    )  # with its password
    tm_schema: str | None = _setting(None, "schema of the tables (PostgreSQL), e.g. time_management", "identifier")
    tm_app: str | None = _setting(
        None,
        "name of the app whose definitions and jobs these are, where several share a database; unset: the Celery app's own",
        "app",
    )
    tm_auto_upgrade: bool | None = _setting(
        None, "upgrade the tables on first use; unset: only for SQLite, never for a server", "flag"
    )
    tm_pool_size: int | None = _setting(
        None,
        "how many database connections one process may have open at once; unset: 15, or as many as a worker of threads or "
        "greenlets runs bodies, and 5 more",
        "count",
    )
    tm_prepare_statements: bool | None = _setting(
        None,
        "whether PostgreSQL's driver prepares statements; a pooler in transaction mode must keep them (PgBouncer from 1.21, "
        "max_prepared_statements); unset: only on a direct connection",
        "flag",
    )
    tm_lease: timedelta = _setting(
        timedelta(seconds=30), "how long a running attempt is trusted without renewal", "duration"
    )
    tm_dispatch_lease: timedelta = _setting(
        timedelta(seconds=60),
        "how long a message may wait in the broker before it is sent again; doubles each time",
        "duration",
    )
    tm_poll_interval: timedelta = _setting(timedelta(seconds=1), "how often beat looks for due work at least", "duration")
    tm_claim_batch: int = _setting(500, "how many due jobs beat claims at once", "count")
    tm_max_in_flight: int | None = _setting(
        None,
        "how many jobs, direct calls included, may be dispatched or running at once; the others wait in the database",
        "count",
    )
    tm_task_timeout: timedelta | None = _setting(
        None, "the timeout of tasks and jobs that state neither a timeout nor a time limit of Celery's", "duration"
    )
    tm_stuck_after: timedelta = _setting(
        timedelta(hours=24),
        "how long an attempt of a task without max_duration, and an occurrence without an execution_timeout, may run before "
        "it is stale",
        "duration",
    )
    tm_capture_eta_after: timedelta = _setting(
        timedelta(seconds=60),
        "an ETA or countdown further ahead than this waits in the job table instead of a worker's memory",
        "duration",
    )
    tm_keep_unsent: bool = _setting(
        True, "keep a call that the broker does not take in the job table instead of raising its error", "flag"
    )
    tm_retry: str | Mapping[str, Any] = _setting(
        "proportional",
        "retry policy of tasks and jobs that name none; 'never': as in plain Celery, only what the body asks for",
        "policy",
    )
    tm_backoff_cap: timedelta = _setting(timedelta(minutes=60), "the longest wait of the proportional backoff", "duration")
    tm_backoff_floor: timedelta = _setting(
        timedelta(seconds=1), "the shortest first wait of the proportional backoff", "duration"
    )
    tm_default_queue: str | None = _setting(None, "queue of jobs that name none; unset: Celery's routing decides", "text")
    tm_queue_aliases: Mapping[str, str] = _setting(
        {}, "names that stand for queues, e.g. {'onprem': 'onprem-queue'}", "names"
    )
    tm_update_policy: str = _setting(
        "immediate",
        "when an edit counts that does not say so: 'immediate', 'graceful' (after the next planned run) or 'windowed'",
        "update_policy",
    )
    tm_publish_retry: Mapping[str, Any] = _setting(
        {"max_retries": 2, "interval_start": 0, "interval_step": 0.2, "interval_max": 0.5},
        "kombu's retry policy for one publish; afterwards the job goes back to pending",
        "mapping",
    )
    tm_keep_keys: timedelta | Mapping[str, timedelta] = _setting(
        KEPT_SUCCESS,
        "how long the key of a success refuses a second run; or by outcome, also for failed and cancelled jobs: "
        "{'succeeded': '31d', 'failed': '7d', 'cancelled': '1d'}",
        "kept",
    )
    tm_keep_executions: timedelta = _setting(
        timedelta(days=90), "how long executions and occurrences that have ended are kept", "duration"
    )
    tm_keep_last: int = _setting(
        50,
        "how many executions of each task, and executions and occurrences of each definition, are kept however old; 0: none",
        "number",
    )
    tm_keep_logs: timedelta = _setting(timedelta(days=30), "how long progress and log lines are kept", "duration")
    tm_keep_audit: timedelta = _setting(timedelta(days=365), "how long the audit is kept", "duration")
    tm_redact: Sequence[str] = _setting(
        (),
        "arguments that are not shown, as [task:]argument with wildcards or positions, e.g. ['*password*', 'shop.pay:0']",
        "patterns",
    )
    tm_admins: Sequence[str] | None = _setting(
        None,
        "who may change things in Flower, by user name or e-mail, wildcards allowed; unset: on SQLite everybody it lets in, "
        "on a server nobody",
        "users",
    )
    tm_metrics_port: int | Mapping[str, int] | None = _setting(
        None,
        "where metrics are served: beat takes this port and workers the next one, or {'beat': 9808, 'worker': 9809}; "
        "unset: nowhere",
        "ports",
    )
    tm_metrics_address: str = _setting("127.0.0.1", "the address that metrics are served on; '0.0.0.0': on all", "text")
    tm_keep_rows: Mapping[str, int] = _setting(
        {},
        "how many rows are kept at most, the newest: {'executions': 1_000_000, 'occurrences': …, 'logs': …, 'audit': …}",
        "rows",
    )
    tm_verbose: bool = _setting(False, "log every event at INFO instead of DEBUG", "flag")

    @property
    def renew_every(self) -> float:
        """Return the seconds between two renewals of a lease: three chances before it ends."""
        return self.tm_lease.total_seconds() / 3

    @property
    def keep_keys(self) -> Mapping[str, timedelta]:
        """Return how long a key is kept after each outcome; an outcome that is not there frees the key."""
        stated = self.tm_keep_keys
        return {KEEP_OUTCOMES[0]: KEPT_SUCCESS, **(stated if isinstance(stated, Mapping) else {KEEP_OUTCOMES[0]: stated})}

    def port_of(self, kind: str) -> int | None:
        """Return the port on which beats or workers serve their metrics; None: they do not."""
        stated = self.tm_metrics_port
        if isinstance(stated, Mapping):
            return stated.get(kind)
        return None if stated is None else stated + NODE_KINDS.index(kind)


NAMES = frozenset(f.name for f in fields(Settings))


def read_settings(conf: Mapping[str, Any], environ: Mapping[str, str]) -> Settings:
    """Build the settings from `tm_…` entries of an app's configuration, else from the environment."""
    values: dict[str, Any] = {name: environ[env] for name, env in FROM_ENVIRONMENT.items() if environ.get(env)}
    values.update((name, value) for name, value in conf.items() if name.startswith("tm_") and value is not None)
    for name in sorted(values):
        if name not in NAMES:
            raise UnknownSetting(name, nearest(name, NAMES))
    return Settings(
        **{f.name: _READERS[f.metadata["kind"]](f.name, values[f.name]) for f in fields(Settings) if f.name in values}
    )


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise InvalidValue(name, f"{shown(value)} is not a text", "give a non-empty string")
    return value


def _identifier(name: str, value: Any) -> str:
    """Return a name that is written into statements, and into that of the channel on which beats listen."""
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_$-]*", _text(name, value)) or len(value) > MAX_IDENTIFIER:
        problem = f"{shown(value)} is not the name of a schema"
        raise InvalidValue(name, problem, f"use letters, digits and _, at most {MAX_IDENTIFIER}")
    return str(value)


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise InvalidValue(name, f"{shown(value)} is not True or False", "give a bool")
    return value


def _count(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidValue(name, f"{shown(value)} is not a count", "give a whole number of one or more")
    return value


def _number(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_KEPT:
        raise InvalidValue(name, f"{shown(value)} is not a number of rows", f"give a whole number from 0 to {MAX_KEPT:,}")
    return value


def _duration(name: str, value: Any) -> timedelta:
    if isinstance(value, str) and value.isascii() and value.replace(".", "", 1).isdigit():
        value = float(value)  # from the environment: plain seconds
    duration = parse_duration(value, field=name)
    if duration <= timedelta(0):
        raise InvalidValue(name, f"{shown(value)} is not a duration above zero", "give a longer one, e.g. '30s'")
    return duration


def _kept(name: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        return read_keep_key(value, field=name)
    return _duration(name, value)


def read_keep_key(value: Any, *, field: str = "keep_key") -> dict[str, timedelta]:
    """Return how long a key is kept after each outcome that is stated; a plain duration is for successes."""
    if not isinstance(value, Mapping):
        return {KEEP_OUTCOMES[0]: parse_duration(value, field=field)}
    for outcome in value:
        if outcome not in KEEP_OUTCOMES:
            near = nearest(outcome, KEEP_OUTCOMES) if isinstance(outcome, str) else None
            hint = f"; did you mean {near!r}?" if near else ""
            raise InvalidValue(field, f"{shown(outcome)} is not an outcome", f"use {', '.join(KEEP_OUTCOMES)}{hint}")
    return {outcome: parse_duration(kept, field=field) for outcome, kept in value.items()}


def _mapping(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise InvalidValue(name, f"{shown(value)} is not a mapping", "give a dict")
    return dict(value)


def _policy(name: str, value: Any) -> Any:
    if not isinstance(value, (str, Mapping)):
        raise InvalidValue(name, f"{shown(value)} is not a retry policy", "give e.g. 'never' or {'kind': 'fixed'}")
    return value


def _update_policy(name: str, value: Any) -> str:
    if value not in UPDATE_POLICIES:
        near = nearest(value, UPDATE_POLICIES)
        hint = f"; did you mean {near!r}?" if near else ""
        raise InvalidValue(name, f"{shown(value)} is unknown", f"use one of {', '.join(UPDATE_POLICIES)}{hint}")
    return str(value)


def _names(name: str, value: Any) -> dict[str, str]:
    names = _mapping(name, value)
    for key, item in names.items():
        if not isinstance(key, str) or not isinstance(item, str) or not item:
            raise InvalidValue(name, f"{shown(key)}: {shown(item)} is not a pair of names", "give text for both")
    return names


def _texts(name: str, value: Any, example: str) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, (list, tuple, set, frozenset)):
        raise InvalidValue(name, f"{shown(value)} is not a list", f"give e.g. {example}")
    for item in value:
        if not isinstance(item, str) or not item.strip() or item != item.strip():
            raise InvalidValue(name, f"{shown(item)} is not a text without blanks at its ends", f"give e.g. {example}")
    return tuple(value)


def _users(name: str, value: Any) -> tuple[str, ...]:
    return _texts(name, value, "['ann', '*@example.com']")


def _patterns(name: str, value: Any) -> tuple[str, ...]:
    example = "['*password*', 'shop.pay:card', 'shop.pay:0']"
    rules = _texts(name, value, example)
    for rule in rules:
        task, colon, argument = rule.rpartition(":")
        if not argument.strip() or (colon and not task.strip()):
            raise InvalidValue(name, f"{shown(rule)} has nothing on one side of its colon", f"give e.g. {example}")
    return rules


def _ports(name: str, value: Any) -> Any:
    if not isinstance(value, Mapping):
        _port(name, value, most=MAX_PORT - 1)  # workers take the next one
        return value
    for kind, port in value.items():
        if kind not in NODE_KINDS:
            raise InvalidValue(name, f"{shown(kind)} serves no metrics", "name 'beat', 'worker' or both")
        _port(name, port, most=MAX_PORT)
    return dict(value)


def _port(name: str, value: Any, *, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise InvalidValue(name, f"{shown(value)} is not a port", f"give a whole number from 1 to {most}")


def _rows(name: str, value: Any) -> dict[str, int]:
    rows = _mapping(name, value)
    for kind, most in rows.items():
        if kind not in COUNTED:
            near = nearest(kind, COUNTED)
            hint = f"; did you mean {near!r}?" if near else ""
            raise InvalidValue(name, f"{shown(kind)} is not kept by count", f"use {', '.join(COUNTED)}{hint}")
        if isinstance(most, bool) or not isinstance(most, int) or most < 1:
            raise InvalidValue(name, f"{shown(most)} {kind} is not a count", "give a whole number of one or more")
    return rows


def _app(name: str, value: Any) -> str:
    text = _text(name, value)
    if not text.isprintable() or len(text) > MAX_APP_NAME:
        raise InvalidValue(name, f"{shown(value)} is not the name of an app", f"use at most {MAX_APP_NAME} characters")
    return text


_READERS: Mapping[str, Any] = {
    "app": _app,
    "text": _text,
    "identifier": _identifier,
    "flag": _flag,
    "count": _count,
    "number": _number,
    "kept": _kept,
    "duration": _duration,
    "mapping": _mapping,
    "names": _names,
    "policy": _policy,
    "update_policy": _update_policy,
    "ports": _ports,
    "patterns": _patterns,
    "users": _users,
    "rows": _rows,
}
