"""`spark.read.format("slackwater")`: a table of an app at a moment, as a Spark batch data source in Python.

Spark finds the format if slackwater is installed (`pyspark_slackwater`); otherwise call `register`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from collections.abc import Collection, MutableMapping

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from .pipeline.spark.table_reader import TableReader
    from .snapshot.cut.graph import Cut

_OPTIONS = ("at", "path", "store", "version", "clock_ms")


class SparkSource(DataSource):
    """Data source: `spark.read.format("slackwater").option("at", "-5m").load("shop/countries")`.

    The moment is resolved when the source is loaded, so all actions of the DataFrame read the same moment. Options:
    `at`, the part of a ref after the `@`; `store`, the store root, default as for the command line. `.schema(…)`
    selects columns.
    """

    @classmethod
    def name(cls) -> str:
        return "slackwater"

    def __init__(self, options: MutableMapping[str, str]) -> None:
        """Raise `Usage` for an unknown option or an invalid path or moment, and `NotFound` for an unknown table."""
        super().__init__(options)
        from .common import instants
        from .common.validation import nearest_hint
        from .errors import Usage
        from .pipeline.spark.table_reader import StoreLocation, VersionedTable
        from .settings import load

        for name in options:
            if name.lower() not in _OPTIONS:
                raise Usage(
                    f"{name!r} is not an option of format 'slackwater'{nearest_hint(name, _OPTIONS)}",
                    hint="the options are 'at' and 'store'; .schema(…) selects columns",
                )
        settings = load(store=options.get("store"))
        place, path = StoreLocation(settings.store_root(), settings.s3), options.get("path", "")
        at, version = options.get("at", ""), options.get("version", "").removeprefix("v")
        if version and (at or not version.isdecimal()):
            raise Usage(
                "the options 'version' and 'at' exclude each other: give one of them"
                if at
                else f"option 'version' is {version!r}; expected a version number"
            )
        if version:
            self._table = VersionedTable.from_version(place, path, int(version), int(options.get("clock_ms", "0")))
        else:
            self._table = VersionedTable.find(place, path, at, instants.now_ms())

    def schema(self) -> StructType:
        from .pipeline.spark.table_reader import visible_columns

        return visible_columns(self._table)

    def reader(self, schema: StructType) -> TableReader:
        from .pipeline.spark.table_reader import reader_for

        return reader_for(self._table, schema)


def load_table(spark: SparkSession, root: str, cut: Cut, table: str, columns: Collection[str] = ()) -> DataFrame:
    """Return a table of a cut in the store at `root`, or some of its columns. Raises `NotFound`."""
    from .errors import NotFound
    from .pipeline.spark.table_reader import StoreLocation, VersionedTable, visible_columns
    from .settings import load

    register(spark)
    at = VersionedTable.from_cut(StoreLocation(root, load(store=root).s3), cut, table)
    schema, rows = visible_columns(at), spark.read.format(SparkSource.name())
    for name in columns:
        if name not in schema.names:
            raise NotFound(f"column of table {table!r}", name, schema.names)
    if columns:
        rows = rows.schema(type(schema)([schema[name] for name in columns]))
    return rows.options(store=root, version=at.version, clock_ms=at.clock_ms).load(f"{at.app}/{at.table}")


def register(spark: SparkSession) -> None:
    """Register the format with a Spark session, unless Spark has found it."""
    from pyspark.errors import AnalysisException

    try:
        spark.dataSource.register(SparkSource)
    except AnalysisException as error:
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise
