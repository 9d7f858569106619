"""SQL asked at a cut: what `query` and bisect do, so that both get the same answer."""

from collections.abc import Collection, Mapping
from contextlib import closing

import duckdb
import pyarrow as pa

from ...errors import NotFound
from ...store.objects.protocol import ObjectStore
from ...store.read.cache import SstCache
from ...store.versions import history
from ...store.versions.manifest import Manifest
from ..cut.graph import Cut
from ..cut.moments import heads_of, retired_by_then
from ..cut.resolve import telling_if_collected
from ..take.capture import ChannelReader
from .channel_tables import channel_tables, names_channels
from .sql import connect, named_tables, run_query


def later_stages(store: ObjectStore, cut: Cut) -> dict[str, Manifest]:
    """The newest version of each stage that has none at the cut, where its history had not begun.

    A stage that was retired by then is absent for another reason, and is none of these.
    """
    absent = (stage for stage in history.list_stages(store, cut.app) if stage not in cut.stages)
    found = heads_of(store, cut.app, absent)
    return {stage: head for stage, head in found.items() if retired_by_then(store, cut, head) is None}


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
) -> pa.Table:
    """What one statement that reads returns at a cut: with `max_rows`, as many rows at most.

    Tables and channels that only `later` versions have are shown without rows. Opened are the tables in `only`, by
    default those that decide what the statement returns. Records in flight, for which it may ask, come from `reader`.

    Raises:
        Usage: the SQL is wrong, or asks for records in flight without a `reader`.
        NotFound: it names a table or column that is neither at the cut nor later; or the cut was collected meanwhile.
        Corruption: an SST is not what its manifest promises.
        Unavailable: storage did not answer.
    """
    empty = {stage: manifest.table for stage, manifest in later.items() if manifest.table is not None}
    flying = channel_tables(store, cut, sql, reader, later) if names_channels(sql) else None
    opened = named_tables(sql, cut) if only is None else only
    with (
        telling_if_collected(store, cut),
        closing(connect(store, cache, cut, only=opened, empty=empty, channels=flying)) as con,
    ):
        try:
            return run_query(con, sql, max_rows=max_rows)
        except NotFound as error:
            if error.what == "table" and error.name in history.list_stages(store, cut.app):
                error.hint = f"its stage is retired: {cut.app}/{error.name} is the moment when it was"
            raise


def as_relation(rows: pa.Table) -> duckdb.DuckDBPyRelation:
    """Rows as a DuckDB relation on a connection of its own, which lives as long as the relation.

    SQL upon it can neither read nor write files.
    """
    return duckdb.connect(config={"enable_external_access": False, "lock_configuration": True}).from_arrow(rows)
