"""What one Celery app means to celery_tm in this process: its settings, its database, the name of this node.

It is found through the app, so `TimeManagement(app)`, `defer()`, the task base class and beat all meet the same one.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

from celery import Celery
from celery.utils.saferepr import saferepr

from . import events
from .domain.facts import Facts, Unread
from .domain.job import MAX_WORKER, Job, checked_timeout, fitted
from .domain.planning import TaskDefaults
from .domain.redaction import Redaction, names_of
from .domain.retry import Proportional, RetryPolicy, read_policy, write_policy
from .domain.secrecy import hidden, secrets_in
from .domain.set_aside import REPORTED, BadRow, SetAside
from .errors import AppMissing, DatabaseBusy
from .settings import MAX_APP_NAME, Settings, read_settings
from .store.database import DEFAULT_APP, Database
from .telling import tell

logger = logging.getLogger(__name__)
_ATTRIBUTE = "_celery_tm"


class Installation:
    """The settings and the database of one app."""

    def __init__(self, app: Celery) -> None:
        self.app = app
        self._settings: Settings | None = None
        self._database: Database | None = None
        self._lock = threading.RLock()
        self.set_aside = SetAside()
        self.hooks: dict[str, Callable[..., Any]] = {}  # what `@tm.hook` has registered, by name

    @property
    def settings(self) -> Settings:
        """Return the settings in force. They are read on first use: reading `app.conf` sends `on_after_configure`.

        Who makes a `TimeManagement` above a handler of that signal would otherwise lose what the handler adds.
        """
        if self._settings is None:
            with self._lock:
                if self._settings is None:
                    read = read_settings(_plain(self.app.conf), os.environ)
                    _policy_of(read)  # a typo in it must not start
                    self._settings = read
        return self._settings

    @settings.setter
    def settings(self, settings: Settings) -> None:
        self._settings = settings

    @property
    def database(self) -> Database:
        """Return the database that the settings name."""
        if self._database is None:
            settings = self.settings
            with self._lock:
                if self._database is None:
                    made = Database(settings)
                    made.belong_to(self.name)
                    made.listener = partial(self._heard, verbose=settings.tm_verbose)
                    self._database = made
        return self._database

    def _heard(self, facts: Facts, *, verbose: bool) -> None:
        """Emit the events of what was written, and set aside what could not be read."""
        tell(self.app, facts, verbose=verbose)
        for fact in facts:
            if isinstance(fact, Unread):
                self.skip_row(fact.table, fact.id, fact.error)

    @property
    def name(self) -> str:
        """Return what the app is called among those that share a database, where `tm_app` does not say."""
        main = self.app.main
        return DEFAULT_APP if main in (None, "", "__main__") else "".join(filter(str.isprintable, main))[:MAX_APP_NAME]

    @classmethod
    def of(cls, app: Celery) -> Installation:
        """Return the app's installation."""
        found: Installation | None = app.__dict__.get(_ATTRIBUTE)
        if found is None:
            found = app.__dict__[_ATTRIBUTE] = cls(app)
        return found

    @classmethod
    def current(cls) -> Installation:
        """Return the installation of Celery's current app."""
        from celery import current_app

        app = current_app._get_current_object()
        if _ATTRIBUTE not in app.__dict__ and app.main in (None, "default", "__main__") and not app.conf.broker_url:
            raise AppMissing("defer() by name")
        return cls.of(app)

    def skip_row(self, table: str, id: str, error: BaseException | str, *, name: str | None = None) -> bool:
        """Set aside a row that this process cannot read or handle, and report it once: True if it was reported now.

        One that only waits for another transaction is left out for a moment, and not reported.
        """
        if isinstance(error, DatabaseBusy):
            self.hold_row(table, id)
            return False
        row = BadRow(table, id, self.hidden(error), name)
        if not self.set_aside.add(row, now=time.monotonic()):
            return False
        events.emit(self.app, events.RowSetAside(table=table, row=id, name=name, error=row.error))
        if self.set_aside.count(table) == REPORTED:
            logger.error("%s rows of %s are set aside; further ones are not reported one by one", REPORTED, table)
        return True

    def hold_row(self, table: str, id: str, *, waited: float = 0.0) -> None:
        """Leave out a row for a moment, since another transaction holds what it needs; `waited` seconds told us so."""
        self.set_aside.hold(table, id, now=time.monotonic(), waited=waited)

    def skipped(self, table: str) -> Sequence[str]:
        """Return the ids of a table's rows that this process leaves out at present."""
        return self.set_aside.ids(table, now=time.monotonic())

    def redact_rules(self) -> Sequence[str]:
        """Return the rules about arguments for what people see: one that was stated too late to be in force hides, too."""
        return tuple(dict.fromkeys((*self.settings.tm_redact, *self.stated_now().tm_redact)))

    def redaction_now(self) -> Redaction:
        """Return these rules, with what this app knows of its tasks."""
        return Redaction(self.redact_rules(), lambda name: names_of(self.app.tasks.get(name)))

    @cached_property
    def redaction(self) -> Redaction:
        """Return the rules about arguments that are not shown, with what this app knows of its tasks."""
        return Redaction(tuple(self.settings.tm_redact), lambda name: names_of(self.app.tasks.get(name)))

    def described(self, task: str, args: Any, kwargs: Any) -> dict[str, str]:
        """Return how a message is to show its arguments to Celery's log, events and Flower; nothing: as Celery does."""
        if not self.redaction.concerns(task):
            return {}
        args, kwargs = self.redaction.apply(task, list(args or ()), dict(kwargs or {}))
        return {"argsrepr": saferepr(tuple(args)), "kwargsrepr": saferepr(kwargs)}

    def hidden(self, text: object) -> str:
        """Return what somebody else said, without the passwords of the database, the broker and the result backend."""
        conf = self.app.conf
        places = (self.settings.tm_database_url, conf.broker_url, conf.broker_read_url, conf.broker_write_url)
        return hidden(text, secrets_in((*places, conf.result_backend)))

    def move_to(self, settings: Settings) -> None:
        """Go by other settings and live in the database that they name, as a test wants it."""
        self.database.move_to(settings)
        self._settings = settings
        self.__dict__.pop("redaction", None)

    def stated_now(self) -> Settings:
        """Return the settings as the configuration states them by now; those in force were read once, at first use."""
        return read_settings(_plain(self.app.conf), os.environ)

    def task_defaults(self, name: str) -> TaskDefaults:
        """Return what a task says about retries and time, if this app has it."""
        task = self.app.tasks.get(name)
        if task is None:
            return TaskDefaults()
        retries = task.max_retries if isinstance(task.max_retries, int) else None
        if not getattr(task, "tm_gated", False):  # its other attributes mean whatever its authors mean by them
            return TaskDefaults(max_retries=retries)
        policy, timeout = getattr(task, "retry_policy", None), getattr(task, "timeout", None)
        return TaskDefaults(
            max_retries=retries,
            retry=None if policy is None else write_policy(read_policy(policy)),
            timeout=None if timeout is None else checked_timeout(timeout),
        )

    def message_defaults(self, name: str) -> Mapping[str, Any]:
        """Return the options of a message that a task states itself: queue, priority, serializer, limits and so on."""
        task = self.app.tasks.get(name)
        if task is None:
            return {}
        stated = {**task._get_exec_options(), "ignore_result": task.ignore_result}
        return {option: value for option, value in stated.items() if value is not None}

    def chunk_of(self, name: str) -> int:
        """Return how many jobs of a task may share a message."""
        task = self.app.tasks.get(name)
        return getattr(task, "chunk", None) or 1 if task is not None and getattr(task, "tm_gated", False) else 1

    def is_plain(self, name: str) -> bool:
        """Say whether a task is known here and is none of ours: it has no gate and reports nothing."""
        task = self.app.tasks.get(name)
        return task is not None and not getattr(task, "tm_gated", False)

    def reports_end(self, job: Job) -> bool:
        """Say whether a worker is to report the end of a job that did not run: to its chord, its links or its result.

        Not of a plain task, which has no gate: its body would run.
        """
        if self.is_plain(job.task):
            return False
        ignored = job.options.get("ignore_result", self.app.conf.task_ignore_result)
        return job.is_awaited or (job.task in self.app.tasks and bool(self.app.conf.result_backend) and not ignored)

    @property
    def default_policy(self) -> RetryPolicy:
        """Return the backoff of jobs that name none."""
        return _policy_of(self.settings)


def _policy_of(settings: Settings) -> RetryPolicy:
    if settings.tm_retry == Proportional.kind:
        return Proportional(cap=settings.tm_backoff_cap, floor=settings.tm_backoff_floor)
    return read_policy(settings.tm_retry)


def _plain(conf: Any) -> dict[str, Any]:
    """Return the `tm_…` entries of an app's configuration, whatever prefix or case the app uses."""
    found: dict[str, Any] = {}
    prefix = (getattr(conf, "prefix", "") or "").lower()
    for name in list(conf.keys()):
        plain = str(name).lower().removeprefix(prefix)
        if plain.startswith("tm_"):
            found[plain] = conf[name]
    return found


def worker_name(hostname: str | None, pid: int) -> str:
    """Return the name that a process of a worker has at the gate."""
    return fitted(f"{hostname or 'local'}:{pid}", MAX_WORKER)


def node_name(kind: str) -> str:
    """Return a name for this process that people recognise: kind, host and process id."""
    return f"{kind}@{socket.gethostname()}:{os.getpid()}"
