"""A moment of an app: one version of each stage, which can be queried, and which never changes; two around a fault."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..common import instants
from ..common.argument_types import checked_methods
from ..common.durations import parse_ms
from ..common.whole_file import check_folder_name, ending_of
from ..errors import NotFound, Refused, Usage
from ..snapshot.cut.graph import Cut, Thinned, channels
from ..snapshot.cut.moments import having, later_stages
from ..snapshot.cut.resolve import again_if_forgotten, as_known, resolve_around, telling_if_collected
from ..snapshot.query.columns import TableColumn, columns, get, look_up, parse_keys, select
from ..store.objects.counting import CountingStore
from ..store.objects.stats import Reads
from ..store.read.multi_get import DEFAULT_READ_AHEAD, ReadAhead
from ..store.read.open_rows import OpenRows
from ..store.sst.arrow_types import python_rows
from ..store.sst.hashing import hash_keys, partition_of
from ..store.sst.sorted_runs import touching
from ..store.versions.forgotten import index as forgotten
from ..store.versions.manifest import Table
from ..store.versions.side_tables import owner
from .backends import Backends
from .declared.questions import DiffOptions, VerifyOptions
from .show.document import Block, TableBlock, Time, Title
from .show.shown import Result, Shown

if TYPE_CHECKING:
    import duckdb
    from pyspark.sql import DataFrame, SparkSession

    from ..operations.exchange.export import FolderWritten, OnProgress
    from ..pipeline.kafka.channels import KafkaChannels
    from ..snapshot.bisect.causes import Cause
    from ..snapshot.bisect.verdict import Guilty, Verdict
    from ..snapshot.cut.lineage import Window
    from ..snapshot.query.export import Exported
    from ..snapshot.query.first_rows import FirstRows
    from ..snapshot.query.sql import Bounds
    from .results import Difference, Verification


class Tables(Shown, dict[str, tuple[TableColumn, ...]]):
    """The columns of each table, by its name."""

    def __init__(self, ref: str, found: Mapping[str, tuple[TableColumn, ...]]) -> None:
        super().__init__(found)
        self.ref = ref

    def _blocks(self) -> Iterator[Block]:
        from .show.rows import columns_table

        yield Title(f"tables at {self.ref}")
        yield columns_table(self)


@checked_methods
class Moment(Shown):
    """What all stages of an app had committed at one moment. It changes nothing, and nothing changes it but `forget`.

    Whatever reads it raises `NotFound` when it was collected meanwhile, `Corruption` when an object is not what a
    manifest promises, and `Unavailable` when the store or Kafka does not answer.
    """

    _inner = frozenset((
        *("answer", "around", "current", "cut", "declared", "first_rows", "having", "keys_of", "look_up", "opened"),
        *("exported", "partitions", "partitions_of", "rows_of", "stage_of", "write"),
    ))  # fmt: skip

    def __init__(self, client: Backends, ref: str, cut: Cut, *, is_whole: bool = True) -> None:
        self.ref = ref
        """As it was asked for, in the words of the command line."""
        self._cut = cut
        self._known: object = None
        self._client = client
        self._is_whole = is_whole

    @classmethod
    def around(cls, client: Backends, ref: str, done: str) -> Moment:
        """The moment of a ref, for reading; notes say which stages cannot be read, and if it is another moment.

        `done` is what happens to the one stage that is left then. Raises as `StoredApp.at`.
        """
        cut, damage = resolve_around(client.store, ref, now_ms=instants.now_ms())
        if damage is not None:
            client.note(f"only {', '.join(cut.stages)} is {done}, by itself: {damage.message}")
        client.note_thinned(ref, cut.thinned)
        return cls(client, ref, cut, is_whole=damage is None)

    @property
    def cut(self) -> Cut:
        """Its manifests, as this process knows them."""
        known = forgotten.peek(self._client.store, self._cut.app)
        if known is not self._known:
            self._cut, self._known = as_known(self._client.store, self._cut), known
        return self._cut

    def current(self) -> Cut:
        """Its manifests, with what was forgotten up to now: a moment may be held for long. One listing."""
        forgotten.newest(self._client.store, self._cut.app)
        return self.cut

    @property
    def versions(self) -> dict[str, int]:
        """The version of each stage, upstream first. Stages that had none are left out."""
        return self.cut.versions

    @property
    def time(self) -> datetime:
        """When the newest of these versions was committed, in UTC."""
        return datetime.fromtimestamp(self.cut.time_ms / 1_000, UTC)

    @property
    def thinned_out(self) -> Thinned | None:
        """Set when garbage collection has left another moment than the one that was asked for, which this is."""
        return self.cut.thinned

    @property
    def tables(self) -> Tables:
        """The tables and their columns."""
        return Tables(self.ref, {name: columns(each) for name, each in self.cut.tables.items()})

    def query(self, sql: str) -> duckdb.DuckDBPyRelation:
        """What a query over the tables returns, as a DuckDB relation: `.df()`, `.arrow()`, `.pl()`, `.filter(…)`.

        The rows are computed here and now, and held in memory by a connection of their own. So the relation lives for
        as long as anybody has it, and whatever is done to it, neither the store nor this moment is touched. Records in
        flight are `FROM inflight('CHANNEL')`, a table at another moment `FROM carriers AT '-1h'`, and one at many of
        its versions `FROM versions('carriers', '-1h')`; relative times count from now.

        Raises:
            Usage: the SQL is wrong, or does not only read; or asks for records in flight, and nothing says where Kafka
                is; or for more versions than one query reads.
            NotFound: it names a table, column or moment that there is not.
        """
        from ..snapshot.query.answers import as_relation

        return as_relation(self.answer(sql)[0])

    def answer(
        self,
        sql: str,
        *,
        bounds: Bounds | None = None,
        max_rows: int | None = None,
        on_moment: Callable[[Cut], None] = lambda _cut: None,
    ) -> tuple[pa.Table, dict[str, Cut]]:
        """The rows that a query returns, and the other moments that it names, by their refs. Raises as `query`.

        Notes tell which of its tables there were not yet, or had another name. `bounds` is what it may take, else
        `TooMuch`; `on_moment` hears of each other moment before it is read, and may raise.
        """
        from ..snapshot.query.answers import answer, shown_otherwise
        from ..snapshot.query.sql import names_channels

        client, cut = self._client, self.current()
        others: dict[str, Cut] = {}
        # A stage that could not be read is none that has not begun.
        later = later_stages(client.store, cut) if self._is_whole else {}
        # Kafka is asked for records in flight alone.
        reader, now_ms = client.channels_of(cut.app) if names_channels(sql) else None, instants.now_ms()

        def found(ref: str, other: Cut) -> None:
            on_moment(other)
            others[ref] = other

        how: dict[str, Any] = {"reader": reader, "max_rows": max_rows, "now_ms": now_ms, "bounds": bounds}
        rows = answer(client.store, client.cache, cut, sql, later=later, on_moment=found, **how)
        named = cut.under_names_of(later).stages
        for name, head in later.items():
            if head.table is not None and name.casefold() in sql.casefold():
                if name in named:
                    self._note_name(name, named[name].stage)
                else:
                    client.note(f"note: {name} had no version yet at {self.ref}: it has no rows there")
        for ref, other in others.items():
            client.note_thinned(ref, other.thinned)
        for name in shown_otherwise((cut, *others.values()), sql):
            client.note(
                f"note: {name} has strings that are no UTF-8, shown with \\xff for such a byte, or maps with a key "
                "twice, which are null in SQL; `slackwater get` shows all of them"
            )
        return rows, others

    def spark_query(self, spark: SparkSession, sql: str) -> DataFrame:
        """What `query` returns, as a DataFrame of Spark's: DuckDB computes it here, and Spark gets the rows."""
        return spark.createDataFrame(self.answer(sql)[0])

    def spark_table(self, spark: SparkSession, table: str, columns: Collection[str] = ()) -> DataFrame:
        """A table as a DataFrame that Spark's tasks read, one for each state partition; `columns` only, default all.

        Raises `NotFound` where there is no such table or column.
        """
        # Spark's Python side takes a second or two.
        from ..spark import load_table

        cut = having(self._client.store, self.cut, (table,))
        return load_table(spark, self._client.root, cut, table, columns)

    def _note_name(self, name: str, then: str) -> None:
        if then != name:
            self._client.note(f"note: {name} was called {then} at {self.ref}")

    def export(self, path: str | PathLike[str], *, table: str = "", force: bool = False) -> Path:
        """Write the moment to a folder, or its tables to a file, whole or not at all; gives its path.

        A folder, whose name has no ending or a slash behind it, is plain Parquet, with a document that says what it is:
        all of the app, offsets and records in flight included. A name that ends in `.duckdb`, `.ddb` or `.db` is a file
        with all tables, which any DuckDB client opens; the table `_slackwater` in it says which moment it is, and the
        version of each stage. One that ends in `.csv`, `.parquet` or `.json` is a file of one table: `table`, or the
        only one. `force` overwrites a file that is there; a folder never is.

        Raises:
            Usage: the name has an ending of no format that is written; `force` or `table` for a folder; there is
                not just one table for such a file; or records are in flight, and nothing says where Kafka is.
            NotFound: there is no such table.
            Refused: there is such a file or folder already, it cannot be written, or records in flight are gone.
        """
        self.exported(path, (table,) if table else (), force=force)
        return Path(path)

    def exported(
        self,
        path: str | PathLike[str],
        tables: Sequence[str] = (),
        *,
        force: bool = False,
        on_progress: OnProgress = lambda _done, _all: None,
    ) -> Result:
        """Export as `export` does, for some tables or all, and tell what was written. Raises as `export`."""
        from ..snapshot.query.export import ENDINGS
        from .show import rows, values

        where, ending = Path(path), ending_of(path)
        if ending in ENDINGS:
            return rows.exported(self.write(where, [*tables] or None, force=force), self.cut, self.ref, where)
        if ending not in values.ENDINGS:
            if tables or force:
                raise Usage(
                    f"{'table' if tables else 'force'} goes with a file; {path} would be a folder, which has all of an "
                    "app and is not overwritten",
                    hint=f"name the file so that it ends in one of {', '.join((*values.ENDINGS, *ENDINGS))}",
                )
            return rows.exported_folder(self._write_folder(path, on_progress), self.cut)
        if len(tables) > 1:
            raise Usage(f"{where} holds one table", hint=f"name one, or write all of them to {where.stem}.duckdb")
        return rows.exported_table(where, *self._write_table(where, *tables, force=force), self.cut)

    def _write_table(self, path: Path, table: str = "", *, force: bool = False) -> tuple[str, int]:
        """Write one table to a file, by the ending of its name; gives which, and how many rows it has.

        Raises `Usage` where no table is named and there is not just one, and `Refused` as `export`.
        """
        from ..snapshot.query.export import check_free
        from ..store.read.duckdb_view import quoted
        from .show import values

        if not table:
            ref, _, moment = self.ref.partition("@")
            app, _, stage = ref.partition("/")
            names = [stage] if stage in self.cut.tables else [*self.cut.tables]
            if len(names) != 1:
                at = f"@{moment}" if moment else ""
                raise Usage(
                    f"{path} holds one table, and {self.ref} has {', '.join(names) or 'none'}",
                    hint=f"name it: slackwater export {app}/{next(iter(names), 'TABLE')}{at} {path}; or write all of "
                    f"them to {path.with_suffix('.duckdb')}",
                )
            (table,) = names
        check_free(path, force=force)
        rows, _ = self.having(table).answer(f"FROM {quoted(table)}")
        values.write(rows, path)
        return table, rows.num_rows

    def _write_folder(self, path: str | PathLike[str], on_progress: OnProgress) -> FolderWritten:
        from ..operations.exchange.export import export_folder
        from ..snapshot.query.export import ENDINGS
        from .show import values

        client, where = self._client, Path(path)
        if ending_of(path):
            check_folder_name(
                where,
                "export to",
                f"a file of one table ends in {', '.join(values.ENDINGS)}, one of all tables in {', '.join(ENDINGS)}; "
                f"a folder's name has no ending, or a slash behind it: {where}{os.sep}",
                any_ending=True,
            )
        if not self._is_whole:
            raise Refused(
                f"{self.ref} cannot be exported to a folder: stages of it are damaged, and a folder has all of an app",
                hint="a DuckDB file can have the tables that are left: slackwater export REF FILE.duckdb --table NAME",
            )

        def reader() -> KafkaChannels:
            return client.known_channels("which has the records that are on the way between stages")

        who, now_ms = client.by, instants.now_ms()
        at = client.store, client.cache, self.cut, self.ref, where, reader
        return export_folder(*at, by=who, now_ms=now_ms, on_progress=on_progress)

    def write(self, path: Path, tables: list[str] | None = None, *, force: bool = False) -> Exported:
        """What `export` does of a file, for some tables or all; gives what was written."""
        from ..snapshot.query.export import export

        client, _ = self._client, self.current()

        def written() -> Exported:
            return export(client.store, client.cache, self.cut, self.ref, path, only=tables, force=force)

        return again_if_forgotten(client.store, self._cut.app, written)

    def export_iceberg(self, root: str, tables: Collection[str] = (), *, keep: str = "1h") -> Result:
        """Let the tables be Iceberg tables under a root, without copying a row; told of each is what it is there.

        Written are metadata and the positions of rows that count no more; the data files are the SSTs, which stay where
        they are. Readers need to reach both. A snapshot of the app (`iceberg-…`) keeps the SSTs from collection, until
        an hour after no Iceberg snapshot points at them. Called again with a later moment, each table whose rows or
        files are others gets a new Iceberg snapshot.

        Args:
            root: `s3://bucket/prefix` or a folder; each table gets a folder in it, by its name.
            tables: only these; default all.
            keep: how long an Iceberg snapshot stays readable that another has replaced.

        Raises:
            Usage: the root or the span is malformed.
            NotFound: there is no such table.
            Refused: pyiceberg is not installed (the extra `iceberg`), the folder is another table's, or a table
                cannot be said in Iceberg.
        """
        from .iceberg import IcebergTables
        from .show.rows import iceberg_tables

        to = IcebergTables(self._client, self.ref, root, tables=tables, keep_ms=parse_ms("keep", keep))
        return iceberg_tables(to.write(self.cut), self.cut, self.ref, to.root)

    def get(self, table: str, key: object) -> dict[str, object] | None:
        """The row of one key, by column; None when it is not there. Reads only the parts that can hold it.

        `key` is the key's value; a tuple of them where the key has several columns. None is a null. Text is understood
        as the command line understands it: `"17"` will do for a number.

        Raises:
            NotFound: there is no such table.
            Usage: there are not as many values as key columns, or one is not of its column's type.
        """
        rows = python_rows(self.look_up(table, key)[0])
        return rows[0] if rows else None

    def get_many(
        self, table: str, keys: Sequence[object], columns: Sequence[str] = ()
    ) -> list[dict[str, object] | None]:
        """The rows of many keys, each as `get` gives it, in their order; of some columns, or all. Errors as of `get`.

        What is read for them stays on this machine: the next ones are found there.
        """
        parsed = self.keys_of(table, [key if isinstance(key, tuple) else (key,) for key in keys])
        rows, present = self.rows_of(table, parsed)
        found = python_rows(select(table, rows, columns))
        return [row if there else None for row, there in zip(found, present.tolist(), strict=True)]

    def having(self, table: str) -> Moment:
        """The moment with a table that it has, or that had another name then. Raises `NotFound`."""
        cut = having(self._client.store, self.cut, (table,))
        return self if cut is self._cut else Moment(self._client, self.ref, cut, is_whole=self._is_whole)

    def keys_of(self, table: str, keys: Sequence[Sequence[object]]) -> pa.Table:
        """Keys, the values of each in the order of its columns, as `rows_of` takes them. Errors as of `get`."""
        return parse_keys(table, self.declared(table), keys)

    def declared(self, table: str) -> Table:
        """What a table is: its key, its columns. Raises `NotFound`."""
        manifest = self.having(table).cut.table(table)
        assert manifest is not None and manifest.table is not None  # noqa: S101, PT018  `having` has it
        return manifest.table

    def rows_of(
        self, table: str, keys: pa.Table, *, seen_ms: int = 0, haste: ReadAhead = DEFAULT_READ_AHEAD
    ) -> tuple[pa.Table, npt.NDArray[np.bool_]]:
        """The visible columns of the rows of keys, in their order, and which are there; nulls where one is not.

        Rows that expire by write time are seen as of `seen_ms`, or of the moment where it is 0. Of what
        this machine does not have, more is read in `haste`, sooner.
        """
        client = self._client

        def read() -> tuple[pa.Table, npt.NDArray[np.bool_]]:
            cut = replace(self.cut, seen_ms=seen_ms) if seen_ms else self.cut
            with telling_if_collected(client.store, cut):
                there = having(client.store, cut, (table,))
                return look_up(client.store, client.cache, there, table, keys, haste=haste)

        return again_if_forgotten(client.store, self._cut.app, read)

    def first_rows(self, table: str, limit: int = 100, *, start: int | None = None) -> FirstRows:
        """The first `limit` rows of a table, in the order in which they are stored, from a `_hash` on.

        Reads little more than these, whatever the size of the table. Raises `NotFound` where there is no such table.
        """
        from ..snapshot.query.first_rows import FIRST, first_rows

        client, first = self._client, FIRST if start is None else start

        def read() -> FirstRows:
            cut = having(client.store, self.cut, (table,))
            with telling_if_collected(client.store, cut):
                return first_rows(client.store, client.cache, cut, table, limit, first)

        return again_if_forgotten(client.store, self._cut.app, read)

    def stage_of(self, table: str) -> str:
        """The stage that writes a table."""
        return owner(table, self.cut.stages)

    def partitions_of(self, table: str, keys: pa.Table) -> npt.NDArray[np.int32]:
        """The state partition of each key, as `keys_of` gives them."""
        return partition_of(hash_keys(keys, keys.schema.names), self.partitions(table))

    def partitions(self, table: str) -> int:
        """How many state partitions a table has."""
        declared = self.cut.tables[table].table
        return declared.partitions if declared is not None else 0

    def opened(self, table: str, partitions: Collection[int], most_bytes: int | None = None) -> OpenRows | None:
        """The rows of some state partitions, with all of their SSTs fetched and mapped; None where that cannot be.

        Nothing is fetched that would take more than half of what the cache holds, or if it is more than `most_bytes`.
        Raises as `rows_of`.
        """
        client, manifest = self._client, self.cut.tables[table]
        declared = manifest.table
        if declared is None:
            return None
        each = (touching(manifest.ssts, partition, declared.partitions) for partition in partitions)
        wanted = dict.fromkeys(sst for some in each for sst in some)
        if sum(sst.bytes for sst in wanted) > client.cache.max_bytes // 2:
            return None
        if most_bytes is not None and sum(s.bytes for s in wanted if not client.cache.has(s)) > most_bytes:
            return None
        with telling_if_collected(client.store, self.cut):
            found = [(sst, client.cache.bring(client.store, sst, declared, Reads())) for sst in wanted]
        # What lies in this process's own memory, as no folder has it, is held by nobody but the cache.
        there = [(sst, mapped) for sst, mapped in found if mapped is not None and not mapped.memory_bytes]
        return OpenRows(declared, partitions, there) if len(there) == len(found) else None

    def read_up_to(self, *tables: str) -> dict[str, tuple[int, ...]]:
        """How far users' topics have been read by all of these tables, or by all that there are.

        By topic the next offset of each partition: the effect of what is before it is in the tables.
        """
        from ..snapshot.cut.lineage import read_up_to

        cut = self.cut
        return read_up_to(self._client.store, cut, {owner(table, cut.stages) for table in tables or cut.tables})

    def look_up(self, table: str, key: object) -> tuple[pa.Table, Cut, dict[str, int]]:
        """What `get` does: the row, or none, as a table; the cut that has the table; requests and bytes read for it."""
        self.current()

        def read() -> tuple[pa.Table, Cut, CountingStore]:
            counted = CountingStore(self._client.store)
            with telling_if_collected(counted, self.cut):
                cut = having(counted, self.cut, (table,))
                return get(counted, cut, table, key if isinstance(key, tuple) else (key,)), cut, counted

        found, cut, counted = again_if_forgotten(self._client.store, self._cut.app, read)
        manifest = cut.tables[table]
        self._note_name(table, manifest.stage)
        effort = {"requests": counted.requests, "bytes": counted.bytes_read}
        return found, cut, effort | {"table_bytes": sum(sst.bytes for sst in manifest.ssts)}

    def diff(self, other: Moment, **options: Unpack[DiffOptions]) -> Difference:
        """Compare with another moment, table by table: rows that it has and this one has not were added.

        The other may be one of another app. What both have is not read: the cost follows what was written since the two
        parted. Raises `NotFound` where neither has such a table.
        """
        from ..snapshot.diff.moments import StoredCut, diff
        from .results import Difference

        one, two = (StoredCut(each._client.store, each.current()) for each in (self, other))
        found = diff(self._client.cache, one, two, **options)
        return Difference((self.ref, other.ref), (self.cut, other.cut), found)

    def inflight(self, channel: str) -> duckdb.DuckDBPyRelation:
        """The records in flight on a channel, as a DuckDB relation: sent by one stage and not yet read by the next.

        Raises:
            NotFound: no stage writes such a channel; tells the nearest.
            Usage: no snapshot keeps the records, and nothing says where Kafka is.
            Refused: the records are gone from Kafka.
        """
        from ..snapshot.query.answers import as_relation, channel_tables

        store = self._client.store
        names = {each.name for each in channels(self.cut)}
        if channel not in names:
            raise NotFound(f"channel at {self.ref}", channel, names)
        with telling_if_collected(store, self.cut):
            return as_relation(
                channel_tables(store, self.cut, channel, self._client.channels_of(self.cut.app))[channel]
            )

    def verify(self, **options: Unpack[VerifyOptions]) -> Verification:
        """Prove that the moment is consistent, complete and undamaged, from what is stored.

        With `deep`, every byte is read, the whole history, and what Kafka still has; else only manifests and sizes.
        """
        from ..snapshot.verify.topics import TOPICS_SAY
        from ..snapshot.verify.verify import verify
        from .results import Verification

        client, app = self._client, self.cut.app
        deep = options["deep"]
        reader, topics = client.channels_of(app) if deep else None, client.channels_where_needed(TOPICS_SAY, app)
        return Verification(verify(client.store, self.cut, deep=deep, reader=reader, topics=topics))

    def _blocks(self) -> Iterator[Block]:
        yield Title(f"{self.ref}, committed {instants.iso(self.cut.time_ms)}")
        stages, tables = (self.cut.stages[stage] for stage in self.versions), self.cut.tables
        rows = ((s.stage, f"v{s.version}", Time(s.time_ms), s.stage if s.stage in tables else "-") for s in stages)
        yield TableBlock.of(("stage", "version", "committed", "table"), rows)
        if self.thinned_out:
            yield "the history was thinned out by gc: this is the nearest moment that is left"


