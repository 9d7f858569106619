"""A checkpoint, opened by a Spark of our own, as what follows a query wants it."""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import SparkSession

from ...errors import NotFound
from ...keep.attach.checkpoint import ReadableCheckpoint, ReadableTable
from ..checkpoint import checkpoint as reader
from ..checkpoint.logs import SourceOffsets
from ..checkpoint.tables import StateTable
from ..spark.session import spark_session


@dataclass(frozen=True, slots=True)
class _Batch:
    """`ReadableBatch`."""

    id: int
    offsets: Mapping[str, tuple[int, ...]]
    watermark_ms: int | None
    next_watermark_ms: int | None
    committed_ms: int


@dataclass(frozen=True, slots=True)
class _Opened:
    """`keep.attach.checkpoint.ReadableCheckpoint`."""

    where: str
    found: reader.Checkpoint

    @property
    def query(self) -> str:
        return self.found.id

    @property
    def tables(self) -> tuple[StateTable, ...]:
        return self.found.tables

    def committed(self) -> range:
        try:
            return self.found.committed()
        except NotFound:
            return range(0)

    def available(self, up_to: int | None = None, /) -> range:
        return self.found.available(up_to)

    def batch(self, batch: int, /) -> _Batch:
        known = self.found.batch(batch)
        offsets = offsets_of(known.sources)
        return _Batch(known.id, offsets, known.watermark_ms, known.next_watermark_ms, known.committed_ms)

    def rows(self, table: ReadableTable, batch: int, /) -> Iterable[pa.RecordBatch]:
        return self.found.rows(table, batch)  # type: ignore[arg-type]  # it is one of `tables`

    def changes(self, table: ReadableTable, after: int, up_to: int, /) -> Iterable[pa.Table]:
        return self.found.changes(table, after, up_to)  # type: ignore[arg-type]  # it is one of `tables`


@contextmanager
def opened(where: str, *, master: str | None, conf: Mapping[str, str]) -> Iterator[ReadableCheckpoint]:
    """The checkpoint of a query, while a Spark runs that reads it; raises as `pipeline.checkpoint`."""
    with (
        spark_session(f"slackwater attach {where}", master=master, conf={"spark.ui.enabled": "false", **conf}) as spark,
        opened_by(where, spark) as found,
    ):
        yield found


@contextmanager
def opened_by(where: str, spark: SparkSession) -> Iterator[ReadableCheckpoint]:
    """The same by a session that runs already."""
    with reader.opened(where, spark) as found:
        yield _Opened(where, found)


def offsets_of(sources: Iterable[SourceOffsets]) -> dict[str, tuple[int, ...]]:
    """Where each source stands: a Kafka topic by partition, another source by the one number that says it.

    A source of which Spark keeps no number is none of them.
    """
    found: dict[str, tuple[int, ...]] = {}
    for source in sources:
        # The same topic may be read twice; of a partition that is not read, Spark says -1.
        for topic, offsets in source.topics.items():
            found[f"{topic}.{source.source}" if topic in found else topic] = tuple(max(0, at) for at in offsets)
        if not source.topics and (at := _number(source.text)) is not None:
            found[f"source-{source.source}"] = (at,)
    return found


def _number(text: str) -> int | None:
    """The number of a file source's log, of rows or of seconds; None where there is none."""
    try:
        said = json.loads(text)
    except ValueError:
        return None
    if isinstance(said, Mapping):
        # The number of the last entry of a file source's log, from 0.
        said = said["logOffset"] + 1 if isinstance(said.get("logOffset"), int) else None
    return max(0, said) if isinstance(said, int) else None
