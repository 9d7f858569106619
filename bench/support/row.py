"""One line of the table: a figure, what it stands beside, and whether it is what was asked."""

from __future__ import annotations

import re
from dataclasses import dataclass

_ASKED = re.compile(r"(>=|>|<=|<|=)\s*(\d+(?:\.\d+)?)")


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        what: What was measured.
        ours: Our figure, with its unit.
        peer: What it stands beside, and its figure.
        ratio: The figure that was asked for: of ours and the peer's, or of ours and a limit.
        asked: What the ratio shall be: ">= 1.5", "<= 1.2", "< 1", "= 1"; anything else is shown and not drawn.
        reached: Whether it is.
    """

    what: str
    ours: str
    peer: str
    ratio: float
    asked: str
    reached: bool

    @classmethod
    def at_least(cls, what: str, ours: str, peer: str, ratio: float, limit: float) -> Row:
        """A ratio where more is better."""
        return cls(what, ours, peer, ratio, f">= {limit:g}", ratio >= limit)

    @classmethod
    def at_most(cls, what: str, ours: str, peer: str, ratio: float, limit: float) -> Row:
        """A ratio where less is better."""
        return cls(what, ours, peer, ratio, f"<= {limit:g}", ratio <= limit)

    @property
    def against_asked(self) -> float | None:
        """How many times as good as asked: 1 is just reached, 2 twice as good. None where `asked` is no number."""
        match = _ASKED.fullmatch(self.asked)
        if match is None or self.ratio <= 0:
            return None
        limit = float(match[2])
        return self.ratio / limit if match[1].startswith(">") else limit / self.ratio
