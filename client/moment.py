"""`Moment`: one version of each stage of an app, for queries. `Bisection`: the result of a bisect."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..common import instants
from ..common.arguments import check_method_arguments
from ..common.durations import parse_ms
from ..common.whole_file import check_folder_name, extension_of
from ..errors import NotFound, Refused, Usage
from ..snapshot.cut.graph import Cut, Thinned, channels
from ..snapshot.cut.moments import later_stages, require_tables
from ..snapshot.cut.resolve import apply_known_forgets, report_if_collected, resolve_despite_damage, retry_if_forgotten
from ..snapshot.query.columns import TableColumn, describe_columns, get, look_up, parse_keys, select
from ..store.objects.counting import CountingStore, ReadCounters
from ..store.read.multi_get import DEFAULT_READ_AHEAD, ReadAhead
from ..store.read.open_rows import OpenRows
from ..store.sst.arrow_types import python_rows
from ..store.sst.hashing import hash_keys, partition_of
from ..store.sst.sorted_runs import ssts_of_partition
from ..store.versions import forgotten
from ..store.versions.manifest import Table
from ..store.versions.side_tables import find_owner
from .backends import Backends
from .declared.questions import DiffOptions, VerifyOptions
from .show.document import Block, TableBlock, Time, Title
from .show.shown import Displayable, Result

if TYPE_CHECKING:
    import duckdb
    from pyspark.sql import DataFrame, SparkSession

    from ..operations.exchange.export import FolderWritten, OnProgress
    from ..snapshot.bisect.causes import Cause
    from ..snapshot.bisect.verdict import RecordPath, Verdict
    from ..snapshot.cut.lineage import Window
    from ..snapshot.query.columns import FirstRows
    from ..snapshot.query.export import ExportedDatabase
    from ..snapshot.query.sql import Bounds
    from .results import Difference, Verification


class Tables(Displayable, dict[str, tuple[TableColumn, ...]]):
    """Columns of each table, by table name."""

    def __init__(self, ref: str, columns_by_table: Mapping[str, tuple[TableColumn, ...]]) -> None:
        super().__init__(columns_by_table)
        self.ref = ref

    def _blocks(self) -> Iterator[Block]:
        from .show.rows import columns_table

        yield Title(f"tables at {self.ref}")
        yield columns_table(self)


@check_method_arguments
class Moment(Displayable):
    """State that all stages of an app had committed at one moment. Immutable, except that `forget` removes keys.

    Methods raise `NotFound` if garbage collection removes the moment meanwhile, `Corruption` if an object does not
    match its manifest, and `Unavailable` if the store or Kafka does not answer.
    """

    _internal_names = frozenset((
        *("current_cut", "cut", "export_tables", "first_rows", "from_ref", "key_partitions", "look_up", "open_rows"),
        *("parse_key_values", "partition_count", "query_rows", "read_rows", "stage_of", "table_declaration"),
        *("with_table", "write_duckdb"),
    ))  # fmt: skip

    def __init__(self, client: Backends, ref: str, cut: Cut, *, is_undamaged: bool = True) -> None:
        self.ref = ref
        self._cut = cut
        self._forgotten_index: object = None
        self._client = client
        self._is_undamaged = is_undamaged

    @classmethod
    def from_ref(cls, client: Backends, ref: str, participle: str) -> Moment:
        """Return the moment of a ref, and print notes about damaged stages and thinned-out history.

        `participle`, such as "read", completes the notes. Raises the errors of `StoredApp.at`.
        """
        cut, damage = resolve_despite_damage(client.store, ref, now_ms=instants.now_ms())
        if damage is not None:
            client.note(f"note: stages are damaged, so only {', '.join(cut.stages)} is {participle}: {damage.message}")
        client.note_thinned(ref, cut.thinned)
        return cls(client, ref, cut, is_undamaged=damage is None)

    @property
    def cut(self) -> Cut:
        """Manifests of the moment. Their SSTs lack keys that this process knows to be forgotten."""
        index = forgotten.cached_index(self._client.store, self._cut.app, at_least=None)
        if index is not self._forgotten_index:
            self._cut, self._forgotten_index = apply_known_forgets(self._client.store, self._cut), index
        return self._cut

    def current_cut(self) -> Cut:
        """Return the manifests; their SSTs lack all keys forgotten up to now. Costs one listing."""
        forgotten.newest(self._client.store, self._cut.app)
        return self.cut

    @property
    def versions(self) -> dict[str, int]:
        """Version of each stage, upstream first. Stages without a version are left out."""
        return self.cut.versions

    @property
    def time(self) -> datetime:
        """Commit time of the moment's newest version, in UTC."""
        return datetime.fromtimestamp(self.cut.time_ms / 1_000, UTC)

    @property
    def thinned_out(self) -> Thinned | None:
        """Requested time, and time of the moment used instead, if gc removed the requested moment; else None."""
        return self.cut.thinned

    @property
    def tables(self) -> Tables:
        """Tables with their columns."""
        return Tables(self.ref, {name: describe_columns(manifest) for name, manifest in self.cut.tables.items()})

    def query(self, sql: str) -> duckdb.DuckDBPyRelation:
        """Query the tables with DuckDB SQL and return a relation: `.df()`, `.arrow()`, `.pl()`, `.filter(…)`.

        The rows are computed immediately and held in memory by a separate connection. So the relation stays valid
        independently of this moment, and operations on the relation do not access the store. `FROM inflight('CHANNEL')`
        reads in-flight records, `FROM carriers AT '-1h'` a table at another moment, and `FROM versions('carriers',
        '-1h')` a table at each version of the last hour; relative times count from now.

        Raises:
            Usage: the SQL is wrong or is not read-only, reads in-flight records and no Kafka is configured, or reads
                more versions than one query may.
            NotFound: a table, column or moment does not exist.
        """
        from ..snapshot.query.answers import as_relation

        return as_relation(self.query_rows(sql)[0])

    def query_rows(
        self,
        sql: str,
        *,
        bounds: Bounds | None = None,
        max_rows: int | None = None,
        on_moment: Callable[[Cut], None] = lambda _cut: None,
    ) -> tuple[pa.Table, dict[str, Cut]]:
        """Return the rows of a query, and the additional moments that it reads, by ref. Raises the errors of `query`.

        Notes name tables that did not exist yet or had a different name. A query that exceeds `bounds` raises
        `TooMuch`. `on_moment` is called with each additional moment before it is read, and may raise an error.
        """
        from ..snapshot.query.answers import run_statement, tables_with_converted_values
        from ..snapshot.query.sql import names_channels

        client, cut = self._client, self.current_cut()
        other_cuts: dict[str, Cut] = {}
        # A stage that is damaged must not be reported as a stage that has not begun.
        later = later_stages(client.store, cut) if self._is_undamaged else {}
        # Kafka is needed only for in-flight records.
        reader, now_ms = client.channels_of(cut.app) if names_channels(sql) else None, instants.now_ms()

        def found(ref: str, other: Cut) -> None:
            on_moment(other)
            other_cuts[ref] = other

        how: dict[str, Any] = {"reader": reader, "max_rows": max_rows, "now_ms": now_ms, "bounds": bounds}
        rows = run_statement(client.store, client.cache, cut, sql, later=later, on_moment=found, **how)
        named = cut.with_renamed_stages(later).stages
        for name, head in later.items():
            if head.table is not None and name.casefold() in sql.casefold():
                if name in named:
                    self._note_rename(name, named[name].stage)
                else:
                    client.note(f"note: {name} had no version yet at {self.ref}, so it has no rows there")
        for ref, other in other_cuts.items():
            client.note_thinned(ref, other.thinned)
        for name in tables_with_converted_values((cut, *other_cuts.values()), sql):
            client.note(
                f"note: {name} has strings that are not UTF-8 (bytes shown as \\xff), or maps with duplicate keys "
                "(null in SQL); `slackwater get` shows the stored values"
            )
        return rows, other_cuts

    def spark_query(self, spark: SparkSession, sql: str) -> DataFrame:
        """Query the tables with DuckDB in this process, and return the rows as a Spark DataFrame."""
        return spark.createDataFrame(self.query_rows(sql)[0])

    def spark_table(self, spark: SparkSession, table: str, columns: Collection[str] = ()) -> DataFrame:
        """Return a table as a Spark DataFrame, read by one task per state partition.

        `columns` limits the columns. Raises `NotFound` for an unknown table or column.
        """
        # Importing PySpark takes a second or two.
        from ..spark import load_table

        cut = require_tables(self._client.store, self.cut, (table,))
        return load_table(spark, self._client.root, cut, table, columns)

    def _note_rename(self, name: str, then: str) -> None:
        if then != name:
            self._client.note(f"note: {name} was called {then} at {self.ref}")

    def export(self, path: str | PathLike[str], *, table: str = "", force: bool = False) -> Path:
        """Write the moment to a folder, or its tables to a file, atomically, and return the path.

        A name without an extension, or with a slash at its end, is a folder: plain Parquet with a document that
        describes each file, for the whole app with offsets and in-flight records. A name that ends in `.duckdb`, `.ddb`
        or `.db` is a DuckDB file with all tables; its table `_slackwater` has the moment and each stage's version. A
        name that ends in `.csv`, `.parquet` or `.json` is a file with a single table: `table`, which may be omitted if
        the moment has only one table. `force` overwrites an existing file, but never a folder.

        Raises:
            Usage: the extension has no known format, `force` or `table` is given for a folder, the table for such a
                file is ambiguous, or records are in flight and no Kafka is configured.
            NotFound: the table does not exist.
            Refused: the file or folder exists or cannot be written, or in-flight records are lost.
        """
        self.export_tables(path, (table,) if table else (), force=force)
        return Path(path)

    def export_tables(
        self,
        path: str | PathLike[str],
        tables: Sequence[str] = (),
        *,
        force: bool = False,
        on_progress: OnProgress = lambda _done, _all: None,
    ) -> Result:
        """Export some or all tables (see `export`), and return the result to print."""
        from ..snapshot.query.export import FILE_SUFFIXES
        from .show import rows, values

        where, ending = Path(path), extension_of(path)
        if ending in FILE_SUFFIXES:
            return rows.duckdb_export_result(
                self.write_duckdb(where, [*tables] or None, force=force), self.cut, self.ref, where
            )
        if ending not in values.ENDINGS:
            if tables or force:
                raise Usage(
                    f"{path} would be a folder: an export to a folder always has all tables and overwrites nothing, "
                    f"so {'tables' if tables else 'force'}= needs a file",
                    hint=f"name the file so that it ends in one of {', '.join((*values.ENDINGS, *FILE_SUFFIXES))}",
                )
            return rows.folder_export_result(self._write_folder(path, on_progress), self.cut)
        if len(tables) > 1:
            raise Usage(
                f"{where} can hold only one table", hint=f"name one, or write all of them to {where.stem}.duckdb"
            )
        return rows.file_export_result(where, *self._write_table(where, *tables, force=force), self.cut)

    def _write_table(self, path: Path, table: str = "", *, force: bool = False) -> tuple[str, int]:
        """Write one table to a file of any supported format, and return the table's name and number of rows.

        Raises `Usage` if no `table` is given and the moment has not exactly one, and `Refused` for an unwritable file.
        """
        from ..snapshot.query.export import check_writable
        from ..store.read.duckdb_view import quote_identifier
        from .show import values

        if not table:
            ref, _, moment = self.ref.partition("@")
            app, _, stage = ref.partition("/")
            names = [stage] if stage in self.cut.tables else [*self.cut.tables]
            if len(names) != 1:
                at = f"@{moment}" if moment else ""
                raise Usage(
                    f"{path} can hold only one table, and {self.ref} has {', '.join(names) or 'none'}",
                    hint=f"name it: slackwater export {app}/{next(iter(names), 'TABLE')}{at} {path}; or write all of "
                    f"them to {path.with_suffix('.duckdb')}",
                )
            (table,) = names
        check_writable(path, force=force)
        rows, _ = self.with_table(table).query_rows(f"FROM {quote_identifier(table)}")
        values.write_table(rows, path)
        return table, rows.num_rows

    def _write_folder(self, path: str | PathLike[str], on_progress: OnProgress) -> FolderWritten:
        from ..operations.exchange.export import export_folder
        from ..snapshot.query.export import FILE_SUFFIXES
        from .show import values

        client, where = self._client, Path(path)
        if extension_of(path):
            check_folder_name(
                where,
                "export to",
                f"a file of one table ends in {', '.join(values.ENDINGS)}, one of all tables in "
                f"{', '.join(FILE_SUFFIXES)}; a folder's name has no ending, or ends in a slash: {where}{os.sep}",
                any_extension=True,
            )
        if not self._is_undamaged:
            raise Refused(
                f"cannot export {self.ref} to a folder: some of its stages are damaged, and a folder needs all of them",
                hint="export the undamaged tables: slackwater export REF FILE.duckdb --table NAME",
            )

        reader, now_ms = partial(client.require_channels, "to read the in-flight records"), instants.now_ms()
        at = client.store, client.cache, self.cut, self.ref, where, reader
        return export_folder(*at, by=client.by, now_ms=now_ms, on_progress=on_progress)

    def write_duckdb(self, path: Path, tables: list[str] | None = None, *, force: bool = False) -> ExportedDatabase:
        """Write a DuckDB file with some or all tables, and return its description."""
        from ..snapshot.query.export import export

        client, _ = self._client, self.current_cut()

        def written() -> ExportedDatabase:
            return export(client.store, client.cache, self.cut, self.ref, path, only=tables, force=force)

        return retry_if_forgotten(client.store, self._cut.app, written)

    def export_iceberg(
        self, root: str, tables: Collection[str] = (), *, keep: str = "1h", register: str = ""
    ) -> Result:
        """Export tables as Apache Iceberg tables, without copying rows.

        Writes metadata under the root; the data files are the SSTs, so readers must reach both. A snapshot of the app
        (`iceberg-…`) keeps the SSTs until an hour after the last Iceberg snapshot that uses them.

        Args:
            root: `s3://bucket/prefix` or a folder, in which each table gets a folder of its name.
            tables: names of the tables; default all.
            keep: time for which a replaced Iceberg snapshot stays readable.
            register: catalog that gets an entry for each table, `CATALOG[.NAMESPACE]`; default none.

        Raises:
            Usage: `root`, `keep` or `register` is malformed.
            NotFound: a table does not exist.
            Refused: the extra `iceberg` is missing, or a table is another app's or cannot be represented in Iceberg.
        """
        from .iceberg import open_export
        from .show.rows import iceberg_result

        to = open_export(self._client, root, parse_ms("keep", keep), register)
        done = to.write(self.cut, instants.now_ms(), only=tables)
        return iceberg_result(done, self.cut, self.ref, to.target.url)

    def get(self, table: str, key: object) -> dict[str, object] | None:
        """Return the row of one key as a dict by column, or None. Reads only files that may hold the key.

        `key` is the key's value, or a tuple for several key columns; None is a null. Text is parsed as on the command
        line: `"17"` works for a number.

        Raises:
            NotFound: the table does not exist.
            Usage: the number of values differs from the number of key columns, or a value has another type.
        """
        rows = python_rows(self.look_up(table, key)[0])
        return rows[0] if rows else None

    def get_many(
        self, table: str, keys: Sequence[object], columns: Sequence[str] = ()
    ) -> list[dict[str, object] | None]:
        """Return a row per key in the order of `keys`, None for a missing key. Raises the errors of `get`.

        `columns` limits the columns. SSTs that are read stay in the local cache for later calls.
        """
        parsed = self.parse_key_values(table, [key if isinstance(key, tuple) else (key,) for key in keys])
        rows, present = self.read_rows(table, parsed)
        present_rows = python_rows(select(table, rows, columns))
        return [row if is_present else None for row, is_present in zip(present_rows, present.tolist(), strict=True)]

    def with_table(self, table: str) -> Moment:
        """Return this moment with a table named `table`, even if the table was renamed later. Raises `NotFound`."""
        cut = require_tables(self._client.store, self.cut, (table,))
        return self if cut is self._cut else Moment(self._client, self.ref, cut, is_undamaged=self._is_undamaged)

    def parse_key_values(self, table: str, keys: Sequence[Sequence[object]]) -> pa.Table:
        """Convert keys, each a sequence of values, to an Arrow table for `read_rows`. Raises the errors of `get`."""
        return parse_keys(table, self.table_declaration(table), keys)

    def table_declaration(self, table: str) -> Table:
        """Return a table's key, columns and other declared properties. Raises `NotFound`."""
        manifest = self.with_table(table).cut.table(table)
        assert manifest is not None and manifest.table is not None  # noqa: S101, PT018  `with_table` has it
        return manifest.table

    def read_rows(
        self, table: str, keys: pa.Table, *, seen_ms: int = 0, read_ahead: ReadAhead = DEFAULT_READ_AHEAD
    ) -> tuple[pa.Table, npt.NDArray[np.bool_]]:
        """Return the rows of keys, with only the users' columns, and a mask of the keys that have a row.

        The rows are in the order of the keys, with nulls for a missing row. If rows expire by write time, a row is
        missing if it has expired by `seen_ms`; 0 means the moment's time. `read_ahead` limits how much remote data is
        read.
        """
        client = self._client

        def read() -> tuple[pa.Table, npt.NDArray[np.bool_]]:
            cut = replace(self.cut, seen_ms=seen_ms) if seen_ms else self.cut
            with report_if_collected(client.store, cut):
                cut_with_table = require_tables(client.store, cut, (table,))
                return look_up(client.store, client.cache, cut_with_table, table, keys, read_ahead=read_ahead)

        return retry_if_forgotten(client.store, self._cut.app, read)

    def first_rows(self, table: str, limit: int = 100, *, start: int | None = None) -> FirstRows:
        """Return the first `limit` rows of a table in stored order, from the key hash `start` on.

        Reads little more than these rows, regardless of the table's size. Raises `NotFound` for an unknown table.
        """
        from ..snapshot.query.columns import FIRST_HASH, first_rows

        client, first = self._client, FIRST_HASH if start is None else start

        def read() -> FirstRows:
            cut = require_tables(client.store, self.cut, (table,))
            with report_if_collected(client.store, cut):
                return first_rows(client.store, client.cache, cut, table, limit, first)

        return retry_if_forgotten(client.store, self._cut.app, read)

    def stage_of(self, table: str) -> str:
        """Return the stage that writes a table."""
        return find_owner(table, self.cut.stages)

    def key_partitions(self, table: str, keys: pa.Table) -> npt.NDArray[np.int32]:
        """Return the state partition of each key; `keys` comes from `parse_key_values`."""
        return partition_of(hash_keys(keys, keys.schema.names), self.partition_count(table))

    def partition_count(self, table: str) -> int:
        """Return the number of state partitions of a table."""
        declared = self.cut.tables[table].table
        return declared.partitions if declared is not None else 0

    def open_rows(self, table: str, partitions: Collection[int], max_fetch_bytes: int | None = None) -> OpenRows | None:
        """Fetch and memory-map the SSTs of some state partitions, and return their rows.

        Returns None if the SSTs exceed half of the cache, if more than `max_fetch_bytes` would have to be fetched, or
        if an SST cannot be mapped. Raises the errors of `read_rows`.
        """
        client, manifest = self._client, self.cut.tables[table]
        declared = manifest.table
        if declared is None:
            return None
        by_partition = (ssts_of_partition(manifest.ssts, partition, declared.partitions) for partition in partitions)
        ssts = dict.fromkeys(sst for partition_ssts in by_partition for sst in partition_ssts)
        if sum(sst.bytes for sst in ssts) > client.cache.max_bytes // 2:
            return None
        if max_fetch_bytes is not None and sum(s.bytes for s in ssts if not client.cache.has(s)) > max_fetch_bytes:
            return None
        with report_if_collected(client.store, self.cut):
            fetched = [(sst, client.cache.fetch_rows(client.store, sst, declared, ReadCounters())) for sst in ssts]
        # If an SST is in this process's memory, no file backs it, so only the cache may hold it.
        mapped_ssts = [(sst, mapped) for sst, mapped in fetched if mapped is not None and not mapped.memory_bytes]
        return OpenRows(declared, partitions, mapped_ssts) if len(mapped_ssts) == len(fetched) else None

    def read_up_to(self, *tables: str) -> dict[str, tuple[int, ...]]:
        """Return the next offsets, by users' topic and partition, up to which all given tables have read.

        Without arguments, considers all tables.
        """
        from ..snapshot.cut.lineage import offsets_read_by_all

        cut = self.cut
        return offsets_read_by_all(
            self._client.store, cut, {find_owner(table, cut.stages) for table in tables or cut.tables}
        )

    def look_up(self, table: str, key: object) -> tuple[pa.Table, Cut, dict[str, int]]:
        """Return a key's row (a table of 0 or 1 rows), the cut that was read, and the counts of requests and bytes."""
        self.current_cut()

        def read() -> tuple[pa.Table, Cut, CountingStore]:
            counted = CountingStore(self._client.store)
            with report_if_collected(counted, self.cut):
                cut = require_tables(counted, self.cut, (table,))
                return get(counted, cut, table, key if isinstance(key, tuple) else (key,)), cut, counted

        row, cut, counted = retry_if_forgotten(self._client.store, self._cut.app, read)
        manifest = cut.tables[table]
        self._note_rename(table, manifest.stage)
        effort = {"requests": counted.requests, "bytes": counted.bytes_read}
        return row, cut, effort | {"table_bytes": sum(sst.bytes for sst in manifest.ssts)}

    def diff(self, other: Moment, **options: Unpack[DiffOptions]) -> Difference:
        """Compare with a second moment, table by table. Rows that only `other` has count as added.

        The second moment may be of a different app. Shared SSTs are not read: the cost is proportional to the data
        written since the two moments diverged. Raises `NotFound` if `table` is in neither moment.
        """
        from ..snapshot.diff.moments import StoredCut, diff
        from .results import Difference

        first, second = (StoredCut(moment._client.store, moment.current_cut()) for moment in (self, other))
        differences = diff(self._client.cache, first, second, **options)
        return Difference((self.ref, other.ref), (self.cut, other.cut), differences)

    def inflight(self, channel: str) -> duckdb.DuckDBPyRelation:
        """Return the in-flight records of a channel, as a DuckDB relation.

        Raises:
            NotFound: no stage writes this channel; the error suggests the nearest name.
            Usage: no snapshot keeps the records, and no Kafka is configured.
            Refused: Kafka has deleted the records.
        """
        from ..snapshot.query.answers import as_relation, channel_tables

        store = self._client.store
        names = {channel_.name for channel_ in channels(self.cut)}
        if channel not in names:
            raise NotFound(f"channel at {self.ref}", channel, names)
        with report_if_collected(store, self.cut):
            return as_relation(
                channel_tables(store, self.cut, channel, self._client.channels_of(self.cut.app))[channel]
            )

    def verify(self, **options: Unpack[VerifyOptions]) -> Verification:
        """Verify that the moment is consistent, complete and undamaged, from stored objects.

        With the option `deep`, reads every byte, the whole history and the records in Kafka; otherwise, only manifests
        and sizes.
        """
        from ..snapshot.verify.captured import TOPIC_CHECK_PURPOSE
        from ..snapshot.verify.verify import verify
        from .results import Verification

        client, app = self._client, self.cut.app
        deep = options["deep"]
        reader, topics = client.channels_of(app) if deep else None, client.channels_or_stub(TOPIC_CHECK_PURPOSE, app)
        return Verification(verify(client.store, self.cut, deep=deep, reader=reader, topics=topics))

    def _blocks(self) -> Iterator[Block]:
        yield Title(f"{self.ref}, committed {instants.format_iso(self.cut.time_ms)}")
        stages, tables = (self.cut.stages[stage] for stage in self.versions), self.cut.tables
        rows = ((s.stage, f"v{s.version}", Time(s.time_ms), s.stage if s.stage in tables else "-") for s in stages)
        yield TableBlock.from_rows(("stage", "version", "committed", "table"), rows)
        if self.thinned_out:
            yield "gc has thinned out the history: this is the nearest kept moment"


