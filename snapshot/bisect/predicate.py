"""What "wrong" means: a predicate, asked at any cut, and its plainest kind, a query that returns rows when it is so."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import duckdb
import pyarrow as pa

from ...errors import Usage
from ...store.objects.protocol import ObjectStore
from ...store.read.cache import SstCache
from ...store.versions.manifest import Manifest
from ..cut.graph import Cut
from ..query.answers import answer
from ..query.channel_tables import names_channels
from ..query.sql import named_tables
from ..take.capture import ChannelReader


@dataclass(frozen=True, slots=True)
class At:
    """Where a predicate is asked: a cut, and what it takes to read it."""

    store: ObjectStore
    """Has the SSTs that the cut's manifests name."""
    cache: SstCache
    cut: Cut
    """Any consistent cut, also one that was never committed."""
    later: Mapping[str, Manifest] = field(default_factory=dict)
    """Later versions of stages: the tables and channels that only they have are shown without rows."""
    only: Collection[str] | None = None
    """The tables to open; None for those that the predicate names."""
    reader: ChannelReader | None = None
    """Reads records in flight."""
    ref: str = ""
    """Names the cut; empty for one that was never committed, or before the first commit."""


class Predicate(Protocol):
    """What is wrong at a cut. Depends on the rows of the cut alone: the same rows, the same answer."""

    @property
    def text(self) -> str:
        """How messages call it: what was typed."""
        ...

    @property
    def sql(self) -> str:
        """A query that returns rows when something is wrong, for whoever wants to look; empty where code decides."""
        ...

    @property
    def channels(self) -> bool:
        """Whether it may ask for records in flight."""
        ...

    def tables(self, cut: Cut) -> frozenset[str]:
        """The tables of a cut that decide what it says."""
        ...

    def names(self, table: str) -> bool:
        """Whether it asks for this table by its name."""
        ...

    def rows(self, at: At, max_rows: int) -> pa.Table:
        """What is wrong at a cut, up to `max_rows` rows; without rows nothing is.

        Raises:
            Skip: it says itself that it cannot judge this cut.
            Usage: it is malformed, or fails on what is at the cut.
            NotFound: the cut lacks a table or column that it names.
            Gone: records in flight are gone from Kafka.
            Corruption: an SST is not what its manifest promises.
            Unavailable: storage did not answer.
        """
        ...


class Skip(Exception):
    """A predicate cannot judge this cut; the message says why. Nothing is wrong with the request.

    `lacks` when that is for want of a table or column.
    """

    def __init__(self, why: str, *, lacks: bool = False) -> None:
        super().__init__(why)
        self.lacks = lacks


class Wanted(Exception):
    """A person is to say what a moment is."""

    def __init__(self, cut: Cut, ref: str = "", left: int = 0) -> None:
        super().__init__(ref)
        self.cut = cut
        self.ref = ref
        """A ref to the moment; empty for the one before the first commit."""
        self.left = left
        """How many will follow, as far as one can tell."""


@dataclass(frozen=True, slots=True)
class ByHand:
    """No predicate: a person looks. What they look at is not known, so every stage counts, and what it sent."""

    text: str = "by hand"
    sql: str = ""
    channels: bool = True

    def tables(self, cut: Cut) -> frozenset[str]:
        """See `Predicate`."""
        return frozenset(cut.stages)

    def names(self, table: str) -> bool:
        """See `Predicate`."""
        return False

    def rows(self, at: At, max_rows: int) -> pa.Table:
        """Raises `Wanted`."""
        raise Wanted(at.cut)


@dataclass(frozen=True, slots=True)
class Where:
    """SQL that returns rows when something is wrong. Rows with a table's key columns name the keys that are."""

    sql: str
    said: str = ""
    """What was typed, where it was not SQL."""

    @property
    def text(self) -> str:
        """See `Predicate`."""
        return self.said or self.sql

    @property
    def channels(self) -> bool:
        """See `Predicate`."""
        return names_channels(self.sql)

    def tables(self, cut: Cut) -> frozenset[str]:
        """See `Predicate`."""
        return named_tables(self.sql, cut)

    def names(self, table: str) -> bool:
        """See `Predicate`."""
        return re.search(rf"\b{re.escape(table)}\b", self.sql, re.IGNORECASE) is not None

    def rows(self, at: At, max_rows: int) -> pa.Table:
        """See `Predicate`."""
        try:
            return answer(
                at.store,
                at.cache,
                at.cut,
                self.sql,
                later=at.later,
                only=at.only,
                reader=at.reader,
                max_rows=max_rows,
            )
        except Usage as error:
            if isinstance(error.__cause__, duckdb.ParserException) and is_condition(self.sql):
                error.hint = f"write a query that returns rows: SELECT KEY FROM TABLE WHERE {self.sql.strip()}"
            raise


def is_condition(text: str) -> bool:
    """Whether the text is what stands behind a query's WHERE."""
    with duckdb.connect() as con:
        try:
            con.extract_statements(f"SELECT 1 WHERE {text}")
        except duckdb.Error:
            return False
    return True
