"""The classes of a cause: what may be behind a bad commit, and what each class may name.

Whatever a cause names is proved by a replay, or called a guess. Only classes whose fault lies in a record name one; the
others name what moved, who did it, or since when nothing came.
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
    """How people call it."""
    names_record: bool
    """Whether a cause of the class may name a record as `Cause.record`."""
    evidence: tuple[str, ...]
    """The fields of `Cause.evidence`."""


CLASSES: Mapping[CauseKind, CauseClass] = MappingProxyType(
    {
        one.kind: one
        for one in (
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
"""In the order in which they are asked: what needs no record comes first."""


NOTE = "note"
"""Field of any evidence: what else is to be said, such as of a program that changed and is not the cause."""


@dataclass(frozen=True, slots=True)
class Cause:
    """What is behind a bad commit. Raises `ValueError` for one that names what its class must not."""

    kind: CauseKind
    proved: bool
    """Whether a replay, or the store alone, proves it; else it is a guess, or not known."""
    sentence: str
    """It, in words."""
    record: Address | None = None
    """The record at fault, of several the first; None where the class names none."""
    one_of: int | None = None
    """Between as many records the app had no order, of which this is one; None where it is the only first one."""
    records: tuple[Address, ...] = ()
    """All records that are part of it, in the order in which the app got them."""
    evidence: Mapping[str, Any] = field(default_factory=dict)
    """What shows it, by the fields of its class."""

    def __post_init__(self) -> None:
        of = CLASSES[self.kind]
        if (self.record is not None or self.records) and not of.names_record:
            raise ValueError(f"a cause of class {self.kind} names no record; found {self.record or self.records[0]}")
        if strange := sorted(set(self.evidence) - {*of.evidence, NOTE}):
            raise ValueError(f"a cause of class {self.kind} has evidence {strange[0]!r}; expected one of {of.evidence}")


def unknown(reason: str) -> Cause:
    """A cause that nobody knows, and why."""
    return Cause(
        "unknown", proved=False, sentence=f"what is behind it is not known: {reason}", evidence={"reason": reason}
    )


@dataclass(frozen=True, slots=True)
class Behind:
    """What is behind a bad commit."""

    cause: Cause
    found: Guilty | None = None
    """The way from the commit to a record, as far as replays went, healthy or not; None where nothing was replayed."""

    @property
    def guilty(self) -> Guilty | None:
        """The way to the record that the cause names, or as far as it is known; None for causes that name none."""
        if self.cause.kind != "unknown" and not CLASSES[self.cause.kind].names_record:
            return None
        return self.found
