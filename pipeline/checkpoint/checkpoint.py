"""A Spark query's checkpoint, as it is now: its tables of state, its batches, the state of each and what it changed."""

import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from msgspec import Struct
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from ...errors import Gone, NotFound, ObjectNotFound
from ...own_folder import temporary_folder
from ...store.objects.open import open_store
from ...store.objects.protocol import ObjectStore
from . import logs
from .operators import operators_in
from .private_copy import copied
from .state_files import StateFile, StoreFolder, named_in, state_files, whole_of
from .tables import StateTable, state_table, struct_of

DELETED = "_deleted"
"""The column of a batch's changes that is true where the row is gone."""
_BATCH, _ORDER = "_batch", "_order"
_AT_A_TIME_BYTES = 32 << 20
"""So many bytes of change files are read by one job of Spark's, unless one batch has more."""
_NUMBER = re.compile(r"\d+")
_TRIES = 3


class CheckpointBatch(Struct, frozen=True):
    """One committed batch of a query."""

    id: int
    sources: tuple[logs.SourceOffsets, ...]
    """How far each was read at its end."""
    time_ms: int
    """When it was planned, by the query's clock."""
    watermark_ms: int | None
    """The one with which it ran."""
    committed_ms: int
    """When its commit was written, by storage's clock."""


@contextmanager
def opened(where: str, spark: SparkSession) -> Iterator["Checkpoint"]:
    """The checkpoint at a folder or `s3://bucket/prefix`, for as long as this lasts.

    Raises `NotFound` where there is none, `Refused` for state that cannot be carried, by name.
    """
    with temporary_folder() as folder:
        yield Checkpoint(open_store(where), spark, folder)


