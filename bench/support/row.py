"""Row of the table: a figure, its peer, and the comparison with its limit."""

from __future__ import annotations

import re
from dataclasses import dataclass

_ASKED = re.compile(r"(>=|>|<=|<|=)\s*(\d+(?:\.\d+)?)")


@dataclass(frozen=True)
class Row:
    """Row of the table.

    Attributes:
        what: Name of the measurement.
        ours: Our figure, with its unit.
        peer: Name and figure of the peer.
        ratio: Ratio of our figure to the peer's or to the limit, or the inverse.
        asked: The limit of the ratio: ">= 1.5", "<= 1.2", "< 1", "= 1"; any other text is shown, but not drawn.
        reached: True if the ratio is within the limit.
    """

    what: str
    ours: str
    peer: str
    ratio: float
    asked: str
    reached: bool

    @classmethod
    def at_least(cls, what: str, ours: str, peer: str, ratio: float, limit: float) -> Row:
        """Return a row with a ratio for which more is better."""
        return cls(what, ours, peer, ratio, f">= {limit:g}", ratio >= limit)

    @classmethod
    def at_most(cls, what: str, ours: str, peer: str, ratio: float, limit: float) -> Row:
        """Return a row with a ratio for which less is better."""
        return cls(what, ours, peer, ratio, f"<= {limit:g}", ratio <= limit)

    @property
    def against_asked(self) -> float | None:
        """Return the factor by which the figure is better than its limit; 1 is at the limit, None for no number."""
        match = _ASKED.fullmatch(self.asked)
        if match is None or self.ratio <= 0:
            return None
        limit = float(match[2])
        return self.ratio / limit if match[1].startswith(">") else limit / self.ratio
