"""Reading files that people write next to their code: TOML, YAML or JSON."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import InvalidValue, nearest


def read_file(path: Path) -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]:
    """Return the entries of a file's lists of calendars and definitions."""
    content = read_content(path)
    if not isinstance(content, Mapping) or "definitions" not in content:
        raise InvalidValue(str(path), "it has no list of definitions", "start each one with [[definitions]]")
    for name in content:
        if name not in ("definitions", "calendars"):
            near = nearest(name, ("definitions", "calendars"))
            hint = f"did you mean {near!r}?" if near else "a file has definitions and calendars"
            raise InvalidValue(str(path), f"it has {name!r}", hint)
    return _named(path, content, "calendars"), _named(path, content, "definitions")


def _named(path: Path, content: Mapping[str, Any], kind: str) -> list[Mapping[str, Any]]:
    entries = content.get(kind, [])
    if not isinstance(entries, list) or not all(isinstance(entry, Mapping) for entry in entries):
        raise InvalidValue(str(path), f"it has no list of {kind}", f"start each one with [[{kind}]]")
    names = [entry.get("name") for entry in entries]
    for name in names:
        if not isinstance(name, str) or not name:
            raise InvalidValue(str(path), f"one of its {kind} has no name", 'add name = "…"')
        if names.count(name) > 1:
            raise InvalidValue(str(path), f"{name!r} is there twice", "rename or remove one of them")
    return entries


def read_content(path: Path) -> Any:
    """Return what a TOML, YAML or JSON file holds."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidValue(str(path), f"it cannot be read ({error})", "give the path of a .toml or .yaml file") from None
    return _parse(path, text)


def _parse(path: Path, text: str) -> Any:
    if path.suffix == ".toml":
        try:
            return tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise InvalidValue(str(path), f"it is not TOML ({error})", "fix that line") from None
    if path.suffix == ".json":
        try:
            return json.loads(text)
        except ValueError as error:
            raise InvalidValue(str(path), f"it is not JSON ({error})", "fix that line") from None
    if path.suffix in (".yaml", ".yml"):
        try:
            import yaml
        except ImportError:
            raise InvalidValue(str(path), "reading YAML needs PyYAML", "run `pip install 'celery-tm[yaml]'`") from None
        try:
            return yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise InvalidValue(str(path), f"it is not YAML ({error})", "fix that line") from None
    raise InvalidValue(str(path), "its name ends in none of .toml, .yaml and .json", "rename it")
