"""Acting on dead letters: see them, revive them, purge them. Each act is in the audit."""

from __future__ import annotations

from collections.abc import Sequence

from ..domain.job import Job
from ..errors import DeadLetterNotFound, DuplicateKey, InvalidValue
from ..installation import Installation
from ..store import audit, dead_letters, jobs, occurrences
from ..store.database import Transaction
from ..store.dead_letters import DeadLetter
from .triggering import replay_in

BATCH = 500


class DeadLetters:
    """The dead letters of one installation."""

    def __init__(self, installation: Installation) -> None:
        self._installation = installation
        self._database = installation.database

    def list(self, *, task: str | None = None, limit: int = 100) -> Sequence[DeadLetter]:
        """Return the latest dead letters."""
        with self._database.transaction(write=False) as tx:
            return dead_letters.select_letters(tx, task=task, limit=limit)

    def get(self, id: str) -> DeadLetter:
        """Return one dead letter."""
        with self._database.transaction(write=False) as tx:
            return _find(tx, id)

    def revive(self, id: str, *, actor: str | None = None, reason: str | None = None) -> Job:
        """Give a dead letter all its tries again, now."""

        def work(tx: Transaction) -> Job:
            letter = _find(tx, id)
            revive = self._revive_step if letter.job.is_step else _revive
            job = revive(tx, letter, actor, reason)
            tx.wake()
            return job

        return self._database.run(work)

    def revive_all(self, *, task: str | None = None, actor: str | None = None, reason: str | None = None) -> int:
        """Revive every dead letter (of a task) and return how many; those whose key is taken stay."""
        revived = 0
        stuck: set[str] = set()
        while letters := [one for one in self.list(task=task, limit=BATCH + len(stuck)) if one.id not in stuck]:
            for letter in letters:
                try:
                    self.revive(letter.id, actor=actor, reason=reason)
                    revived += 1
                except (DuplicateKey, DeadLetterNotFound, InvalidValue):
                    stuck.add(letter.id)
        return revived

    def purge(
        self, id: str | None = None, *, task: str | None = None, actor: str | None = None, reason: str | None = None
    ) -> int:
        """Delete one dead letter, those of a task, or all, for good; return how many."""

        def work(tx: Transaction) -> int:
            letters = [_find(tx, id)] if id is not None else dead_letters.select_letters(tx, task=task, limit=BATCH)
            return sum(_purge(tx, letter, actor, reason) for letter in letters)

        total = done = self._database.run(work)
        while id is None and done == BATCH:
            done = self._database.run(work)
            total += done
        return total

    def _revive_step(self, tx: Transaction, letter: DeadLetter, actor: str | None, reason: str | None) -> Job:
        """Run a failed step again, and what waited for it, as a replay of its run; return the job that stands for that."""
        run = letter.job.occurrence or ""
        why = reason or f"step {letter.job.step!r} was revived"
        wanted = {"from_step": letter.job.step}
        made = replay_in(tx, self._installation, run, wanted=wanted, actor=actor, reason=why)
        job = next(iter(jobs.of_occurrence(tx, made.id)), None)
        if job is None:  # raised inside the transaction, so the letter stays
            raise InvalidValue(letter.id, f"it is not to run now: {made.reason}", "revive it when the other run has ended")
        dead_letters.remove(tx, letter.id)
        after = {"occurrence": made.id}
        audit.note(
            tx, "revive", f"job:{letter.id}", actor=actor, before={"reason": letter.reason}, after=after, reason=reason
        )
        return job


def _find(tx: Transaction, id: str) -> DeadLetter:
    letter = dead_letters.find(tx, id)
    if letter is None:
        raise DeadLetterNotFound(id)
    return letter


def _revive(tx: Transaction, letter: DeadLetter, actor: str | None, reason: str | None) -> Job:
    if letter.job.args is None or letter.job.kwargs is None:
        raise InvalidValue(letter.id, "its arguments were not JSON and are not kept", "call the task again yourself")
    job = dead_letters.revive(tx, letter)
    if job is None:  # raised inside the transaction, so the letter stays
        raise DuplicateKey(letter.task, letter.job.dedupe_key or letter.id, "that took the key meanwhile")
    if job.occurrence:
        occurrences.reopen(tx, job.occurrence)
    audit.note(tx, "revive", f"job:{job.id}", actor=actor, before={"reason": letter.reason}, reason=reason)
    return job


def _purge(tx: Transaction, letter: DeadLetter, actor: str | None, reason: str | None) -> bool:
    if not dead_letters.remove(tx, letter.id):
        return False
    before = {"task": letter.task, "reason": letter.reason, "last_error": letter.last_error}
    audit.note(tx, "purge", f"job:{letter.id}", actor=actor, before=before, reason=reason)
    return True
