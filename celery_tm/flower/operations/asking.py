"""What a request asks for: its parameters, read and checked before anything is done.

An operation of the API is data (`Operation`): its address, its parameters, what it answers and the function that does it.
The routes, the OpenAPI document and the reference page are made from the same data, so they cannot differ. What is right
for a definition or a filter is left to `TimeManagement`: a call, a command and a request are refused in the same words.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NoReturn

from ...clock import as_utc
from ...domain.stating import FIELDS
from ...errors import InvalidValue, UnknownOption, nearest, shown
from ...management import TimeManagement
from ...presentation import Rows
from ...presentation.shapes.schema import Schema

NESTED = "values."  # a form says values.queue=fast where JSON says {"values": {"queue": "fast"}}
NOT_OURS = frozenset({"_xsrf", "next"})  # what every form carries besides
TEXT_FIELDS = frozenset(
    {
        "task", "timezone", "gap", "fold", "group", "queue", "overlap", "concurrency_key", "recovery", "mode",
        "failure_strategy", "on_start", "on_complete", "starts_at", "ends_at",
    }
)  # fmt: skip
YES, NO = frozenset({"true", "yes", "on", "1"}), frozenset({"false", "no", "off", "0"})
LOST_PLUS = re.compile(r"(T[\d:.]+) (\d\d:?\d\d)$")  # a `+` in an address means a space unless it is written %2B


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """One request, once it is read."""

    tm: TimeManagement
    actor: str
    path: Mapping[str, str]
    values: Mapping[str, Any] = field(default_factory=dict)
    token: Callable[[], str] = str
    prefix: str = ""

    @property
    def rows(self) -> Rows:
        """Return what turns records into plain values."""
        return Rows(self.tm)

    @property
    def act(self) -> dict[str, Any]:
        """Return who does it and why, for the audit."""
        return {"actor": self.actor, "reason": self.values.get("reason")}

    def given(self, *names: str) -> dict[str, Any]:
        """Return those of the parameters that were given."""
        return {name: self.values[name] for name in names if self.values.get(name) is not None}


@dataclass(frozen=True, kw_only=True, slots=True)
class Parameter:
    """One thing that a request may say."""

    name: str
    schema: Schema
    from_text: Callable[[str, Sequence[str]], Any]
    from_json: Callable[[str, Any], Any]
    required: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Operation:
    """One thing that the API does."""

    name: str
    method: str
    path: str
    about: str
    work: Callable[[Asked], Any]
    answer: Schema
    parameters: Sequence[Parameter] = ()
    status: int = 200
    refusals: Sequence[int] = ()  # besides those that every operation may answer with
    done: Callable[[Asked, Any], str] | None = None  # what people are told after a change

    @property
    def names(self) -> list[str]:
        """Return the names in the path."""
        return re.findall(r"{(\w+)}", self.path)


# Reading


def read_query(operation: Operation, arguments: Mapping[str, Sequence[bytes]]) -> dict[str, Any]:
    """Return what the address says after `?`. An empty field of a form says nothing."""
    return _read_texts(operation, {name: _decoded(name, values) for name, values in arguments.items()})


def read_form(operation: Operation, arguments: Mapping[str, Sequence[bytes]]) -> dict[str, Any]:
    """Return what a form of a page says."""
    said = {name: _decoded(name, values) for name, values in arguments.items() if name not in NOT_OURS}
    nested = {name.removeprefix(NESTED): values[-1] for name, values in said.items() if name.startswith(NESTED)}
    values = _read_texts(operation, {name: found for name, found in said.items() if not name.startswith(NESTED)})
    if nested:
        if all(parameter.name != "values" for parameter in operation.parameters):
            raise UnknownOption("values")
        values["values"] = {name: _field_of_form(name, text) for name, text in nested.items()}
    return values


def read_body(operation: Operation, body: bytes) -> dict[str, Any]:
    """Return what a body in JSON says."""
    try:
        said = json.loads(body or b"{}", parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise InvalidValue("body", f"it is not JSON ({shown(str(error))})", 'send e.g. {"reason": "…"}') from None
    if not isinstance(said, dict):
        raise InvalidValue("body", f"{shown(said)} is not an object", 'send e.g. {"reason": "…"}')
    known = _known(operation, said)
    return {name: known[name].from_json(name, value) for name, value in said.items() if value is not None}


def check_required(operation: Operation, values: Mapping[str, Any]) -> None:
    """Refuse a request that leaves out what it must say."""
    for parameter in operation.parameters:
        if parameter.required and parameter.name not in values:
            raise InvalidValue(parameter.name, "it is missing", f"say {parameter.schema['description']}")


def check_text(name: str, text: str) -> str:
    """Return a text, or refuse one that no database takes."""
    if "\x00" in text or any("\ud800" <= c <= "\udfff" for c in text):
        raise InvalidValue(name, "it has characters that cannot be kept", "leave out NUL and halves of characters")
    return text


def _read_texts(operation: Operation, said: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    known = _known(operation, said)
    filled = {name: [text for text in texts if text] for name, texts in said.items()}
    return {name: known[name].from_text(name, texts) for name, texts in filled.items() if texts}


def _known(operation: Operation, said: Mapping[str, Any]) -> dict[str, Parameter]:
    known = {parameter.name: parameter for parameter in operation.parameters}
    for name in said:
        if name not in known:
            raise UnknownOption(name, nearest(name, known))
    return known


def _decoded(name: str, values: Sequence[bytes]) -> list[str]:
    try:
        return [check_text(name, value.decode().strip().replace("\r\n", "\n")) for value in values]
    except UnicodeDecodeError:
        raise InvalidValue(shown(name), "it is not UTF-8", "check the encoding") from None


def _field_of_form(name: str, text: str) -> Any:
    """Return a field of a definition as the page's form has it; an empty one is none."""
    if name not in FIELDS:
        raise UnknownOption(name, nearest(name, FIELDS))
    if not text:
        return None
    if name in TEXT_FIELDS or (name == "schedule" and not text.startswith("{")):
        return text
    return _json_or_text(name, text)


