"""What verifying finds: how many things of each kind were checked, and what is not as it must be. Values only."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from ...errors import SlackwaterError, Unavailable

Check = Literal["versions", "channels", "kept", "markers", "history", "objects", "rows", "archives", "topics"]

CHECKS: dict[Check, tuple[str, str]] = {
    "versions": ("manifest", "nothing is consumed that was not sent, and readers stand where a version ended"),
    "channels": ("channel", "sent = consumed + in flight"),
    "kept": ("channel", "the records that the snapshot keeps are those in flight"),
    "markers": ("marker", "every sender names the snapshot's marker, and nothing behind it is in the cut"),
    "history": ("version", "versions follow each other, and no offset or count goes back"),
    "objects": ("object", "there, and what its manifest says"),
    "rows": ("row", "where its hash says, in order, once for each key"),
    "archives": ("object", "records of the input archive, there, and what its index says"),
    "topics": ("topic", "the one that was read or written, and not another one of its name"),
}
"""What is counted of each kind, in the order they are made, and what must hold."""


@dataclass(frozen=True, slots=True)
class Verified:
    """Something that was checked; `wrong` has a sentence for everything that is not as it must be."""

    check: Check
    subject: str
    """The object's key, or the channel, stage or version in words."""
    wrong: tuple[str, ...] = ()
    count: int = 1
    """How many things it stands for, in the unit of `CHECKS`."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One way in which the cut is not what it claims to be."""

    check: Check
    subject: str
    message: str


@dataclass(frozen=True, slots=True)
class Tally:
    """How many things one kind of check was made of."""

    check: Check
    checked: int
    differences: int


def tally(found: Iterable[Verified]) -> tuple[tuple[Tally, ...], tuple[Finding, ...]]:
    """Counts of each kind that was made at all, and every difference, in the order of `CHECKS`."""
    found = tuple(found)
    tallies, differences = [], []
    for check in CHECKS:
        of_kind = [one for one in found if one.check == check]
        wrong = [Finding(check, one.subject, message) for one in of_kind for message in one.wrong]
        if of_kind:
            tallies.append(Tally(check, sum(one.count for one in of_kind), len(wrong)))
        differences += wrong
    return tuple(tallies), tuple(differences)


@contextmanager
def noted(wrong: list[str]) -> Iterator[None]:
    """Whatever stored bytes do to the block becomes a sentence; only storage that does not answer is an error."""
    try:
        yield
    except Unavailable:
        raise
    except SlackwaterError as error:
        wrong.append(as_sentence(error))


def as_sentence(error: SlackwaterError) -> str:
    """The error's message, with the object it is about where the message does not name it."""
    key = getattr(error, "object_key", "")
    return error.message if key in error.message else f"{key}: {error.message}"
