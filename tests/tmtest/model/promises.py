"""What must hold in every state of the model, and when a state is settled."""

from __future__ import annotations

from .world import Past, Row, Setting, World


def broken_promise(setting: Setting, world: World) -> str | None:
    """Return the promise that this state breaks."""
    if world.broken:
        return world.broken
    if world.key > 1:
        return "a key succeeded twice"
    for job, (past, row) in enumerate(zip(world.past, world.rows, strict=True)):
        if why := _broken(past, row, is_direct=job in setting.direct):
            return why
    if _is_followed(setting) and world.past[1].let_in and not (world.past[0].endings or world.past[0].revived):
        return "what follows began before the end was written"
    return None


def _broken(past: Past, row: Row | None, *, is_direct: bool) -> str | None:
    if len(past.endings) > 1:
        return "it ended twice" if len(set(past.endings)) == 1 else f"it ended as {' and as '.join(past.endings)}"
    if past.effects > 1:
        return "what it wrote is there twice"
    if past.endings and row is not None and not row.ended:
        return "it ended and is still owed"
    if past.endings and past.effects != past.endings.count("succeeded"):
        return "what it wrote and how it ended disagree"
    if row is None and not past.endings and past.is_asked and (past.let_in or not is_direct):
        return "its row is gone without a record"
    return None


def _is_followed(setting: Setting) -> bool:
    return setting.follows or setting.next_step


def is_settled(setting: Setting, world: World) -> bool:
    """Say whether nothing is owed: each job has ended, and what follows it was begun or sent."""
    if any(row is not None for row in world.rows):
        return False
    owes_next = _is_followed(setting) and not world.past[1].is_asked and _leads_on(setting, world.past[0])
    return not owes_next and all(_is_over(past, is_direct=job in setting.direct) for job, past in enumerate(world.past))


def _leads_on(setting: Setting, past: Past) -> bool:
    """Say whether something follows how a job ended: a success, and where it is told of, a failure."""
    return "succeeded" in past.endings or (setting.follows and "buried" in past.endings)


def _is_over(past: Past, *, is_direct: bool) -> bool:
    """A call may vanish with its message, before a worker has it."""
    return bool(past.endings) or not past.is_asked or (is_direct and not past.let_in)
