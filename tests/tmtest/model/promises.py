"""What must hold in every state of the model, and when a state is settled."""

from __future__ import annotations

from .world import Past, Row, Setting, World


def broken_promise(setting: Setting, world: World) -> str | None:
    """Return the promise that this state breaks."""
    if world.broken:
        return world.broken
    if world.key > 1:
        return "a key succeeded twice"
    for past, row in zip(world.past, world.rows, strict=True):
        if why := _broken(past, row):
            return why
    if (setting.follows or setting.next_step) and world.past[1].let_in and "succeeded" not in world.past[0].endings:
        return "what follows began before the success was written"
    return None


def _broken(past: Past, row: Row | None) -> str | None:
    if len(past.endings) > 1:
        return f"it {past.endings[0]} and {past.endings[1]}" if past.endings[0] != past.endings[1] else "it ended twice"
    if past.effects > 1:
        return "what it wrote is there twice"
    if past.endings and row is not None and not row.ended:
        return "it ended and is still owed"
    if past.endings and past.effects != past.endings.count("succeeded"):
        return "what it wrote and how it ended disagree"
    if row is None and past.let_in and not past.endings:
        return "its row is gone without a record"
    return None


def is_settled(setting: Setting, world: World) -> bool:
    """Say whether nothing is owed: each job has ended, and what follows a success was begun or sent."""
    if any(row is not None for row in world.rows):
        return False
    first = world.past[0]
    if (setting.follows or setting.next_step) and "succeeded" in first.endings and not world.past[1].is_asked:
        return False
    return all(_is_over(past, is_direct=job in setting.direct) for job, past in enumerate(world.past))


def _is_over(past: Past, *, is_direct: bool) -> bool:
    """A call may vanish with its message, before a worker has it."""
    return bool(past.endings) or not past.is_asked or (is_direct and not past.let_in)
