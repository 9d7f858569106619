"""The input record behind a bad commit: what the search for it finds, and how sure that is. Values only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ...errors import Refused
from ..cut.lineage import Window
from .changed_keys import ChangedKeys


class CannotProve(Refused):
    """A replay does not show which record it was; the message says why."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a record is in Kafka: `topic[partition]@offset`, and of a repartition topic the row in the message."""

    topic: str
    partition: int
    offset: int
    row: int | None = None

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]@{self.offset}{'' if self.row is None else f'+{self.row}'}"


@dataclass(frozen=True, slots=True)
class Hop:
    """The record that was found among those which one version of a stage read."""

    stage: str
    version: int
    record: Address
    records: int
    """How many records the version read."""
    candidates: int
    """How many of them could have to do with it."""
    replays: int
    """Of how many choices of them it was seen what the stage makes of them."""
    alone: bool
    """Whether it is bad with this record alone; else only with some of those that came before it."""
    needs: int | None = None
    """With how many of those it is bad, of which none can be left out; None where that is not known."""


@dataclass(frozen=True, slots=True)
class Message:
    """A record of a user's topic as Kafka has it."""

    address: Address
    time_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True, slots=True)
class Guilty:
    """The way from a bad commit to the record behind it, as far as it could be proved."""

    hops: tuple[Hop, ...]
    """From the commit upwards, one for each stage; none where nothing could be proved."""
    message: Message | None
    """The record of the user's own topic at the end of the way; None where it ends before."""
    reason: str
    """Why the way ends before; empty where it does not."""
    windows: tuple[Window, ...]
    """Where the way ends: the smallest part of the input that is proved to hold it."""
    keys: ChangedKeys | None
    """What the record did to the table of the bad commit: its keys before and after it."""
    others: int | None = None
    """How many more records of the commit make the predicate true by themselves; None where that is not known."""

    @property
    def replays(self) -> int:
        """How many choices of records were replayed."""
        return sum(hop.replays for hop in self.hops)

    def __iter__(self) -> Iterator[Hop]:
        return iter(self.hops)
