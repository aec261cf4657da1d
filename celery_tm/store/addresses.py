"""Where a database is: reading its URL, and telling whether two URLs mean the same one."""

from __future__ import annotations

import os

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError

from ..domain.secrecy import hidden
from ..errors import DriverMissing, InvalidValue
from .dialects import DIALECTS, with_driver


def read_url(text: str) -> URL:
    """Return the URL of a database that we know and have a driver for."""
    try:
        url = with_driver(make_url(text))
        backend = url.get_backend_name()
        dialect = url.get_dialect()
    except NoSuchModuleError:
        raise InvalidValue("tm_database_url", f"unknown database or driver in {text.split(':')[0]!r}", _EXAMPLE) from None
    except (ArgumentError, ValueError):
        raise InvalidValue("tm_database_url", "it is not a database URL", _EXAMPLE) from None
    if backend not in DIALECTS:
        raise InvalidValue("tm_database_url", f"{backend} is not supported", _EXAMPLE)
    try:
        dialect.import_dbapi()
    except ImportError as error:
        raise DriverMissing(hidden(url.render_as_string(hide_password=True)), DIALECTS[backend].extra) from error
    return url


def read_preparation(url: URL) -> tuple[URL, bool | None]:
    """Return a URL without `?prepare_threshold=0`, and False if it has it: statements are not to be prepared."""
    found = url.query.get("prepare_threshold")
    if found is None:
        return url, None
    if str(found).lower() not in ("0", "none"):
        problem = f"prepare_threshold={found} is not 0 or none"
        raise InvalidValue("tm_database_url", problem, "use ?prepare_threshold=0 for a pooler, or leave it out")
    return url.difference_update_query(["prepare_threshold"]), False


_EXAMPLE = "use e.g. 'sqlite:///celery_tm.db', 'postgresql://user@host/db' or 'mysql://user@host/db'"


def same_database(ours: URL, theirs: URL) -> bool:
    """Say whether two URLs mean one database, whatever driver, user or spelling of localhost they use."""
    return _identity(ours) == _identity(theirs)


def _identity(url: URL) -> tuple[object, ...]:
    backend = {"mariadb": "mysql"}.get(url.get_backend_name(), url.get_backend_name())
    if backend == "sqlite":
        memory = url.database in (None, "", ":memory:")
        return (backend, ":memory:" if memory else os.path.realpath(str(url.database)))
    host = url.host or url.query.get("host") or "localhost"
    local = host in ("localhost", "127.0.0.1", "::1") or str(host).startswith("/")
    port = url.port or {"postgresql": 5432, "mysql": 3306}.get(backend)
    return (backend, "localhost" if local else host, port, url.database)
