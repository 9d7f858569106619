"""SQL asked at a cut: what `query` and bisect do, so that both get the same answer.

The channels of a cut are tables, too, of records that one stage had sent and the next had not read. Each has the
channel's own columns, the records' address (`snapshot.cut.stored.ADDRESS`) and `_receiver`: a channel with two readers
shows what each has still to read.

`input('orders')`: what an app had read of a topic at a moment, as far as its input archive has it, as a view.

DuckDB reads the archive's objects themselves, and of them what a statement asks for: columns, and row groups by
partition, offset and time.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from itertools import zip_longest
from types import MappingProxyType
from typing import TYPE_CHECKING

import duckdb
import pyarrow as pa

from ...common import instants
from ...errors import Corruption, NotFound, SlackwaterError, Usage
from ...state.topics import is_known
from ...store.archive.columns import SCHEMA
from ...store.archive.extents import Extent, Extents, common, minus, union
from ...store.archive.objects import opened
from ...store.archive.reading import Archive, Archives
from ...store.objects.protocol import ObjectStore
from ...store.read.cache import SstCache
from ...store.read.duckdb_view import quoted
from ...store.sst.arrow_types import schema_of
from ...store.sst.showable import showable
from ...store.versions import keys
from ...store.versions.manifest import Input, Manifest
from ...store.versions.side_tables import columns_of
from ..cut.graph import Cut, channels
from ..cut.in_flight import InFlight, channel_state
from ..cut.kafka_topics import Topics
from ..cut.moments import hint_of_missing
from ..cut.resolve import again_if_forgotten, as_known, telling_if_collected
from ..cut.stored import ADDRESS, Snapshot, find_snapshot
from ..take import capture
from .clauses import InputOf, Statement, understand
from .hidden import Cover
from .moments import Moments, OnMoment
from .sql import Bounds, connect, cover_of, named_tables, names_channels, run_query

if TYPE_CHECKING:
    import pyarrow.dataset as ds

INPUT_PLACES = ("topic", "partition", "offset", "timestamp", "timestampType")
"""Columns of an input archive that have no values."""
_STREAM = "reading the stream registered as '@input "


def register_input(
    con: duckdb.DuckDBPyConnection,
    store: ObjectStore,
    cut: Cut,
    clause: InputOf,
    failed: Callable[[Exception], None],
    cover: Cover,
) -> None:
    """Make the view of a clause: the columns of `archive.columns.SCHEMA`, of records before the cut's offsets.

    `failed` is told of an object that turns out to be missing or damaged as the view is read. Raises `NotFound` where
    the app reads no such topic, or has no archive of it.
    """
    schema, name = clause.view
    con.execute(f"CREATE SCHEMA IF NOT EXISTS {quoted(schema)}")
    read = _read(cut, clause.topic)
    archives_of = Archives(lambda: store, cut.app, at_ms=cut.time_ms).of
    topics = {each.topic: each.topic_id if is_known(each.topic_id) else "" for each in read}
    found = [(topic, archives_of(topic, topic_id).archives) for topic, topic_id in topics.items()]
    if not any(archives for _, archives in found):
        raise NotFound(
            "input archive",
            clause.topic,
            found=f"app {cut.app!r} has none of this topic",
            hint='input = "30d" under [retention] in slackwater.toml keeps one, from then on; '
            f"`slackwater archive {cut.app} --from beginning` fills it with what Kafka still has",
        )
    selects: list[str] = []
    for topic, archives in found:
        wanted = _before([each.offsets for each in read if each.topic == topic])
        for archive in archives:
            there = common(wanted, archive.index.covered)
            wanted = minus(wanted, there)
            if (rows := _dataset(archive, there, failed)) is not None:
                view = cover.behind(f"{schema} {len(selects)}")
                con.register(view, rows)
                selects.append(f"SELECT * FROM {quoted(view)} WHERE {' OR '.join(_conditions(there))}")
    if not selects:
        con.register(cover.behind(f"{schema} none"), SCHEMA.empty_table())
        selects = [f"SELECT * FROM {quoted(cover.behind(f'{schema} none'))}"]
    view, behind = f"{quoted(schema)}.{quoted(name)}", cover.behind(f"{schema} all")
    con.execute(f"CREATE VIEW {quoted(behind)} AS {' UNION ALL '.join(selects)}")
    con.execute(f"CREATE VIEW {view} AS SELECT * FROM {quoted(behind)}")
    cover.put(view, behind, INPUT_PLACES, texts=True)


def reading_failed(error: SlackwaterError) -> bool:
    """Whether a statement failed because an object could not be read, as Arrow says it through DuckDB."""
    return _STREAM in error.message


def in_archive(app: str, error: SlackwaterError) -> Corruption:
    """The error for an object that cannot be decoded."""
    found = error.message.partition(_STREAM)[2].partition("' failed: ")[2].partition("\n")[0]
    return Corruption(
        f"an input archive of {app!r} is damaged: {found}",
        object_key=keys.archives(app),
        hint=f"`slackwater verify {app} --deep` names the object",
    )


def _read(cut: Cut, topic: str) -> list[Input]:
    """Where the stages stood on a topic, by its name in Kafka or as declared. Raises `NotFound`."""
    inputs = [(name, at) for stage in cut.stages.values() for name, at in stage.inputs.items()]
    found = [at for name, at in inputs if topic in (name, at.topic)]
    if not found:
        raise NotFound("input", topic, {name for name, _ in inputs})
    return found


def _before(offsets: Sequence[tuple[int, ...]]) -> Extents:
    """All that is before the furthest of some places."""
    ends = map(max, zip_longest(*offsets, fillvalue=0))
    return union(Extent(partition, 0, end) for partition, end in enumerate(ends) if end)


def _dataset(archive: Archive, wanted: Extents, failed: Callable[[Exception], None]) -> "ds.Dataset | None":
    """The objects that have some of these offsets; None where none has."""
    # It brings pandas along.
    import pyarrow.dataset as ds

    kind = ds.ParquetFileFormat(
        default_fragment_scan_options=ds.ParquetFragmentScanOptions(page_checksum_verification=True)
    )
    objects = (one for one in archive.index.objects if common(wanted, one.extents))
    fragments = [kind.make_fragment(opened(archive.store, one, failed)) for one in objects]
    return ds.FileSystemDataset(fragments, SCHEMA, kind) if fragments else None


def _conditions(extents: Extents) -> Iterator[str]:
    for each in extents:
        yield f'(partition = {each.partition} AND "offset" >= {each.first} AND "offset" < {each.end})'


def channel_tables(
    store: ObjectStore,
    cut: Cut,
    sql: str,
    reader: Topics | None,
    later: Mapping[str, Manifest] = MappingProxyType({}),
) -> dict[str, pa.Table]:
    """A table for each channel that `sql` may ask for, by the channel's name; without rows where nothing is in flight.

    What a snapshot keeps is read from there; everything else from Kafka. Channels that only later versions of stages
    have, `later`, are without rows. Raises `Usage` (records are only in Kafka, and there is no `reader`), `Corruption`
    (records are not as many, or not what, was written), and `Refused` (records are gone from Kafka).
    """
    keeper = find_snapshot(store, cut.app, cut.snapshot) if cut.snapshot else None
    found: dict[str, list[pa.Table]] = {}
    # A stage that is there under a name of now, too, has its channels once.
    edges = channels(replace(cut, stages={name: each for name, each in cut.stages.items() if each.stage == name}))
    there = {edge.name for edge in edges}
    to_come = {name: output for manifest in later.values() for name, output in manifest.outputs.items()}
    named = {name for name in there | to_come.keys() if name.casefold() in sql.casefold()}
    # A name may be put together by the query itself: then every channel is there.
    for name in sorted((named or to_come.keys()) & (to_come.keys() - there)):
        found[name] = [_empty(to_come[name].schema)]
    for edge in edges:
        if named and edge.name not in named:
            continue
        tables = found.setdefault(edge.name, [_empty(cut.stages[edge.sender].outputs[edge.name].schema)])
        if edge.receiver:
            state = channel_state(store, cut, edge)
            for rows in _records(store, state, keeper, reader):
                tables.append(rows.append_column("_receiver", pa.repeat(pa.scalar(edge.receiver), rows.num_rows)))
    return {name: showable(pa.concat_tables(tables, promote_options="permissive")) for name, tables in found.items()}


def arrow_of(ddl: str) -> pa.Schema:
    """The columns of a channel, from "`name` type, `name` type". Raises `Corruption` for anything else."""
    try:
        return schema_of(ddl)
    except ValueError:
        raise Corruption(f"a channel's columns are {ddl!r}; expected a Spark DDL string", object_key="") from None
    except KeyError as error:
        raise Corruption(f"a channel has a column of type {error}, which is not known here", object_key="") from None


def _records(store: ObjectStore, state: InFlight, keeper: Snapshot | None, reader: Topics | None) -> Iterator[pa.Table]:
    if not state.attempts:
        return iter(())
    if keeper is not None and (captured := keeper.captured(state)) is not None:
        return capture.read(store, captured, state)
    if reader is None:
        raise Usage(
            f"{state.rows} records in flight on {state.channel!r} are not kept with a snapshot, only in Kafka, and "
            "nothing says where Kafka is",
            hint="give --kafka HOST:PORT, or set SLACKWATER_KAFKA",
        )
    return reader.read(state)


def _empty(ddl: str) -> pa.Table:
    more = zip((*ADDRESS, "_receiver"), (pa.int32(), pa.int64(), pa.int32(), pa.string()), strict=True)
    return pa.schema([*arrow_of(ddl), *(pa.field(*each) for each in more)]).empty_table()


def answer(
    store: ObjectStore,
    cache: SstCache,
    cut: Cut,
    sql: str,
    *,
    later: Mapping[str, Manifest],
    only: Collection[str] | None = None,
    reader: Topics | None = None,
    max_rows: int | None = None,
    now_ms: int | None = None,
    on_moment: OnMoment = lambda _ref, _cut: None,
    bounds: Bounds | None = None,
) -> pa.Table:
    """What one reading statement returns at a cut, and at the other moments that it names (`clauses`).

    Tables and channels that only `later` versions have are shown without rows, and a table that had another name at the
    cut under both. `only` are the tables to open; default those that decide what the statement returns. `reader` reads
    records in flight, which the statement may ask for. `now_ms` is what relative times in it count from; without it,
    for a statement that is asked again and again, it may name only moments that stay what they are. `on_moment` hears
    of each other moment. With `bounds`, `TooMuch` where the statement goes beyond them. Raises `Usage` (the SQL is
    wrong, or asks for records in flight without a `reader`, or for a moment that is none), and `NotFound` (it names a
    table or column that is neither at the cut nor later, or a moment that there is not; or a cut was collected
    meanwhile).
    """
    statement = understand(sql)
    if bounds is not None:
        bounds.check(statement)
    is_steady = now_ms is None

    def heard(ref: str, other: Cut) -> None:
        if bounds is not None:
            bounds.check_app(other.app)
        on_moment(ref, other)

    def rows() -> pa.Table:
        at = as_known(store, cut)
        return _rows(store, cache, at, statement, later, only, reader, max_rows, now_ms, is_steady, heard, bounds)

    return again_if_forgotten(store, cut.app, rows)


def _rows(
    store: ObjectStore,
    cache: SstCache,
    cut: Cut,
    statement: Statement,
    later: Mapping[str, Manifest],
    only: Collection[str] | None,
    reader: Topics | None,
    max_rows: int | None,
    now_ms: int | None,
    is_steady: bool,
    on_moment: OnMoment,
    bounds: Bounds | None,
) -> pa.Table:
    moments = Moments(store, cut.app, instants.now_ms() if now_ms is None else now_ms, is_steady, on_moment)
    inputs = tuple(each for each in statement.clauses if isinstance(each, InputOf))
    others = moments.find([each for each in statement.clauses if not isinstance(each, InputOf)])
    flying = channel_tables(store, cut, statement.rest, reader, later) if names_channels(statement.rest) else None
    named = cut.under_names_of(later)
    opened = named_tables(statement.rest, named, or_all=not statement.clauses) if only is None else only
    with ExitStack() as stack:
        for each in (named, *(one for some in others for one in some.cuts[:1])):
            stack.enter_context(telling_if_collected(store, each))
        con = connect(
            store, cache, named, only=opened, empty=columns_of(later), channels=flying, others=others, bounds=bounds
        )
        stack.enter_context(closing(con))
        failed: list[Exception] = []
        for one in inputs:
            register_input(con, store, cut, one, failed.append, cover_of(con, bounds))
        try:
            return run_query(con, statement.sql, max_rows=max_rows, bounds=bounds)
        except SlackwaterError as error:
            if failed:
                raise failed[0] from None  # DuckDB tells of it in words
            if reading_failed(error):
                raise in_archive(cut.app, error) from None
            if not isinstance(error, NotFound):
                raise

            if error.what == "table" and (hint := hint_of_missing(store, cut.app, error.name)):
                error.hint = hint
            raise


def shown_otherwise(cuts: Iterable[Cut], sql: str) -> list[str]:
    """The tables that a statement names in which are values that it sees as others (`sst.showable`)."""
    tables = (each for cut in cuts for each in cut.tables.items())
    found = {name for name, manifest in tables if any(sst.unshowable for sst in manifest.ssts)}
    return sorted(name for name in found if name.casefold() in sql.casefold())


def as_relation(rows: pa.Table) -> duckdb.DuckDBPyRelation:
    """Rows as a DuckDB relation on a connection of its own, which lives as long as the relation.

    SQL upon it can neither read nor write files. Values for which SQL has none are others there (`sst.showable`).
    """
    con = duckdb.connect(config={"enable_external_access": False, "lock_configuration": True})
    return con.from_arrow(showable(rows))
