"""Rows by key, from whoever has them warm: from this instance, or passed on to those that own the keys."""

import asyncio
from collections.abc import Sequence
from urllib.parse import quote

import msgspec
import pyarrow as pa

from ..common.instants import now_ms
from ..common.learned import learned
from .peers import HOP
from .rows.fresh import FreshMoment, TableAnswers
from .rows.look_ups import Key, Rows, at_once
from .service import ARROW, JSON, Call

FOUND = "_found"
"""In an answer in Arrow, the column that says whether a key has a row."""


async def rows(
    asked: Call,
    reading: FreshMoment,
    about: TableAnswers,
    texts: Sequence[str],
    keys: Sequence[Key],
    columns: Sequence[str],
) -> Rows:
    """The rows of keys, which were written as these texts. Raises as `Moment.get_many`."""
    if not asked.wants_arrow and (found := at_once(about, keys, columns, asked.seen_ms)) is not None:
        return found
    service, peers, table = asked.service, asked.service.peers, about.name

    async def from_here(some: Sequence[Key]) -> Rows:
        return await service.look_ups.rows(
            reading, table, some, tuple(columns), seen_ms=asked.seen_ms, in_arrow=asked.wants_arrow
        )

    if peers is None or not peers.others or asked.is_passed_on:
        return await from_here(keys)
    partitions = reading.moment.partitions_of(table, reading.moment.keys_of(table, keys))
    if reading.is_open(table, set(partitions.tolist())):
        return await from_here(keys)
    owners = peers.owners(about.cut.app, table, partitions)

    async def part(owner: str, at: Sequence[int]) -> Rows:
        if owner != peers.me.id:
            found = await _passed_on(asked, owner, reading, about, [texts[each] for each in at], columns)
            if found is not None and max(len(found.json), len(found.present)) == len(at):
                return found
        return await from_here([keys[each] for each in at])

    parts = await asyncio.gather(*(part(owner, at) for owner, at in owners.items()))
    if len(parts) == 1:
        return parts[0]
    places = [place for at in owners.values() for place in at]
    order = sorted(range(len(places)), key=places.__getitem__)
    if not asked.wants_arrow:
        json = [each for one in parts for each in one.json]
        return Rows([json[each] for each in order])
    present = [each for one in parts for each in one.present]
    together = pa.concat_tables([one.table for one in parts]).take(pa.array(order))
    return Rows((), together, [present[each] for each in order])


class _Document(msgspec.Struct):
    """Of an answer in JSON, what is taken."""

    rows: list[msgspec.Raw]


async def _passed_on(
    asked: Call, owner: str, reading: FreshMoment, about: TableAnswers, texts: Sequence[str], columns: Sequence[str]
) -> Rows | None:
    """What the owner says of the same version; None where it says nothing."""
    assert asked.service.peers is not None  # noqa: S101  `rows` looked
    table, in_arrow = about.name, asked.wants_arrow
    path = f"/apps/{quote(about.cut.app)}/at/v{about.manifest.version}/tables/{table}"
    query = [("stage", reading.moment.stage_of(table)), ("format", "arrow" if in_arrow else "json")]
    query += [*(("key", each) for each in texts), *(("column", each) for each in columns)]
    seen_ms = now_ms() if about.changes_by_itself else 0
    headers = {HOP: str(seen_ms), "accept": ARROW if in_arrow else JSON, **asked.credentials}
    data = await asked.service.peers.ask(owner, path, query, headers)
    if data is None:
        return None
    try:
        if not in_arrow:
            return Rows([bytes(each) for each in msgspec.json.decode(data, type=learned(_Document)).rows])
        found = pa.ipc.open_stream(data).read_all()
        present = found[FOUND].to_pylist()
    except (msgspec.DecodeError, pa.ArrowException, KeyError, UnicodeDecodeError):
        return None
    return Rows((), found.drop_columns([FOUND]).replace_schema_metadata(None), present)
