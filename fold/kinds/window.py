"""Windows of time in a key, as `F.window` makes them: structs of `start` and `end`."""

from __future__ import annotations

import pyarrow as pa


def window_of(key: pa.Schema) -> str | None:
    """The first column of a key that is a window of time, as `F.window` makes them."""
    return next((field.name for field in key if _is_window(field.type)), None)


def _is_window(kind: pa.DataType) -> bool:
    return (
        pa.types.is_struct(kind)
        and [field.name for field in kind] == ["start", "end"]
        and all(pa.types.is_timestamp(field.type) for field in kind)
    )
