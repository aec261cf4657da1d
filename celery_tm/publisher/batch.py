"""Sends the messages of one batch and keeps count of what became of each job, wherever the sending ends.

RabbitMQ answers a message only if something is wrong with it, and later. So what was sent is certain once it has answered
something else; if it complains instead, what was sent since the last answer is sent again, one by one, each with an answer:
the gate refuses what arrives twice. A plain Celery task has no gate: the broker answers before it and after it, and it is
not sent again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..domain.job import Job
from ..domain.loads import in_loads
from ..installation import Installation
from .bulk import collector_for
from .refusal import PUBLISH, BlockedRoutes, cause_of, is_of_queue, is_outage, route_of
from .sending import Sender

Load = Sequence[Job]


class Batch:
    """What became of the jobs of one batch so far."""

    def __init__(self, installation: Installation, routes: BlockedRoutes) -> None:
        self._installation, self._routes = installation, routes
        self._sent: list[Job] = []
        self._uncertain: list[Load] = []  # written to the connection; the broker may yet refuse them
        self._unsendable: list[tuple[Job, str]] = []
        self._blocked: list[tuple[Job, str]] = []

    def send(self, jobs: Sequence[Job], sender: Sender) -> None:
        """Send the messages of jobs; raise what says that the broker takes no more."""
        collected = collector_for(sender.producer.channel)
        for load in self._loads(jobs):
            if collected is not None:
                collected.channel = sender.producer.channel  # which may be another one after an error
            if (error := self._routes.error_of(route_of(load[0]))) is not None:
                self._blocked += [(job, error) for job in load]
                continue
            if sender.answers_late and self._installation.is_plain(load[0].task):
                self._send_plain(load, sender)
                continue
            self._send_one(load, sender, collected)
            if collected is not None and collected.is_full:
                self._push(collected, sender)
        if collected is not None:
            self._push(collected, sender)
        self._make_certain(sender)

    def _loads(self, jobs: Sequence[Job]) -> Sequence[Load]:
        try:
            return in_loads(jobs, self._installation.chunk_of)
        except Exception:  # one of them, or its task, is not as it should be: its message says what is wrong
            return [[job] for job in jobs]

    def _send_one(self, load: Load, sender: Sender, collected: Any) -> None:
        """Send one message, or have it collected; what is wrong with it or its queue concerns nobody else."""
        try:
            is_collected = sender.send(load, collected)
        except Exception as error:
            self._sort(load, error, sender)
            return
        if is_collected:
            return
        if sender.answers_late:
            self._uncertain.append(load)
        else:
            self._note_sent(load)
        if sender.was_revived:  # over another connection: what the old one took is not known
            self._send_again(sender)

    def _send_plain(self, load: Load, sender: Sender) -> None:
        """Send the message of a plain task, between two answers: what is wrong after it is wrong with it."""
        self._make_certain(sender)
        try:
            sender.send(load, None)
            sender.wait_for_answer()
        except Exception as error:
            connection = sender.producer.connection
            if is_outage(connection, error):
                raise
            if not is_of_queue(connection, error):
                self._unsendable += [(job, f"{type(error).__name__}: {error}") for job in load]
                return
            sender.reopen()
            self._block(load, error)
        else:
            self._note_sent(load)

    def _sort(self, load: Load, error: Exception, sender: Sender) -> None:
        connection = sender.producer.connection
        is_away = is_outage(connection, error)
        if is_away and (not sender.answers_late or isinstance(cause_of(error), TimeoutError)):
            raise error
        if not is_away and not is_of_queue(connection, error):
            self._unsendable += [(job, f"{type(error).__name__}: {error}") for job in load]
            return
        if sender.answers_late and (is_away or getattr(cause_of(error), "method_sig", None) == PUBLISH):
            self._uncertain.append(load)  # any of these may be meant, or the broker is away
            self._send_again(sender)
            return
        self._confirm()  # a broker that complains about this one has taken what came before
        sender.reopen()
        self._block(load, error)

    def _make_certain(self, sender: Sender) -> None:
        if not self._uncertain:
            return
        try:
            sender.wait_for_answer()
        except TimeoutError:
            raise
        except Exception:  # about one of those that were sent since the last answer
            self._send_again(sender)
        else:
            self._confirm()

    def _send_again(self, sender: Sender) -> None:
        """Send what is uncertain one by one, and find out what is wrong with which."""
        doubted, self._uncertain = self._uncertain, []
        sender.reopen()  # raises if the broker is away
        for load in doubted:
            try:
                sender.send(load, None)
                sender.wait_for_answer()
            except TimeoutError:
                raise
            except Exception as error:
                sender.reopen()
                self._block(load, error)
            else:
                self._note_sent(load)

    def _push(self, collected: Any, sender: Sender) -> None:
        connection = sender.producer.connection
        for load, error in collected.push(connection, sender.policy):
            if error is None:
                self._note_sent(load)
            else:
                self._block(load, error)

    def _confirm(self) -> None:
        for load in self._uncertain:
            self._note_sent(load)
        self._uncertain = []

    def _note_sent(self, load: Load) -> None:
        self._sent += load
        for job in load:
            self._routes.discard(route_of(job))

    def _block(self, load: Load, error: BaseException) -> None:
        text = f"{type(cause_of(error)).__name__}: {self._installation.hidden(cause_of(error))}"
        for route in {route_of(job) for job in load}:
            self._routes.add(route, text)
        self._blocked += [(job, text) for job in load]

    def sorted(self, jobs: Sequence[Job]) -> dict[str, Any]:
        """Return what became of the jobs: what the broker did not take for certain when it went is refused."""
        known = {job.id for job in self._sent} | {job.id for job, _ in [*self._unsendable, *self._blocked]}
        refused = [job for job in jobs if job.id not in known]
        return {"sent": self._sent, "refused": refused, "unsendable": self._unsendable, "blocked": self._blocked}
