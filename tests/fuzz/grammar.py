"""Statements of schedules: right ones of every kind, near misses of them, and what is none at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import strategies as st

from celery_tm.domain.schedule.solar import EVENTS
from fuzz.values import ANY_ODD, ANY_TEXT, VALUES

ZONES = ["UTC", "Europe/Warsaw", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu", "Pacific/Apia", "America/Nuuk"]
WRONG_ZONES: list[Any] = ["", "Europe/Warsow", "../etc/passwd", "/etc/localtime", "UTC\x00", "\ud800", "x" * 100_000, 5,
                          None, ["UTC"], "Europe", "utc", "posixrules", "Europe/Warsaw\n"]  # fmt: skip
DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")


def numbers(low: int, high: int) -> st.SearchStrategy[str]:
    """A number of a field, mostly one that fits."""
    return st.integers(low, high).map(str) | st.integers(low, high).map(lambda n: f"{n:02d}")


def field(low: int, high: int, *more: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """One field of a cron expression."""
    number = numbers(low, high)
    step = st.integers(1, high).map(lambda n: f"/{n}") | st.just("")
    ranges = st.tuples(st.integers(low, high), st.integers(low, high)).map(lambda ends: "{}-{}".format(*sorted(ends)))
    hashed = st.just("H") | ranges.map(lambda span: f"H({span})")
    item = st.one_of(number, st.just("*"), st.tuples(ranges | st.just("*") | number | hashed, step).map("".join), *more)
    return st.lists(item, min_size=1, max_size=4).map(",".join)


DAY = field(
    1, 31, st.sampled_from(["L", "LW", "?"]), numbers(1, 31).map(lambda n: f"{n}W"), numbers(1, 30).map("L-{}".format)
)
MONTH = field(1, 12, st.sampled_from(MONTHS), st.just("jan-mar"))
WEEKDAY = field(0, 7, st.sampled_from(DAYS), st.just("?"),
                st.tuples(st.integers(0, 7), st.integers(1, 5)).map("{0[0]}#{0[1]}".format),
                st.sampled_from(["L5", "5L", "Lfri", "mon-fri", "fri-sun"]))  # fmt: skip
FIVE = st.tuples(field(0, 59), field(0, 23), DAY, MONTH, WEEKDAY).map(" ".join)
SIX = st.tuples(field(0, 59), FIVE).map(" ".join)
SPAN = st.tuples(st.integers(0, 100), st.sampled_from(["ms", "s", "m", "h", "d", "w"])).map("{0[0]}{0[1]}".format)
SPANS = st.lists(SPAN, min_size=1, max_size=3).map(" ".join) | st.sampled_from(["1.5h", "0.001s", "36500d", "0s"])
LOCAL = st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59)) | st.datetimes(
    datetime(2025, 1, 1), datetime(2030, 1, 1)
)
OFFSET = st.sampled_from(["", "Z", "+00:00", "+01:00", "-23:59", "+14:00", "+05:45", "+00:00:30"])
MOMENT = st.tuples(LOCAL.map(lambda at: at.replace(microsecond=0).isoformat()), OFFSET).map("".join)
CLOCK = st.times().map(lambda at: at.strftime("%H:%M")) | st.times().map(lambda at: at.strftime("%H:%M:%S"))
PERIOD = st.tuples(
    st.sampled_from(["", "1Y", "9999Y", "13M", "1W", "1D", "999999998D", "1Y6M"]),
    st.sampled_from(["", "T1H", "T90M", "T1S", "T1.5S", "T0.5S", "T12H30M", "T999999999H"]),
).map(lambda parts: "P" + "".join(parts))
ISO = st.tuples(st.sampled_from(["R", "R1", "R5", "R999999999", "R0", "R-1"]), MOMENT, PERIOD | MOMENT).map(
    "/".join
) | st.tuples(st.sampled_from(["R", "R3"]), PERIOD, MOMENT).map("/".join)
COMPACT = LOCAL.map(lambda at: at.strftime("%Y").zfill(4) + at.strftime("%m%dT%H%M%S"))


def by(name: str, low: int, high: int, *, signed: bool = False) -> st.SearchStrategy[str]:
    """One BY part of a recurrence rule."""
    number = st.integers(low, high) | st.integers(-high, -low) if signed else st.integers(low, high)
    return st.lists(number, min_size=1, max_size=5).map(lambda found: f"{name}=" + ",".join(map(str, found)))


PARTS = st.lists(
    st.one_of(
        st.integers(1, 100_000).map("INTERVAL={}".format), st.sampled_from(["INTERVAL=1", "INTERVAL=7", "INTERVAL=61"]),
        st.integers(1, 100_000).map("COUNT={}".format), COMPACT.map("UNTIL={}".format), by("BYMONTH", 1, 12),
        by("BYWEEKNO", 1, 53, signed=True), by("BYYEARDAY", 1, 366, signed=True), by("BYMONTHDAY", 1, 31, signed=True),
        st.lists(st.sampled_from(["MO", "1TU", "-1FR", "5SU", "53SA"]), min_size=1, max_size=3)
        .map(lambda found: "BYDAY=" + ",".join(found)),
        by("BYHOUR", 0, 23), by("BYMINUTE", 0, 59), by("BYSECOND", 0, 59), by("BYSETPOS", 1, 366, signed=True),
        st.sampled_from(["WKST=MO", "WKST=SU"]),
    ),
    max_size=5,
)  # fmt: skip
RULE = st.tuples(st.sampled_from(["YEARLY", "MONTHLY", "WEEKLY", "DAILY", "HOURLY", "MINUTELY", "SECONDLY"]), PARTS).map(
    lambda found: ";".join([f"FREQ={found[0]}", *found[1]])
)
RRULE = st.tuples(
    COMPACT.map("DTSTART:{}".format),
    st.lists(RULE.map("RRULE:{}".format), min_size=1, max_size=3).map("\n".join),
    st.lists(st.tuples(st.sampled_from(["RDATE", "EXDATE"]), COMPACT).map(":".join), max_size=3).map("\n".join),
).map(lambda parts: "\n".join(part for part in parts if part))  # fmt: skip
PLACE = st.tuples(st.floats(-90, 90).map(lambda n: round(n, 3)), st.floats(-180, 180).map(lambda n: round(n, 3)))
EVERY = SPANS.map("every {}".format)
WINDOW = st.tuples(
    SPANS,
    CLOCK,
    CLOCK,
    st.just("") | st.lists(st.sampled_from([*DAYS, "fri-mon"]), min_size=1).map(lambda d: " on " + ",".join(d)),
).map("every {0[0]} from {0[1]} until {0[2]}{0[3]}".format)
# Solar ones are dear: where the sun does not rise, a whole year of it is computed.
SOLAR = st.tuples(st.sampled_from(list(EVENTS)), PLACE).map(lambda found: "{} at {},{}".format(found[0], *found[1]))
NICKNAME = st.sampled_from(["@daily", "@yearly", "@reboot", "@every 5m", "@", "@hourly"])
TEXTS = st.one_of(
    FIVE, SIX, NICKNAME, EVERY, st.tuples(EVERY, MOMENT).map(" from ".join), WINDOW, ISO, MOMENT.map("at {}".format), RRULE
)

# Near misses

PIECES = [
    "\x00", "\ud800", "٣", "²", "９", "\u202e", "\n", "\t", "  ", "", "-", "/", ",", "*", "#", "(", ")", "L", "W", "H", "@",
    "R", "P", "T", ":", ";", "=", "%s", "{0}", "9" * 30, "9" * 5000, "-1", "0", "1e309", "NaN", "\x1b[31m", "until", "from",
    "at", "on", "'; DROP TABLE tm_definition; --", "DTSTART:", "RRULE:FREQ=SECONDLY;COUNT=100000", "x" * 100_000,
]  # fmt: skip


@dataclass(frozen=True)
class Change:
    """One change of a text, somewhere in it: what stands there is cut, and a piece is put in, perhaps many times."""

    where: float
    cut: int
    piece: str
    times: int = 1


CHANGES = st.lists(
    st.builds(
        Change,
        st.floats(0, 1),
        st.integers(0, 5) | st.just(10_000),
        st.sampled_from(PIECES) | ANY_TEXT,
        st.just(1) | st.sampled_from([0, 2, 50]),
    ),
    min_size=1,
    max_size=3,
)


def changed(text: str, changes: Sequence[Change]) -> str:
    """Return a text with changes."""
    for change in changes:
        place = int(change.where * len(text))
        text = text[:place] + change.piece * change.times + text[place + change.cut :]
    return text


def near(texts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Return texts that are almost right."""
    return st.builds(changed, texts, CHANGES)


