"""How things stand, among the figures of Flower's own `/metrics`."""

from __future__ import annotations

from prometheus_client import REGISTRY

from ..installation import Installation
from .collecting import StateCollector

_installed: list[StateCollector] = []


def install_flower_metrics(installation: Installation) -> None:
    """Add how things stand in an installation to this process' figures; once, the last one counts."""
    while _installed:
        REGISTRY.unregister(_installed.pop())
    collector = StateCollector(installation)
    REGISTRY.register(collector)
    _installed.append(collector)
