"""Rows by key, from whoever has them warm: from this instance, or passed on to those that own the keys."""

import asyncio
from collections.abc import Sequence
from urllib.parse import quote

import msgspec
import pyarrow as pa

from ..instants import now_ms
from .look_ups import Key, Rows, encode_rows
from .newest import FreshMoment
from .peers import HOP
from .service import ARROW, Call

FOUND = "_found"
"""In an answer in Arrow, the column that says whether a key has a row."""


async def rows(
    asked: Call,
    app: str,
    reading: FreshMoment,
    table: str,
    texts: Sequence[str],
    keys: Sequence[Key],
    columns: Sequence[str],
) -> Rows:
    """The rows of keys, which were written as these texts. Raises as `Moment.get_many`."""
    service, peers = asked.service, asked.service.peers
    look_ups, some = service.look_ups, tuple(columns)
    if peers is None or not peers.others or reading.is_warm(table):
        return await look_ups.rows(reading, table, keys, some, seen_ms=asked.seen_ms)
    partitions = reading.moment.partitions_of(table, reading.moment.keys_of(table, keys))
    is_here = asked.is_passed_on or reading.is_warm(table, set(partitions.tolist()))
    owners = {peers.me.id: [*range(len(keys))]} if is_here else peers.owners(app, table, partitions)

    async def part(owner: str, at: Sequence[int]) -> Rows:
        if owner != peers.me.id:
            found = await _passed_on(asked, owner, app, reading, table, [texts[each] for each in at], columns)
            if found is not None and found.table.num_rows == len(at):
                return found
        mine = {int(partitions[each]) for each in at}
        wanted = [keys[each] for each in at]
        return await look_ups.rows(reading, table, wanted, some, seen_ms=asked.seen_ms, partitions=mine)

    parts = await asyncio.gather(*(part(owner, at) for owner, at in owners.items()))
    if len(parts) == 1:
        return parts[0]
    places = [place for at in owners.values() for place in at]
    order = sorted(range(len(places)), key=places.__getitem__)
    json = [each for one in parts for each in one.json]
    present = [each for one in parts for each in one.present]
    together = pa.concat_tables([one.table for one in parts]).take(pa.array(order))
    return Rows([json[each] for each in order], together, [present[each] for each in order])


async def _passed_on(
    asked: Call, owner: str, app: str, reading: FreshMoment, table: str, texts: Sequence[str], columns: Sequence[str]
) -> Rows | None:
    """What the owner says of the same version; None where it says nothing."""
    assert asked.service.peers is not None  # noqa: S101  `rows` looked
    version, stage = reading.moment.cut.tables[table].version, reading.moment.stage_of(table)
    path = f"/apps/{quote(app)}/at/v{version}/tables/{table}"
    query = [("stage", stage), ("format", "arrow"), *(("key", each) for each in texts)]
    query += [("column", each) for each in columns]
    declared = reading.moment.cut.tables[table].table
    is_seen_now = reading.is_newest and declared is not None and declared.ttl is not None
    headers = {HOP: str(now_ms() if is_seen_now else 0), "accept": ARROW, **asked.credentials}
    found = await asked.service.peers.ask(owner, path, query, headers)
    if found is None or FOUND not in found.schema.names:
        return None
    present = found[FOUND].to_pylist()
    found = found.drop_columns([FOUND]).replace_schema_metadata(None)
    return Rows(encode_rows(found, present), found, present)


def joined(found: Rows) -> msgspec.Raw:
    """All rows as one array of JSON."""
    return msgspec.Raw(b"[" + b",".join(found.json) + b"]")
