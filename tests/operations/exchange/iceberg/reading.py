"""Iceberg tables as pyiceberg reads them, including tables of an in-memory store."""

from typing import Any

import pyarrow as pa
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.io import FileIO, InputFile, OutputFile
from pyiceberg.table import StaticTable
from pyiceberg.table.metadata import TableMetadataUtil
from slackwater.operations.exchange.iceberg.files import MemoryFile
from slackwater.store.objects.protocol import ObjectStore


class StoreIO(FileIO):
    """File access to stores for pyiceberg."""

    def __init__(self, *stores: ObjectStore) -> None:
        super().__init__()
        self._stores = stores

    def new_input(self, location: str) -> InputFile:
        for store in self._stores:
            if location.startswith(f"{store.url}/"):
                return MemoryFile(location, store.get(location.removeprefix(f"{store.url}/")))
        raise FileNotFoundError(location)

    def new_output(self, location: str) -> OutputFile:
        raise AssertionError("readers write nothing")

    def delete(self, location: Any) -> None:
        raise AssertionError("readers write nothing")


def opened(store: ObjectStore, target: ObjectStore, name: str) -> StaticTable:
    """Open an Iceberg table under the root `target`; its SSTs are in the store."""
    # Like readers, which get the number of the newest metadata.
    folder = f"{name}/metadata"
    data = target.get(f"{folder}/v{target.get(f'{folder}/version-hint.text').decode()}.metadata.json")
    metadata = TableMetadataUtil.parse_raw(data.decode())
    return StaticTable(("test", name), metadata, "", StoreIO(store, target), NoopCatalog("test"))


def rows(table: StaticTable, snapshot: int | None = None) -> list[dict[str, object]]:
    """Return the table's rows at a snapshot, by default the newest, sorted by the first column."""
    found: pa.Table = table.scan(snapshot_id=snapshot).to_arrow()
    return sorted(found.to_pylist(), key=lambda row: str(next(iter(row.values()))))
