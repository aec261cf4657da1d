"""The shop of beat/ as it is deployed, with workers and beats that are killed, and everybody who deals with it.

What people do is random, by a seed that is printed and can be stated as TM_TEST_SEED. Everything is waited for.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from sqlalchemy import func, select, update

from celery_tm.store import tables

from .node import BEAT
from .stand import TESTS, Process

SEED = int(os.environ.get("TM_TEST_SEED") or random.randrange(10**6))
WAIT = 150.0  # seconds for each thing that is waited for; it takes a tenth of that where the machine is not busy
PAYERS = [f"pays-{n}" for n in range(6)]
BY_HAND = "invoice-pays-0-1"  # somebody settles this one in the database
LATE = "invoice-late-0"  # this one is paid when its tenant is frozen
PERIODS, KILLS, HITS = 3, 9, 3


class Street:
    """The shop, its processes, and its customers."""

    def __init__(self, node: SimpleNamespace, folder: Path, provider: Any) -> None:
        self.node, self.folder, self.provider = node, folder, provider
        self.chance = random.Random(SEED)
        self.processes: list[Process] = []
        self.workers: list[Process] = []
        self.beats: list[Process] = []
        self.unpaid = {LATE}  # references that nobody is going to pay, or not yet
        self.paid_at: dict[str, datetime] = {}  # by reference, when the provider had the money
        self.dropped: set[str] = set()
        self.killed = 0
        self.next_kill = 0.0

    def start(self, name: str, *arguments: str) -> Process:
        """Start one of the commands that people start."""
        paths = os.pathsep.join([str(BEAT), str(TESTS), os.environ.get("PYTHONPATH", "")])
        env = os.environ | {"PYTHONPATH": paths, "PYTHONUNBUFFERED": "1"}
        log = self.folder / f"{name}.log"
        process = Process(name, [sys.executable, "-m", "celery", "-A", "app", *arguments], log, env)
        self.processes.append(process)
        return process

    def worker(self) -> Process:
        """Start a worker whose bodies take their time."""
        name = f"worker{len(self.processes)}"
        return self.start(name, "worker", "-l", "INFO", "-c", "2", "-n", f"{name}@test", "-I", "tmtest.slow_shop")

    def beat(self) -> Process:
        """Start a beat."""
        name = f"beat{len(self.processes)}"
        return self.start(name, "beat", "-S", "celery_tm.Scheduler", "--pidfile", str(self.folder / f"{name}.pid"))

    def do(self, what: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Do something as a request does."""
        with self.node.database.open_session() as session, session.begin():
            return what(session, *args, **kwargs, now=datetime.now(UTC))

    def rows(self, model: str) -> list[Any]:
        """Return all rows of a table of the shop, as they are now."""
        with self.node.database.open_session() as session:
            return list(session.scalars(select(getattr(self.node.models, model))))

    def entries(self, what: str) -> dict[str, Any]:
        """Return the lines of the ledger by their subject."""
        return {entry.subject: entry for entry in self.rows("Entry") if entry.what == what}

    def ledger(self, what: str) -> Counter[str]:
        """Count the lines of the ledger by their subject."""
        return Counter(entry.subject for entry in self.rows("Entry") if entry.what == what)

    def outcomes(self) -> Counter[str]:
        """Count executions by outcome."""
        execution = tables.execution
        with self.node.database.engine().connect() as connection:
            found = connection.execute(select(execution.c.outcome, func.count()).group_by(execution.c.outcome))
            return Counter({row[0]: row[1] for row in found})

    def wait(self, look: Callable[[], Any], what: str, meanwhile: Callable[[], Any] = lambda: None) -> None:
        """Look again and again until it is so, and let things happen meanwhile."""
        deadline = time.monotonic() + WAIT
        while not look():
            if time.monotonic() > deadline:
                tails = "\n".join(f"--- {one.name}\n{one.text()[-1500:]}" for one in self.processes[-4:])
                raise AssertionError(f"{what} did not happen in {WAIT} s, TM_TEST_SEED={SEED}\n{tails}")
            meanwhile()
            time.sleep(0.05)

    def open(self) -> None:
        """Open the shop: its processes, tenants who pay and who do not, wishes, and orders."""
        self.node.tm.definitions.load(BEAT / "definitions.toml")
        for name in ("expire payments", "reconcile invoices", "recover effects"):
            self.node.tm.definitions.update(name, schedule="every 1s")
        self.workers, self.beats = [self.worker(), self.worker()], [self.beat(), self.beat()]
        self.wait(lambda: all("ready." in one.text() for one in self.workers), "the start of the workers")
        for tenant in (*PAYERS, "late", "never"):
            self.do(self.node.billing.subscribe, tenant, "pro")
        for tenant in ("pays-1", "late", "never"):
            self.do(self.node.billing.request_downgrade, tenant, "basic")
        for number in range(6):
            reference = self.do(lambda session, now: self.node.checkout.checkout(session, "ann", 10_00, now=now).reference)
            if number % 2:
                self.unpaid.add(reference)

    def meanwhile(self) -> None:
        """Let customers pay; now and then somebody is killed, and for a while the provider fails."""
        self.customers()
        if time.monotonic() < self.next_kill or self.has_killed_enough():
            return
        if not self.kill_some():
            return
        self.killed += 1
        self.next_kill = time.monotonic() + self.chance.uniform(0.2, 1.2)
        self.provider.failing = KILLS // 3 <= self.killed < KILLS // 2
        if self.killed == KILLS // 2:
            self.beats.pop().kill()

    def has_killed_enough(self) -> bool:
        """Say whether so many were killed, and some of them in a body."""
        return self.killed >= KILLS and self.outcomes()["orphaned"] >= HITS

    def kill_some(self) -> bool:
        """Kill a process that runs a body, any process of a pool, or a whole worker; False if there is nobody to kill.

        A worker takes its time to start. If it were killed before it is ready, a busy machine would get nothing done.
        """
        if not all("ready." in worker.text() for worker in self.workers):
            return False
        if self.killed % 2 or self.killed >= KILLS:
            busy = self._busy_pids()
            return bool(busy) and kill(self.chance.choice(busy))
        victim = self.chance.randrange(len(self.workers))
        pool = pool_pids(self.workers[victim])
        if pool and self.chance.random() < 0.5:
            return kill(self.chance.choice(pool))
        self.workers[victim].kill()
        self.workers[victim] = self.worker()
        return True

    def _busy_pids(self) -> list[int]:
        """Return the pool processes of our workers that run a body, as far as the table says."""
        ours = {pid for worker in self.workers for pid in pool_pids(worker)}
        with self.node.database.engine().connect() as connection:
            running = select(tables.job.c.claimed_by).where(tables.job.c.state == "running")
            found = {int(name.rpartition(":")[2]) for name in connection.scalars(running)}
        return sorted(ours & found)

    def customers(self) -> None:
        """Let those who pay pay what they have not."""
        if self.provider.failing:
            return
        for payment in self.rows("Payment"):
            reference = payment.reference
            if payment.state != "paid" and not {reference} & (self.unpaid | set(self.paid_at)) and "never" not in reference:
                self.pay(reference)

    def pay(self, reference: str) -> None:
        """Pay at the provider. Its webhook gets lost, comes once, or comes twice."""
        self.node.provider.pay(reference)
        self.paid_at[reference] = datetime.now(UTC)
        if reference == BY_HAND:
            self.do(self.settle_by_hand, reference)
            return
        webhooks = self.chance.choice([0, 0, 1, 2])
        if not webhooks:
            self.dropped.add(reference)
        for _ in range(webhooks):
            self.do(self.node.payments.settle, reference, by="webhook")

    def settle_by_hand(self, session: Any, reference: str, *, now: datetime) -> None:
        """Mark a payment as paid and forget all the rest, as code that knows nothing of jobs would."""
        model = self.node.models.Payment
        known = {"state": "paid", "paid_at": now, "settled_by": "hand"}
        session.execute(update(model).where(model.reference == reference, model.state == "pending").values(known))

    def live(self) -> None:
        """Let some periods pass, then let the late one pay, and wait until all that is paid has had its effect."""
        self.wait(self.has_seen_enough, f"{PERIODS} periods with deaths", self.meanwhile)
        self.provider.failing = False
        self.pay(LATE)
        self.wait(lambda: self.changes("late"), "the downgrade of the late one", self.customers)
        self.wait(self.is_settled, "the effect of all that was paid", self.customers)

    def has_seen_enough(self) -> bool:
        """Say whether enough periods are invoiced, who did not pay is frozen, and enough were killed."""
        invoiced, frozen = self.ledger("invoiced"), self.ledger("frozen")
        latest: Counter[str] = Counter()
        for tenant, period in (subject.split(":") for subject in invoiced):
            latest[tenant] = max(latest[tenant], int(period))
        periods = all(latest[tenant] >= PERIODS - 1 for tenant in PAYERS)  # who was frozen has no invoice for some of them
        return bool(periods and frozen["late:0"] and frozen["never:0"] and self.has_killed_enough())

    def changes(self, tenant: str) -> list[Any]:
        """Return the changes of a tenant's plan."""
        return [
            entry for entry in self.rows("Entry") if entry.what == "plan changed" and entry.subject.startswith(f"{tenant}:")
        ]

    def is_settled(self) -> bool:
        """Say whether all that was paid has had its effect, and what was not is given up."""
        applied = {payment.reference for payment in self.rows("Payment") if payment.applied_at}
        given_up = set(self.ledger("timed out")) & set(self.ledger("expired"))
        return set(self.paid_at) <= applied and self.unpaid - {LATE} <= given_up

    def close(self) -> None:
        """End all processes."""
        for process in self.processes:
            process.close()


def pool_pids(worker: Process) -> list[int]:
    """Return a worker's pool processes; none if it is gone."""
    try:
        return [int(pid) for pid in Path(f"/proc/{worker.pid}/task/{worker.pid}/children").read_text().split()]
    except OSError:
        return []


def kill(pid: int) -> bool:
    """Kill a process, and say whether it was still there."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True
