"""`python -m health [worker|beat]`: exit 0 when all is well, 1 and a reason when not. For containers and load balancers.

Without a word it asks about the whole: are the tables there, does the broker answer, is work being done? With one it asks
whether this machine's own worker or beat has been heard of lately, so that one sick node does not condemn the others.
"""

from __future__ import annotations

import socket
import sys

from app import tm


def of_node(kind: str, host: str) -> list[str]:
    """Return what is wrong with the worker or the beat on this machine."""
    mine = [node for node in tm.status().nodes if node.kind == kind and f"@{host}:" in f"{node.name}:"]
    if any(not node.is_silent for node in mine):
        return []
    return [f"no {kind} on {host} has been heard of lately"]


def of_all() -> list[str]:
    """Return what keeps work from being done."""
    return [f"{finding.text}; {finding.advice}" for finding in tm.doctor() if finding.level == "error"]


def main(words: list[str]) -> str | None:
    """Return what is wrong, or None."""
    if words not in ([], ["worker"], ["beat"]):
        return "usage: python -m health [worker|beat]"
    return "\n".join(of_node(words[0], socket.gethostname()) if words else of_all()) or None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
