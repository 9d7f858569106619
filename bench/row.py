"""One line of the benchmark's table."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Row"]


@dataclass(frozen=True)
class Row:
    """One figure, beside its peer."""

    what: str
    ours: str
    peer: str
    ratio: float
    asked: str
    reached: bool
