"""Rejecting: a batch without the records that are to blame for its failure, which go to a table and to a topic.

The state's function tells keys, an operator of Spark's plan tells records (`operators.py`); where nothing tells more
than that it fails, groups of records are tried (`state/failing.py`).
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace
from pyspark import inheritable_thread_target
from pyspark.sql.types import LongType, StructField, StructType
from ulid import ULID

from ...common import instants
from ...errors import BadRecord, Refused
from ...state.culprit import Items, TooMany
from ...state.failing import RECORD, Failure, StateFailed, failing
from ...state.next_version import SentTo, TaskReport, Written
from ...state.records import sent
from ...store.archive.columns import HEADERS
from ...store.versions import history
from ...store.versions.manifest import Manifest
from ...store.versions.side_tables import REJECTED, rejected_of
from ..api.stage import Stage
from ..batch.job import Batch
from ..batch.rerun import Rerun
from ..batch.schemas import Shape
from ..batch.task import check_sizes, output_topic_of
from ..kafka.messages import send, split
from ..messages import outgoing
from ..source.spark_types import arrow_of
from ..source.worker import ERROR_MARK
from ..spark.places import Places
from ..telemetry.spans import traceparents
from .blame import blamed
from .operators import Failures, Operators
from .records import InputTopic, KafkaFeed, Messages, numbering_of
from .table import DeadLetter, RejectedTable, inputs_of, row_of, send_rejects

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)

_ROUNDS = 100
"""Times that the batch is computed anew: each leaves out a record more at least."""
_AT_ONCE = 4
"""Jobs that try groups of records side by side, where no plan tells more than that one fails."""
_SAID_S = 5.0
"""Between two lines that say how far a search is: one that is short says nothing."""


@dataclass
class Culprits:
    """Finds the records of one batch without which it passes.

    Attributes:
        most: How many there may be.
        found: By number, why each is left out.
    """

    records: Rerun
    batch: Batch
    most: int
    found: Failures = field(default_factory=dict)
    _began: float = field(default_factory=time.monotonic, init=False)
    _logged: float = field(default_factory=time.monotonic, init=False)

    def compute(self, error: Exception | None) -> tuple[TaskReport, ...]:
        """The batch without those that are to blame; `error` is why it failed, None where it was not tried yet.

        Raises:
            TooMany: More than `most` are to blame.
            Exception: What no record is to blame for; or `error` where it is not known which.
        """
        for number in range(_ROUNDS):
            if error is not None:
                if isinstance(error, StateFailed):
                    more = self._of_state(error)
                elif blamed(error) is None:
                    raise error
                else:
                    needed = self.records.needed(self.records.rows)
                    more = self._of_operators(needed) or self._of_groups(needed, _compute)
                # Once, what failed may have failed by chance.
                if not more and number:
                    raise error
                self.found |= more
                self._log_progress(len(self.found))
                if len(self.found) > self.most:
                    raise TooMany(tuple(self.found))
            if self.batch.job.stopping():
                raise error or Refused("the stage is to stop")
            try:
                return self.batch.compute(self.records.without(self.records.rows, self.found))
            except Exception as failed:
                error = failed
        raise error or AssertionError("nothing was tried")

    def _log_progress(self, count: int) -> None:
        """Say, now and then, how many records are known."""
        now = time.monotonic()
        if now - self._logged >= _SAID_S:
            self._logged = now
            log.warning(
                "stage %r: a batch fails for some of its records, which are looked for: %d found in %.0f s",
                self.records.stage.name,
                count,
                now - self._began,
            )

    def _check_going_on(self) -> None:
        if self.batch.job.stopping():
            raise Refused("the stage is to stop")

    def _of_operators(self, needed: DataFrame) -> Failures:
        """The records for which an operator of the function's plan fails."""

        def on_found(count: int) -> None:
            self._check_going_on()
            self._log_progress(len(self.found) + count)

        operators = Operators(self.records.spark, self.most - len(self.found), on_found)
        try:
            operators.search(self.records.without(needed, self.found))
        except (TooMany, Refused):
            raise
        except Exception:
            # An operator that is not tried apart, such as the condition of a join, fails before others are reached; and
            # a plan may have what cannot be tried so. Jobs over groups of records tell whose fault it is.
            log.debug("an operator could not be tried", exc_info=True)
        return operators.found

    def _of_state(self, error: StateFailed) -> Failures:
        """The records for whose keys the state's function fails."""
        if not error.told.keys:
            return {}
        rows = self.records.of_keys(error.told.keys, self.found)
        if rows is None:
            return self._of_groups(self.records.rows, self.batch.check)
        try:
            self.batch.check(rows)
        except StateFailed as failed:
            return failed.told.records
        return {}

    def _of_groups(self, rows: DataFrame, attempt: Callable[[DataFrame], object]) -> Failures:
        """The records for which an attempt fails, where only jobs over some of them tell: many groups, side by side."""
        numbers = self.records.numbers[~np.isin(self.records.numbers, list(self.found))]

        def tried(items: Items) -> Failure | None:
            self._check_going_on()
            try:
                attempt(self.records.only(rows, numbers[items]))
            except Exception as error:
                if (why := blamed(error)) is None:
                    raise
                return why
            return None

        def side_by_side(groups: Sequence[Items]) -> list[Failure | None]:
            self._log_progress(len(self.found))
            with ThreadPoolExecutor(_AT_ONCE) as jobs:
                return [*jobs.map(inheritable_thread_target(self.records.spark)(tried), groups)]

        found = failing(len(numbers), side_by_side, self.most - len(self.found))
        return {int(numbers[item]): why for item, why in found.items()}


