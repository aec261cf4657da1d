"""What the commands share: the app, options, and errors as one line. What is printed is `cli.output`."""

from __future__ import annotations

import functools
import getpass
from collections.abc import Callable, Iterable
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar
from zoneinfo import ZoneInfo

import click

from ..clock import as_utc
from ..domain.dst import local_or_utc
from ..domain.job import checked_text
from ..domain.paging import MAX_PAGE, Page
from ..errors import AppMissing, InvalidValue, TmError, nearest, shown
from ..management import TimeManagement
from .output import printable

T = TypeVar("T")
MAX_ACTOR = 255
LOCK_TIMEOUT = 10.0  # seconds that a command waits for a row which another transaction has locked

as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
limit_option = click.option(
    "--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="At most so many."
)


def _you() -> str | None:
    """Return who runs the command; a container may have no name for its user."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return None


since_option = click.option("--since", metavar="ISO", help="From this instant on; ISO 8601 with an offset.")
until_option = click.option("--until", metavar="ISO", help="Up to this instant, itself not included.")
before_option = click.option("--before", metavar="CURSOR", help="What follows a page: the cursor that was told after it.")
after_option = click.option("--after", metavar="CURSOR", help="What follows a page: the cursor that was told after it.")
task_option = click.option("--task", help="Only of this task.")
actor_option = click.option("--actor", default=_you, help="Who does this, for the audit; default: you.")
reason_option = click.option("--reason", help="Why, for the audit.")


def example(line: str) -> str:
    """Return the last words of a command's help: how it is called."""
    return f"\b\nExample:\n  celery -A app tm {line}"


def with_tm(function: Callable[..., Any]) -> Callable[..., Any]:
    """Hand the command its `TimeManagement`; what goes wrong on purpose becomes one line and exit code 1."""

    @click.pass_context
    @functools.wraps(function)
    def run(ctx: click.Context, *args: Any, **kwargs: Any) -> Any:
        _refuse_half_characters(ctx)
        try:
            if kwargs.get("actor"):
                checked_text(kwargs["actor"], field="actor", limit=MAX_ACTOR)
            tm = tm_of(ctx)
            if "schema" not in ctx.command_path.split():  # an upgrade waits as it needs to
                tm.installation.database.limit_waiting(LOCK_TIMEOUT)
            return function(tm, *args, **kwargs)
        except TmError as error:
            raise click.ClickException(one_line(str(error))) from None

    return run


def _refuse_half_characters(ctx: click.Context) -> None:
    """Refuse arguments that are not UTF-8: Python hands them on as text that no database takes."""
    for name, value in ctx.params.items():
        if any("\ud800" <= c <= "\udfff" for text in _texts(value) for c in text):
            raise click.UsageError(f"{name.replace('_', '-')} is not UTF-8; check the terminal's encoding", ctx)


def _texts(value: Any) -> list[str]:
    values = value if isinstance(value, tuple) else (value,)
    return [str(item) for item in values if isinstance(item, (str, Path))]


def one_line(text: str) -> str:
    """Return a message without line breaks, so that logs and `grep` keep it whole."""
    return " ".join(line.strip() for line in text.splitlines() if line.strip())


def tm_of(ctx: click.Context) -> TimeManagement:
    """Return the `TimeManagement` of the app that `celery -A` named."""
    app = getattr(ctx.obj, "app", None)
    if app is None or app.main == "default":  # Celery's own stand-in, when -A was left out
        raise AppMissing("celery tm")
    return TimeManagement(app)


def read_instant(text: str | None, *, field: str, zone: str | None = None) -> datetime | None:
    """Return the instant that ISO 8601 text means; without an offset it is local time in `zone`, or refused."""
    return None if text is None else as_utc(local_or_utc(read_moment(text, field=field, zone=zone)), field=field)


def read_moment(text: str, *, field: str, zone: str | None = None) -> datetime:
    """Return the time that ISO 8601 text means, as it was written; without an offset it is on the clocks of `zone`."""
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise InvalidValue(
            field,
            f"{shown(text)} is not a date and time",
            "use ISO 8601, e.g. '2026-12-24T18:00' or '2026-12-24T18:00+01:00'",
        ) from None
    return moment if moment.tzinfo or zone is None else moment.replace(tzinfo=ZoneInfo(zone))


def many(ask: Callable[..., Page[T]], *, limit: int, **cursor: str | None) -> Page[T]:
    """Return as much of a list as is wanted, page by page; the cursor is the one keyword besides."""
    [(name, place)] = cursor.items()
    found: Page[T] = Page()
    while len(found) < limit:
        page = ask(limit=min(limit - len(found), MAX_PAGE), **{name: place})
        found.extend(page)
        found.unreadable.extend(page.unreadable)
        found.next = place = page.next
        if place is None:
            break
    return found


def tell_next(page: Page[Any], option: str) -> None:
    """Say on stderr how to see what follows and what cannot be read; what is printed for programs is the list itself."""
    for row in page.unreadable:
        remedy = f"`celery -A app tm rows remove {row.table} {row.id}` removes it"
        click.echo(printable(f"unreadable: {row.table} {row.id}: {row.error}; {remedy}"), err=True)
    if page.next is not None:
        click.echo(f"more: add {option} {page.next}", err=True)


def since_until(options: dict[str, Any]) -> dict[str, Any]:
    """Return options with `since` and `until` as instants."""
    return options | {name: read_instant(options[name], field=name) for name in ("since", "until") if name in options}


def hint(wanted: str | None, known: Iterable[str], what: str) -> str:
    """Return what is said besides when a filter found nothing: the nearest name, if it was none."""
    names = list(known)
    if wanted is None or wanted in names:
        return ""
    near = nearest(wanted, names)
    return f"; no {what} is called {wanted!r}, did you mean {near!r}?" if near else f"; no {what} is called {wanted!r}"


class Word(click.Choice):  # type: ignore[type-arg]  # it has a parameter only since click 8.2
    """One word out of a few; another one is answered with the nearest."""

    def __init__(self, words: Iterable[str]) -> None:
        super().__init__([str(word) for word in words])

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the word, or refuse it."""
        if value in self.choices:
            return value
        near = nearest(value, self.choices)
        meant = f", did you mean {near!r}?" if near else ""
        return self.fail(f"{value!r} is not one of {', '.join(self.choices)}{meant}", param, ctx)
