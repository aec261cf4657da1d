"""When a failed attempt is tried again, as data: a policy says how long to wait, `after_failure` says whether at all."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from datetime import datetime, timedelta
from typing import Any, ClassVar, Protocol

from ..clock import format_duration, parse_duration
from ..errors import InvalidValue, UnknownOption, nearest, shown, spelled
from .execution import Failure, Outcome
from .job import Job

HOUR = timedelta(minutes=60)
DAY = timedelta(days=1)
STALE = "stale: "  # how the reason of a dead letter begins whose last attempt ran for too long


class RetryPolicy(Protocol):
    """How long to wait before the try that follows the `retry`-th failure, from 1."""

    kind: ClassVar[str]

    def delay_after(self, retry: int, *, original_delay: timedelta) -> timedelta | None: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Proportional:
    """Wait a tenth of the original delay per try: what was urgent stays urgent."""

    kind: ClassVar[str] = "proportional"
    share: float = 0.1
    floor: timedelta = timedelta(seconds=1)
    cap: timedelta = HOUR

    def delay_after(self, retry: int, *, original_delay: timedelta) -> timedelta:
        """Return the wait before the try that follows the `retry`-th failure."""
        return _grown(max(_grown(original_delay, self.share), self.floor), retry, self.cap)


@dataclass(frozen=True, kw_only=True, slots=True)
class Fixed:
    """Always wait the same."""

    kind: ClassVar[str] = "fixed"
    delay: timedelta = timedelta(minutes=1)

    def delay_after(self, retry: int, *, original_delay: timedelta) -> timedelta:  # noqa: ARG002
        """Return the wait before the try that follows the `retry`-th failure."""
        return self.delay


@dataclass(frozen=True, kw_only=True, slots=True)
class Linear:
    """Wait one base longer with each try."""

    kind: ClassVar[str] = "linear"
    base: timedelta = timedelta(seconds=10)
    cap: timedelta = DAY

    def delay_after(self, retry: int, *, original_delay: timedelta) -> timedelta:  # noqa: ARG002
        """Return the wait before the try that follows the `retry`-th failure."""
        return _grown(self.base, retry, self.cap)


@dataclass(frozen=True, kw_only=True, slots=True)
class Exponential:
    """Wait `interval × factorⁿ`, spread by a share of jitter so that a herd does not come back as one."""

    kind: ClassVar[str] = "exponential"
    interval: timedelta = timedelta(seconds=1)
    factor: float = 2.0
    cap: timedelta = HOUR
    jitter: float = 0.0

    def delay_after(self, retry: int, *, original_delay: timedelta) -> timedelta:  # noqa: ARG002
        """Return the wait before the try that follows the `retry`-th failure."""
        try:
            wait = _grown(self.interval, float(self.factor) ** (retry - 1), self.cap)
        except OverflowError:
            wait = self.cap
        return wait * (1 - self.jitter * random.random())


@dataclass(frozen=True, kw_only=True, slots=True)
class Never:
    """Leave it to the body, as plain Celery does: only `self.retry()` and `autoretry_for` try again."""

    kind: ClassVar[str] = "never"

    def delay_after(self, retry: int, *, original_delay: timedelta) -> timedelta | None:  # noqa: ARG002
        """Return None: no try follows."""
        return None


def _grown(wait: timedelta, times: float, cap: timedelta = timedelta.max) -> timedelta:
    """Return a wait that many times as long, at most the cap."""
    try:
        return min(wait * times, cap)
    except OverflowError:
        return cap


POLICIES: Mapping[str, type[Proportional | Fixed | Linear | Exponential | Never]] = {
    policy.kind: policy for policy in (Proportional, Fixed, Linear, Exponential, Never)
}


@dataclass(frozen=True, slots=True)
class TryAgain:
    """The job goes back to pending and is due after `delay`, with what else the body wants changed for that try."""

    delay: timedelta
    args: str | None = None
    kwargs: str | None = None
    queue: str | None = None
    priority: int | None = None
    expires_at: datetime | None = None
    options: Mapping[str, Any] | None = None

    @property
    def changes(self) -> Mapping[str, Any]:
        """Return the columns of the job that the next try has anew."""
        named = ("args", "kwargs", "queue", "priority", "expires_at", "options")
        return {name: value for name in named if (value := getattr(self, name)) is not None}


@dataclass(frozen=True, slots=True)
class Bury:
    """The job becomes a dead letter."""

    reason: str

    def of(self, failure: Failure) -> Bury:
        """Return the same with a reason that says so where the last attempt ran for too long."""
        if failure.outcome is not Outcome.STALE or self.reason.startswith(STALE):
            return self
        return Bury(f"{STALE}{failure.error.partition(': ')[2]}; {self.reason}")


NOT_KEPT = "its arguments were not JSON, so it cannot be sent again"


def can_be_sent_again(job: Job, then: TryAgain | None = None) -> bool:
    """Say whether a job's arguments are kept, or come with its next try."""
    return (job.args is not None and job.kwargs is not None) or (then is not None and then.args is not None)


