"""Classes of causes of a bad commit, and the evidence that each class has.

A cause is either proved by a replay, or marked as a guess. Only classes whose fault lies in a record name a record;
other classes name the change, its author, or the time since when records are missing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from .verdict import Address, Guilty

CauseKind = Literal[
    "operation", "time", "absence", "deploy", "watermark", "duplicate", "records", "record", "unknown"
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class CauseClass:
    """One class of causes."""

    kind: CauseKind
    noun: str
    """Name of the class in messages."""
    names_record: bool
    """True if a cause of the class may name a record as `Cause.record`."""
    evidence: tuple[str, ...]
    """Allowed fields of `Cause.evidence`."""


CLASSES: Mapping[CauseKind, CauseClass] = MappingProxyType(
    {
        cause_class.kind: cause_class
        for cause_class in (
            CauseClass("operation", "an operation", False, ("kind", "stage", "version", "by", "at", "what", "command")),
            CauseClass(
                "time",
                "time",
                False,
                ("stage", "version", "by", "from", "to", "keys", "num_keys", "moved_version", "moved_by"),
            ),
            CauseClass("absence", "a record that did not come", False, ("keys", "num_keys", "since", "read_to")),
            CauseClass("deploy", "a new program", False, ("stage", "version", "from", "to", "how", "add")),
            CauseClass("watermark", "a watermark", True, ("late", "watermark", "moved_version", "moved_by")),
            CauseClass("duplicate", "a record that came twice", True, ("original", "copy")),
            CauseClass("records", "several records", True, ("alone",)),
            CauseClass("record", "a record", True, ("alone", "needs")),
            CauseClass("unknown", "unknown", False, ("reason",)),
        )
    }
)
"""Classes by kind, in the order in which they are tried: classes that need no record first."""


NOTE = "note"
"""Evidence field of every class: a remark, such as a program change that is not the cause."""


@dataclass(frozen=True, slots=True)
class Cause:
    """Cause of a bad commit. Raises `ValueError` for a record or evidence that its class does not have."""

    kind: CauseKind
    proved: bool
    """True if a replay or the store proves the cause; False for a guess, or an unknown cause."""
    sentence: str
    record: Address | None = None
    """Record at fault, the first of several; None if the class names no record."""
    one_of: int | None = None
    """Number of records that tie for the first bad record in the app's order; None without a tie."""
    records: tuple[Address, ...] = ()
    """All records that are part of the cause, in the order in which the app read them."""
    evidence: Mapping[str, Any] = field(default_factory=dict)
    """Evidence, by the fields of the class."""

    def __post_init__(self) -> None:
        cause_class = CLASSES[self.kind]
        if (self.record is not None or self.records) and not cause_class.names_record:
            raise ValueError(f"a cause of class {self.kind} names no record; found {self.record or self.records[0]}")
        if unexpected := sorted(set(self.evidence) - {*cause_class.evidence, NOTE}):
            raise ValueError(
                f"a cause of class {self.kind} has evidence {unexpected[0]!r}; expected one of {cause_class.evidence}"
            )


def unknown(reason: str) -> Cause:
    """Return an unknown cause with the reason why it is unknown."""
    return Cause("unknown", proved=False, sentence=f"the cause is unknown: {reason}", evidence={"reason": reason})


@dataclass(frozen=True, slots=True)
class Behind:
    """Cause of a bad commit, with the path to the record."""

    cause: Cause
    found: Guilty | None = None
    """Path from the commit to a record, as far as replays led; None if nothing was replayed."""

    @property
    def guilty(self) -> Guilty | None:
        """Path to the record that the cause names, or as far as it is known; None for causes without a record."""
        if self.cause.kind != "unknown" and not CLASSES[self.cause.kind].names_record:
            return None
        return self.found
