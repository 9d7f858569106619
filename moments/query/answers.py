"""SQL asked at a cut: what `query` and bisect do, so that both get the same answer.

The channels of a cut are tables, too, of records that one stage had sent and the next had not read. Each has the
channel's own columns, the records' address (`moments.cut.stored.ADDRESS`) and `_receiver`: a channel with two readers
shows what each has still to read.
"""

from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import replace
from types import MappingProxyType

import duckdb
import pyarrow as pa

from ... import instants
from ...errors import Corruption, NotFound, SlackwaterError, Usage
from ...store.objects.protocol import ObjectStore
from ...store.read.cache import SstCache
from ...store.sst.arrow_types import schema_of
from ...store.versions.manifest import Manifest
from ...store.versions.side_tables import columns_of
from ..cut.graph import Cut, channels
from ..cut.in_flight import InFlight, channel_state
from ..cut.moments import hint_of_missing
from ..cut.resolve import again_if_forgotten, as_known, telling_if_collected
from ..cut.stored import ADDRESS, Snapshot, find_snapshot
from ..take import capture
from ..take.capture import ChannelReader
from .clauses import InputOf, Statement, understand
from .inputs import in_archive, reading_failed, register_input
from .moments import Moments, OnMoment
from .sql import Bounds, connect, named_tables, names_channels, run_query


def channel_tables(
    store: ObjectStore,
    cut: Cut,
    sql: str,
    reader: ChannelReader | None,
    later: Mapping[str, Manifest] = MappingProxyType({}),
) -> dict[str, pa.Table]:
    """A table for each channel that `sql` may ask for, by the channel's name; without rows where nothing is in flight.

    What a snapshot keeps is read from there; everything else from Kafka. Channels that only later versions of stages
    have, `later`, are without rows. Raises `Usage` (records are only in Kafka, and there is no `reader`), `Corruption`
    (records are not as many, or not what, was written), `Refused` (records are gone from Kafka) and `Unavailable`
    (storage or Kafka did not answer).
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
    return {name: pa.concat_tables(tables, promote_options="permissive") for name, tables in found.items()}


def arrow_of(ddl: str) -> pa.Schema:
    """The columns of a channel, from "`name` type, `name` type". Raises `Corruption` for anything else."""
    try:
        return schema_of(ddl)
    except ValueError:
        raise Corruption(f"a channel's columns are {ddl!r}; expected a Spark DDL string", object_key="") from None
    except KeyError as error:
        raise Corruption(f"a channel has a column of type {error}, which is not known here", object_key="") from None


def _records(
    store: ObjectStore, state: InFlight, keeper: Snapshot | None, reader: ChannelReader | None
) -> Iterator[pa.Table]:
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
    reader: ChannelReader | None = None,
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
    of each other moment. With `bounds`, `TooMuch` where the statement goes beyond them.
    Raises `Usage` (the SQL is wrong, or asks for records in flight without a `reader`, or for a
    moment that is none), `NotFound` (it names a table or column that is neither at the cut nor later, or a moment that
    there is not; or a cut was collected meanwhile), `Corruption` (an SST is not what its manifest promises) and
    `Unavailable`.
    """
    statement = understand(sql)
    if bounds is not None:
        bounds.check(statement)
    is_steady = now_ms is None

    def rows() -> pa.Table:
        at = as_known(store, cut)
        return _rows(store, cache, at, statement, later, only, reader, max_rows, now_ms, is_steady, on_moment, bounds)

    return again_if_forgotten(store, cut.app, rows)


def _rows(
    store: ObjectStore,
    cache: SstCache,
    cut: Cut,
    statement: Statement,
    later: Mapping[str, Manifest],
    only: Collection[str] | None,
    reader: ChannelReader | None,
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
            register_input(con, store, cut, one, failed.append)
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


def as_relation(rows: pa.Table) -> duckdb.DuckDBPyRelation:
    """Rows as a DuckDB relation on a connection of its own, which lives as long as the relation.

    SQL upon it can neither read nor write files.
    """
    return duckdb.connect(config={"enable_external_access": False, "lock_configuration": True}).from_arrow(rows)
