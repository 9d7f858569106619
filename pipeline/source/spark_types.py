"""Converts between Spark's types and Arrow's, with times in UTC. Hides differences between pyspark versions."""

from inspect import signature

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, from_arrow_type, to_arrow_schema
from pyspark.sql.types import DataType, StructType

_IN_UTC = {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}


def arrow_schema_of(schema: StructType) -> pa.Schema:
    return to_arrow_schema(schema, **_IN_UTC)  # type: ignore[arg-type]


def spark_schema_of(schema: pa.Schema) -> StructType:
    """Convert an Arrow schema to a Spark schema. Times without a zone become `timestamp_ntz`."""
    return from_arrow_schema(schema, prefer_timestamp_ntz=True)


def spark_type_of(kind: pa.DataType) -> DataType:
    return from_arrow_type(kind, prefer_timestamp_ntz=True)
