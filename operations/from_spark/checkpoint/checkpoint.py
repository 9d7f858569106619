"""Reader of a Spark query's checkpoint: state tables, whole states of batches, and changes of batches."""

import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

from ....common.whole_file import temporary_folder
from ....errors import NotFound, ObjectNotFound, Refused
from ....pipeline.spark.session import spark_session
from ....store.sst.hashing import hash_keys, normalise_keys, sort_keys
from ....store.versions.column_types import quote_for_spark
from ....store.versions.manifest import Input, Manifest
from ...attach.protocol import DELETED, ReadableBatch, ReadableTable
from .changelogs import (
    Changelog,
    codec_of,
    concat_changelogs,
    delimiter_of,
    has_plain_rows,
    is_list_state,
    is_parsable,
    parse_changelog,
    parse_changes,
)
from .files import CheckpointFiles
from .places import open_files, open_without_spark
from .state_files import StoreFolder, check_state_files, root_cause
from .tables import StateTable, contains_type, make_state_table, map_nested
from .unsafe_rows import UnknownLayout

_STEP = "_step"
_MAX_JOB_BYTES = 32 << 20
"""Approximate maximum size of the change files for one Spark job. A larger batch gets a job of its own."""
_FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"
_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}


def check_exists(where: str) -> None:
    """Raise `NotFound` if a checkpoint is missing. URLs that only Spark can read are not checked."""
    if (readable := open_without_spark(where)) is not None:
        CheckpointFiles(readable)


@contextmanager
def open_checkpoint(where: str, spark: SparkSession) -> Iterator["Checkpoint"]:
    """Open the checkpoint at `where` (see `places.open_files`) while the context lasts. Writes nothing there.

    Raises `NotFound` if there is no checkpoint, and `Refused` for state that cannot be read.
    """
    with temporary_folder() as folder:
        yield Checkpoint(where, CheckpointFiles(open_files(where, spark)), spark, folder)


@contextmanager
def open_with_new_session(where: str, *, master: str | None, conf: Mapping[str, str]) -> Iterator["Checkpoint"]:
    """Open a query's checkpoint with a new Spark session. Raises the errors of `open_checkpoint`."""
    check_exists(where)
    with (
        spark_session(f"slackwater attach {where}", master=master, conf={"spark.ui.enabled": "false", **conf}) as spark,
        open_checkpoint(where, spark) as checkpoint,
    ):
        yield checkpoint