# Statements in parts

PARTED: list[st.SearchStrategy[dict[str, Any]]] = [
    st.fixed_dictionaries({"kind": st.just("cron"), "expression": FIVE | SIX}),
    st.fixed_dictionaries({"kind": st.just("crontab"), "expression": FIVE}),
    st.fixed_dictionaries({"kind": st.just("interval"), "every": SPANS}, optional={"start": MOMENT}),
    st.fixed_dictionaries({"kind": st.just("iso8601"), "expression": ISO}),
    st.fixed_dictionaries({"kind": st.just("once"), "at": MOMENT}),
    st.fixed_dictionaries({"kind": st.just("window"), "every": SPANS, "from": CLOCK, "until": CLOCK},
                          optional={"days": st.lists(st.sampled_from(DAYS))}),
    st.fixed_dictionaries({"kind": st.just("rrule"), "rule": RULE, "start": LOCAL.map(lambda t: t.replace(microsecond=0))}),
]  # fmt: skip
WHOLE: st.SearchStrategy[Any] = st.one_of(*PARTED)
ODD_KEYS = st.sampled_from(
    ["kind", "expression", "every", "start", "at", "from", "until", "days", "rule", "lat", "x", "\ud800"]
)


@st.composite
def broken(draw: Any) -> dict[Any, Any]:
    """Return a statement in parts of which one is odd, or gone, or too many."""
    given_ = dict(draw(WHOLE))
    key = draw(st.sampled_from(sorted(given_)) | ODD_KEYS | ANY_ODD.filter(_is_key))
    if draw(st.booleans()) and key in given_ and isinstance(given_[key], str):
        given_[key] = changed(given_[key], draw(CHANGES))
    elif draw(st.integers(0, 4)):
        given_[key] = draw(VALUES)
    else:
        given_.pop(key, None)
    return given_


