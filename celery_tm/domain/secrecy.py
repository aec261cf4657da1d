"""Passwords in addresses, and in what others say about them: whatever is shown has `***` in their place.

An address is hidden by its shape, so also one that nobody can read; what a driver says is searched for the secrets of the
addresses that are known, for it may quote a piece of one in any shape.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import unquote, unquote_plus

from .redaction import HIDDEN

SHORTEST = 4  # characters: a shorter secret would be found in every other word
_NAME = r"\w*(?:passw(?:or)?d|passphrase|secret|token|api_?key|pwd)"
_USERINFO = re.compile(r"(://[^\s:/@]*):(\S*)@")  # up to the last @: a password may hold one that was not escaped
_PARAMETER = re.compile(rf"\b({_NAME})=([^&\s;,'\"]+)", re.IGNORECASE)


def secrets_in(addresses: Iterable[object]) -> tuple[str, ...]:
    """Return the passwords that addresses hold, as they are written there and as they are meant, the longest first."""
    found: set[str] = set()
    for text in map(str, addresses):
        for _, secret in (*_USERINFO.findall(text), *_PARAMETER.findall(text)):
            found |= {secret, unquote(secret), unquote_plus(secret)}
    return tuple(sorted((one for one in found if len(one) >= SHORTEST), key=len, reverse=True))


def hidden(text: object, known: Iterable[str] = ()) -> str:
    """Return a text without the passwords in it: those of addresses, parameters that are named so, and those `known`."""
    shown = _PARAMETER.sub(rf"\1={HIDDEN}", _USERINFO.sub(rf"\1:{HIDDEN}@", str(text)))
    for secret in known:
        shown = shown.replace(secret, HIDDEN)
    return shown
