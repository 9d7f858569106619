"""Run SQL statements at a cut, with their clauses and channels; used by `query` and by bisect.

Channels of a cut are tables of its in-flight records. Each table has the channel's columns, the records' location
(`snapshot.cut.stored.ADDRESS_COLUMNS`) and `_receiver`. A record that two readers have not read yet occurs twice.

`input('orders')` is a view of the records that the app had read from a topic, as far as the app's archive has them.
DuckDB reads the archive's objects directly, and only the columns and row groups (by partition, offset and time) that it
needs.
"""

import importlib.util
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from itertools import zip_longest
from types import MappingProxyType
from typing import TYPE_CHECKING, NoReturn

import duckdb
import pyarrow as pa

from ...common import instants
from ...errors import Corruption, NotFound, Refused, SlackwaterError, Usage
from ...state.records import is_kafka_id
from ...store.archive.columns import SCHEMA
from ...store.archive.extents import Extent, Extents, intersect, subtract, union
from ...store.archive.objects import open_file
from ...store.archive.reading import Archive, Archives
from ...store.objects.protocol import ObjectStore
from ...store.read.cache import SstCache
from ...store.read.duckdb_view import quote_identifier
from ...store.sst.arrow_types import make_sql_safe, schema_from_ddl
from ...store.versions import keys
from ...store.versions.manifest import Input, Manifest
from ...store.versions.side_tables import table_declarations
from ..cut.graph import Cut, channels
from ..cut.in_flight import InFlight, channel_state
from ..cut.kafka_topics import KafkaTopics
from ..cut.moments import hint_of_missing
from ..cut.resolve import apply_known_forgets, report_if_collected, retry_if_forgotten
from ..cut.stored import ADDRESS_COLUMNS, Snapshot, find_snapshot
from ..take import capture
from .clauses import InputClause, MomentResolver, OnMoment, parse_statement
from .hidden import PseudonymViews
from .sql import Bounds, connect, named_tables, names_channels, pseudonym_views, run_query

if TYPE_CHECKING:
    import pyarrow.dataset as ds

INPUT_LOCATION_COLUMNS = ("topic", "partition", "offset", "timestamp", "timestampType")
"""Columns of an input archive that show a record's location. These are never masked."""
_STREAM_ERROR_PREFIX = "reading the stream registered as '@input "


def register_input(
    con: duckdb.DuckDBPyConnection,
    store: ObjectStore,
    cut: Cut,
    clause: InputClause,
    on_failure: Callable[[Exception], None],
    views: PseudonymViews,
    later: Mapping[str, Manifest] = MappingProxyType({}),
) -> None:
    """Create the view of an `input()` clause: the archived records that the cut had read from a topic.

    The columns are those of `archive.columns.SCHEMA`. The view is empty if only the `later` versions read the topic.
    `on_failure` is called with the error if an object turns out to be missing or damaged while the view is read. Raises
    `NotFound` (the app does not read the topic, or has no archive of it).
    """
    schema, name = clause.view
    con.execute(f"CREATE SCHEMA IF NOT EXISTS {quote_identifier(schema)}")
    read = _inputs_of(cut.stages, clause.topic)
    if not read and not _inputs_of(later, clause.topic):
        names = {name for stage in cut.stages.values() for name in stage.inputs}
        raise NotFound("input", clause.topic, names)
    archives_of = Archives(lambda: store, cut.app, at_ms=cut.time_ms).for_topic
    topics = {source.topic: source.topic_id if is_kafka_id(source.topic_id) else "" for source in read}
    archives_by_topic = [(topic, archives_of(topic, topic_id).archives) for topic, topic_id in topics.items()]
    if read and not any(archives for _, archives in archives_by_topic):
        raise NotFound(
            "input archive",
            clause.topic,
            found=f"app {cut.app!r} has none of this topic",
            hint='input = "30d" under [retention] in slackwater.toml starts one; '
            f"`slackwater archive {cut.app} --from beginning` adds what Kafka still has",
        )
    selects: list[str] = []
    for topic, archives in archives_by_topic:
        missing = _extents_before([source.offsets for source in read if source.topic == topic])
        for archive in archives:
            available = intersect(missing, archive.index.covered)
            missing = subtract(missing, available)
            if (rows := _archive_dataset(archive, available, on_failure)) is not None:
                view = views.hidden_table(f"{schema} {len(selects)}")
                con.register(view, rows)
                selects.append(
                    f"SELECT * FROM {quote_identifier(view)} WHERE {' OR '.join(_extent_conditions(available))}"
                )
    if not selects:
        con.register(views.hidden_table(f"{schema} none"), SCHEMA.empty_table())
        selects = [f"SELECT * FROM {quote_identifier(views.hidden_table(f'{schema} none'))}"]
    view, hidden_view = f"{quote_identifier(schema)}.{quote_identifier(name)}", views.hidden_table(f"{schema} all")
    con.execute(f"CREATE VIEW {quote_identifier(hidden_view)} AS {' UNION ALL '.join(selects)}")
    con.execute(f"CREATE VIEW {view} AS SELECT * FROM {quote_identifier(hidden_view)}")
    views.create_view(view, hidden_view, INPUT_LOCATION_COLUMNS, texts=True)