def _compute(rows: DataFrame) -> None:
    rows.write.format("noop").mode("overwrite").save()


@dataclass(frozen=True)
class BatchRejecter:
    """Computes a batch that failed without the records that are to blame. Both raise as computing the batch does."""

    spark: SparkSession
    stage: Stage
    shape: Shape
    where: Places
    topic: str = ""
    """Where rejected records are sent as well; empty for nowhere."""
    published: Mapping[str, str] = field(default_factory=dict)
    """The topics of sinks that are not published as they are declared."""

    def rescue(self, batch: Batch, error: Exception) -> Written:
        """The batch without the records for which it fails, which are in the table of those that were rejected.

        Raises `Refused` where more are rejected than may be, or their topic does not take them; `error` itself, where
        no record is to blame.
        """
        if blamed(error) is None:
            raise error
        numbering = numbering_of(batch.base.inputs, batch.after)
        messages = Messages(self.where.open_kafka(), self._sources(batch), numbering, self.where.patience_s)
        read: dict[str, int] = {}
        results, found = self._without_culprits(batch, self._read(messages), error, read=read)
        if not found:
            return Written(results, read=read)
        rejected = messages.rejected(found)
        now_ms, version = instants.now_ms(), batch.base.version + 1
        if self.topic:
            send_rejects(messages.kafka, self.topic, rejected, patience_s=self.where.patience_s)
        rows = [row_of(one, version=version, now_ms=now_ms) for one in rejected]
        table = self._table_of(batch).put(batch.base, rows, version, added=len(rows), waiting=len(rows))
        parents = traceparents(one.headers for one in rejected)
        return Written(results, side_tables={REJECTED: table}, traceparents=parents, read=read)

    def set_aside(self, batch: Batch, written: Written) -> Written:
        """A batch of which some records are in the table of those that were rejected, as no sink's topic takes them.

        Raises as `rescue`.
        """
        unsent = [one for report in written.results for one in report.unsent]
        if not unsent:
            return written
        base = batch.base
        side_tables = {**base.side_tables, **written.side_tables}
        base, mine = replace(base, side_tables=side_tables), written.side_tables.get(REJECTED)
        if len(unsent) > self._allowed(base):
            raise self._too_many(base.app, f"{unsent[0].sink}: {unsent[0].why}")
        now_ms, version = instants.now_ms(), base.version + 1
        letters = [
            DeadLetter(
                *(one.sink, 0, version, one.key, one.value, one.headers, BadRecord.__name__, one.why, "", one.sink),
                row=row,
                time_ms=now_ms,
            )
            for row, one in enumerate(unsent)
        ]
        if self.topic:
            send_rejects(self.where.open_kafka(), self.topic, letters, patience_s=self.where.patience_s)
        rows = [row_of(one, version=version, now_ms=now_ms) for one in letters]
        table = self._table_of(batch).put(base, rows, version, added=len(rows), waiting=len(rows))
        table = replace(table, rows=len(rows) + (mine.rows if mine is not None else 0))
        return dataclasses.replace(written, side_tables={**written.side_tables, REJECTED: table})

    def retry(self, batch: Batch) -> Written:
        """The rejected records that wait, put through as a batch of their own: those that pass are marked as retried.

        Those that a sink's topic did not take are published as they were made then. Raises `Refused` where the program
        does not read what the others are of.
        """
        rows = self._table_of(batch).rows(batch.base)
        left = rows.filter(pc.is_null(rows["retried"]))
        of_sinks = pc.is_in(left["input"], pa.array([one.name for one in self.stage.sinks], pa.string()))
        sent, published = self._published_again(batch, left.filter(of_sinks))
        left = left.filter(pc.invert(of_sinks))
        schemas = {name: arrow_of(schema) for name, schema in self.shape.inputs.items()}
        inputs, ordered = inputs_of(self.stage, left, schemas)
        frames = [
            self.spark.createDataFrame(table, schema=_numbered(self.shape.inputs[name]))
            for name, table in inputs.items()
        ]
        results, found = self._without_culprits(batch, frames, None, most=len(ordered)) if ordered else ((), {})
        version = batch.base.version + 1
        for number, row in enumerate(ordered):
            why = found.get(number)
            row["attempts"] = int(str(row["attempts"])) + 1
            if why is None:
                row["retried"] = version
            else:
                row |= {"error": why.kind, "message": why.message, "stack": why.stack}
        taken = len(ordered) - len(found) + sum(row["retried"] is not None for row in published)
        if not (changed := [*ordered, *published]):
            return Written()
        table = self._table_of(batch).put(batch.base, changed, version, added=0, waiting=-taken)
        return self.set_aside(batch, Written((*results, *sent), side_tables={REJECTED: table}))

    def _published_again(
        self, batch: Batch, rejected: pa.Table
    ) -> tuple[tuple[TaskReport, ...], list[dict[str, object]]]:
        """Send records of sinks whose topics take them by now: what was sent, and the table's rows as they are then."""
        version, kafka, patience_s = batch.base.version + 1, self.where.open_kafka(), self.where.patience_s
        reports, rows = list[TaskReport](), rejected.to_pylist()
        for sink in self.stage.sinks:
            target = output_topic_of(sink, batch.base, self.published)
            taken: list[pa.Table] = []
            for row in (each for each in rows if each["input"] == sink.name and target.topic):
                named = [{"key": each["name"], "value": each["value"]} for each in row["headers"] or ()]
                columns = {"key": pa.array([row["key"]], pa.binary()), "value": pa.array([row["value"]], pa.binary())}
                record = pa.table(columns | {outgoing.HEADERS: pa.array([named], HEADERS)})
                fitting, unsent = check_sizes(kafka, dataclasses.replace(target, rejects=True), record, version)
                row |= {"attempts": row["attempts"] + 1}
                row |= {"message": unsent[0].why} if unsent else {"retried": version}
                taken.append(fitting)
            if records := [one for one in taken if one.num_rows]:
                # Unique for ever, as that of a task.
                attempt, everything = f"{batch.base.writer}.{version}.{ULID()}", pa.concat_tables(records)
                messages = split(everything, np.zeros(everything.num_rows, np.int32))
                ends = send(kafka, target.topic, messages, attempt.encode(), patience_s=patience_s)
                reports.append(TaskReport(attempt, 0, sent={sink.name: {0: SentTo(everything.num_rows, ends[0])}}))
        return tuple(reports), [row for row in rows if row["input"] in batch.base.sinks]

    def _without_culprits(
        self,
        batch: Batch,
        inputs: Sequence[DataFrame],
        error: Exception | None,
        most: int | None = None,
        read: dict[str, int] | None = None,
    ) -> tuple[tuple[TaskReport, ...], Mapping[int, Failure]]:
        """What the batch gives and what it is without; how many records it had of each input is added to `read`."""
        allowed = self._allowed(batch.base) if most is None else most
        for frame in inputs:
            frame.persist()
        try:
            culprits = Culprits(Rerun(self.stage, self.shape, inputs), batch, allowed)
            results = culprits.compute(error)
            if read is not None:
                read |= {name: frame.count() for name, frame in zip(self.stage.inputs, inputs, strict=True)}
            return results, culprits.found
        except TooMany:
            first = next(iter(culprits.found.values()), None) or (blamed(error) if error else None)
            said = f"{first.kind}: {first.message}" if first is not None else ""
            raise self._too_many(batch.base.app, said) from error
        finally:
            for frame in inputs:
                frame.unpersist()

    def _allowed(self, base: Manifest) -> int:
        """How many more records may be rejected."""
        return max(self.stage.max_rejected - rejected_of(base).waiting, 0)

    def _too_many(self, app: str, first: str) -> Refused:
        said = f"; the first of them: {first}" if first else ""
        return Refused(
            f"stage {self.stage.name!r} would have more than {self.stage.max_rejected:,} rejected records waiting "
            f"to be retried (max_rejected){said}",
            hint="the batch was dropped whole and nothing is lost: fix the program and run it again; "
            f"`slackwater rejected {app}` shows those that wait, and --retry puts them through",
        )

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
