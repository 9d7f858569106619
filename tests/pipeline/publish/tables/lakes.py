"""Tables of both formats in a folder, with readers of each format."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import duckdb
import pyarrow as pa
import slackwater as sw
from deltalake import DeltaTable
from pyiceberg.catalog import Catalog, load_catalog
from slackwater.pipeline.api.table_sink import TableSink
from slackwater.pipeline.publish.tables.open import open_table
from slackwater.pipeline.publish.tables.protocol import LakeTable, Mark

Row = Mapping[str, Any]


class Lake(Protocol):
    """A folder with tables."""

    def sink(self, name: str = "out", **options: Any) -> TableSink:
        """Declare a sink that publishes to the table `name`."""

    def read(self, name: str = "out", snapshot: str = "") -> pa.Table:
        """Read a snapshot with the format's own reader; by default the newest snapshot."""

    def files(self, name: str = "out") -> list[str]:
        """Return the paths of the data files."""

    def write(self, rows: pa.Table, name: str = "out") -> None:
        """Append rows as another program would."""


class DeltaLake:
    """A folder with Delta tables."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def sink(self, name: str = "out", **options: Any) -> TableSink:
        return sw.delta(str(self.folder / name), **options)

    def read(self, name: str = "out", snapshot: str = "") -> pa.Table:
        return DeltaTable(self.folder / name, version=int(snapshot) if snapshot else None).to_pyarrow_table()

    def files(self, name: str = "out") -> list[str]:
        return [file.removeprefix("file://") for file in DeltaTable(self.folder / name).file_uris()]

    def write(self, rows: pa.Table, name: str = "out") -> None:
        from deltalake import write_deltalake

        write_deltalake(self.folder / name, rows, mode="append")


class IcebergLake:
    """A folder with Iceberg tables and their catalog."""

    def __init__(self, folder: Path) -> None:
        self.options = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}"}
        self.catalog.create_namespace("sales")

    @property
    def catalog(self) -> Catalog:
        return load_catalog("lake", **self.options)

    def sink(self, name: str = "out", **options: Any) -> TableSink:
        return sw.iceberg(f"lake.sales.{name}", options=self.options, **options)

    def read(self, name: str = "out", snapshot: str = "") -> pa.Table:
        table = self.catalog.load_table(f"sales.{name}")
        return table.scan(snapshot_id=int(snapshot) if snapshot else None).to_arrow()

    def files(self, name: str = "out") -> list[str]:
        tasks = self.catalog.load_table(f"sales.{name}").scan().plan_files()
        assert not any(task.delete_files for task in tasks)
        return [task.file.file_path.removeprefix("file://") for task in tasks]

    def write(self, rows: pa.Table, name: str = "out") -> None:
        self.catalog.load_table(f"sales.{name}").append(rows)


def by_duckdb(lake: Lake, name: str = "out") -> pa.Table:
    """Read the data files of the newest snapshot with DuckDB. In these tests, neither format has delete files."""
    return duckdb.read_parquet(lake.files(name), union_by_name=True, hive_partitioning=True).to_arrow_table()


class Writer:
    """A stage's sink that writes to a table, without an app around it."""

    def __init__(self, lake: Lake, period: str = "first", **options: Any) -> None:
        self.sink = lake.sink(**options)
        self.period = period
        self.table: LakeTable = open_table(self.sink, self.sink.address)
        self.table.load("app/stage/out", period)

    def mark(self, version: int) -> Mark:
        return Mark("app/stage/out", self.period, version)

    def publish(self, version: int, **columns: Any) -> None:
        self.table.publish(self.mark(version), pa.table(columns))
