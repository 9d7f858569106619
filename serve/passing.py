"""Look-ups by key, answered by this instance or forwarded to the instances that own the keys' partitions."""

import asyncio
from collections.abc import Sequence
from urllib.parse import quote

import msgspec
import pyarrow as pa

from ..common.instants import now_ms
from ..store.versions.codec import register_type
from .peers import FORWARDED_HEADER
from .rows.fresh import CachedMoment, TableAnswers
from .rows.look_ups import Key, LookUpResult, look_up_inline
from .service import ARROW, JSON, Call

FOUND_COLUMN = "_found"


async def rows_by_key(
    call: Call,
    reading: CachedMoment,
    answers: TableAnswers,
    texts: Sequence[str],
    keys: Sequence[Key],
    columns: Sequence[str],
) -> LookUpResult:
    """Return the rows of keys; `texts` are the keys as the client sent them.

    Raises the errors of `Moment.get_many`.
    """
    if not call.wants_arrow and (open_rows := look_up_inline(answers, keys, columns, call.seen_ms)) is not None:
        return open_rows
    service, peers, table = call.service, call.service.peers, answers.name

    async def from_here(local_keys: Sequence[Key]) -> LookUpResult:
        return await service.look_ups.look_up(
            reading, table, local_keys, tuple(columns), seen_ms=call.seen_ms, in_arrow=call.wants_arrow
        )

    if peers is None or not peers.others or call.is_forwarded:
        return await from_here(keys)
    partitions = reading.moment.key_partitions(table, reading.moment.parse_key_values(table, keys))
    if reading.is_open(table, set(partitions.tolist())):
        return await from_here(keys)
    owners = peers.indices_by_owner(answers.cut.app, table, partitions)

    async def part(owner: str, positions: Sequence[int]) -> LookUpResult:
        if owner != peers.this_instance.id:
            own_texts = [texts[position] for position in positions]
            owner_rows = await _forward_to_owner(call, owner, reading, answers, own_texts, columns)
            if owner_rows is not None and max(len(owner_rows.json), len(owner_rows.present)) == len(positions):
                return owner_rows
        return await from_here([keys[position] for position in positions])

    parts = await asyncio.gather(*(part(owner, positions) for owner, positions in owners.items()))
    if len(parts) == 1:
        return parts[0]
    all_positions = [position for positions in owners.values() for position in positions]
    order = sorted(range(len(all_positions)), key=all_positions.__getitem__)
    if not call.wants_arrow:
        json = [row for part_rows in parts for row in part_rows.json]
        return LookUpResult([json[index] for index in order])
    present = [is_present for part_rows in parts for is_present in part_rows.present]
    table_rows = pa.concat_tables([part_rows.table for part_rows in parts]).take(pa.array(order))
    return LookUpResult((), table_rows, [present[index] for index in order])


class _RowsDocument(msgspec.Struct):
    rows: list[msgspec.Raw]


async def _forward_to_owner(
    call: Call, owner: str, reading: CachedMoment, answers: TableAnswers, texts: Sequence[str], columns: Sequence[str]
) -> LookUpResult | None:
    """Return the rows of keys from the instance that owns their state partitions; None without a usable answer.

    The other instance reads the rows at the version of `reading`.
    """
    assert call.service.peers is not None  # noqa: S101  `rows_by_key` checked that
    table, in_arrow = answers.name, call.wants_arrow
    path = f"/apps/{quote(answers.cut.app)}/at/v{answers.manifest.version}/tables/{table}"
    query = [("stage", reading.moment.stage_of(table)), ("format", "arrow" if in_arrow else "json")]
    query += [*(("key", text) for text in texts), *(("column", value) for value in columns)]
    seen_ms = now_ms() if answers.may_expire else 0
    headers = {FORWARDED_HEADER: str(seen_ms), "accept": ARROW if in_arrow else JSON, **call.credentials}
    data = await call.service.peers.forward(owner, path, query, headers)
    if data is None:
        return None
    try:
        if not in_arrow:
            return LookUpResult(
                [bytes(row) for row in msgspec.json.decode(data, type=register_type(_RowsDocument)).rows]
            )
        table_rows = pa.ipc.open_stream(data).read_all()
        present = table_rows[FOUND_COLUMN].to_pylist()
    except (msgspec.DecodeError, pa.ArrowException, KeyError, UnicodeDecodeError):
        return None
    return LookUpResult((), table_rows.drop_columns([FOUND_COLUMN]).replace_schema_metadata(None), present)