def _archive_corruption(app: str, error: SlackwaterError) -> Corruption:
    reason = error.message.partition(_STREAM_ERROR_PREFIX)[2].partition("' failed: ")[2].partition("\n")[0]
    return Corruption(
        f"an input archive of {app!r} is damaged: {reason}",
        object_key=keys.archives(app),
        hint=f"`slackwater verify {app} --deep` names the object",
    )


def _inputs_of(stages: Mapping[str, Manifest], topic: str) -> list[Input]:
    inputs = (item for stage in stages.values() for item in stage.inputs.items())
    return [source for name, source in inputs if topic in (name, source.topic)]


def _extents_before(offsets: Sequence[tuple[int, ...]]) -> Extents:
    ends = map(max, zip_longest(*offsets, fillvalue=0))
    return union(Extent(partition, 0, end) for partition, end in enumerate(ends) if end)


def _archive_dataset(
    archive: Archive, extents: Extents, on_failure: Callable[[Exception], None]
) -> "ds.Dataset | None":
    # Imports pandas.
    import pyarrow.dataset as ds

    kind = ds.ParquetFileFormat(
        default_fragment_scan_options=ds.ParquetFragmentScanOptions(page_checksum_verification=True)
    )
    objects = (archived for archived in archive.index.objects if intersect(extents, archived.extents))
    fragments = [kind.make_fragment(open_file(archive.store, archived, on_failure)) for archived in objects]
    return ds.FileSystemDataset(fragments, SCHEMA, kind) if fragments else None


def _extent_conditions(extents: Extents) -> Iterator[str]:
    for extent in extents:
        yield f'(partition = {extent.partition} AND "offset" >= {extent.first} AND "offset" < {extent.end})'


def channel_tables(
    store: ObjectStore,
    cut: Cut,
    sql: str,
    reader: KafkaTopics | None,
    later: Mapping[str, Manifest] = MappingProxyType({}),
) -> dict[str, pa.Table]:
    """Return in-flight records by channel, for each channel that `sql` may read.

    Records are read from the cut's snapshot if it keeps them, else from Kafka. Channels that exist only in the `later`
    versions are empty. Raises `Usage` (records are only in Kafka, and there is no `reader`), `Corruption` (records
    differ from the written records, in number or content) and `Refused` (records are deleted from Kafka).
    """
    keeper = find_snapshot(store, cut.app, cut.snapshot) if cut.snapshot else None
    tables_by_channel: dict[str, list[pa.Table]] = {}
    # The cut may have a renamed stage under both names.
    edges = channels(
        replace(cut, stages={name: manifest for name, manifest in cut.stages.items() if manifest.stage == name})
    )
    current_names = {edge.name for edge in edges}
    later_outputs = {name: output for manifest in later.values() for name, output in manifest.outputs.items()}
    named = {name for name in current_names | later_outputs.keys() if name.casefold() in sql.casefold()}
    # A query may compute channel names. If it contains no channel's name, all channels are visible.
    for name in sorted((named or later_outputs.keys()) & (later_outputs.keys() - current_names)):
        tables_by_channel[name] = [_empty_channel_table(later_outputs[name].schema)]
    for edge in edges:
        if named and edge.name not in named:
            continue
        tables = tables_by_channel.setdefault(
            edge.name, [_empty_channel_table(cut.stages[edge.sender].outputs[edge.name].schema)]
        )
        if edge.receiver:
            state = channel_state(store, cut, edge)
            for rows in _in_flight_records(store, state, keeper, reader):
                tables.append(rows.append_column("_receiver", pa.repeat(pa.scalar(edge.receiver), rows.num_rows)))
    return {
        name: make_sql_safe(pa.concat_tables(tables, promote_options="permissive"))
        for name, tables in tables_by_channel.items()
    }


def arrow_schema_from_ddl(ddl: str) -> pa.Schema:
    """Convert a channel's Spark DDL, such as "`name` type, `name` type", to an Arrow schema. Raises `Corruption`."""
    try:
        return schema_from_ddl(ddl)
    except ValueError:
        raise Corruption(f"a channel's columns are {ddl!r}; expected a Spark DDL string", object_key="") from None
    except KeyError as error:
        raise Corruption(f"a channel has a column of type {error}, which is not known here", object_key="") from None


def _in_flight_records(
    store: ObjectStore, state: InFlight, keeper: Snapshot | None, reader: KafkaTopics | None
) -> Iterator[pa.Table]:
    if not state.attempts:
        return iter(())
    if keeper is not None and (captured := keeper.find_captured_channel(state)) is not None:
        return capture.read_captured(store, captured, state)
    if reader is None:
        raise Usage(
            f"{state.rows} in-flight records of {state.channel!r} are in no snapshot, only in Kafka, and "
            "no Kafka is configured",
            hint="pass --kafka HOST:PORT or set SLACKWATER_KAFKA",
        )
    return reader.read(state)


