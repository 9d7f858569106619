"""Spark's types in Arrow and back, times with a zone in UTC: functions of pyspark's that change with its version."""

from inspect import signature

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, from_arrow_type, to_arrow_schema
from pyspark.sql.types import DataType, StructType

_IN_UTC = {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}
"""Before Spark 4.2 it was UTC without a word."""


def arrow_of(schema: StructType) -> pa.Schema:
    """Columns of Spark's in Arrow's types."""
    return to_arrow_schema(schema, **_IN_UTC)  # type: ignore[arg-type]


def spark_schema_of(schema: pa.Schema) -> StructType:
    """Columns of Arrow's in Spark's types; times without a zone stay such."""
    return from_arrow_schema(schema, prefer_timestamp_ntz=True)


def spark_type_of(kind: pa.DataType) -> DataType:
    """A type of Arrow's in Spark's."""
    return from_arrow_type(kind, prefer_timestamp_ntz=True)
