"""RedBeat's entries, read from Redis as they lie there: JSON in hashes, named by one sorted set.

RedBeat itself is not needed, and nothing is unpickled. Its rules keep only an offset from UTC, no zone; they are read as
what RedBeat makes of them, not as what was once meant.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

from celery.schedules import crontab
from kombu.utils.url import maybe_sanitize_url
from redis import Redis
from redis.exceptions import RedisError, ResponseError

from ...domain.secrecy import hidden, secrets_in
from ...errors import InvalidValue, SourceEmpty, SourceUnavailable, TmError, shown
from ...scheduler.celery_schedules import CRONTAB_FIELDS, interval_rule, read_options, read_rule
from .entry import UNSTATED, Contents, Entry, Unreadable, read_instant
from .rrules import rrule_text

DEFAULT_PREFIX = "redbeat:"
AT_ONCE = 500
REPAIR = "repair or delete it in the source"
_EXAMPLE = "use e.g. 'redis://:password@host:6379/0', with the database that RedBeat uses"


def read_redis(url: str, *, prefix: str = DEFAULT_PREFIX, zone: str = "UTC", options: Mapping[str, Any]) -> Contents:
    """Return RedBeat's entries; `zone` is the app's, by which its crontabs go."""
    client, where = _client(url, options)
    key = f"{prefix}:schedule"
    try:
        keys = [bytes(name) for name in _answer(client.zrange(key, 0, -1))]
        if not keys:
            remedy = "give the server that RedBeat uses with --from, and its redbeat_key_prefix with --key-prefix"
            raise SourceEmpty(where, f"schedule under the key {key!r}", remedy)
        found = [pair for first in range(0, len(keys), AT_ONCE) for pair in _hashes(client, keys[first : first + AT_ONCE])]
    except (RedisError, OSError) as error:
        raise SourceUnavailable(where, hidden(error, secrets_in([url])) or type(error).__name__) from error
    finally:
        client.close()
    return Contents(where=where, entries=sorted(_entries(found, prefix, zone), key=lambda entry: entry.name))


def _client(url: str, options: Mapping[str, Any]) -> tuple[Redis, str]:
    """Return a connection that gives up soon, and its URL without the password."""
    if not url.startswith(("redis://", "rediss://", "unix://")):
        shape = url.split(":")[0] if "://" in url else url[:0]
        raise InvalidValue("--from", f"{shown(shape)} is no URL of a Redis server" if shape else "it is no URL", _EXAMPLE)
    url = url.replace("=CERT_REQUIRED", "=required").replace("=CERT_OPTIONAL", "=optional").replace("=CERT_NONE", "=none")
    try:
        client = Redis.from_url(url, socket_connect_timeout=5, socket_timeout=30, **options)
        return client, hidden(maybe_sanitize_url(url))
    except (ValueError, TypeError):  # its text is not shown: it may have a piece of the password
        raise InvalidValue("--from", "it is no URL of a Redis server", _EXAMPLE) from None


def _answer(value: Any) -> Any:
    """Return a client's answer; redis types it as if it might have to be awaited."""
    return value


def _hashes(client: Redis, keys: Sequence[bytes]) -> list[tuple[bytes, Any]]:
    """Return what the hashes of some keys hold, or the error where a key is no hash."""
    with client.pipeline(transaction=False) as pipe:
        for key in keys:
            pipe.hmget(key, ["definition", "meta"])
        return list(zip(keys, pipe.execute(raise_on_error=False), strict=True))


def _entries(found: Sequence[tuple[bytes, Any]], prefix: str, zone: str) -> Iterator[Entry | Unreadable]:
    for key, answer in found:
        name = key.decode("utf-8", "replace").removeprefix(prefix)
        if isinstance(answer, ResponseError):
            yield Unreadable(name=name, error=f"its key is no hash; {REPAIR}")
            continue
        if isinstance(answer, Exception):
            raise answer
        yield read_hash(name, *answer, zone=zone)


