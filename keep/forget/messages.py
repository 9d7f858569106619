"""Records that are messages between stages: compressed Arrow, whose rows are looked into one by one.

As bytes they would hide what they have; and a message has rows of many keys, which stay.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from .words import Mask, Words, holding

_BEGINS = b"\xff\xff\xff\xff"
"""How a stream of Arrow begins, and no text."""
_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4")
"""As stages write them."""


def taken(rows: pa.Table, words: Sequence[Words]) -> tuple[pa.Table, int]:
    """Records without those that hold a key, messages without such rows; how many records and rows went."""
    plain, messages = _split(rows)
    gone = holding(plain, words, key="key")
    count, values = int(gone.sum()), dict[int, bytes]()
    for at, sent in messages.items():
        mine = holding(sent, words)
        if mine.any() and not gone[at]:
            count += int(mine.sum())
            gone[at] = mine.all()
            values[at] = _encoded(sent.filter(pa.array(~mine)))
    if values:
        made = [values.get(at, value) for at, value in enumerate(rows["value"].to_pylist())]
        rows = rows.set_column(rows.schema.get_field_index("value"), "value", pa.array(made, pa.binary()))
    return (rows.filter(pa.array(~gone)) if gone.any() else rows), count


def holding_any(rows: pa.Table, words: Sequence[Words], *, key: str = "") -> bool:
    """Whether any of the rows holds a key, be they records or not."""
    plain, messages = _split(rows)
    masks: list[Mask] = [holding(plain, words, key=key), *(holding(sent, words) for sent in messages.values())]
    return any(bool(np.any(each)) for each in masks)


def _split(rows: pa.Table) -> tuple[pa.Table, dict[int, pa.Table]]:
    """The rows, with null for each value that is a message, and these messages' rows by place."""
    at = rows.schema.get_field_index("value")
    if at < 0 or not pa.types.is_binary(rows.schema.field(at).type):
        return rows, {}
    values = rows.column(at).to_pylist()
    found = {place: sent for place, value in enumerate(values) if value and (sent := _decoded(value)) is not None}
    if not found:
        return rows, {}
    left = [None if place in found else value for place, value in enumerate(values)]
    return rows.set_column(at, "value", pa.array(left, pa.binary())), found


def _decoded(value: bytes) -> pa.Table | None:
    if not value.startswith(_BEGINS):
        return None
    try:
        with pa.ipc.open_stream(value) as stream:
            return stream.read_all()
    except (pa.ArrowException, OSError):
        return None  # bytes that only begin so


def _encoded(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=_OPTIONS) as writer:
        writer.write_table(rows.combine_chunks())
    return bytes(sink.getvalue())