VANISHED_AGAIN = timedelta(seconds=1)


def after_failure(job: Job, *, default: RetryPolicy, vanished: bool = False) -> TryAgain | Bury:
    """Decide what follows the failure of `job`'s present attempt.

    An attempt that `vanished` said nothing: where it is up to the body to ask for another try, it gets one anyway.
    """
    if not can_be_sent_again(job):
        return Bury(NOT_KEPT)
    if job.max_retries is not None and job.retries >= job.max_retries:
        tries = job.retries + 1
        return Bury(f"failed {tries} {'time' if tries == 1 else 'times'}, max_retries={job.max_retries}")
    policy = read_policy(job.retry) if job.retry else default
    delay = policy.delay_after(job.retries + 1, original_delay=job.original_delay)
    if delay is None and vanished:
        delay = VANISHED_AGAIN
    return Bury("it failed, and its retry policy is 'never'") if delay is None else TryAgain(delay)


def read_policy(value: Any) -> RetryPolicy:
    """Return the policy that a name, a mapping or a policy object stands for."""
    if isinstance(value, (Proportional, Fixed, Linear, Exponential, Never)):
        _checked(type(value), {f.name: getattr(value, f.name) for f in fields(value)})
        return value
    given = {"kind": value} if isinstance(value, str) else value
    if not isinstance(given, Mapping) or "kind" not in given:
        raise InvalidValue("retry", f"{shown(value)} is not a retry policy", "give e.g. {'kind': 'fixed', 'delay': '30s'}")
    kind = given["kind"]
    if not isinstance(kind, str) or kind not in POLICIES:
        raise InvalidValue("retry", f"unknown kind {shown(kind)}", f"use one of {', '.join(POLICIES)}")
    stated = {name: item for name, item in given.items() if name != "kind"}
    return POLICIES[kind](**_checked(POLICIES[kind], stated))


LARGEST = {"share": 1000, "factor": 1000, "jitter": 1}


def _checked(policy: Any, stated: Mapping[str, Any]) -> dict[str, Any]:
    """Return a policy's stated fields, each of the kind and size it must have."""
    known = [f.name for f in fields(policy)]
    values: dict[str, Any] = {}
    for name, item in stated.items():
        if name not in known:
            raise UnknownOption(spelled(name), nearest(name, known))
        values[name] = _number(name, item) if name in LARGEST else parse_duration(item, field=f"retry.{name}")
    return values


def _number(name: str, value: Any) -> float:
    largest = LARGEST[name]
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= largest:
        raise InvalidValue(f"retry.{name}", f"{shown(value)} is not a number from 0 to {largest}", "give e.g. 0.5")
    return float(value)


def write_policy(policy: RetryPolicy) -> dict[str, Any]:
    """Return a policy as plain values that `read_policy` takes back."""
    values = asdict(policy)  # type: ignore[call-overload]
    plain = {name: format_duration(v) if isinstance(v, timedelta) else v for name, v in values.items()}
    return {"kind": policy.kind, **plain}
