"""What a file or the code declares about a definition, merged with what people have changed since.

For each source (a file, an app's `beat_schedule`) a definition keeps what that source declared last. A field is decided by
three values: what the source declared last, what it declares now, and what the database has. Pure: tests need no database.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any

from kombu.utils.json import JSONEncoder

from .contradictions import BOUNDS, HOOK, LANE, RECOVERY, WORK, contradictions
from .definition import DEFAULTS, Definition
from .schedule import Zone
from .stating import FIELDS, check_values, spread, write_fields

FILE = "file"  # the source of definitions that are loaded; code is known by the definition's origin
MAX_MARK = 200  # characters; of a longer value a digest is kept
UNKNOWN = "?"  # the mark of a value that nobody knows: it equals none
# Fields that mean something only with each other: a source sets all of them that it changes, or none, and those that it
# no longer declares have their defaults again.
TOGETHER = (RECOVERY, frozenset({"concurrency_key", "concurrency"}), WORK)
# Where fields contradict each other, those that the source does not declare may have their defaults again.
CONTRADICTING = (BOUNDS, RECOVERY, HOOK, WORK, LANE)
_encoder = JSONEncoder(sort_keys=True, allow_nan=False)
Marks = Mapping[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Conflict:
    """A field that both a file or the code and a person have changed; the database's value stays."""

    name: str
    field: str
    file: Any
    database: Any
    task: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Earlier:
    """What is known of a definition that was written before sources were kept.

    `stated` is the last version that a file or the code wrote; None: none is kept, then `by_person` decides.
    """

    stated: Mapping[str, Any] | None = None
    by_person: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Merged:
    """What a source changes, what it may not change, and what is to be kept about it."""

    values: Mapping[str, Any]
    conflicts: Sequence[Conflict] = ()
    declared: Mapping[str, Any] = field(default_factory=dict)


def mark(value: Any) -> str:
    """Return what a value is compared by: its JSON, or a digest of that where it is long."""
    text = str(_encoder.encode(value))
    return text if len(text) <= MAX_MARK else f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def declare(values: Mapping[str, Any], *, source: str, name: str = "") -> dict[str, Any]:
    """Return what a new definition keeps about the source that adds it."""
    columns = write_fields(check_values(values, zone=Zone(), name=name))
    return {source: {"values": {one: mark(value) for one, value in columns.items()}}}


