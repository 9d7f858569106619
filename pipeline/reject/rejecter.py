"""Rejecting: a batch without the records that are to blame for its failure, which go to a table and to a topic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow.compute as pc
from pyspark.sql.types import LongType, StructField, StructType

from ... import instants
from ...errors import Refused
from ...fold.culprit import TooMany
from ...fold.failing import RECORD, Failure
from ...fold.next_version import TaskReport, Written
from ...fold.records import sent
from ...store.versions import history
from ...store.versions.side_tables import REJECTED, rejected_of
from ..api.stage import Stage
from ..batch.job import Batch
from ..batch.rerun import Rerun
from ..batch.schemas import Shape
from ..source.spark_types import arrow_of
from ..source.worker import ERROR_MARK
from ..spark.places import Places
from .blame import blamed
from .culprits import Culprits
from .records import InputTopic, KafkaFeed, Messages, numbering_of
from .table import RejectedTable, inputs_of, row_of, send_rejects

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class BatchRejecter:
    """Computes a batch that failed without the records that are to blame. Both raise as computing the batch does."""

    spark: SparkSession
    stage: Stage
    shape: Shape
    where: Places
    topic: str = ""
    """Where rejected records are sent as well; empty for nowhere."""

    def rescue(self, batch: Batch, error: Exception) -> Written:
        """The batch without the records for which it fails, which are in the table of those that were rejected.

        Raises `Refused` where more are rejected than may be, or their topic does not take them; `error` itself, where
        no record is to blame.
        """
        if blamed(error) is None:
            raise error
        numbering = numbering_of(batch.base.inputs, batch.after)
        messages = Messages(self.where.open_kafka(), self._sources(batch), numbering, self.where.patience_s)
        results, found = self._without_culprits(batch, self._read(messages), error)
        if not found:
            return Written(results)
        rejected = messages.rejected(found)
        now_ms, version = instants.now_ms(), batch.base.version + 1
        if self.topic:
            send_rejects(messages.kafka, self.topic, rejected, patience_s=self.where.patience_s)
        rows = [row_of(one, version=version, now_ms=now_ms) for one in rejected]
        table = self._table_of(batch).put(batch.base, rows, version, added=len(rows), waiting=len(rows))
        return Written(results, side_tables={REJECTED: table})

    def retry(self, batch: Batch) -> Written:
        """The rejected records that wait, put through as a batch of their own: those that pass are marked as retried.

        Raises `Refused` where the program does not read what they are of.
        """
        rows = self._table_of(batch).rows(batch.base)
        left = rows.filter(pc.is_null(rows["retried"]))
        schemas = {name: arrow_of(schema) for name, schema in self.shape.inputs.items()}
        inputs, ordered = inputs_of(self.stage, left, schemas)
        frames = [
            self.spark.createDataFrame(table, schema=_numbered(self.shape.inputs[name]))
            for name, table in inputs.items()
        ]
        results, found = self._without_culprits(batch, frames, None, most=len(ordered))
        version = batch.base.version + 1
        for number, row in enumerate(ordered):
            why = found.get(number)
            row["attempts"] = int(str(row["attempts"])) + 1
            if why is None:
                row["retried"] = version
            else:
                row |= {"error": why.kind, "message": why.message, "stack": why.stack}
        taken = len(ordered) - len(found)
        table = self._table_of(batch).put(batch.base, ordered, version, added=0, waiting=-taken)
        return Written(results, side_tables={REJECTED: table})

    def _without_culprits(
        self, batch: Batch, inputs: Sequence[DataFrame], error: Exception | None, most: int | None = None
    ) -> tuple[tuple[TaskReport, ...], Mapping[int, Failure]]:
        allowed = max(self.stage.max_rejected - rejected_of(batch.base).waiting, 0) if most is None else most
        for frame in inputs:
            frame.persist()
        try:
            culprits = Culprits(Rerun(self.stage, self.shape, inputs), batch, allowed)
            return culprits.compute(error), culprits.found
        except TooMany:
            first = next(iter(culprits.found.values()), None) or (blamed(error) if error else None)
            said = f"; the first of them: {first.kind}: {first.message}" if first is not None else ""
            raise Refused(
                f"stage {self.stage.name!r} would have more than {self.stage.max_rejected:,} rejected records "
                f"waiting to be retried (max_rejected){said}",
                hint="the batch was dropped whole and nothing is lost: fix the program and run it again; "
                f"`slackwater rejected {batch.base.app}` shows those that wait, and --retry puts them through",
            ) from error
        finally:
            for frame in inputs:
                frame.unpersist()

    def _table_of(self, batch: Batch) -> RejectedTable:
        return RejectedTable(batch.job.store, batch.job.cache, batch.base.app, batch.base.stage)

    def _sources(self, batch: Batch) -> dict[str, InputTopic]:
        found = {}
        for name, at in batch.base.inputs.items():
            attempts = None
            if at.upstream:
                store, app, up_to = batch.job.store, batch.base.app, batch.after[name].version
                senders = history.between(store, app, at.upstream, at.version, up_to)
                attempts = frozenset(sent(name, senders).attempts)
            found[name] = InputTopic(at.topic, attempts)
        return found

    def _read(self, messages: Messages) -> list[DataFrame]:
        """A batch's records, by input."""
        frames = []
        for name in self.stage.inputs:
            source, schema = messages.sources[name], _numbered(self.shape.inputs[name])
            mine = tuple((start, part) for start, of, part in messages.numbering.numbered if of == name)
            columns = arrow_of(schema)
            feed = KafkaFeed(self.where, source.topic, columns, mine, source.attempts, messages.patience_s)
            frames.append(self.spark.range(0, len(mine), 1, max(len(mine), 1)).mapInArrow(ERROR_MARK.on(feed), schema))
        return frames


def _numbered(schema: StructType) -> StructType:
    """An input's columns, and `RECORD` as the last."""
    return StructType([*schema.fields, StructField(RECORD, LongType(), nullable=False)])
