"""Opening of a sink's table, by the table's format."""

from ....common.extras import require_extras
from ...api.table_sink import TableSink
from .protocol import LakeTable


def open_table(sink: TableSink, address: str) -> LakeTable:
    """Return the table of a sink at an address. Raises `Refused` if the format's extra is not installed."""
    require_extras(sink.format, f"the sink {sink.name!r}, a table of {sink.format.capitalize()},")
    if sink.format == "delta":
        from .delta import DeltaLakeTable

        return DeltaLakeTable(sink, address)
    from .iceberg import IcebergLakeTable

    return IcebergLakeTable(sink, address)
