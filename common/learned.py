"""Registration of types with msgspec, one at a time: msgspec 0.22 crashes if two threads register a type at once."""

from threading import Lock
from typing import TypeVar

import msgspec

T = TypeVar("T")
_learning = Lock()
_registered: set[object] = set()


def learned(kind: T) -> T:
    """Return the type after registering it, and its nested types, with msgspec."""
    if kind not in _registered:
        with _learning:
            msgspec.json.Decoder(kind)
        _registered.add(kind)
    return kind
