"""Streaming queries with random types of keys and values, and many stateful operators per query.

Spark allows only one aggregation in update mode, but runs several if its check for unsupported operations is off.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

BATCHES = 2
_ROWS = 16
_NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
_VALUES: list[tuple[DataType, list[Any]]] = [
    (BooleanType(), [True, False]),
    (ByteType(), [0, -1, 127]),
    (ShortType(), [0, -1, 32_767]),
    (IntegerType(), [0, 1, -(2**31)]),
    (LongType(), [0, 1, 2**63 - 1]),
    (FloatType(), [0.0, -0.0, 1.5, float("nan"), float("-inf")]),
    (DoubleType(), [0.0, -0.0, 0.1, float("nan"), float("inf")]),
    (DecimalType(5, 2), [Decimal("0.00"), Decimal("-1.50"), Decimal("999.99")]),
    (DecimalType(18, 4), [Decimal("0.0001"), Decimal("-1.5000")]),
    (DecimalType(38, 10), [Decimal(1), Decimal("-9999999999999999999999999999.0000000001")]),
    (StringType(), ["", "NULL", r"\N", "é", "a b"]),
    (BinaryType(), [b"", b"\x00\xff", b"a"]),
    (DateType(), [date(1969, 12, 31), date(2026, 3, 1)]),
    (TimestampType(), [_NOON, _NOON + timedelta(microseconds=1)]),
    (TimestampNTZType(), [each.replace(tzinfo=None) for each in (_NOON, _NOON - timedelta(days=30_000))]),
]
_PLAIN = [kind for kind, _ in _VALUES]
_JSON = [
    "[1,2]",
    '{"b":1.5,"a":null}',
    '{"a":{"x":[]}}',
    "null",
    '"null"',
    "1",
    "true",
    "1e300",
    "12345678901234567890",
]
_NAMES = ["a", "A", "b c", "x.y", "é", "sum", "key", "value", "index", "partition_id", "_z", "1"]


@dataclass(frozen=True)
class Shape:
    """Columns of an operator's rows; the key columns come first."""

    key: tuple[tuple[str, DataType], ...]
    values: tuple[tuple[str, DataType], ...]

    @property
    def columns(self) -> tuple[tuple[str, DataType], ...]:
        """Return all columns."""
        return self.key + self.values


def shapes(random: Random, number: int) -> list[Shape]:
    """Return random columns for this many operators."""
    return [_shape(random) for _ in range(number)]


def _shape(random: Random) -> Shape:
    names = random.sample(_NAMES, 6)
    key = [(name, _key_type(random, 2)) for name in names[: random.randint(1, 3)]]
    return Shape(tuple(key), tuple((name, _value_type(random, 3)) for name in names[3 : random.randint(4, 6)]))


def _key_type(random: Random, depth: int) -> DataType:
    if depth and random.random() < 0.45:
        return _struct([_key_type(random, depth - 1) for _ in range(random.randint(1, 3))], random)
    return random.choice(_PLAIN)


def _value_type(random: Random, depth: int) -> DataType:
    inner = depth - 1
    match random.randrange(6) if depth else 0:
        case 1 | 2:
            return _struct([_value_type(random, inner) for _ in range(random.randint(1, 3))], random)
        case 3:
            return ArrayType(_value_type(random, inner))
        case 4:
            return MapType(random.choice([StringType(), IntegerType(), DateType()]), _value_type(random, inner))
        case 5:
            return VariantType()
        case _:
            return random.choice(_PLAIN)


def _struct(inside: Sequence[DataType], random: Random) -> StructType:
    names = random.sample(_NAMES, len(inside))
    return StructType([StructField(name, kind) for name, kind in zip(names, inside, strict=True)])


def _value(random: Random, kind: DataType) -> Any:
    """Return a random value of a type. It is often null, or a struct of nulls; a variant is JSON text."""
    if random.random() < 0.2:
        return None
    match kind:
        case StructType():
            nothing = random.random() < 0.2
            return tuple(None if nothing else _value(random, each.dataType) for each in kind.fields)
        case ArrayType():
            return [_value(random, kind.elementType) for _ in range(random.randrange(3))]
        case MapType():
            keys = random.sample(_values_of(kind.keyType), 2)[: random.randrange(3)]
            return {key: _value(random, kind.valueType) for key in keys}
        case VariantType():
            return random.choice(_JSON)
        case _:
            return random.choice(_values_of(kind))


def _values_of(kind: DataType) -> list[Any]:
    return next(values for of, values in _VALUES if of == kind)


