"""What celery_tm needs around it and does not find: a database with its tables and rights, a driver, an app."""

from __future__ import annotations

from .statements import TmError


class SchemaMissing(TmError):
    """The database has none of our tables."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.url = url

    def __str__(self) -> str:
        return f"no celery_tm tables in {self.url}; run `celery -A app tm schema upgrade`"


class SchemaOutdated(TmError):
    """The tables are of another release than the code."""

    def __init__(self, url: str, found: str, expected: str) -> None:
        super().__init__(url, found, expected)
        self.url, self.found, self.expected = url, found, expected

    def __str__(self) -> str:
        return (
            f"the celery_tm tables in {self.url} are at {self.found}, this release needs {self.expected}; "
            "run `celery -A app tm schema upgrade`"
        )


class TableInUse(TmError):
    """A table could not be changed, because somebody has worked with it in one transaction all the time."""

    def __init__(self, table: str, seconds: float) -> None:
        super().__init__(table, seconds)
        self.table, self.seconds = table, seconds

    def __str__(self) -> str:
        return (
            f"{self.table} was in use by a long transaction for {self.seconds:.0f} seconds; end it (pg_stat_activity or "
            "SHOW PROCESSLIST tells whose it is) and run `celery -A app tm schema upgrade` again, which goes on where it was"
        )


class DatabaseUnavailable(TmError):
    """The database does not answer."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(url, reason)
        self.url, self.reason = url, reason

    def __str__(self) -> str:
        return f"cannot reach the database {self.url} ({self.reason}); check tm_database_url and that the server runs"


class DatabaseBusy(DatabaseUnavailable):
    """The database answers, but this transaction could not go on: others hold a lock, or all connections."""

    def __str__(self) -> str:
        return (
            f"the database {self.url} is busy ({self.reason}); end the transaction that holds the lock or the connections "
            "(pg_stat_activity or SHOW PROCESSLIST shows it), and try again"
        )


class PoolerUnfit(DatabaseUnavailable):
    """A connection pooler runs prepared statements in another session than they were prepared in."""

    def __str__(self) -> str:
        return (
            f"the connection pooler before {self.url} does not keep prepared statements ({self.reason}); "
            "set tm_prepare_statements=False or use PgBouncer 1.21 or later with max_prepared_statements"
        )


class RightMissing(TmError):
    """The database's user may not do what this process has to do."""

    def __init__(self, url: str, right: str, object: str) -> None:
        super().__init__(url, right, object)
        self.url, self.right, self.object = url, right, object

    def __str__(self) -> str:
        return (
            f"the user of {self.url} lacks {self.right} on {self.object}; run `celery -A app tm schema grants` to see what "
            "the owner of the tables has to grant, and read docs/howto/security.md"
        )


class DatabaseReadOnly(DatabaseUnavailable):
    """The database takes no writes on this connection: it is a replica, or the transaction was opened for reading."""

    def __str__(self) -> str:
        return (
            f"the database {self.url} takes no writes here ({self.reason}); use the primary in tm_database_url, "
            "and give session= a transaction that may write"
        )


# What no statement can be written for at the moment: nobody's work has failed by it.
OUT_OF_REACH = (DatabaseUnavailable, RightMissing, DatabaseReadOnly)


class SourceUnavailable(TmError):
    """What definitions were to be imported from cannot be read."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(url, reason)
        self.url, self.reason = url, reason

    def __str__(self) -> str:
        return f"cannot read {self.url} ({self.reason}); check --from and that the server runs"


class SourceEmpty(TmError):
    """What definitions were to be imported from has none of its scheduler's entries."""

    def __init__(self, url: str, missing: str, remedy: str) -> None:
        super().__init__(url, missing, remedy)
        self.url, self.missing, self.remedy = url, missing, remedy

    def __str__(self) -> str:
        return f"{self.url} has no {self.missing}; {self.remedy}"


class DriverMissing(TmError, ImportError):
    """The database's driver is not installed."""

    def __init__(self, url: str, extra: str) -> None:
        super().__init__(url, extra)
        self.url, self.extra = url, extra

    def __str__(self) -> str:
        return f"no driver for {self.url}; run `pip install 'celery-tm[{self.extra}]'`"


class FlowerMissing(TmError, ImportError):
    """Flower is not installed."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what

    def __str__(self) -> str:
        return f"{self.what} needs Flower; run `pip install 'celery-tm[flower]'`"


class FlowerUnfit(TmError):
    """This Flower is not made as the pages need it."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem

    def __str__(self) -> str:
        return f"the pages do not fit this Flower ({self.problem}); run `pip install 'celery-tm[flower]'` for one that fits"


class ForeignSession(TmError, ValueError):
    """The session given is on another database than the jobs."""

    def __init__(self, given: str, expected: str) -> None:
        super().__init__(given, expected)
        self.given, self.expected = given, expected

    def __str__(self) -> str:
        return (
            f"session= is on {self.given}, but the jobs live in {self.expected}; a transaction cannot span both. "
            "Point tm_database_url at the session's database, or leave session= out"
        )


class AppMissing(TmError):
    """A command or call does not know which Celery app is meant."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what

    def __str__(self) -> str:
        return f"{self.what} needs a Celery app: pass `celery -A yourapp tm …`, or app= in code"
