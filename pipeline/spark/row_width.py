"""Arrow batches for Python without Spark's check of their bytes before each row, where all rows are narrow.

Spark ends an Arrow batch at a number of rows or of bytes. Before each row it adds up the bytes of all columns again
(`BatchedPythonArrowInput`), which takes a third of the time in which a task gets its rows. With narrow rows the number
of rows bounds the bytes, too. A batch's plan therefore checks each row's width in one comparison, and the first wide
row fails the job; the caller then runs the job again with Spark's check.
"""

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as t

from ...store.versions.column_types import quote_for_spark

NO_BYTE_LIMIT = {"spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1)}
"""Spark setting with which the bytes of an Arrow batch are not checked."""
_MAX_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
_BATCH_BYTES = 64 << 20
"""Spark's default limit for the bytes of an Arrow batch."""
_WIDE_ROW = "slackwater: a wide row"
_FIXED_BYTES = 16
"""Maximum bytes of a value of fixed width, a decimal's."""
_FIXED_TYPES = (t.NumericType, t.BooleanType, t.DateType, t.TimestampType, t.TimestampNTZType, t.NullType)
_SIZED_TYPES = (t.StringType, t.BinaryType)


def with_width_check(partition: Column, rows: DataFrame) -> Column | None:
    """Return a column that fails the job at a wide row, and else equals `partition`, an int column that is never null.

    Returns None if the schema of `rows` does not bound a row's width, or if a batch's number of rows is not limited.
    """
    max_bytes = _max_row_bytes(rows.sparkSession, rows.schema)
    if max_bytes <= 0:
        return None
    lengths = [
        f"coalesce(octet_length({quote_for_spark(field.name)}), 0)"
        for field in rows.schema
        if isinstance(field.dataType, _SIZED_TYPES)
    ]
    if not lengths:
        return partition
    return partition + F.expr(f"IF({' + '.join(lengths)} <= {max_bytes}, 0, CAST(raise_error('{_WIDE_ROW}') AS int))")


def is_wide_row_error(error: BaseException) -> bool:
    """Return True if a job failed because of `with_width_check`."""
    return _WIDE_ROW in str(error)


def _max_row_bytes(spark: SparkSession, schema: t.StructType) -> int:
    """Return the maximum bytes of a row's strings with which a full batch stays below the limit; 0 if unknown."""
    max_rows = int(spark.conf.get(_MAX_ROWS) or 0)
    if max_rows <= 0 or not all(isinstance(field.dataType, (*_FIXED_TYPES, *_SIZED_TYPES)) for field in schema):
        return 0
    return _BATCH_BYTES // max_rows - _FIXED_BYTES * len(schema)
