"""The channels of a cut as tables: records that one stage had sent and the next had not read.

Each has the channel's own columns, the records' address (`capture.ADDRESS`) and `_receiver`: a channel with two
readers shows what each has still to read.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType

import pyarrow as pa

from ...errors import Corruption, Usage
from ...store.objects.protocol import ObjectStore
from ...store.sst.arrow_types import schema_of
from ...store.versions.manifest import Manifest
from ..cut.graph import Cut, channels
from ..cut.in_flight import InFlight, stretch
from ..cut.stored import ADDRESS, Snapshot, find_snapshot
from ..take import capture
from ..take.capture import ChannelReader

SCHEMA_NAME = "inflight"
"""DuckDB schema of the channels' views, and name of the table macro that finds them."""

_ADDRESS_TYPES = (pa.int32(), pa.int64(), pa.int32())


def names_channels(sql: str) -> bool:
    """Whether a query may ask for records in flight."""
    return re.search(rf"\b{SCHEMA_NAME}\b", sql, re.IGNORECASE) is not None


def channel_tables(
    store: ObjectStore,
    cut: Cut,
    sql: str,
    reader: ChannelReader | None,
    later: Mapping[str, Manifest] = MappingProxyType({}),
) -> dict[str, pa.Table]:
    """A table for each channel that `sql` may ask for, by the channel's name; without rows where nothing is in flight.

    What a snapshot keeps is read from there; everything else from Kafka. Channels that only later versions of stages
    have, `later`, are without rows.

    Raises:
        Usage: records are only in Kafka, and there is no `reader`.
        Corruption: records are not as many, or not what, was written.
        Refused: records are gone from Kafka.
        Unavailable: storage or Kafka did not answer.
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
            state = stretch(store, cut, edge)
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
    captured = keeper.captured(state) if keeper else None
    if captured is not None:
        return capture.read(store, captured, state)
    if reader is None:
        raise Usage(
            f"{state.rows} records in flight on {state.channel!r} are not kept with a snapshot, only in Kafka, and "
            "nothing says where Kafka is",
            hint="give --kafka HOST:PORT, or set SLACKWATER_KAFKA",
        )
    return reader.read(state)


def _empty(ddl: str) -> pa.Table:
    address = [pa.field(name, kind) for name, kind in zip(ADDRESS, _ADDRESS_TYPES, strict=True)]
    return pa.schema([*arrow_of(ddl), *address, pa.field("_receiver", pa.string())]).empty_table()