def _not_replayed() -> Cause:
    from ..snapshot.bisect.causes import NOT_REPLAYED, unknown_cause

    return unknown_cause(NOT_REPLAYED)


@dataclass(frozen=True, slots=True, repr=False)
class Bisection(Displayable):
    """Result of a bisect: the first bad commit, or the newest candidate if skipped moments leave several candidates."""

    verdict: Verdict
    good: Moment | None
    """Last good moment, right before the bad commit; None if no moment precedes the bad commit."""
    bad: Moment
    """First bad moment, right after the bad commit."""
    record: RecordPath | None = None
    """Input record that made the state bad, with the evidence; None if unknown, or if no record is the cause."""
    cause: Cause = field(default_factory=_not_replayed)
    """Cause of the bad commit: its class, True if a replay proves it, the records, and the evidence."""

    @property
    def stage(self) -> str:
        """Stage of the bad commit."""
        return self.verdict.stage

    @property
    def version(self) -> int:
        """Version of the bad commit."""
        return self.verdict.bad_version

    @property
    def windows(self) -> tuple[Window, ...]:
        """Offset ranges of users' topics from which the bad commit was computed."""
        return self.verdict.lineage.sources

    @property
    def rows(self) -> duckdb.DuckDBPyRelation:
        """Rows that the predicate's query returns at the first bad moment, up to `verdict.MAX_ROWS`."""
        from ..snapshot.query.answers import as_relation

        return as_relation(self.verdict.rows)

    @property
    def keys(self) -> duckdb.DuckDBPyRelation | None:
        """Keys that the bad commit turned bad, with `before_…` and `after_…` values; None without a table."""
        from ..snapshot.query.answers import as_relation

        return as_relation(self.verdict.keys.to_table()) if self.verdict.keys is not None else None

    def _blocks(self) -> Iterable[Block]:
        from ..snapshot.bisect.causes import TracedCause
        from .show import verdict

        about = verdict.verdict_blocks(self.verdict, explanation=TracedCause(self.cause, self.record))
        return *about, *verdict.verdict_notes(self.verdict)