def _json_or_text(name: str, text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        if text[:1] in ("{", "[", '"'):
            remedy = """write text in double quotes, e.g. ["a", 1] or {"a": 1}"""
            raise InvalidValue(name, f"{shown(text)} is not JSON ({error})", remedy) from None
        return text


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


# Kinds of parameters


def text(name: str, about: str, *, required: bool = False, **more: Any) -> Parameter:
    """Return a parameter that is a text."""
    schema = {"type": "string", "description": about, **more}
    return Parameter(name=name, schema=schema, from_text=_last, from_json=_text, required=required)


def whole(name: str, about: str, *, required: bool = False, **more: Any) -> Parameter:
    """Return a parameter that is a whole number."""
    schema = {"type": "integer", "description": about, **more}
    return Parameter(name=name, schema=schema, from_text=_whole_of_text, from_json=_whole, required=required)


def flag(name: str, about: str) -> Parameter:
    """Return a parameter that is a yes or no."""
    return Parameter(name=name, schema={"type": "boolean", "description": about}, from_text=_flag_of_text, from_json=_flag)


def names(name: str, about: str) -> Parameter:
    """Return a parameter that is a list of texts; in a form the field comes more than once."""
    schema = {"type": "array", "items": {"type": "string"}, "description": about}
    return Parameter(name=name, schema=schema, from_text=lambda _, texts: list(texts), from_json=_names)


def instant(name: str, about: str, *, required: bool = False) -> Parameter:
    """Return a parameter that is an instant, with an offset."""
    schema = {"type": "string", "format": "date-time", "description": f"{about}; ISO 8601 with an offset"}
    return Parameter(name=name, schema=schema, from_text=_instant_of_text, from_json=_instant, required=required)


def own_instant(name: str, about: str, *, required: bool = False) -> Parameter:
    """Return a parameter that is an instant, without an offset in the definition's own time zone."""
    schema = {"type": "string", "description": f"{about}; ISO 8601, without an offset in the definition's own time zone"}
    return Parameter(name=name, schema=schema, from_text=_moment_of_text, from_json=_moment, required=required)


def mapping(name: str, about: str, *, required: bool = False) -> Parameter:
    """Return a parameter that is an object; a form spells it out as `name.field`."""
    schema = {"type": "object", "additionalProperties": True, "description": about}
    return Parameter(name=name, schema=schema, from_text=_mapping_of_text, from_json=_mapping, required=required)


def _last(_: str, texts: Sequence[str]) -> str:
    return texts[-1]


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidValue(name, f"{shown(value)} is not a text", "write it in double quotes")
    return check_text(name, value)


def _whole(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidValue(name, f"{shown(value)} is not a whole number", "give e.g. 50")
    return value


def _whole_of_text(name: str, texts: Sequence[str]) -> int:
    try:
        return int(texts[-1])
    except ValueError:
        raise InvalidValue(name, f"{shown(texts[-1])} is not a whole number", "give e.g. 50") from None


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise InvalidValue(name, f"{shown(value)} is not true or false", "give one of them")
    return value


def _flag_of_text(name: str, texts: Sequence[str]) -> bool:
    word = texts[-1].lower()
    if word not in YES | NO:
        raise InvalidValue(name, f"{shown(texts[-1])} is not true or false", "give one of them")
    return word in YES


def _names(name: str, value: Any) -> list[str]:
    if not isinstance(value, list):
        raise InvalidValue(name, f"{shown(value)} is not a list", 'give e.g. ["…", "…"]')
    return [_text(name, one) for one in value]


def _moment(name: str, value: Any) -> datetime:
    said = LOST_PLUS.sub(r"\1+\2", _text(name, value).strip())
    try:
        return datetime.fromisoformat(said)
    except ValueError:
        remedy = "use ISO 8601, e.g. 2026-12-24T18:00+01:00"
        raise InvalidValue(name, f"{shown(value)} is not a date and time", remedy) from None


def _moment_of_text(name: str, texts: Sequence[str]) -> datetime:
    return _moment(name, texts[-1])


def _instant(name: str, value: Any) -> datetime:
    return as_utc(_moment(name, value), field=name)


def _instant_of_text(name: str, texts: Sequence[str]) -> datetime:
    return _instant(name, texts[-1])


def _mapping(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidValue(name, f"{shown(value)} is not an object", 'give e.g. {"queue": "fast"}')
    return value


def _mapping_of_text(name: str, texts: Sequence[str]) -> dict[str, Any]:
    return _mapping(name, _json_or_text(name, texts[-1]))
