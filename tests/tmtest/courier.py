"""A worker in miniature: takes messages from the broker in memory and runs each as often as a test likes."""

from __future__ import annotations

from typing import Any

from celery import Celery
from celery.app.trace import build_tracer
from celery.worker.strategy import hybrid_to_proto2
from kombu.serialization import prepare_accept_content

from celery_tm import TimeManagement
from celery_tm.domain.job import Job
from celery_tm.scheduler.dispatcher import Dispatcher
from celery_tm.store import jobs
from celery_tm.store.database import Database


def owed(database: Database) -> list[Job]:
    """Return the rows of the job table, those included of which only what follows is left."""
    with database.transaction(write=False) as tx:
        return jobs.select_jobs(tx, ended=True)


class Courier:
    """Delivers the messages of one app, in this process."""

    def __init__(self, tm: TimeManagement, *, hostname: str = "courier@test") -> None:
        self.tm, self.hostname = tm, hostname

    @property
    def app(self) -> Celery:
        return self.tm.app

    def dispatch(self) -> int:
        """Publish what is due, as beat does, and return how many jobs were sent."""
        return Dispatcher(self.tm.installation, "beat").dispatch_due().sent

    def collect(self, queue: str | None = None) -> list[Any]:
        """Take all messages out of a queue."""
        found = []
        with self.app.connection_for_read() as connection:
            channel = connection.default_channel
            bound = self.app.amqp.queues[queue or self.app.conf.task_default_queue](channel)
            while (message := bound.get(no_ack=True)) is not None:
                found.append(message)
        return found

    def deliver(self, message: Any) -> Any:
        """Run one message as a worker's pool process would, and return what Celery's tracer says."""
        message.accept = prepare_accept_content(self.app.conf.accept_content)
        headers = message.headers
        if isinstance(message.payload, dict):  # protocol 1
            (args, kwargs, embed), headers, *_ = hybrid_to_proto2(message, message.payload)
        else:
            args, kwargs, embed = message.payload
        task = self.app.tasks[headers["task"]]
        request = {
            **headers, **embed, "hostname": self.hostname, "is_eager": False,
            "delivery_info": {**message.delivery_info, "priority": message.properties.get("priority"), "redelivered": False},
            "reply_to": message.properties.get("reply_to"), "correlation_id": message.properties.get("correlation_id"),
        }  # fmt: skip
        trace = build_tracer(task.name, task, app=self.app, hostname=self.hostname)
        return trace(headers["id"], args, kwargs, request)

    def deliver_all(self, *, rounds: int = 20) -> int:
        """Dispatch and deliver until nothing is left, and return how many messages were delivered."""
        count = 0
        for _ in range(rounds):
            self.dispatch()
            messages = self.collect()
            if not messages:
                return count
            for message in messages:
                self.deliver(message)
            count += len(messages)
        raise AssertionError("there is no end to the messages")
