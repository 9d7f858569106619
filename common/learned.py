"""Types that msgspec reads, learned one at a time: two threads that have 0.22 learn one at once end the process."""

from threading import Lock
from typing import TypeVar

import msgspec

T = TypeVar("T")
_learning = Lock()
_known: set[object] = set()


def learned(kind: T) -> T:
    """The same type, once msgspec knows it and those within, which it else learns at their first use."""
    if kind not in _known:
        with _learning:
            msgspec.json.Decoder(kind)
        _known.add(kind)
    return kind
