"""Acting on dead letters: see them, revive them, purge them, one or many. Each act is in the audit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypedDict, Unpack

from ..domain.job import MAX_ID, Job, checked_text
from ..domain.paging import Page
from ..errors import (
    CountChanged,
    DeadLetterNotFound,
    DuplicateKey,
    InvalidValue,
    RowUnreadable,
    UnknownOption,
    nearest,
    shown,
)
from ..installation import Installation
from ..store import audit, dead_letters, jobs, lists, occurrences, tables
from ..store.database import Database, Transaction
from ..store.dead_letters import DeadLetter
from ..store.lists import Letters
from ..store.rows import readable, remove_unreadable
from . import looking
from .triggering import replay_in

BATCH, SAMPLE = 500, 10


class Wanted(TypedDict, total=False):
    """Which dead letters are meant; what is not given, or None, is not asked for."""

    task: str | None
    definition: str | None
    error: str | None
    since: datetime | None
    until: datetime | None
    ids: Sequence[str] | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Affected:
    """What a change of many dead letters would affect: how many, of which tasks, from when on; the latest ten of them."""

    count: int = 0
    by_task: Mapping[str, int] = field(default_factory=dict)
    oldest: datetime | None = None
    newest: datetime | None = None
    sample: Sequence[DeadLetter] = field(default_factory=list)


class DeadLetters:
    """The dead letters of one installation."""

    def __init__(self, installation: Installation) -> None:
        self._installation = installation

    @property
    def _database(self) -> Database:
        return self._installation.database

    def list(self, *, before: str | None = None, limit: int = 100, **wanted: Unpack[Wanted]) -> Page[DeadLetter]:
        """Return dead letters, the latest first; `before` is the cursor of the page before.

        They may be asked for by task, definition, a part of the last error or of the reason (`error`), and by when they
        were buried, in [since, until). `count`, `preview`, `revive_all` and `purge` take the same.
        """
        with self._database.transaction(write=False) as tx:
            return lists.dead_letters(tx, _letters(tx, wanted), cursor=before, limit=limit)

    def count(self, **wanted: Unpack[Wanted]) -> int:
        """Return how many there are."""
        return self.preview(**wanted).count

    def preview(self, **wanted: Unpack[Wanted]) -> Affected:
        """Return what reviving or purging these would affect; nothing is changed."""
        with self._database.transaction(write=False) as tx:
            chosen = _letters(tx, wanted)
            by_task = lists.dead_letters_by_task(tx, chosen)
            sample = lists.dead_letters(tx, chosen, limit=SAMPLE) if by_task else []
        return Affected(
            count=sum(count for _, count, _, _ in by_task),
            by_task={task: count for task, count, _, _ in by_task},
            oldest=min((first for _, _, first, _ in by_task if first), default=None),
            newest=max((last for _, _, _, last in by_task if last), default=None),
            sample=list(sample),
        )

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

    def revive_all(
        self,
        *,
        expected: int | None = None,
        actor: str | None = None,
        reason: str | None = None,
        **wanted: Unpack[Wanted],
    ) -> int:
        """Revive every dead letter that fits, the oldest first, and return how many; those whose key is taken stay.

        Without a filter that is all of them; an empty list of `ids` is refused.
        With `expected`, nothing is done if another number of them is there now. What is buried meanwhile is not touched.
        """
        revived = 0
        for id in self._chosen(wanted, expected, all=True):
            with suppress(DuplicateKey, DeadLetterNotFound, InvalidValue, RowUnreadable):
                self.revive(id, actor=actor, reason=reason)
                revived += 1
        return revived

    def purge(
        self,
        id: str | None = None,
        *,
        all: bool = False,
        expected: int | None = None,
        actor: str | None = None,
        reason: str | None = None,
        **wanted: Unpack[Wanted],
    ) -> int:
        """Delete one dead letter, or every one that fits, for good; return how many. `expected` is as in `revive_all`.

        Without a filter nothing is deleted, unless `all` says that every one is meant.
        """
        if id is not None:
            if wanted or all or expected is not None:
                raise InvalidValue("id", "it says already which one is meant", "give an id or filters, not both")
            return self._database.run(lambda tx: _purge_one(tx, id, actor, reason))
        ids, total = self._chosen(wanted, expected, all=all), 0
        for start in range(0, len(ids), BATCH):
            some = ids[start : start + BATCH]
            total += self._database.run(lambda tx, some=some: _purge_all(tx, some, actor, reason))  # type: ignore[misc]
        return total

    def _chosen(self, wanted: Wanted, expected: int | None, *, all: bool) -> Sequence[str]:
        """Return the ids of those that fit, the oldest first; raise if they are not as many as expected."""
        refuse_unselected(wanted, all=all)
        if expected is not None and (isinstance(expected, bool) or not isinstance(expected, int) or expected < 0):
            raise InvalidValue("expected", f"{shown(expected)} is not a count", "give the count that the preview told")
        with self._database.transaction(write=False) as tx:
            ids = lists.dead_letter_ids(tx, _letters(tx, wanted))
        if expected is not None and len(ids) != expected:
            raise CountChanged("dead letters", expected, len(ids))
        return ids

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


def refuse_unselected(wanted: Mapping[str, Any], *, all: bool) -> None:
    """Refuse to act on many where nothing is selected: a forgotten filter must not mean every dead letter."""
    selected = {name: value for name, value in wanted.items() if value is not None}
    if "ids" in selected and not selected["ids"]:
        raise InvalidValue("ids", "no dead letter is selected", "select at least one")
    if not selected and not all:
        raise InvalidValue(
            "all", "no dead letter is selected", "name ids, give a filter, or pass all=true to mean every one"
        )


def _find(tx: Transaction, id: str) -> DeadLetter:
    with readable(tables.dead_letter, id):
        letter = dead_letters.find(tx, id)
    if letter is None:
        raise DeadLetterNotFound(id)
    return letter


def _letters(tx: Transaction, wanted: Mapping[str, Any]) -> Letters:
    """Return which dead letters are meant, checked."""
    for name in wanted:
        if name not in Wanted.__annotations__:
            raise UnknownOption(name, nearest(name, Wanted.__annotations__))
    given = {name: value for name, value in wanted.items() if value is not None}
    ids = given.pop("ids", None)
    if ids is not None:
        if isinstance(ids, str) or not isinstance(ids, Sequence):
            raise InvalidValue("ids", f"{shown(ids)} is not a list of ids", "give e.g. ['0197…', '0198…']")
        ids = sorted({checked_text(id, field="ids", limit=MAX_ID) for id in ids})
    checked = looking.checked(**given)
    looking.refuse_unknown(tx, checked.get("definition"))
    return Letters(**checked, ids=ids)


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


def _purge_one(tx: Transaction, id: str, actor: str | None, reason: str | None) -> int:
    try:
        return _purge(tx, _find(tx, id), actor, reason)
    except RowUnreadable:
        return _purge_unreadable(tx, id, actor, reason)


def _purge_unreadable(tx: Transaction, id: str, actor: str | None, reason: str | None) -> bool:
    bad = remove_unreadable(tx, tables.dead_letter, [id], dead_letters.read_letter)
    if bad is not None:
        audit.note(tx, "purge", f"job:{id}", actor=actor, before={"unreadable": bad.error}, reason=reason)
    return bad is not None


def _purge_all(tx: Transaction, ids: Sequence[str], actor: str | None, reason: str | None) -> int:
    found = lists.dead_letters(tx, Letters(ids=ids), limit=BATCH)
    bad = sum(_purge_unreadable(tx, row.id, actor, reason) for row in found.unreadable)
    return bad + sum(_purge(tx, letter, actor, reason) for letter in found)