def _not_replayed() -> Cause:
    from ..snapshot.bisect.causes import unknown

    return unknown("nothing was replayed")


@dataclass(frozen=True, slots=True, repr=False)
class Bisection(Shown):
    """The first commit at which something was wrong; the last that may be, where moments could not be judged."""

    verdict: Verdict
    """All that was found out."""
    good: Moment | None
    """The moment right before it; None when it is the first commit."""
    bad: Moment
    """The moment that ends with it."""
    record: Guilty | None = None
    """The input record behind it, and how it was found; None where nothing was replayed, and for other causes."""
    cause: Cause = field(default_factory=_not_replayed)
    """What is behind it: its class, whether a replay proves it, the records, and what shows it."""

    @property
    def stage(self) -> str:
        """The stage whose commit it is."""
        return self.verdict.stage

    @property
    def version(self) -> int:
        """The commit's version."""
        return self.verdict.bad_version

    @property
    def windows(self) -> tuple[Window, ...]:
        """The offsets behind the commit, on users' topics."""
        return self.verdict.lineage.sources

    @property
    def rows(self) -> duckdb.DuckDBPyRelation:
        """What the query returns at the bad moment, up to `verdict.MAX_ROWS` rows."""
        from ..snapshot.query.answers import as_relation

        return as_relation(self.verdict.rows)

    @property
    def keys(self) -> duckdb.DuckDBPyRelation | None:
        """The keys that the commit turned bad, with `before_…` and `after_…` values; None for a stage without table."""
        from ..snapshot.query.answers import as_relation

        return as_relation(self.verdict.keys.flat()) if self.verdict.keys is not None else None

    def _blocks(self) -> Iterable[Block]:
        from ..snapshot.bisect.causes import Behind
        from .show import verdict

        about = verdict.blocks(self.verdict, behind=Behind(self.cause, self.record))
        return *about, *verdict.notes(self.verdict)