def _empty_channel_table(ddl: str) -> pa.Table:
    system_columns = zip(
        (*ADDRESS_COLUMNS, "_receiver"), (pa.int32(), pa.int64(), pa.int32(), pa.string()), strict=True
    )
    return pa.schema([*arrow_schema_from_ddl(ddl), *(pa.field(*column) for column in system_columns)]).empty_table()


def run_statement(
    store: ObjectStore,
    cache: SstCache,
    cut: Cut,
    sql: str,
    *,
    later: Mapping[str, Manifest],
    only: Collection[str] | None = None,
    reader: KafkaTopics | None = None,
    max_rows: int | None = None,
    now_ms: int | None = None,
    on_moment: OnMoment = lambda _ref, _cut: None,
    bounds: Bounds | None = None,
) -> pa.Table:
    """Return the result of one reading statement at a cut, and at the moments in its clauses.

    Tables and channels that exist only in the `later` versions are empty. A table that was renamed after the cut is
    visible under both names. `only` are the tables to open; by default, the tables on which the result depends.
    `reader` reads in-flight records. Relative times count from `now_ms`. Without `now_ms`, the statement may name only
    fixed moments, so that it can be repeated. `on_moment` is called for each moment in the clauses.

    Raises `Usage` (the SQL is wrong, reads in-flight records without a `reader`, or names an invalid moment),
    `NotFound` (a table, column or moment does not exist, or a cut was collected meanwhile) and, with `bounds`,
    `TooMuch` (a bound was exceeded).
    """
    statement = parse_statement(sql)
    if bounds is not None:
        bounds.check_statement(statement)
    clauses, text = statement.clauses, statement.text_without_clauses

    def heard(ref: str, other: Cut) -> None:
        if bounds is not None:
            bounds.check_app(other.app)
        on_moment(ref, other)

    def rows() -> pa.Table:
        at = apply_known_forgets(store, cut)
        origin_ms = instants.now_ms() if now_ms is None else now_ms
        moments = MomentResolver(store, at.app, origin_ms, now_ms is None, heard)
        clause_tables = moments.resolve_clauses([clause for clause in clauses if not isinstance(clause, InputClause)])
        in_flight = channel_tables(store, at, text, reader, later) if names_channels(text) else None
        named = at.with_renamed_stages(later)
        with ExitStack() as stack:
            for other_cut in (named, *(first for clause_table in clause_tables for first in clause_table.cuts[:1])):
                stack.enter_context(report_if_collected(store, other_cut))
            con = connect(
                store,
                cache,
                named,
                only=named_tables(text, named, or_all=not clauses) if only is None else only,
                empty=table_declarations(later),
                channels=in_flight,
                clause_tables=clause_tables,
                bounds=bounds,
            )
            stack.enter_context(closing(con))
            failed: list[Exception] = []
            for clause in clauses:
                if isinstance(clause, InputClause):
                    register_input(con, store, at, clause, failed.append, pseudonym_views(con, bounds), later)
            try:
                return run_query(con, statement.sql, max_rows=max_rows, bounds=bounds)
            except SlackwaterError as error:
                if failed:
                    raise failed[0] from None  # DuckDB's error has only its text
                if _STREAM_ERROR_PREFIX in error.message:
                    raise _archive_corruption(at.app, error) from None
                if isinstance(error, NotFound) and error.what == "table":
                    error.hint = hint_of_missing(store, at.app, error.name) or error.hint
                raise

    return retry_if_forgotten(store, cut.app, rows)


def tables_with_converted_values(cuts: Iterable[Cut], sql: str) -> list[str]:
    """Return the statement's tables with values that SQL shows in a converted form (`make_sql_safe`)."""
    tables = (table for cut in cuts for table in cut.tables.items())
    affected = {name for name, manifest in tables if any(sst.unshowable for sst in manifest.ssts)}
    return sorted(name for name in affected if name.casefold() in sql.casefold())


def as_relation(rows: pa.Table) -> duckdb.DuckDBPyRelation:
    """Return rows as a DuckDB relation with its own connection, which is closed with the relation.

    SQL on the relation can neither read nor write files. Values that SQL cannot represent are converted
    (`arrow_types.make_sql_safe`).
    """
    con = duckdb.connect(config={"enable_external_access": False, "lock_configuration": True})
    relation = con.from_arrow(make_sql_safe(rows))
    if importlib.util.find_spec("pandas") is None:
        relation.__class__ = _RelationWithoutPandas
    return relation


class _RelationWithoutPandas(duckdb.DuckDBPyRelation):
    """Relation for an environment without pandas. Unlike DuckDB's error, the error of `df` names the next step."""

    __slots__ = ()

    def df(self, *_arguments: object, **_options: object) -> NoReturn:
        raise Refused(
            "df() needs pandas, which is not installed", hint="pip install 'pandas<3', or call .arrow() or .fetchall()"
        )

    to_df = fetchdf = fetch_df = fetch_df_chunk = df