class Checkpoint:
    """Reads; see `opened`. For one thread.

    Attributes:
        id: The query's.
        tables: All that the query keeps; of those the first has no name.
        operators: What keeps them.
    """

    def __init__(self, files: ObjectStore, spark: SparkSession, folder: Path) -> None:
        self._files = files
        self._folder = folder
        self._numbers = count()
        self._offsets: dict[int, logs.Offsets] = {}
        self.id = logs.query_id(self._text("metadata"), "metadata")
        newest = self.committed()[-1]
        self._format = 2 if self._commit(newest).state_ids else 1
        self._spark = spark.newSession()
        for name, value in (
            ("spark.sql.session.timeZone", "UTC"),
            ("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS"),
            ("spark.sql.streaming.stateStore.checkpointFormatVersion", str(self._format)),
        ):
            self._spark.conf.set(name, value)
        listed = [info.key for info in files.list("state/")]
        self._schemas = tuple(each for each in listed if "/_metadata/" in each or "/_stateSchema/" in each)
        copied(files, folder / "schemas", self._schemas)
        self.operators = operators_in(folder / "schemas" / "state")
        self.tables = tuple(self._tables(newest))

    def committed(self) -> range:
        """The batches whose commit is there, without gaps up to the newest. Raises `NotFound` where none is."""
        self._commits = {
            int(info.key.removeprefix(logs.COMMITS)): info.modified_ms
            for info in self._files.list(logs.COMMITS)
            if _NUMBER.fullmatch(info.key.removeprefix(logs.COMMITS))
        }
        if not self._commits:
            raise NotFound("committed batch", self._files.url)
        first = newest = max(self._commits)
        while first - 1 in self._commits:
            first -= 1
        return range(first, newest + 1)

    def available(self) -> range:
        """The batches whose whole state can be read now, of all tables, without gaps up to the newest."""
        batches = self.committed()
        files = self._listed()
        first = batches[-1]
        while first in batches and all(self._whole(store, first, files[store]) is not None for store in self._stores()):
            first -= 1
        return range(first + 1, batches[-1] + 1)

    def batch(self, batch: int) -> CheckpointBatch:
        """One committed batch. Raises `Gone` where it was cleaned up."""
        if batch not in self._commits:
            self.committed()
        with self._gone(batch):
            offsets = self._offset(batch)
            return CheckpointBatch(batch, offsets.sources, offsets.time_ms, offsets.watermark_ms, self._commits[batch])

    def rows(self, table: StateTable, batch: int) -> Iterator[pa.RecordBatch]:
        """The whole state at the end of a batch, in no order. Raises `Gone` where it cannot be read any more."""
        with self.frame(table, batch) as frame, self._own_folder() as folder:
            frame.write.parquet(str(folder / "rows"))
            for each in ds.dataset(folder / "rows", format="parquet").to_batches():
                yield pa.RecordBatch.from_arrays([*each.columns], names=each.schema.names).cast(table.schema)

    @contextmanager
    def frame(self, table: StateTable, batch: int) -> Iterator[DataFrame]:
        """The same as a DataFrame, to be used inside."""
        with self._own_folder() as folder:
            with self._gone(batch):
                self._bring_whole(table, batch, folder)
            yield self._read(table, folder, batchId=batch).select(*table.columns())

    def changes(self, table: StateTable, after: int, up_to: int) -> Iterator[pa.Table]:
        """What each batch changed, from the one behind `after` to `up_to`: one table each, with the column `_deleted`.

        A key is there once in each. Raises `Gone` where files were cleaned up.
        """
        while after < up_to:
            with self._own_folder() as folder:
                size = 0
                last = after
                while last < up_to and size < _AT_A_TIME_BYTES:
                    last += 1
                    with self._gone(last):
                        size += self._bring_changes(table, last, folder)
                feed = self._read(
                    table, folder, readChangeFeed="true", changeStartBatchId=after + 1, changeEndBatchId=last
                )
                columns = feed.select(
                    *table.columns(),
                    (F.col("change_type") == "delete").alias(DELETED),
                    F.col("batch_id").alias(_BATCH),
                    F.monotonically_increasing_id().alias(_ORDER),
                )
                found = columns.toArrow()
            yield from _by_batch(found, table, range(after + 1, last + 1))
            after = last

    def _tables(self, newest: int) -> Iterator[StateTable]:
        with self._own_folder() as folder:
            self._bring_logs(newest, folder)
            first = True
            for operator in self.operators:
                for name, store in operator.tables():
                    # Spark plans no read without a folder for each partition; the schema is known before.
                    schema = self._load(folder, operator.id, store, batchId=newest).schema
                    key, values = struct_of(schema, "key"), struct_of(schema, "value")
                    kind = operator.kind_of(key)
                    yield state_table("" if first else name or kind, operator.id, kind, store, key, values)
                    first = False

    def _stores(self) -> Sequence[StoreFolder]:
        return [
            StoreFolder(operator.id, partition, store)
            for operator in self.operators
            for store in operator.stores
            for partition in range(operator.partitions)
        ]

    def _stores_of(self, table: StateTable) -> Sequence[StoreFolder]:
        return [each for each in self._stores() if (each.operator, each.store) == (table.operator, table.store)]

    def _listed(self) -> Mapping[StoreFolder, Sequence[StateFile]]:
        keys = [info.key for info in self._files.list("state/")]
        by_folder: dict[str, list[str]] = {}
        for key in keys:
            by_folder.setdefault(key[: key.rfind("/") + 1], []).append(key)
        return {each: state_files(each.path, by_folder.get(each.path, ())) for each in self._stores()}

    def _whole(self, store: StoreFolder, batch: int, files: Sequence[StateFile]) -> Sequence[StateFile] | None:
        ids = {}
        if self._format == 2:
            ids = {each + 1: self._id(store, each) for each in self._commits if each <= batch}
        return whole_of(batch + 1, files, ids)

    def _id(self, store: StoreFolder, batch: int) -> str:
        """The id in the names of a store's files of a batch's version; empty in format 1."""
        by_partition = self._commit(batch).state_ids.get(store.operator)
        if not by_partition:
            return ""
        operator = next(each for each in self.operators if each.id == store.operator)
        return by_partition[store.partition][operator.stores.index(store.store)]

    def _bring_whole(self, table: StateTable, batch: int, folder: Path) -> None:
        self._bring_logs(batch, folder)
        for store in self._stores_of(table):
            listed = state_files(store.path, (info.key for info in self._files.list(store.path)))
            if (needed := self._whole(store, batch, listed)) is None:
                raise ObjectNotFound(f"{store.path}{batch + 1}", self._files.url)
            copied(self._files, folder, [each.key for each in needed])
            if needed and needed[0].kind == "zip":
                beside = named_in((folder / needed[0].key).read_bytes(), needed[0].key)
                copied(self._files, folder, [store.path + each for each in beside])

    def _bring_changes(self, table: StateTable, batch: int, folder: Path) -> int:
        self._bring_logs(batch, folder)
        return copied(self._files, folder, [self._change_file(store, batch) for store in self._stores_of(table)])

    def _change_file(self, store: StoreFolder, batch: int) -> str:
        kind = "changelog" if "RocksDB" in self._offset(batch).conf.get(_PROVIDER, "") else "delta"
        state_id = self._id(store, batch)
        return f"{store.path}{batch + 1}{f'_{state_id}' if state_id else ''}.{kind}"

    def _bring_logs(self, batch: int, folder: Path) -> None:
        copied(self._files, folder, ["metadata", f"{logs.OFFSETS}{batch}", f"{logs.COMMITS}{batch}"])
        for key in self._schemas:
            if not (target := folder / key).exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                target.hardlink_to(self._folder / "schemas" / key)

    def _read(self, table: StateTable, folder: Path, **options: object) -> DataFrame:
        cores = self._spark.sparkContext.defaultParallelism
        return self._load(folder, table.operator, table.store, **options).coalesce(cores)

    def _load(self, folder: Path, operator: int, store: str, **options: object) -> DataFrame:
        said = {"path": f"file:{folder}", "operatorId": operator, "storeName": store, **options}
        return (
            self._spark.read.format("statestore").options(**{name: str(value) for name, value in said.items()}).load()
        )

    def _text(self, key: str) -> bytes:
        try:
            return self._files.get(key)
        except ObjectNotFound:
            raise NotFound("checkpoint of a Spark query", self._files.url, found=f"there is no file {key!r}") from None

    def _offset(self, batch: int) -> logs.Offsets:
        if batch not in self._offsets:
            key = f"{logs.OFFSETS}{batch}"
            self._offsets[batch] = logs.offsets(self._files.get(key), key)
        return self._offsets[batch]

    def _commit(self, batch: int) -> logs.Commit:
        key = f"{logs.COMMITS}{batch}"
        return logs.commit(self._files.get(key), key)

    @contextmanager
    def _own_folder(self) -> Iterator[Path]:
        folder = self._folder / str(next(self._numbers))
        folder.mkdir()
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    @contextmanager
    def _gone(self, batch: int) -> Iterator[None]:
        try:
            yield
        except ObjectNotFound as error:
            raise Gone(
                f"the checkpoint {self._files.url} has not all of batch {batch} any more: {error.key} is not there",
                hint="the query cleans up what is older than spark.sql.streaming.minBatchesToRetain batches",
            ) from error


_PROVIDER = "spark.sql.streaming.stateStore.providerClass"


def _by_batch(found: pa.Table, table: StateTable, batches: range) -> Iterator[pa.Table]:
    """The last change of each key within each batch."""
    keys = [_BATCH, *table.key.names]
    last = found.group_by(keys).aggregate([(_ORDER, "max")])[f"{_ORDER}_max"]
    kept = found.filter(pc.is_in(found[_ORDER], last))
    schema = pa.schema([*table.schema, pa.field(DELETED, pa.bool_())])
    for batch in batches:
        yield kept.filter(pc.field(_BATCH) == batch).select(schema.names).cast(schema)
