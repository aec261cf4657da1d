"""Reading files that people write next to their code: TOML, YAML or JSON.

A file is only ever data, and what a reader of a format trips over is said in one line: where a file is too large or nested
too deeply, where a key stands twice, or where a few lines of YAML would become millions of values.
"""

from __future__ import annotations

import json
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from ..errors import InvalidValue, named, nearest, shown

MAX_BYTES = 16_000_000


def read_file(path: Path) -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]:
    """Return the entries of a file's lists of calendars and definitions."""
    content = read_content(path)
    if not isinstance(content, Mapping) or "definitions" not in content:
        raise InvalidValue(place_of(path), "it has no list of definitions", "start each one with [[definitions]]")
    for name in content:
        if name not in ("definitions", "calendars"):
            near = nearest(name, ("definitions", "calendars"))
            hint = f"did you mean {near!r}?" if near else "a file has definitions and calendars"
            raise InvalidValue(place_of(path), f"it has {shown(name)}", hint)
    return _entries(path, content, "calendars"), _entries(path, content, "definitions")


def place_of(path: Path) -> str:
    """Return the name of a file as an error may show it."""
    text = str(path)
    return text if text.isprintable() and len(text) <= 300 else named(text)


def _entries(path: Path, content: Mapping[str, Any], kind: str) -> list[Mapping[str, Any]]:
    entries = content.get(kind, [])
    if not isinstance(entries, list) or not all(isinstance(entry, Mapping) for entry in entries):
        raise InvalidValue(place_of(path), f"it has no list of {kind}", f"start each one with [[{kind}]]")
    names = [entry.get("name") for entry in entries]
    for name in names:
        if not isinstance(name, str) or not name:
            raise InvalidValue(place_of(path), f"one of its {kind} has no name", 'add name = "…"')
    for name, count in Counter(names).items():
        if count > 1:
            raise InvalidValue(place_of(path), f"{named(name)} is there twice", "rename or remove one of them")
    for entry in entries:
        for key in entry:
            if not isinstance(key, str):
                raise InvalidValue(
                    place_of(path), f"{named(entry['name'])} states {shown(key)}, which is no text", "write it in quotes"
                )
    return entries


def read_content(path: Path) -> Any:
    """Return what a TOML, YAML or JSON file holds."""
    read = _READERS.get(path.suffix)
    if read is None:
        raise InvalidValue(place_of(path), "its name ends in none of .toml, .yaml and .json", "rename it")
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        text = content.decode("utf-8").replace("\r\n", "\n")
    except (OSError, ValueError) as error:  # a name with NUL is a ValueError too
        problem = f"it cannot be read ({shown(str(error), 200)})"
        raise InvalidValue(place_of(path), problem, "give the path of a .toml or .yaml file") from None
    if len(content) > MAX_BYTES:
        raise InvalidValue(place_of(path), f"it has more than {MAX_BYTES:,} bytes", "split it into several files")
    return _parsed(path, read, text)


def _parsed(path: Path, read: Callable[[str], Any], text: str) -> Any:
    kind = {".toml": "TOML", ".json": "JSON"}.get(path.suffix, "YAML")
    try:
        return read(text)
    except RecursionError:
        raise InvalidValue(place_of(path), f"it is no {kind} that can be read: nested too deeply", "make it flat") from None
    except ImportError:
        raise InvalidValue(place_of(path), "reading YAML needs PyYAML", "run `pip install 'celery-tm[yaml]'`") from None
    except Exception as error:  # of many kinds: a date that does not exist, a number too long, a bad escape
        raise InvalidValue(place_of(path), f"it is not {kind} ({_told(error)})", "fix that line") from None


def _told(error: Exception) -> str:
    """Return what a reader says, without what cannot be seen; YAML's quotes the line."""
    text = "".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in str(error)) or type(error).__name__
    return text if len(text) <= 400 else text[:400] + "…"


def _read_json(text: str) -> Any:
    return json.loads(text, object_pairs_hook=_without_twins)


def _without_twins(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {named(key)} is there twice")
        found[key] = value
    return found


def _read_yaml(text: str) -> Any:
    from .reading_yaml import read_yaml

    return read_yaml(text)


_READERS: Mapping[str, Callable[[str], Any]] = {
    ".toml": tomllib.loads, ".json": _read_json, ".yaml": _read_yaml, ".yml": _read_yaml,
}  # fmt: skip