def read_hash(name: str, definition: bytes | None, meta: bytes | None, *, zone: str = "UTC") -> Entry | Unreadable:
    """Return the entry that one hash of RedBeat's means."""
    try:
        if not definition:
            raise InvalidValue("definition", "the hash has none", REPAIR)
        said = _json("definition", definition)
        last_run_at, runs, notes = _progress(meta)
        return _entry(str(said.get("name") or name), said, zone, last_run_at, runs, notes)
    except (TmError, ValueError, TypeError, OverflowError, KeyError) as error:
        return Unreadable(name=name, error=str(error) or type(error).__name__)


def _entry(
    name: str, said: Mapping[str, Any], zone: str, last_run_at: datetime | None, runs: int, notes: list[str]
) -> Entry:
    schedule, zone, more = _schedule(said.get("schedule"), zone, last_run_at)
    values = {
        **UNSTATED,
        "task": said.get("task"),
        "args": list(said.get("args") or ()),
        "kwargs": dict(said.get("kwargs") or {}),
        "enabled": bool(said.get("enabled", True)),
        "schedule": schedule,
        "timezone": zone,
        **read_options(dict(said.get("options") or {})),
    }
    notes = [*notes, *more]
    return Entry(name=name, values=values, since=last_run_at, last_run_at=last_run_at, runs=runs, notes=tuple(notes))


def _progress(meta: bytes | None) -> tuple[datetime | None, int, list[str]]:
    """Return when an entry ran last and how often it ran; what cannot be read is no reason to leave it behind."""
    if not meta:
        return None, 0, []
    try:
        said = _json("meta", meta)
        return read_instant(said.get("last_run_at"), field="last_run_at"), int(said.get("total_run_count") or 0), []
    except (TmError, ValueError, TypeError) as error:
        return None, 0, [f"its last run cannot be read ({error}): it goes on from now"]


def _json(field: str, text: bytes) -> dict[str, Any]:
    try:
        value = json.loads(text, object_hook=_read_object)
    except (ValueError, RecursionError) as error:
        raise InvalidValue(field, f"{shown(text)} is not JSON ({error})", REPAIR) from None
    if not isinstance(value, dict):
        raise InvalidValue(field, f"{shown(text)} is not a mapping", REPAIR)
    return value


def _read_object(said: dict[str, Any]) -> Any:
    """Return RedBeat's marked datetimes as datetimes; its schedules stay as they are marked."""
    if said.get("__type__") != "datetime":
        return said
    parts = {name: value for name, value in said.items() if name not in ("__type__", "timezone")}
    zone = said.get("timezone", "UTC")
    try:
        offset = timezone(timedelta(seconds=zone)) if isinstance(zone, (int, float)) else ZoneInfo(str(zone))
        return datetime(**parts, tzinfo=offset)
    except (ValueError, TypeError, LookupError) as error:
        raise ValueError(f"{shown(said)} is not a date and time: {error}") from None


def _schedule(said: Any, zone: str, last_run_at: datetime | None) -> tuple[Any, str, list[str]]:
    """Return a schedule as a definition states it, its zone, and what is to be said about it."""
    kind = said.get("__type__") if isinstance(said, Mapping) else None
    if kind == "interval":
        every = timedelta(seconds=float(said["every"]))
        relative = bool(said.get("relative"))
        return interval_rule(every, relative=relative, since=last_run_at, zone=zone), zone, []
    if kind == "crontab":
        fields = {field: said.get(field, "*") for field in CRONTAB_FIELDS}
        return read_rule(crontab(**fields)), zone, []
    if kind == "rrule":
        return rrule_text(said, app_zone=zone)
    if said is None:
        raise InvalidValue("schedule", "the entry has none", REPAIR)
    raise InvalidValue("schedule", f"unknown kind {shown(kind or said)}", "RedBeat's kinds are interval, crontab and rrule")
