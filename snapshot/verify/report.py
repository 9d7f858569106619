"""Results of verification: outcomes of checks, number of checks by kind, and violated rules."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from ...errors import SlackwaterError, Unavailable

CheckKind = Literal["versions", "channels", "kept", "markers", "history", "objects", "rows", "archives", "topics"]

CHECKS: dict[CheckKind, tuple[str, str]] = {
    "versions": ("manifest", "no record consumed before it was sent; offsets at version boundaries"),
    "channels": ("channel", "sent = consumed + in flight"),
    "kept": ("channel", "the snapshot keeps exactly the records in flight"),
    "markers": ("marker", "every sender recorded the snapshot's marker; no reader passed it"),
    "history": ("version", "no version missing; offsets and counts never go back"),
    "objects": ("object", "present, and as its manifest says"),
    "rows": ("row", "in the hash range of its SST, sorted, one per key"),
    "archives": ("object", "input archive: present, and as its index says"),
    "topics": ("topic", "the same topic as before, not a recreated one"),
}
"""Kinds of checks in the order of the report, each with its unit of counting and its rule."""


@dataclass(frozen=True, slots=True)
class CheckOutcome:
    """Outcome of one check, with a sentence for every fault."""

    check: CheckKind
    subject: str
    faults: tuple[str, ...] = ()
    count: int = 1
    """Number of units that the check covers; `CHECKS` names the unit."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Violation of a rule by the cut."""

    check: CheckKind
    subject: str
    message: str


@dataclass(frozen=True, slots=True)
class Tally:
    """Number of checks made of one kind, and number of differences found."""

    check: CheckKind
    checked: int
    differences: int


def tally(verified: Iterable[CheckOutcome]) -> tuple[tuple[Tally, ...], tuple[Finding, ...]]:
    verified = tuple(verified)
    tallies, differences = [], []
    for check in CHECKS:
        checks = [checked for checked in verified if checked.check == check]
        wrong = [Finding(check, checked.subject, message) for checked in checks for message in checked.faults]
        if checks:
            tallies.append(Tally(check, sum(checked.count for checked in checks), len(wrong)))
        differences += wrong
    return tuple(tallies), tuple(differences)


@contextmanager
def collect_errors(wrong: list[str]) -> Iterator[None]:
    """Context manager that appends errors of the block to `wrong` as sentences; `Unavailable` is raised."""
    try:
        yield
    except Unavailable:
        raise
    except SlackwaterError as error:
        wrong.append(as_sentence(error))


def as_sentence(error: SlackwaterError) -> str:
    """Return the error's message, prefixed with the object's key if the message does not name it."""
    key = getattr(error, "object_key", "")
    return error.message if key in error.message else f"{key}: {error.message}"
