"""Access to single values of a block as Python values, without copying a row."""

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from ..sst.arrow_types import python_value
from ..sst.types import EXPIRES
from .decode import Block


class Cells(dict[str, Callable[[int], object]]):
    """Accessors by column name, of the table or of SSTs; each returns the value in a row. Created on first use.

    The values are converted like those of `arrow_types.python_rows`. Threads may share it.
    """

    def __init__(self, block: Block) -> None:
        super().__init__()
        self._block = block
        self.hashes = block.hashes.data
        """The rows' `_hash`, ascending."""
        self.find = block.hashes.searchsorted
        """Function that returns the position of a hash, or its insertion point."""
        self.may_expire = EXPIRES in block.stored.schema.names

    def __missing__(self, name: str) -> Callable[[int], object]:
        accessor = self[name] = self._column(name)
        return accessor

    def _column(self, name: str) -> Callable[[int], object]:
        block = self._block
        source = block.reading.sources.get(name) if block.reading is not None else None
        if source is None:
            return _values(block.stored.column(name))
        if source.name is None:
            default = python_value(source.default)
            return lambda _at: default
        column, kind = block.stored.column(source.name), source.type
        if source.stored == kind:
            return _values(column)
        return lambda at: python_value(column.slice(at, 1).cast(kind)[0])


def _values(column: pa.Array) -> Callable[[int], object]:
    types, kind = pa.types, column.type
    is_number = types.is_integer(kind) or types.is_float32(kind) or types.is_float64(kind)
    if is_number and not column.null_count:
        # Costs a tenth of an Arrow scalar.
        return np.asarray(column).data.__getitem__
    if types.is_string(kind) and not column.null_count and (data := column.buffers()[2]) is not None:
        ends = np.frombuffer(column.buffers()[1], np.int32, len(column) + 1, column.offset * 4).data
        text = memoryview(data)
        return lambda at: str(text[ends[at] : ends[at + 1]], "utf-8", "backslashreplace")
    return lambda at: python_value(column[at])
