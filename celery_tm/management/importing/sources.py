"""Which schedulers definitions can be imported from, and where each of them keeps its entries."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, tzinfo
from importlib import import_module
from typing import Any
from zoneinfo import ZoneInfo

from ...domain.schedule import read_zone
from ...errors import InvalidValue, UnknownSource, nearest, spelled
from ...scheduler.celery_schedules import zone_of
from ...store import foreign
from . import beat, rows
from .entry import Contents

# The options of libpq that Django's settings may hold.
LIBPQ = frozenset({"sslmode", "sslrootcert", "sslcert", "sslkey", "options", "service", "target_session_attrs"})
BACKENDS = {
    "postgresql": "postgresql",
    "postgis": "postgresql",
    "mysql": "mysql",
    "sqlite3": "sqlite",
    "spatialite": "sqlite",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where to read: a URL or path, a schema, a prefix of keys, and the zone of times without an offset."""

    url: str | None = None
    schema: str | None = None
    key_prefix: str | None = None
    timezone: str | None = None


def read_source(app: Any, source: str, place: Place) -> Contents:
    """Return what a scheduler's store holds; nothing is changed there."""
    if source not in SOURCES:
        raise UnknownSource(spelled(source), nearest(source, SOURCES))
    read, takes = SOURCES[source]
    for option in ("schema", "key_prefix", "timezone"):
        if getattr(place, option) is not None and option not in takes:
            raise InvalidValue(f"--{option.replace('_', '-')}", f"{source} has no such thing", "leave it out")
    contents = read(app, place)
    return contents if source == "beat" else beat.as_in_code(app, contents)


def _beat(app: Any, place: Place) -> Contents:
    return beat.read_beat(app, place.url)


def _django(app: Any, place: Place) -> Contents:
    settings = _django_settings()
    url = place.url or _django_url(settings)
    naive = _naive(place)
    if place.timezone is None and settings is not None and not getattr(settings, "USE_TZ", True):
        naive = ZoneInfo(getattr(settings, "TIME_ZONE", None) or "UTC")
    aware = bool(getattr(settings, "DJANGO_CELERY_BEAT_TZ_AWARE", True))
    return _tables(app, url, rows.DJANGO, schema=place.schema, naive=naive, own_zones=aware)


def _sqlalchemy(app: Any, place: Place) -> Contents:
    url = place.url or app.conf.get("beat_dburi") or "sqlite:///schedule.db"
    schema = place.schema or app.conf.get("beat_schema") or None
    return _tables(app, str(url), rows.SQLALCHEMY, schema=schema, naive=_naive(place))


def _tables(
    app: Any, url: str, tables: rows.Tables, *, schema: str | None, naive: tzinfo, own_zones: bool = True
) -> Contents:
    where = foreign.safe_url(url)
    content = foreign.read_tables(url, tables.names, schema=schema, needed=tables.task)
    reader = rows.RowReader(tables=tables, content=content, zone=zone_of(app), naive=naive, own_zones=own_zones)
    return Contents(where=where, entries=list(reader.entries()))


def _redbeat(app: Any, place: Place) -> Contents:
    from . import redbeat  # so that Redis' client is loaded only for this

    conf = app.conf
    stated = conf.get("redbeat_redis_url")
    url = place.url or stated or conf.broker_url
    if not url:
        raise InvalidValue("--from", "redbeat_redis_url is not set", "give the URL of its Redis server")
    tls = None if place.url else conf.get("redbeat_redis_use_ssl") or (None if stated else conf.broker_use_ssl)
    prefix = place.key_prefix or conf.get("redbeat_key_prefix") or redbeat.DEFAULT_PREFIX
    options = dict(tls) if isinstance(tls, Mapping) else {}
    return redbeat.read_redis(str(url), prefix=str(prefix), zone=zone_of(app), options=options)


def _naive(place: Place) -> tzinfo:
    return UTC if place.timezone is None else ZoneInfo(read_zone(place.timezone))


def _django_settings() -> Any:
    """Return Django's settings where this process has them."""
    if "django.conf" not in sys.modules and "DJANGO_SETTINGS_MODULE" not in os.environ:
        return None
    try:
        settings = import_module("django.conf").settings
        return settings if settings.DATABASES else None
    except Exception:  # not installed, not configured, or broken: then the URL has to be given
        return None


def _django_url(settings: Any) -> str:
    if settings is None:
        raise InvalidValue("--from", "there are no Django settings in this process", "give the database's URL with --from")
    said = settings.DATABASES.get("default") or {}
    backend = BACKENDS.get(str(said.get("ENGINE", "")).rpartition(".")[2])
    if backend is None:
        raise InvalidValue(
            "--from", f"DATABASES['default'] is {said.get('ENGINE')!r}", "give the database's URL with --from"
        )
    options = said.get("OPTIONS") or {}
    query = {name: str(value) for name, value in options.items() if backend == "postgresql" and name in LIBPQ}
    parts = {name.lower(): said.get(name) for name in ("USER", "PASSWORD", "HOST", "PORT", "NAME")}
    return foreign.make_text({**parts, "backend": backend, "query": query})


Reader = Callable[[Any, Place], Contents]
SOURCES: Mapping[str, tuple[Reader, frozenset[str]]] = {
    "beat": (_beat, frozenset()),
    "django-celery-beat": (_django, frozenset({"schema", "timezone"})),
    "redbeat": (_redbeat, frozenset({"key_prefix"})),
    "sqlalchemy-celery-beat": (_sqlalchemy, frozenset({"schema", "timezone"})),
}
