"""Computes a failed batch again without the records that cause the failure; stores these records and sends them on.

The failing records are found by the keys that a state function reports, by trials of the operators of Spark's plan
(`operators.py`), or else by trials of groups of records (`state/failing.py`).
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace
from pyspark import inheritable_thread_target
from pyspark.sql.types import LongType, StructField, StructType

from ...common import instants, runtime
from ...errors import BadRecord, Refused
from ...state.failing import RECORD, Failure, Items, StateFailed, TooManyFailing, find_failures
from ...state.next_version import BatchResult, TaskReport
from ...state.records import sent_messages
from ...store.archive.columns import HEADERS
from ...store.versions import history
from ...store.versions.manifest import Manifest, SideTable
from ...store.versions.side_tables import REJECTED, rejected_counts
from ..api.stage import Stage
from ..batch.job import Batch
from ..batch.rerun import Rerun
from ..batch.schemas import StageSchemas
from ..batch.task import output_topic_of, separate_too_large
from ..messages import outgoing
from ..messages.outbox import send_records
from ..source.spark_types import arrow_schema_of
from ..source.worker import ERROR_TAG
from ..spark.worker_resources import WorkerResources
from ..telemetry.spans import traceparents
from .blame import record_failure
from .operators import Failures, OperatorSearch
from .records import DeadLetterReader, InputTopic, NumberedRangeReader, numbering_of
from .table import DeadLetter, RejectedTable, inputs_for_retry, rejected_row, send_rejects

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)

_ROUNDS = 100
"""Maximum number of attempts at a batch. Each attempt leaves out more records than the attempt before."""
_PARALLEL_JOBS = 4
_LOG_INTERVAL_S = 5.0
"""Seconds between log lines about the progress of a search. A search that ends earlier logs nothing."""


@dataclass
class CulpritSearch:
    """Finds the records of a batch that have to be left out so that the batch passes.

    Attributes:
        max_failures: Maximum number of records to leave out.
        failures: Failures of the records to leave out, by record number.
    """

    rerun: Rerun
    batch: Batch
    max_failures: int
    failures: Failures = field(default_factory=dict)
    _began: float = field(default_factory=runtime.monotonic, init=False)
    _logged: float = field(default_factory=runtime.monotonic, init=False)

    def compute(self, error: Exception | None) -> tuple[TaskReport, ...]:
        """Compute the batch without the records that fail. `error` is the batch's error; None before the first attempt.

        Raises:
            TooManyFailing: More than `max_failures` records fail.
            Exception: An error that no record causes, or `error` if the records cannot be determined.
        """
        for attempt in range(_ROUNDS):
            if error is not None:
                if isinstance(error, StateFailed):
                    new_failures = self._state_failures(error)
                elif record_failure(error) is None:
                    raise error
                else:
                    needed = self.rerun.select_needed_columns(self.rerun.rows)
                    new_failures = self._operator_failures(needed) or self._group_failures(needed, _run_query)
                # The first failure may have been transient, so one retry without exclusions is allowed.
                if not new_failures and attempt:
                    raise error
                self.failures |= new_failures
                self._log_progress(len(self.failures))
                if len(self.failures) > self.max_failures:
                    raise TooManyFailing(tuple(self.failures))
            if self.batch.job.stopping():
                raise error or Refused("the stage is stopping")
            try:
                return self.batch.compute(self.rerun.rows_without(self.rerun.rows, self.failures))
            except Exception as new_error:
                error = new_error
        raise error or AssertionError("nothing was tried")

    def _log_progress(self, count: int) -> None:
        current_s = runtime.monotonic()
        if current_s - self._logged >= _LOG_INTERVAL_S:
            self._logged = current_s
            log.warning(
                "stage %r: a batch fails; searching for the records that cause it: %d found in %.0f s",
                self.rerun.stage.name,
                count,
                current_s - self._began,
            )

    def _check_not_stopping(self) -> None:
        if self.batch.job.stopping():
            raise Refused("the stage is stopping")

    def _operator_failures(self, needed: DataFrame) -> Failures:
        def on_found(count: int) -> None:
            self._check_not_stopping()
            self._log_progress(len(self.failures) + count)

        operators = OperatorSearch(self.rerun.spark, self.max_failures - len(self.failures), on_found)
        try:
            operators.search(self.rerun.rows_without(needed, self.failures))
        except (TooManyFailing, Refused):
            raise
        except Exception:
            # A failure in an operator that has no trial of its own, such as a join condition, also fails the trials of
            # the operators above. Then jobs over groups of records find the records.
            log.debug("an operator could not be tried", exc_info=True)
        return operators.failures

    def _state_failures(self, error: StateFailed) -> Failures:
        if not error.reported.keys:
            return {}
        rows = self.rerun.rows_of_keys(error.reported.keys, self.failures)
        if rows is None:
            return self._group_failures(self.rerun.rows, self.batch.check)
        try:
            self.batch.check(rows)
        except StateFailed as failed:
            return failed.reported.records
        return {}

    def _group_failures(self, rows: DataFrame, attempt: Callable[[DataFrame], object]) -> Failures:
        numbers = self.rerun.numbers[~np.isin(self.rerun.numbers, list(self.failures))]

        def tried(items: Items) -> Failure | None:
            self._check_not_stopping()
            try:
                attempt(self.rerun.rows_of_records(rows, numbers[items]))
            except Exception as error:
                if (failure := record_failure(error)) is None:
                    raise
                return failure
            return None

        def side_by_side(groups: Sequence[Items]) -> list[Failure | None]:
            self._log_progress(len(self.failures))
            with runtime.executor(_PARALLEL_JOBS) as jobs:
                return [*jobs.map(inheritable_thread_target(self.rerun.spark)(tried), groups)]

        failures = find_failures(len(numbers), side_by_side, self.max_failures - len(self.failures))
        return {int(numbers[item]): failure for item, failure in failures.items()}


def _run_query(rows: DataFrame) -> None:
    rows.write.format("noop").mode("overwrite").save()


@dataclass(frozen=True)
class BatchRejecter:
    """Computes batches without the records that fail. `rescue` and `retry` also raise the errors of the batch."""

    spark: SparkSession
    stage: Stage
    schemas: StageSchemas
    resources: WorkerResources
    reject_topic: str = ""
    published_topics: Mapping[str, str] = field(default_factory=dict)

    def rescue(self, batch: Batch, error: Exception) -> BatchResult:
        """Compute a failed batch without the records that fail, and store them in the table of rejected records.

        Raises `Refused` if too many records fail, or if the topic for rejected records refuses a record. Raises `error`
        if no record causes it.
        """
        if record_failure(error) is None:
            raise error
        numbering = numbering_of(batch.base.inputs, batch.after)
        messages = DeadLetterReader(
            self.resources.open_kafka(), self._input_topics(batch), numbering, self.resources.patience_s
        )
        read: dict[str, int] = {}
        results, failures = self._compute_without_failing(batch, self._input_frames(messages), error, read=read)
        if not failures:
            return BatchResult(results, read=read)
        rejected = messages.read(failures)
        table = self._store_rejected(batch, batch.base, rejected)
        parents = traceparents(record.headers for record in rejected)
        return BatchResult(results, side_tables={REJECTED: table}, traceparents=parents, read=read)

    def reject_too_large(self, batch: Batch, written: BatchResult) -> BatchResult:
        """Move records that are too large for a sink's topic to the table of rejected records.

        Raises `Refused` if too many records are rejected, or if the topic for rejected records refuses them.
        """
        unsent = [record for report in written.results for record in report.unsent]
        if not unsent:
            return written
        base = batch.base
        side_tables = {**base.side_tables, **written.side_tables}
        base, table_of_batch = replace(base, side_tables=side_tables), written.side_tables.get(REJECTED)
        if len(unsent) > self._max_new_rejected(base):
            raise self._too_many(base.app, f"{unsent[0].sink}: {unsent[0].why}")
        now_ms, version = instants.now_ms(), base.version + 1
        letters = [
            DeadLetter(
                *(record.sink, 0, version, record.key, record.value, record.headers),
                *(BadRecord.__name__, record.why, "", record.sink),
                row=row,
                time_ms=now_ms,
            )
            for row, record in enumerate(unsent)
        ]
        table = self._store_rejected(batch, base, letters)
        table = replace(table, rows=len(letters) + (table_of_batch.rows if table_of_batch is not None else 0))
        return dataclasses.replace(written, side_tables={**written.side_tables, REJECTED: table})

    def _store_rejected(self, batch: Batch, base: Manifest, letters: Sequence[DeadLetter]) -> SideTable:
        if self.reject_topic:
            send_rejects(self.resources.open_kafka(), self.reject_topic, letters, patience_s=self.resources.patience_s)
        now_ms, version = instants.now_ms(), base.version + 1
        rows = [rejected_row(record, version=version, now_ms=now_ms) for record in letters]
        return self._rejected_table(batch).upsert(base, rows, version, added=len(rows), waiting=len(rows))

    def retry(self, batch: Batch) -> BatchResult:
        """Process the waiting rejected records as a separate batch, and mark records that pass as retried.

        Records that were too large for a sink's topic are sent again unchanged. Raises `Refused` if the program does
        not read the input of a record.
        """
        rows = self._rejected_table(batch).read_rows(batch.base)
        waiting = rows.filter(pc.is_null(rows["retried"]))
        of_sinks = pc.is_in(waiting["input"], pa.array([sink.name for sink in self.stage.sinks], pa.string()))
        sent, published = self._republish(batch, waiting.filter(of_sinks))
        waiting = waiting.filter(pc.invert(of_sinks))
        schemas = {name: arrow_schema_of(schema) for name, schema in self.schemas.inputs.items()}
        inputs, ordered = inputs_for_retry(self.stage, waiting, schemas)
        frames = [
            self.spark.createDataFrame(table, schema=_with_record_number(self.schemas.inputs[name]))
            for name, table in inputs.items()
        ]
        results, failures = (
            self._compute_without_failing(batch, frames, None, max_failures=len(ordered)) if ordered else ((), {})
        )
        version = batch.base.version + 1
        for number, row in enumerate(ordered):
            failure = failures.get(number)
            row["attempts"] = int(str(row["attempts"])) + 1
            if failure is None:
                row["retried"] = version
            else:
                row |= {"error": failure.kind, "message": failure.message, "stack": failure.stack}
        num_retried = len(ordered) - len(failures) + sum(row["retried"] is not None for row in published)
        if not (changed := [*ordered, *published]):
            return BatchResult()
        table = self._rejected_table(batch).upsert(batch.base, changed, version, added=0, waiting=-num_retried)
        return self.reject_too_large(batch, BatchResult((*results, *sent), side_tables={REJECTED: table}))

    def _republish(self, batch: Batch, rejected: pa.Table) -> tuple[tuple[TaskReport, ...], list[dict[str, object]]]:
        version, kafka, patience_s = batch.base.version + 1, self.resources.open_kafka(), self.resources.patience_s
        reports, rows = list[TaskReport](), rejected.to_pylist()
        for sink in self.stage.sinks:
            target = output_topic_of(sink, batch.base, self.published_topics)
            accepted: list[pa.Table] = []
            for row in (row for row in rows if row["input"] == sink.name and target.topic):
                headers = [{"key": header["name"], "value": header["value"]} for header in row["headers"] or ()]
                columns = {"key": pa.array([row["key"]], pa.binary()), "value": pa.array([row["value"]], pa.binary())}
                record = pa.table(columns | {outgoing.HEADERS_COLUMN: pa.array([headers], HEADERS)})
                fitting, unsent = separate_too_large(
                    kafka, dataclasses.replace(target, rejects_too_large=True), record, version
                )
                row |= {"attempts": row["attempts"] + 1}
                row |= {"message": unsent[0].why} if unsent else {"retried": version}
                accepted.append(fitting)
            if records := [table for table in accepted if table.num_rows]:
                rows_to_send = pa.concat_tables(records)
                reports.append(send_records(kafka, batch.base, sink.name, rows_to_send, patience_s=patience_s))
        return tuple(reports), [row for row in rows if row["input"] in batch.base.sinks]

    def _compute_without_failing(
        self,
        batch: Batch,
        inputs: Sequence[DataFrame],
        error: Exception | None,
        max_failures: int | None = None,
        read: dict[str, int] | None = None,
    ) -> tuple[tuple[TaskReport, ...], Mapping[int, Failure]]:
        allowed = self._max_new_rejected(batch.base) if max_failures is None else max_failures
        for frame in inputs:
            frame.persist()
        try:
            culprits = CulpritSearch(Rerun(self.stage, self.schemas, inputs), batch, allowed)
            results = culprits.compute(error)
            if read is not None:
                read |= {name: frame.count() for name, frame in zip(self.stage.inputs, inputs, strict=True)}
            return results, culprits.failures
        except TooManyFailing:
            first = next(iter(culprits.failures.values()), None) or (record_failure(error) if error else None)
            first_error = f"{first.kind}: {first.message}" if first is not None else ""
            raise self._too_many(batch.base.app, first_error) from error
        finally:
            for frame in inputs:
                frame.unpersist()

    def _max_new_rejected(self, base: Manifest) -> int:
        return max(self.stage.max_rejected - rejected_counts(base).waiting, 0)

    def _too_many(self, app: str, first: str) -> Refused:
        example = f"; the first error: {first}" if first else ""
        return Refused(
            f"stage {self.stage.name!r} would have more than {self.stage.max_rejected:,} rejected records waiting "
            f"to be retried (max_rejected){example}",
            hint="the batch was rolled back and nothing is lost: fix the program and run it again; "
            f"`slackwater rejected {app}` lists the waiting records, and --retry processes them",
        )

    def _rejected_table(self, batch: Batch) -> RejectedTable:
        return RejectedTable(batch.job.store, batch.job.cache, batch.base.app, batch.base.stage)

    def _input_topics(self, batch: Batch) -> dict[str, InputTopic]:
        sources = {}
        for name, position in batch.base.inputs.items():
            attempts = None
            if position.upstream:
                store, app, up_to = batch.job.store, batch.base.app, batch.after[name].version
                senders = history.iter_between(store, app, position.upstream, position.version, up_to)
                attempts = frozenset(sent_messages(name, senders).attempts)
            sources[name] = InputTopic(position.topic, attempts)
        return sources

    def _input_frames(self, messages: DeadLetterReader) -> list[DataFrame]:
        frames = []
        for name in self.stage.inputs:
            source, schema = messages.sources[name], _with_record_number(self.schemas.inputs[name])
            ranges = tuple((start, part) for start, owner, part in messages.numbering.numbered_ranges if owner == name)
            columns = arrow_schema_of(schema)
            reader = NumberedRangeReader(
                self.resources, source.topic, columns, ranges, source.attempts, messages.patience_s
            )
            frames.append(
                self.spark.range(0, len(ranges), 1, max(len(ranges), 1)).mapInArrow(ERROR_TAG.wrap(reader), schema)
            )
        return frames


def _with_record_number(schema: StructType) -> StructType:
    return StructType([*schema.fields, StructField(RECORD, LongType(), nullable=False)])
