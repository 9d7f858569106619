"""Kinds of reasons why a record is not in a table, and their certainty."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from ....snapshot.bisect.verdict import RecordLocation

ReasonKind = Literal[
    "absent", "unread", "rejected", "late", "filtered", "unmatched", "expired", "skipped", "lost", "forgotten",
    "rewound", "removed", "edited", "counted", "unknown",
]  # fmt: skip

LABELS: Mapping[ReasonKind, str] = {
    "absent": "never in the topic",
    "unread": "not read yet",
    "rejected": "rejected",
    "late": "late",
    "filtered": "filtered by the program",
    "unmatched": "joined with nothing",
    "expired": "expired",
    "skipped": "skipped by a reset",
    "lost": "lost to retention",
    "forgotten": "forgotten",
    "rewound": "counted before a rewind",
    "removed": "removed by the program",
    "edited": "edited by hand",
    "counted": "counted",
    "unknown": "not known",
}
"""Text for each kind. If a key has several reasons, the earlier kind in this order is preferred."""


@dataclass(frozen=True, slots=True)
class MissingReason:
    """Reason why a record, or all records of a key, are not in a row of a table.

    `proved` is True if the stored objects exclude every other reason. Otherwise the sentence names the other possible
    reasons.
    """

    kind: ReasonKind
    sentence: str
    record: RecordLocation | None = None
    proved: bool = True
    by: str = ""
    """Version of the table whose row counts the record, as `STAGE@vN`; empty if the record is not counted."""

    def of_record(self, record: RecordLocation) -> MissingReason:
        return replace(self, record=record)

    def unless(self, doubt: str) -> MissingReason:
        """Return an unproved copy of the reason. `doubt` is appended to the sentence."""
        return replace(self, proved=False, sentence=f"{self.sentence}{doubt}")
