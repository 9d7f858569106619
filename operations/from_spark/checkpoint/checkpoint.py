"""A Spark query's checkpoint, as it is now: its tables of state, the whole state of a batch, and what one changed."""

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
from ....store.sst.hashing import hash_keys, normalise_keys, sort_keys
from ....store.versions.column_types import in_backticks
from .changelogs import Changelog, codec_of, delimiter_of, is_plain, joined, records_in
from .damage import check_all, root_of
from .files import CheckpointFiles
from .places import own_place, place
from .protocol import DELETED, ReadableBatch, ReadableTable
from .state_files import StoreFolder
from .tables import StateTable, has, rebuilt, state_table
from .unsafe_rows import UnknownLayout
from .written import changed, is_list, is_read_here

_STEP = "_step"
_AT_A_TIME_BYTES = 32 << 20
"""So many bytes of change files are read by one job of Spark's, unless one batch has more."""
_FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"
_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}


def check_there(where: str) -> None:
    """Raise `NotFound` where there is no checkpoint, as far as that is known without Spark."""
    if (found := own_place(where)) is not None:
        CheckpointFiles(found)


@contextmanager
def opened(where: str, spark: SparkSession) -> Iterator["Checkpoint"]:
    """The checkpoint at a place (`places.place`), for as long as this lasts. Nothing is written there.

    Raises `NotFound` where there is none, `Refused` for state that cannot be carried, by name.
    """
    with temporary_folder() as folder:
        yield Checkpoint(where, CheckpointFiles(place(where, spark)), spark, folder)