def _is_key(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


SOLAR_PARTS = st.fixed_dictionaries(
    {
        "kind": st.just("solar"),
        "event": st.sampled_from(list(EVENTS)),
        "lat": st.floats() | VALUES,
        "lon": st.floats(-180, 180),
    }
)
INSTANTS = st.datetimes(timezones=st.just(UTC)) | st.sampled_from(
    [datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC), datetime(2026, 3, 29, 1, tzinfo=UTC)]
)
STATEMENTS: st.SearchStrategy[Any] = st.one_of(
    TEXTS,
    near(TEXTS),
    near(TEXTS),
    WHOLE,
    broken(),
    broken(),
    VALUES,
    st.timedeltas(),
    st.timedeltas(timedelta(0)),
    INSTANTS,
)
ENTRY = st.one_of(
    st.sampled_from(DAYS),
    st.dates().map(str),
    st.dates().map(lambda day: f"{day:%m-%d}"),
    st.tuples(st.dates(), st.dates()).map(lambda ends: "/".join(map(str, sorted(ends)))),
    st.tuples(LOCAL, LOCAL).map(lambda ends: "/".join(at.isoformat() for at in sorted(ends))),
    st.dates(),
)
BOUNDS: dict[str, st.SearchStrategy[Any]] = {
    "timezone": st.sampled_from(ZONES),
    "gap": st.sampled_from(["shift", "skip"]),
    "fold": st.sampled_from(["first", "second", "both", None]),
    "starts_at": INSTANTS,
    "ends_at": INSTANTS,
    "excluded": st.lists(ENTRY, max_size=8),
    "jitter": SPANS,
    "max_runs": st.integers(1, 10**9),
}
ODD_BOUNDS: dict[str, st.SearchStrategy[Any]] = {
    name: right | VALUES | near(ENTRY.map(str)) | st.sampled_from(WRONG_ZONES) for name, right in BOUNDS.items()
} | {"excluded": st.lists(ENTRY | near(ENTRY.map(str)) | VALUES, max_size=5) | VALUES}
