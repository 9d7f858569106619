"""A case that runs anywhere: one batch, with all that a replay of it needs. Values; `zipped` makes them a file.

It has nothing of the settings: no secret, no store, no broker, no host. What the program's file says, it says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import pyarrow as pa
from msgspec import Meta, Struct
from msgspec.structs import replace

from ...store.sst.types import PREV, arrow_schema, sst_schema
from ...store.versions import limits as fits
from ...store.versions.manifest import EventTime, Manifest, Table
from .inputs import Records

THERE = "_there"
"""Column of the rows before: whether the key had one."""
FILE_NAME = r"\A[A-Za-z0-9_][A-Za-z0-9_.-]{0,250}\.py\Z"
"""What the program's file may be called in a bundle."""

_Names = Meta(max_length=256, description="at most 256 names")
_FileName = Annotated[str, Meta(pattern=FILE_NAME, description="the name of a Python file")]


class BundledInput(Struct, frozen=True):
    """An input of the stage."""

    name: fits.Topic
    topic: fits.Topic
    upstream: fits.NameOrNone
    """The stage that wrote it; empty for a user's topic."""


class BundledOutput(Struct, frozen=True):
    """A channel that the stage writes."""

    name: fits.Topic
    key: Annotated[tuple[fits.ColumnName, ...], fits.SOME_COLUMNS]
    known: bool
    """Whether the bundle has what was sent on it."""


class Index(Struct, frozen=True, kw_only=True):
    """What the members of a bundle are."""

    app: fits.Name
    stage: fits.Name
    version: fits.Version
    time_ms: fits.TimeMs
    """When the version was committed."""
    program: _FileName
    """What the program's file is called."""
    inputs: Annotated[tuple[BundledInput, ...], _Names]
    outputs: Annotated[tuple[BundledOutput, ...], _Names]
    table: Table | None
    """As the version had it; None for a stage without one."""
    seq: fits.Version
    """`_seq` of the rows that the version wrote."""
    before_clock_ms: fits.SpanMs
    clock_ms: fits.SpanMs
    """By which rows of the table expire, at the version before it and at the version."""
    before_watermark_ms: fits.EventMs | None
    bound_ms: fits.EventMs | None
    """By which rows are late: the watermark of the version before it, and what was too far ahead of the clock."""
    before_due_ms: fits.SpanMs | None
    next_due_ms: fits.SpanMs | None
    due_ms: fits.SpanMs | None
    """What fell due: what the version before it says of that, and up to when rows had at the version."""
    some_keys: bool
    """Whether it is a case of some of the keys that the batch wrote: the others are left out on both sides."""

    @property
    def after(self) -> Manifest:
        """The version, without its SSTs."""
        return Manifest(
            app=self.app,
            stage=self.stage,
            version=self.version,
            epoch=1,
            writer="",
            time_ms=self.time_ms,
            kind="batch",
            table=self.table,
            clock_ms=self.clock_ms,
            seq=self.seq,
            event_time=EventTime(self.before_watermark_ms, bound_ms=self.bound_ms, due_ms=self.due_ms),
        )

    @property
    def before(self) -> Manifest:
        """The version before it, without its SSTs."""
        times = EventTime(
            self.before_watermark_ms,
            bound_ms=self.bound_ms,
            due_ms=self.before_due_ms,
            next_due_ms=self.next_due_ms,
        )
        return replace(self.after, version=self.version - 1, clock_ms=self.before_clock_ms, seq=0, event_time=times)


@dataclass(frozen=True, slots=True)
class Bundle:
    """One batch.

    Attributes:
        index: What it is.
        program: The source of the program.
        records: What the batch read, by the input's declared name.
        before: The keys that were touched or fell due, the value columns of their rows before the batch as SSTs have
            them, and whether there was one (`THERE`); None without a table.
        committed: The rows that the version wrote, as SSTs have them but for `_prev_seq`; None without a table.
        sent: What it sent, by channel, where that is known.
    """

    index: Index
    program: bytes
    records: Mapping[str, Records]
    before: pa.Table | None
    committed: pa.Table | None
    sent: Mapping[str, pa.Table]


def committed_schema(table: Table) -> pa.Schema:
    """The columns of `Bundle.committed`."""
    schema = sst_schema(table)
    return schema.remove(schema.get_field_index(PREV))


def before_schema(table: Table) -> pa.Schema:
    """The columns of `Bundle.before`."""
    return pa.schema([*arrow_schema(table.key), *arrow_schema(table.values), pa.field(THERE, pa.bool_())])