class Checkpoint:
    """`FollowedCheckpoint`; see `opened`. For one thread. Spark runs on this machine: it reads a folder of ours.

    Attributes:
        where: The folder or address, as it was given.
        files: What is known without Spark: which batches there are, and of each how far it read.
        tables: All that the query keeps; of these the first has no name.
    """

    def __init__(self, where: str, files: CheckpointFiles, spark: SparkSession, folder: Path) -> None:
        self.where, self.files = where, files
        self._folder = folder
        self._numbers = count()
        self._checked = -1
        self._unpacked: dict[tuple[int, str], tuple[range, Changelog, Mapping[str, int]]] = {}
        self._spark = spark.newSession()
        # The reader of state of Spark 4.2 asks for a coordinator that nothing has started but what runs queries.
        _ = self._spark.streams
        for name, value in _SETTINGS.items():
            self._spark.conf.set(name, value)
        self._spark.conf.set("spark.sql.shuffle.partitions", str(spark.sparkContext.defaultParallelism))
        self.tables = self._tables(files.committed()[-1])

    @property
    def query(self) -> str:
        """The query's id."""
        return self.files.id

    def committed(self) -> range:
        """The batches whose commit is there now, without gaps up to the newest; none where all are gone."""
        try:
            return self.files.committed()
        except NotFound:
            return range(0)

    def newest(self) -> int:
        """The last batch that is committed, -1 for none. Any thread may ask for it."""
        return max(self.files.listed(), default=-1)

    def available(self, up_to: int | None = None, /) -> range:
        """The batches whose whole state can be read now, without gaps up to the newest, or to one."""
        return self.files.available(up_to)

    def batch(self, batch: int, /) -> ReadableBatch:
        """One committed batch. Raises `Gone` where it was cleaned up."""
        return self.files.batch(batch)

    def rows(self, table: ReadableTable, batch: int, /) -> Iterator[pa.RecordBatch]:
        """The whole state at the end of a batch, in no order. Raises `Gone` where it cannot be read any more."""
        assert isinstance(table, StateTable)  # noqa: S101  it is one of `tables`
        with self._own_folder() as folder:
            rows = self._spooled(table, batch, folder)
            for file in sorted(rows.glob("*.parquet")):
                with pq.ParquetFile(file) as part:
                    yield from (batch.cast(table.schema) for batch in part.iter_batches())

    @contextmanager
    def frame(self, table: StateTable, batch: int) -> Iterator[DataFrame]:
        """The same as a DataFrame, to be used inside."""
        with self._own_folder() as folder:
            with self.files.reading(batch):
                self.files.bring_whole(self._stores(table), batch, folder)
            with self._by_spark(table, f"at the end of batch {batch}", folder):
                yield self._read(table, folder, batch, batchId=batch).select(*table.columns())

    def changes(
        self, table: ReadableTable, after: int, up_to: int, /, *, at_once: int = 1, appended: bool = False
    ) -> Iterator[pa.Table]:
        """What batches changed, from the one behind `after` to `up_to`, so many `at_once`: tables with `_deleted`.

        A key is there once in each. Changelogs of state variables are read here, and without a Spark; of a list they
        say what was added, which only those hear who say `appended`. All others Spark reads. Of batches of which
        nothing but the whole state was kept, that is compared with the one before. Raises `Gone` where files were
        cleaned up.
        """
        assert isinstance(table, StateTable)  # noqa: S101  it is one of `tables`
        here = is_read_here(table) and (appended or not is_list(table))
        with self._own_folder() as spool:
            with self.files.reading(up_to):
                self._check_variables(up_to)
            while after < up_to:
                step = range(after + 1, min(after + at_once, up_to) + 1)
                if here and (found := self._written(table, step)) is not None:
                    table.check_keys(found)
                    yield found
                    after = step[-1]
                    continue
                with self._own_folder() as folder:
                    last = self._bring_changes(table, after, up_to, at_once, folder)
                    if last > after:
                        yield from self._feed(table, after, last, at_once, folder)
                if last == after:
                    last = step[-1]
                    yield self._difference(table, after, last, spool)
                after = last

    def _check_variables(self, up_to: int) -> None:
        """Once for all tables of which the same batches are read."""
        if up_to != self._checked:
            self.files.check_variables()
            self._checked = up_to

    def _written(self, table: StateTable, batches: range) -> pa.Table | None:
        """What batches changed in a table, out of the changelogs; None where Spark has to read it."""
        key = (table.operator, table.store)
        try:
            if (known := self._unpacked.get(key)) is None or known[0] != batches:
                known = self._unpacked[key] = (batches, *self._changelogs(table, batches))
            _, records, families = known
            return changed(table, records, families, delimiter_of(self.files.conf_of(batches[-1])))
        except (UnknownLayout, ObjectNotFound):
            return None

    def _changelogs(self, table: StateTable, batches: range) -> tuple[Changelog, Mapping[str, int]]:
        """All records of a table's store, and the numbers of column families in them."""
        files, known, stores = self.files, dict[str, int](), self._stores(table)
        if not all(files.has_feed(each) and is_plain(files.conf_of(each)) for each in batches):
            raise UnknownLayout
        with self._own_folder() as folder:
            found = [
                records_in(self._unpack(path, batch)).renumbered(files.families(store), known)
                for store, paths in zip(stores, files.bring_changelogs(stores, batches, folder), strict=True)
                for batch, path in zip(batches, paths, strict=True)
            ]
        return joined(found), known

    def _unpack(self, changelog: Path, batch: int) -> bytes:
        """A changelog as it was before it was packed, by Spark's own codec."""
        jvm: Any = self._spark._jvm
        codecs = getattr(getattr(jvm.org.apache.spark.io, "CompressionCodec$"), "MODULE$")
        codec = codecs.createCodec(self._spark.sparkContext._jsc.sc().conf(), codec_of(self.files.conf_of(batch)))
        packed, unpacked = jvm.java.io.FileInputStream(str(changelog)), changelog.with_suffix(".unpacked")
        # By a file: what Python is given over py4j costs it more than what it does with it.
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
        """Copy what the batches behind one changed, as much as is read at a time; the last of these."""
        size, last = 0, after
        stores = self._stores(table)
        while last < up_to and (size < _AT_A_TIME_BYTES or (last - after) % at_once):
            with self.files.reading(last + 1):
                if not (table.has_feed and self.files.has_feed(last + 1)):
                    break
                try:
                    size += self.files.bring_changes(stores, last + 1, folder)
                except ObjectNotFound:
                    if last > after or last + 1 not in self.files.available():
                        raise
                    break
            last += 1
        if last < up_to:
            last -= (last - after) % at_once
        if table.registers and last > after:
            # Spark opens the last state to learn of the store's column families.
            with self.files.reading(last):
                self.files.bring_whole(stores, last, folder)
        return last

    def _feed(self, table: StateTable, after: int, last: int, at_once: int, folder: Path) -> Iterator[pa.Table]:
        options = {"readChangeFeed": "true", "changeStartBatchId": after + 1, "changeEndBatchId": last}
        feed = self._read(table, folder, last, **options).select(
            *table.columns(),
            (F.col("change_type") == "delete").alias(DELETED),
            F.floor((F.col("batch_id") - after - 1) / at_once).cast("int").alias(_STEP),
        )
        with self._by_spark(table, f"of batches {after + 1} to {last}", folder):
            found = feed.toArrow()
        table.check_keys(found)
        schema = _with_deleted(table)
        for step in range(-(-(last - after) // at_once)):
            yield _newest(found.filter(pc.field(_STEP) == step).select(schema.names).cast(schema), table.key.names)

    def _difference(self, table: StateTable, after: int, batch: int, spool: Path) -> pa.Table:
        """What differs between the whole states at the ends of two batches.

        In the folder `spool` the later one is left for the next step.
        """
        before, now = (self._spooled(table, each, spool) for each in (after, batch))
        old, new = (self._spark.read.parquet(str(each)).alias(name) for name, each in (("old", before), ("new", now)))
        changed = new.join(old, _same(table.schema.names, new.schema), "left_anti").withColumn(DELETED, F.lit(False))
        gone = (
            old.join(new, _same(table.key.names, new.schema), "left_anti")
            .select(*map(in_backticks, table.key.names))
            .withColumn(DELETED, F.lit(True))
        )
        schema = _with_deleted(table)
        both = changed.unionByName(gone, allowMissingColumns=True).select(*map(in_backticks, schema.names))
        with self._by_spark(table, f"at the end of batch {batch}"):
            found = both.toArrow().cast(schema)
        shutil.rmtree(before)
        return found

    def _spooled(self, table: StateTable, batch: int, spool: Path) -> Path:
        """The whole state at the end of a batch as Parquet, of which no memory need hold all."""
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
        found: list[StateTable] = []
        with self._own_folder() as folder, self.files.reading(newest):
            self.files.bring_logs(newest, folder)
            for operator in self.files.operators:
                for kept in operator.tables:
                    options = dict(kept.options)
                    schema = self._load(folder, operator.id, kept.store, newest, batchId=newest, **options).schema
                    name = kept.name or operator.kind
                    while any(name == each.name for each in found):
                        name += f"_{operator.id}"
                    found.append(state_table(name if found else "", operator, kept, schema))
        return tuple(found)

    def _stores(self, table: StateTable) -> Sequence[StoreFolder]:
        return self.files.stores(table.operator, table.store)

    def _read(self, table: StateTable, folder: Path, batch: int, **options: object) -> DataFrame:
        """A task for each core, not for each state partition: most of these are small."""
        said = dict(table.options) | options
        cores = self._spark.sparkContext.defaultParallelism
        return self._load(folder, table.operator, table.store, batch, **said).coalesce(cores)

    def _load(self, folder: Path, operator: int, store: str, batch: int, **options: object) -> DataFrame:
        self._spark.conf.set(_FORMAT, str(self.files.format_of(batch)))
        said = {"path": f"file:{folder}", "operatorId": operator, "storeName": store, **options}
        return (
            self._spark.read.format("statestore").options(**{name: str(value) for name, value in said.items()}).load()
        )

    @contextmanager
    def _by_spark(self, table: StateTable, what: str, folder: Path | None = None) -> Iterator[None]:
        """Inside, what Spark cannot read is refused. It has all files that it needs, as far as is known here.

        Raises `Corruption` where a file in the folder is damaged.
        """
        try:
            yield
        except (PySparkException, Py4JJavaError) as error:
            if folder is not None:
                check_all(folder, self._unpack)
            raise Refused(
                f"Spark cannot read the state {table.name or table.kind!r} {what} in {self.files.url}",
                quoted=root_of(error),
                hint="does Spark's own reader (format statestore) read it? Then it is a fault of slackwater's",
            ) from error

    @contextmanager
    def _own_folder(self) -> Iterator[Path]:
        folder = self._folder / str(next(self._numbers))
        folder.mkdir()
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _with_deleted(table: StateTable) -> pa.Schema:
    return pa.schema([*table.schema, pa.field(DELETED, pa.bool_())])


def _newest(rows: pa.Table, key: list[str]) -> pa.Table:
    """The last row of each key, which lies in one partition: there changes come in the order of their making."""
    keys = normalise_keys(rows.select(key), key)
    order, repeats = sort_keys(hash_keys(keys, key), keys)
    return rows.take(order[~np.append(repeats[1:], False)[: len(order)]])


def _same(columns: Iterable[str], types: StructType) -> Column:
    """Whether rows of `old` and `new` are the same in these columns. Spark compares no maps, but their entries."""

    def of(side: str, name: str) -> Column:
        column, kind = F.col(f"{side}.{in_backticks(name)}"), types[name].dataType
        return rebuilt(column, kind, _entries) if has(kind, MapType) else column

    return reduce(Column.__and__, (of("old", each).eqNullSafe(of("new", each)) for each in columns), F.lit(True))


def _entries(column: Column, kind: DataType) -> Column | None:
    if isinstance(kind, MapType):
        entry = StructType([StructField("key", kind.keyType), StructField("value", kind.valueType)])
        return rebuilt(F.map_entries(column), ArrayType(entry), _entries)
    return None if has(kind, MapType) else column