def _as_text(kind: DataType) -> DataType:
    """Return the type of a column before variants are parsed."""
    match kind:
        case StructType():
            return StructType([StructField(each.name, _as_text(each.dataType)) for each in kind.fields])
        case ArrayType():
            return ArrayType(_as_text(kind.elementType))
        case MapType():
            return MapType(kind.keyType, _as_text(kind.valueType))
        case VariantType():
            return StringType()
        case _:
            return kind


def _parsed(column: Column, kind: DataType) -> Column:
    if "variant" not in kind.simpleString():
        return column
    match kind:
        case StructType():
            fields = [_parsed(column.getField(each.name), each.dataType).alias(each.name) for each in kind.fields]
            return F.when(column.isNotNull(), F.struct(*fields))
        case ArrayType():
            return F.transform(column, lambda each: _parsed(each, kind.elementType))
        case MapType():
            return F.transform_values(column, lambda _, each: _parsed(each, kind.valueType))
        case _:
            return F.parse_json(column)


def write_input(
    spark: SparkSession, of: Sequence[Shape], random: Random, folder: Path, *, negative_zeros: bool = True
) -> StructType:
    """Write a file for each batch, with the columns of all operators. Returns the schema for Spark.

    Without `negative_zeros` no key has -0.0.
    """
    fields = [StructField(f"c{n}_{m}", _as_text(kind)) for n, each in enumerate(of) for m, (_, kind) in _numbered(each)]
    schema = StructType([*fields, StructField("at", TimestampType())])
    folder.mkdir()
    for batch in range(BATCHES):
        rows = [
            (
                *(
                    value if negative_zeros or at >= len(each.key) else _without_sign(value)
                    for each in of
                    for at, value in enumerate(_value(random, kind) for _, kind in each.columns)
                ),
                _NOON + timedelta(minutes=40 * batch + random.randrange(30)),
            )
            for _ in range(_ROWS)
        ]
        spark.createDataFrame(rows, schema).coalesce(1).write.parquet(str(folder.with_name(f"part{batch}")))
        (part,) = folder.with_name(f"part{batch}").glob("*.parquet")
        os.utime(part.rename(folder / f"{batch}.parquet"), (1_000 + batch, 1_000 + batch))
    return schema


def _without_sign(value: Any) -> Any:
    """Return a key value with -0.0 replaced by 0.0."""
    if isinstance(value, tuple):
        return tuple(map(_without_sign, value))
    return value + 0.0 if isinstance(value, float) else value


def _numbered(shape: Shape) -> Iterator[tuple[int, tuple[str, DataType]]]:
    return enumerate(shape.columns)


def _rows(source: DataFrame, number: int, shape: Shape, side: str = "") -> DataFrame:
    columns = [_parsed(F.col(f"c{number}_{m}"), kind).alias(side + name) for m, (name, kind) in _numbered(shape)]
    return source.select(*columns, F.col("at").alias(f"{side}at"))


def _all(rows: DataFrame) -> DataFrame:
    """Combine all columns into one, so that Spark cannot prune any from the state."""
    return rows.select(F.to_json(F.struct(*(F.col(f"`{name}`") for name in rows.columns))).alias("all"))


def aggregated(rows: DataFrame, shape: Shape) -> DataFrame:
    """Aggregate the first and the last of each value by key."""
    of = [
        made.alias(f"v{n}{at}")
        for n, (name, _) in enumerate(shape.values)
        for at, made in enumerate((F.first(F.col(f"`{name}`")), F.last(F.col(f"`{name}`"))))
    ]
    return rows.groupBy(*(F.col(f"`{name}`") for name, _ in shape.key)).agg(F.count("*").alias("n"), *of)


def query(spark: SparkSession, of: Sequence[Shape], source: Path, schema: StructType, kind: str) -> DataFrame:
    """Return one query with an operator of this kind for each shape: `aggregate`, `distinct`, or `join`."""

    # One source, which all operators read.
    read = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(source))
    found = []
    for number, shape in enumerate(of):
        if kind == "aggregate":
            made = aggregated(_rows(read, number, shape), shape)
        elif kind == "distinct":
            made = _rows(read, number, shape).select(*(F.col(f"`{name}`") for name, _ in shape.key)).dropDuplicates()
        else:
            left, right = (
                _rows(read.withWatermark("at", "30 minutes"), number, shape, side) for side in ("left_", "right_")
            )
            same = [F.col(f"`left_{name}`") == F.col(f"`right_{name}`") for name, _ in shape.key]
            near = F.expr("right_at BETWEEN left_at - INTERVAL 30 MINUTES AND left_at + INTERVAL 30 MINUTES")
            made = left.join(right, [*same, near], "leftOuter")
        found.append(_all(made))
    union = found[0]
    for each in found[1:]:
        union = union.union(each)
    return union
