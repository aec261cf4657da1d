"""YAML as people mean it: plain values, no key twice, and no more values than the file seems to have.

An alias stands for all that its anchor holds, so a few lines can stand for billions of values, and one can stand within
itself. Both are found on the tree of nodes, before anything is made of it.
"""

from __future__ import annotations

from typing import Any

import yaml

MAX_VALUES = 1_000_000
MERGE = "tag:yaml.org,2002:merge"


def read_yaml(text: str) -> Any:
    """Return what a text holds; PyYAML's safe loader makes nothing but plain values. Errors are PyYAML's own."""
    loader = _Loader(text)
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()


class _Loader(yaml.SafeLoader):
    """Looks at the nodes before it makes values of them."""

    def get_single_node(self) -> Any:
        """Return the tree of nodes, or refuse it."""
        node = super().get_single_node()
        if node is not None:
            _count(node, {})
        return node


def _count(node: yaml.Node, known: dict[int, int]) -> int:
    """Return how many values a node stands for, each alias written out."""
    if id(node) in known:
        if not known[id(node)]:
            raise _refusal(node, "an alias that stands within itself")
        return known[id(node)]
    known[id(node)] = 0  # being counted
    size = 1
    for child in _children(node):
        size += _count(child, known)
        if size > MAX_VALUES:
            raise _refusal(node, f"aliases that stand for more than {MAX_VALUES:,} values")
    known[id(node)] = size
    return size


def _children(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        _refuse_twins(node)
        return [part for pair in node.value for part in pair]
    return node.value if isinstance(node, yaml.SequenceNode) else []


def _refuse_twins(node: yaml.MappingNode) -> None:
    seen = set()
    for key, _ in node.value:
        name = (key.tag, key.value) if isinstance(key, yaml.ScalarNode) else None
        if name in seen and key.tag != MERGE:
            raise _refusal(key, f"the key {key.value[:80]!r} twice")
        if name:
            seen.add(name)


def _refusal(node: yaml.Node, found: str) -> yaml.YAMLError:
    return yaml.constructor.ConstructorError(None, None, f"found {found}", node.start_mark)
