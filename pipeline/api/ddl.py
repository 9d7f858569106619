"""Columns as a Spark DDL string, to Spark's own type."""

from pyspark.sql.types import StructType


def parse_ddl(ddl: str) -> StructType:
    """The columns of a DDL string such as "n long, at timestamp". Raises pyspark's `ParseException`."""
    columns = StructType.fromDDL(ddl)
    assert isinstance(columns, StructType)  # noqa: S101  a list of columns is nothing else
    return columns
