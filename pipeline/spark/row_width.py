"""Conversion to Arrow batches for Python without Spark's check of each row's bytes, if all rows are narrow.

Spark ends an Arrow batch at a number of rows or of bytes. For the limit in bytes, Spark adds up the bytes of all
columns before each row (`BatchedPythonArrowInput`), which takes a third of the time for passing rows to a task. If all
rows are narrow, the limit in rows also limits the bytes. So the plan of a batch turns Spark's check off, and compares
the width of each row with a limit. The first wide row fails the job, and the caller runs the job again with Spark's
check.
"""

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as t

from ...store.versions.column_types import quote_for_spark

NO_BYTE_LIMIT = {"spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1)}
"""Spark setting that turns off the check of an Arrow batch's bytes."""
_MAX_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
_BATCH_BYTES = 64 << 20
"""Spark's default limit for the bytes of an Arrow batch."""
_WIDE_ROW = "slackwater: a wide row"
_FIXED_BYTES = 16
"""Maximum bytes of a value of fixed width. Decimals are the widest."""
_FIXED_TYPES = (t.NumericType, t.BooleanType, t.DateType, t.TimestampType, t.TimestampNTZType, t.NullType)
_SIZED_TYPES = (t.StringType, t.BinaryType)


def with_width_check(partition: Column, rows: DataFrame) -> Column | None:
    """Return a column with the values of the int column `partition`; a wide row makes the column fail the job.

    Returns None if the schema of `rows` does not limit a row's width, or if the number of rows of a batch is not
    limited.
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
    """Return the maximum bytes of a row's strings up to which a full batch stays below the limit; 0 if unknown."""
    max_rows = int(spark.conf.get(_MAX_ROWS) or 0)
    if max_rows <= 0 or not all(isinstance(field.dataType, (*_FIXED_TYPES, *_SIZED_TYPES)) for field in schema):
        return 0
    return _BATCH_BYTES // max_rows - _FIXED_BYTES * len(schema)
