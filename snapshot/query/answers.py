"""SQL asked at a cut: what `query` and bisect do, so that both get the same answer."""

from collections.abc import Collection, Mapping
from contextlib import ExitStack, closing

import duckdb
import pyarrow as pa

from ... import instants
from ...errors import NotFound
from ...store.objects.protocol import ObjectStore
from ...store.read.cache import SstCache
from ...store.versions.aside import tables_of
from ...store.versions.manifest import Manifest
from ..cut.graph import Cut
from ..cut.moments import whereabouts
from ..cut.resolve import telling_if_collected
from ..take.capture import ChannelReader
from .channel_tables import channel_tables, names_channels
from .clauses import understand
from .moments import Moments, OnMoment
from .sql import connect, named_tables, run_query


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
) -> pa.Table:
    """What a statement returns at a cut, and at the other moments that it names (`clauses`).

    Args:
        store: the store of the cut's app.
        cache: where SSTs of a remote store come to lie.
        cut: the moment to look at.
        sql: one statement that reads.
        later: later versions; tables and channels that only they have are shown without rows, and a table that had
            another name at the cut under both.
        only: the tables to open; default those that decide what the statement returns.
        reader: reads records in flight, which the statement may ask for.
        max_rows: as many rows at most.
        now_ms: what relative times in the statement count from. Without it, for a statement that is asked again and
            again, it may name only moments that stay what they are.
        on_moment: told of each other moment.

    Raises:
        Usage: the SQL is wrong, or asks for records in flight without a `reader`, or for a moment that is none.
        NotFound: it names a table or column that is neither at the cut nor later, or a moment that there is not; or a
            cut was collected meanwhile.
        Corruption: an SST is not what its manifest promises.
        Unavailable: storage did not answer.
    """
    behind = (each for stage, manifest in later.items() for each in tables_of(manifest, stage).items())
    empty = {name: manifest.table for name, manifest in behind if manifest.table is not None}
    statement = understand(sql)
    is_steady = now_ms is None
    moments = Moments(store, cut.app, instants.now_ms() if now_ms is None else now_ms, is_steady, on_moment)
    beside = moments.find(statement.clauses)
    flying = channel_tables(store, cut, statement.rest, reader, later) if names_channels(statement.rest) else None
    named = cut.under_names_of(later)
    opened = named_tables(statement.rest, named, or_all=not beside) if only is None else only
    with ExitStack() as stack:
        for each in (named, *(one for some in beside for one in some.cuts[:1])):
            stack.enter_context(telling_if_collected(store, each))
        con = connect(store, cache, named, only=opened, empty=empty, channels=flying, beside=beside)
        stack.enter_context(closing(con))
        try:
            return run_query(con, statement.sql, max_rows=max_rows)
        except NotFound as error:
            if error.what == "table" and (hint := whereabouts(store, cut.app, error.name)):
                error.hint = hint
            raise


def as_relation(rows: pa.Table) -> duckdb.DuckDBPyRelation:
    """Rows as a DuckDB relation on a connection of its own, which lives as long as the relation.

    SQL upon it can neither read nor write files.
    """
    return duckdb.connect(config={"enable_external_access": False, "lock_configuration": True}).from_arrow(rows)
