"""Avro messages as Arrow arrays, read by DataFusion, whose Avro reader is arrow-rs's.

That reader takes files. So a batch of messages is written as one object container file with one block. The five bytes
of each message's header are replaced by the message's number in the batch, read as an extra first field. If a message
has more or fewer bytes than its schema says, the number read for the next message is wrong, and the error is found.
"""

from __future__ import annotations

import json
import os
import tempfile
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ...errors import Refused
from .avro_layout import VALUE, Layout, layout
from .avro_resolution import resolve
from .avro_schema import column_type, is_one_value, parsed
from .schema import HEAD_BYTES, BadMessage, Reader, Schema, varint, without

_SYNC = b"slackwater_block"
_HEAD = Layout(
    {"type": "fixed", "name": "head", "size": HEAD_BYTES},
    pa.field("head", pa.binary(HEAD_BYTES), nullable=False, metadata={"avro.name": "head"}),
)


class AvroReader(Reader):
    """Reads Avro messages into the columns of one schema."""

    def __init__(self, schema: Schema) -> None:
        """Raises `Refused` for a schema that has no columns."""
        self._node = parsed(schema)
        self.type = column_type(self._node)

    def read(self, writer: Schema, messages: pa.BinaryArray) -> pa.Array:
        written, laid_out = parsed(writer), _layout_of(writer)
        # Repeat the first message at the end: its number shows that the last message ended where it should.
        count = len(messages) + 1
        bodies = without(pa.concat_arrays([messages, messages.slice(0, 1)]), HEAD_BYTES)
        numbers = np.arange(count, dtype=">u8").view(np.uint8).reshape(-1, 8)[:, -HEAD_BYTES:].tobytes()
        heads = pa.FixedSizeBinaryArray.from_buffers(pa.binary(HEAD_BYTES), count, [None, pa.py_buffer(numbers)])
        records = pc.binary_join_element_wise(heads.cast(pa.binary()), bodies, b"")
        try:
            table = _decoded(laid_out, records.buffers()[2].to_pybytes(), count)
        except Exception as error:  # DataFusion raises plain Exceptions
            raise BadMessage(f"the bytes do not match the Avro schema: {_first_line(error)}") from None
        if not table["head"].combine_chunks().equals(heads):
            raise BadMessage("the bytes do not match the Avro schema: there are too many or too few")
        values = table[VALUE].combine_chunks() if laid_out else None
        if values is not None and values.offset:
            # A slice's children ignore its offset, so copy the slice.
            values = values.take(pa.array(np.arange(count)))
        return resolve(values, count, written, self._node).slice(0, count - 1)

    def likely(self, writer: Schema, messages: pa.BinaryArray) -> npt.NDArray[np.bool_]:
        node = parsed(writer)
        return np.fromiter(
            (is_one_value(node, message, HEAD_BYTES) for message in messages.to_pylist()), bool, len(messages)
        )


@lru_cache(maxsize=256)
def _layout_of(schema: Schema) -> Layout | None:
    """Return the layout by which arrow-rs reads a schema's messages. Raises `Refused` if arrow-rs cannot read them."""
    laid_out = layout(parsed(schema), _null_branch())
    try:
        _decoded(laid_out, b"", 0)
    except Exception as error:
        raise Refused(f"the Avro schema cannot be converted to columns: {_first_line(error)}") from None
    return laid_out


@lru_cache(maxsize=1)
def _null_branch() -> pa.Field:
    """Return arrow-rs's field for the null branch of a union."""
    union = _decoded(Layout(["null", "int", "string"], None), b"", 0).schema.field(VALUE).type
    return union.field(0)


def _decoded(laid_out: Layout | None, records: bytes, count: int) -> pa.Table:
    """Decode records, each preceded by the bytes of its head, to columns `head` and `value`.

    The records are written to a temporary object container file. There is no column `value` if its values have no
    bytes. https://avro.apache.org/docs/1.12.0/specification/#object-container-files
    """
    from datafusion import SessionConfig, SessionContext

    block = b"".join((varint(count), varint(len(records)), records, _SYNC)) if count else b""
    # arrow-rs loops forever if a block has bytes after its last record. A batch of exactly `count` rows stops before
    # them.
    size = max(1, count)
    config = SessionConfig().with_batch_size(size).with_target_partitions(1)
    columns = [_HEAD.field, *([laid_out.field] if laid_out else [])]
    schema = None if laid_out and laid_out.field is None else pa.schema(columns)
    # The reader requires this suffix.
    handle, path = tempfile.mkstemp(suffix=".avro", prefix="slackwater-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(_header(laid_out) + block)
        return SessionContext(config).read_avro(path, schema=schema).limit(size).to_arrow_table()
    finally:
        Path(path).unlink()


def _header(laid_out: Layout | None) -> bytes:
    value = [{"name": VALUE, "type": laid_out.avro}] if laid_out else []
    fields = [{"name": "head", "type": _HEAD.avro}, *value]
    row = json.dumps({"type": "record", "name": "slackwater_row", "fields": fields}).encode()
    meta = ((b"avro.schema", row), (b"avro.codec", b"null"))
    entries = (varint(len(text)) + text for entry in meta for text in entry)
    return b"".join((b"Obj\x01", varint(len(meta)), *entries, varint(0), _SYNC))


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0][:200]
