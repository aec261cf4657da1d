"""What one Celery app means to celery_tm in this process: its settings, its database, the name of this node.

It is found through the app, so `TimeManagement(app)`, `defer()`, the task base class and beat all meet the same one.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from typing import Any

from celery import Celery
from celery.utils.saferepr import saferepr

from .domain.job import MAX_WORKER, checked_timeout, fitted
from .domain.planning import TaskDefaults
from .domain.redaction import Redaction, names_of
from .domain.retry import Proportional, RetryPolicy, read_policy, write_policy
from .domain.secrecy import hidden, secrets_in
from .errors import AppMissing
from .settings import Settings, read_settings
from .store.database import Database
from .telling import tell

_ATTRIBUTE = "_celery_tm"


class Installation:
    """The settings and the database of one app."""

    def __init__(self, app: Celery) -> None:
        self.app = app
        self.settings: Settings = read_settings(_plain(app.conf), os.environ)
        self.default_policy  # noqa: B018  (a typo in it must not start)
        self.database = Database(self.settings)
        self.database.listener = partial(tell, app, verbose=self.settings.tm_verbose)
        self.hooks: dict[str, Callable[..., Any]] = {}  # what `@tm.hook` has registered, by name

    @classmethod
    def of(cls, app: Celery) -> Installation:
        """Return the app's installation; the first call reads its settings."""
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
        self.settings = settings
        self.__dict__.pop("redaction", None)

    def stated_now(self) -> Settings:
        """Return the settings as the configuration states them by now; those in force were read once, at first use."""
        return read_settings(_plain(self.app.conf), os.environ)

    def task_defaults(self, name: str) -> TaskDefaults:
        """Return what a task says about retries and time, if this app has it."""
        task = self.app.tasks.get(name)
        if task is None:
            return TaskDefaults()
        policy, timeout = getattr(task, "retry_policy", None), getattr(task, "timeout", None)
        return TaskDefaults(
            max_retries=task.max_retries,
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

    @property
    def default_policy(self) -> RetryPolicy:
        """Return the backoff of jobs that name none."""
        settings = self.settings
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