class Checkpoint:
    """Checkpoint of a Spark query, read with a local Spark session. Not thread-safe.

    Attributes:
        location: Folder or URL, as given by the user.
        query: Id of the query.
        files: Reader of files that need no Spark: batches and their offsets.
        tables: All tables of the query's state. The first has an empty name.
    """

    def __init__(self, location: str, files: CheckpointFiles, spark: SparkSession, folder: Path) -> None:
        self.location, self.query, self.files = location, files.id, files
        self._folder = folder
        self._numbers = count()
        self._checked = -1
        self._unpacked: dict[tuple[int, str], tuple[range, Changelog, Mapping[str, int]]] = {}
        self._spark = spark.newSession()
        # The state reader of Spark 4.2 needs a coordinator that only the query manager starts.
        _ = self._spark.streams
        for name, value in _SETTINGS.items():
            self._spark.conf.set(name, value)
        self._spark.conf.set("spark.sql.shuffle.partitions", str(spark.sparkContext.defaultParallelism))
        self.tables = self._tables(files.committed_batches()[-1])
        self.formats: Mapping[str, str] = {}

    def resume(self, head: Manifest | None, /) -> None:
        """Do nothing: Spark numbers the batches."""

    def claimed_inputs(self, draft: Manifest, /) -> Mapping[str, Input]:
        return draft.inputs

    def committed_batches(self) -> range:
        """Return the range of committed batches up to the newest, without gaps; empty if all commits were removed."""
        try:
            return self.files.committed_batches()
        except NotFound:
            return range(0)

    def newest_batch(self) -> int:
        return max(self.files.commit_times(), default=-1)

    def readable_batches(self, up_to: int | None = None, /) -> range:
        return self.files.readable_batches(up_to)

    def read_batch(self, batch: int, /) -> ReadableBatch:
        return self.files.read_batch(batch)

    def read_rows(self, table: ReadableTable, batch: int, /) -> Iterator[pa.RecordBatch]:
        """Yield all rows at the end of a batch, unordered. Raises `Gone` if files of that state were removed."""
        assert isinstance(table, StateTable)  # noqa: S101  it is from `tables`
        with self._new_folder() as folder:
            rows = self._spool(table, batch, folder)
            for file in sorted(rows.glob("*.parquet")):
                with pq.ParquetFile(file) as part:
                    yield from (batch.cast(table.schema) for batch in part.iter_batches())

    @contextmanager
    def frame(self, table: StateTable, batch: int) -> Iterator[DataFrame]:
        """Provide the whole state at the end of a batch as a DataFrame, which is valid inside the context."""
        with self._new_folder() as folder:
            with self.files.missing_files_as_gone(batch):
                self.files.copy_whole_state(self._stores(table), batch, folder)
            with self._translate_spark_errors(table, f"at the end of batch {batch}", folder):
                yield self._read(table, folder, batch, batchId=batch).select(*table.select_columns())

    def read_changes(
        self, table: ReadableTable, after: int, up_to: int, /, *, at_once: int = 1, appended: bool = False
    ) -> Iterator[pa.Table]:
        """Yield the changes of batches `after` + 1 to `up_to`, one table for each `at_once` batches.

        A table has one row for each changed key, and the column `DELETED`. Changelogs of state variables are parsed
        without Spark where possible; Spark reads all other changes. Changelogs of lists contain only the appended
        elements, so they are parsed only with `appended`. If the checkpoint has only whole states, two whole states are
        compared. Raises `Gone` if files were removed.
        """
        assert isinstance(table, StateTable)  # noqa: S101  it is from `tables`
        is_parsed_here = is_parsable(table) and (appended or not is_list_state(table))
        with self._new_folder() as spool:
            with self.files.missing_files_as_gone(up_to):
                self._check_variables(up_to)
            while after < up_to:
                step = range(after + 1, min(after + at_once, up_to) + 1)
                if is_parsed_here and (parsed := self._parsed_changes(table, step)) is not None:
                    table.check_keys(parsed)
                    yield parsed
                    after = step[-1]
                    continue
                with self._new_folder() as folder:
                    last = self._bring_changes(table, after, up_to, at_once, folder)
                    if last > after:
                        yield from self._read_changes(table, after, last, at_once, folder)
                if last == after:
                    last = step[-1]
                    yield self._difference(table, after, last, spool)
                after = last

    def _check_variables(self, up_to: int) -> None:
        if up_to != self._checked:
            self.files.check_variables()
            self._checked = up_to

    def _parsed_changes(self, table: StateTable, batches: range) -> pa.Table | None:
        key = (table.operator, table.store)
        try:
            if (unpacked := self._unpacked.get(key)) is None or unpacked[0] != batches:
                unpacked = self._unpacked[key] = (batches, *self._changelogs(table, batches))
            _, records, families = unpacked
            return parse_changes(table, records, families, delimiter_of(self.files.conf_of(batches[-1])))
        except (UnknownLayout, ObjectNotFound):
            return None

    def _changelogs(self, table: StateTable, batches: range) -> tuple[Changelog, Mapping[str, int]]:
        files, numbers_by_name, stores = self.files, dict[str, int](), self._stores(table)
        if not all(files.has_change_feed(batch) and has_plain_rows(files.conf_of(batch)) for batch in batches):
            raise UnknownLayout
        with self._new_folder() as folder:
            changelogs = [
                parse_changelog(self._unpack(path, batch)).renumbered(files.column_families(store), numbers_by_name)
                for store, paths in zip(stores, files.copy_changelogs(stores, batches, folder), strict=True)
                for batch, path in zip(batches, paths, strict=True)
            ]
        return concat_changelogs(changelogs), numbers_by_name

    def _unpack(self, changelog: Path, batch: int) -> bytes:
        jvm: Any = self._spark._jvm
        codecs = getattr(getattr(jvm.org.apache.spark.io, "CompressionCodec$"), "MODULE$")
        codec = codecs.createCodec(self._spark.sparkContext._jsc.sc().conf(), codec_of(self.files.conf_of(batch)))
        packed, unpacked = jvm.java.io.FileInputStream(str(changelog)), changelog.with_suffix(".unpacked")
        # Passed through a file: passing the bytes over py4j would cost more than parsing them.
        out = jvm.java.io.FileOutputStream(str(unpacked))
        try:
            codec.compressedInputStream(packed).transferTo(out)
        except Py4JJavaError as error:
            raise UnknownLayout from error
        finally:
            packed.close()
            out.close()
        return unpacked.read_bytes()

    def _bring_changes(self, table: StateTable, after: int, up_to: int, at_once: int, folder: Path) -> int:
        size, last = 0, after
        stores = self._stores(table)
        while last < up_to and (size < _MAX_JOB_BYTES or (last - after) % at_once):
            with self.files.missing_files_as_gone(last + 1):
                if not (table.has_change_feed and self.files.has_change_feed(last + 1)):
                    break
                try:
                    size += self.files.copy_changes(stores, last + 1, folder)
                except ObjectNotFound:
                    if last > after or last + 1 not in self.files.readable_batches():
                        raise
                    break
            last += 1
        if last < up_to:
            last -= (last - after) % at_once
        if table.is_in_shared_store and last > after:
            # Spark opens the last state to read the store's column families.
            with self.files.missing_files_as_gone(last):
                self.files.copy_whole_state(stores, last, folder)
        return last

    def _read_changes(self, table: StateTable, after: int, last: int, at_once: int, folder: Path) -> Iterator[pa.Table]:
        options = {"readChangeFeed": "true", "changeStartBatchId": after + 1, "changeEndBatchId": last}
        changes = self._read(table, folder, last, **options).select(
            *table.select_columns(),
            (F.col("change_type") == "delete").alias(DELETED),
            F.floor((F.col("batch_id") - after - 1) / at_once).cast("int").alias(_STEP),
        )
        with self._translate_spark_errors(table, f"of batches {after + 1} to {last}", folder):
            rows = changes.toArrow()
        table.check_keys(rows)
        schema = _with_deleted(table)
        for step in range(-(-(last - after) // at_once)):
            yield _last_row_of_keys(
                rows.filter(pc.field(_STEP) == step).select(schema.names).cast(schema), table.key.names
            )

    def _difference(self, table: StateTable, after: int, batch: int, spool: Path) -> pa.Table:
        old_path, new_path = (self._spool(table, end, spool) for end in (after, batch))
        old, new = (
            self._spark.read.parquet(str(path)).alias(name) for name, path in (("old", old_path), ("new", new_path))
        )
        changed = new.join(old, _columns_equal(table.schema.names, new.schema), "left_anti").withColumn(
            DELETED, F.lit(False)
        )
        deleted = (
            old.join(new, _columns_equal(table.key.names, new.schema), "left_anti")
            .select(*map(quote_for_spark, table.key.names))
            .withColumn(DELETED, F.lit(True))
        )
        schema = _with_deleted(table)
        both = changed.unionByName(deleted, allowMissingColumns=True).select(*map(quote_for_spark, schema.names))
        with self._translate_spark_errors(table, f"at the end of batch {batch}"):
            result = both.toArrow().cast(schema)
        shutil.rmtree(old_path)
        return result

    def _spool(self, table: StateTable, batch: int, spool: Path) -> Path:
        rows = spool / str(batch)
        if not rows.exists():
            with self.frame(table, batch) as frame:
                frame.write.parquet(str(rows))
            for file in rows.glob("*.parquet") if table.float_keys else ():
                with pq.ParquetFile(file) as part:
                    for batch_of_keys in part.iter_batches(columns=table.float_keys):
                        table.check_keys(batch_of_keys)
        return rows

    def _tables(self, newest: int) -> tuple[StateTable, ...]:
        tables: list[StateTable] = []
        with self._new_folder() as folder, self.files.missing_files_as_gone(newest):
            self.files.copy_logs(newest, folder)
            for operator in self.files.operators:
                for stored in operator.tables:
                    options = dict(stored.options)
                    schema = self._load(folder, operator.id, stored.store, newest, batchId=newest, **options).schema
                    name = stored.name or operator.kind
                    while any(name == table.name for table in tables):
                        name += f"_{operator.id}"
                    tables.append(make_state_table(name if tables else "", operator, stored, schema))
        return tuple(tables)

    def _stores(self, table: StateTable) -> Sequence[StoreFolder]:
        return self.files.stores(table.operator, table.store)

    def _read(self, table: StateTable, folder: Path, batch: int, **options: object) -> DataFrame:
        all_options = dict(table.options) | options
        cores = self._spark.sparkContext.defaultParallelism
        return self._load(folder, table.operator, table.store, batch, **all_options).coalesce(cores)

    def _load(self, folder: Path, operator: int, store: str, batch: int, **options: object) -> DataFrame:
        self._spark.conf.set(_FORMAT, str(self.files.format_of(batch)))
        all_options = {"path": f"file:{folder}", "operatorId": operator, "storeName": store, **options}
        return (
            self._spark.read.format("statestore")
            .options(**{name: str(value) for name, value in all_options.items()})
            .load()
        )

    @contextmanager
    def _translate_spark_errors(self, table: StateTable, extent: str, folder: Path | None = None) -> Iterator[None]:
        """Raise Spark's errors as `Refused`, or as `Corruption` if a file in `folder` is damaged."""
        try:
            yield
        except (PySparkException, Py4JJavaError) as error:
            if folder is not None:
                check_state_files(folder, self._unpack)
            raise Refused(
                f"Spark cannot read the state {table.name or table.kind!r} {extent} in {self.files.url}",
                quoted=root_cause(error),
                hint="if Spark's own reader (format statestore) can read it, please report a bug in slackwater",
            ) from error

    @contextmanager
    def _new_folder(self) -> Iterator[Path]:
        folder = self._folder / str(next(self._numbers))
        folder.mkdir()
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _with_deleted(table: StateTable) -> pa.Schema:
    return pa.schema([*table.schema, pa.field(DELETED, pa.bool_())])


def _last_row_of_keys(rows: pa.Table, key: list[str]) -> pa.Table:
    keys = normalise_keys(rows.select(key), key)
    order, repeats = sort_keys(hash_keys(keys, key), keys)
    return rows.take(order[~np.append(repeats[1:], False)[: len(order)]])


def _columns_equal(columns: Iterable[str], types: StructType) -> Column:
    def of(side: str, name: str) -> Column:
        column, kind = F.col(f"{side}.{quote_for_spark(name)}"), types[name].dataType
        return map_nested(column, kind, _entries) if contains_type(kind, MapType) else column

    return reduce(Column.__and__, (of("old", name).eqNullSafe(of("new", name)) for name in columns), F.lit(True))


def _entries(column: Column, kind: DataType) -> Column | None:
    if isinstance(kind, MapType):
        entry = StructType([StructField("key", kind.keyType), StructField("value", kind.valueType)])
        return map_nested(F.map_entries(column), ArrayType(entry), _entries)
    return None if contains_type(kind, MapType) else column