def merge(
    definition: Definition,
    values: Mapping[str, Any],
    *,
    source: str,
    earlier: Earlier | None = None,
    force: bool = False,
    damaged: Collection[str] = (),
) -> Merged:
    """Decide field by field what a source changes of a definition that is there.

    With `force` the source wins, and so it does for fields that are `damaged`.
    """
    zone = Zone(name=definition.timezone, gap=definition.gap, fold=definition.fold)
    declared = write_fields(check_values(values, zone=zone, name=definition.name, present=definition))
    database, bases, named = in_database(definition), _Bases(definition, source, earlier), _named(values)
    known, disputed, changed = dict(bases.ours), set[str](), set[str]()
    for one, value in declared.items():
        now, there, base = mark(value), mark(database.get(one)), bases.of(one)
        # What nobody names follows from the others, such as the task of a definition with steps.
        if one not in named or now == there or (base == now and not force):
            known[one] = now
            changed |= {one} & set(damaged) & named
        elif force or base == there or one in damaged or base is None:
            changed.add(one)
        else:
            known[one] = base
            disputed.add(one)
    disputed |= {one for one in changed if any({one} <= unit and disputed & unit for unit in TOGETHER)}
    left = set(dropped(definition, declared, list(DEFAULTS), source=source))
    agreed = _reconciled(definition, declared, changed - disputed, left, force=force)
    disputed |= changed - agreed.taken
    known = {one: was for one, was in known.items() if one not in agreed.reset}
    known |= {one: mark(declared[one]) for one in agreed.taken}
    ours: dict[str, Any] = {"values": known}
    if disputed:
        ours["conflicts"] = {one: mark(declared[one]) for one in declared if one in disputed}
    return Merged(
        values={
            **{one: now for one, now in DEFAULTS.items() if one in agreed.reset and mark(now) != mark(database.get(one))},
            **{one: value for one, value in declared.items() if one in agreed.taken},
        },
        conflicts=[_conflict(definition, one, declared, database) for one in declared if one in disputed],
        declared={**(definition.declared or {}), source: ours},
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Agreed:
    """The fields that a source changes, and those that it no longer declares and that have their defaults again."""

    taken: Set[str]
    reset: Set[str]


def _reconciled(
    definition: Definition, declared: Mapping[str, Any], taken: Set[str], left: Set[str], *, force: bool
) -> _Agreed:
    """Decide what becomes of fields that contradict what the source changes, and that it does not declare.

    Those that it has `left`, because it declared them last and nobody has changed them since, have their defaults again, and
    with `force` a person's too; else the source's changes among these fields are conflicts.
    """
    reset = {one for unit in TOGETHER if unit & taken for one in unit & left}
    if not taken or definition.problem is not None:  # what is wrong with it is found out when it is changed
        return _Agreed(taken=taken, reset=reset)
    for unit in CONTRADICTING:
        values = {one: declared[one] for one in taken} | {one: DEFAULTS[one] for one in reset}
        if not unit & taken or not _contradicts(definition, unit, values):
            continue
        others = {one for one in unit - declared.keys() if one in DEFAULTS}
        stated = {one: declared[one] for one in unit & declared.keys()}
        if _contradicts(definition, unit, values | stated | {one: DEFAULTS[one] for one in others}):
            continue  # the source contradicts itself, which is refused when it is changed
        if not _contradicts(definition, unit, values | {one: DEFAULTS[one] for one in unit & left}):
            reset |= unit & left
        elif force:
            reset |= others
        else:
            taken, reset = taken - unit, reset - unit
    return _Agreed(taken=taken, reset=reset)


def _contradicts(definition: Definition, unit: Set[str], values: Mapping[str, Any]) -> bool:
    """Say whether fields contradict each other once a definition has these values, now or when a waiting edit takes over."""
    waiting = definition.waiting_edit
    return any(
        fields == unit
        for edit in (values, {**waiting.values, **values} if waiting else values)
        for fields, _ in contradictions(_with(definition, edit))
    )


def _with(definition: Definition, values: Mapping[str, Any]) -> Definition:
    zone = Zone(name=definition.timezone, gap=definition.gap, fold=definition.fold)
    return replace(definition, **check_values(values, zone=zone, name=definition.name, present=definition))


def _conflict(definition: Definition, name: str, declared: Mapping[str, Any], database: Mapping[str, Any]) -> Conflict:
    both = {"file": declared[name], "database": database.get(name)}
    return Conflict(name=definition.name, field=name, task=definition.task, **both)


def damaged_fields(definition: Definition, stated: Mapping[str, Any] | None) -> set[str]:
    """Return fields that no edit has left as they are, of a definition that cannot be planned; `stated` is its version."""
    if definition.problem is None:
        return set()
    fields = _fields(definition)
    wrong = {name for name, value in fields.items() if mark(value) != mark((stated or {}).get(name, DEFAULTS.get(name)))}
    return wrong | set(definition.unread)


def _fields(definition: Definition) -> dict[str, Any]:
    return write_fields({name: getattr(definition, name) for name in ("schedule_kind", "groups", *FIELDS)})


def in_database(definition: Definition) -> dict[str, Any]:
    """Return the fields of a definition in plain JSON, with those of an edit that waits."""
    fields = _fields(definition)
    try:
        waiting = definition.waiting_edit
    except (ValueError, TypeError, KeyError):  # it will never take over
        return fields
    return {**fields, **(waiting.values if waiting else {})}


def open_conflicts(definition: Definition) -> dict[str, str]:
    """Return the fields that a source wants to be otherwise and may not change, each with the source."""
    found: dict[str, str] = {}
    database = in_database(definition)
    for source in definition.declared or {}:
        for one, wanted in _kept(definition, source, "conflicts").items():
            if mark(database.get(one)) != wanted:
                found[one] = source
    return found


def dropped(definition: Definition, values: Mapping[str, Any], names: Sequence[str], *, source: str) -> list[str]:
    """Return the fields that a source declared last, no longer does, and that nobody has changed since."""
    kept = _kept(definition, source)
    database = in_database(definition)
    return [name for name in names if name not in values and name in kept and kept[name] == mark(database.get(name))]


def forget(declared: Mapping[str, Any], names: Sequence[str], *, source: str) -> dict[str, Any]:
    """Return what is kept about sources without fields that one of them no longer declares."""
    ours = declared[source]
    return {**declared, source: {**ours, "values": {name: one for name, one in ours["values"].items() if name not in names}}}


def declared_elsewhere(definition: Definition, source: str) -> list[str]:
    """Return the other sources that declare a definition."""
    return [other for other in definition.declared or {} if other != source and _kept(definition, other)]


def inherited(definition: Definition, source: str, heirs: Collection[str]) -> dict[str, Any]:
    """Return what is kept about sources when one of them no longer declares a definition that others, the heirs, declare.

    What it declared last is what the heirs start from, and what it could not change is no conflict any more.
    """
    last = _kept(definition, source)
    kept = {other: one for other, one in (definition.declared or {}).items() if other != source}
    return kept | {one: {**kept.get(one, {}), "values": {**last, **_kept(definition, one)}} for one in heirs}


def _kept(definition: Definition, source: str, what: str = "values") -> Marks:
    """Return what is kept about a source; nothing where the row holds something else."""
    ours = (definition.declared or {}).get(source)
    marks = ours.get(what) if isinstance(ours, Mapping) else None
    return marks if isinstance(marks, Mapping) else {}


class _Bases:
    """What each field was, as far as the source knows it."""

    def __init__(self, definition: Definition, source: str, earlier: Earlier | None) -> None:
        kept = definition.declared
        self._earlier = (earlier or Earlier()) if kept is None else None
        self.ours = _kept(definition, source)
        self._others = [_kept(definition, other) for other in kept or {} if other != source]

    def of(self, name: str) -> str | None:
        """Return the mark of a field's base: what both sides started from. None: whatever it was, the source wins."""
        if self._earlier is not None:
            if self._earlier.stated is not None:
                return mark(self._earlier.stated.get(name, DEFAULTS.get(name)))
            return UNKNOWN if self._earlier.by_person else None
        for marks in (self.ours, *self._others):
            if name in marks:
                return marks[name]
        return mark(DEFAULTS.get(name))  # what a source does not declare is what a new definition has


def _named(values: Mapping[str, Any]) -> set[str]:
    """Return the fields that values name themselves; a concurrency key and its limit are one."""
    named = set(spread(values))
    both = {"concurrency", "concurrency_key"}
    return named | both if named & both else named
