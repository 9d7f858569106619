import math
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st
from slackwater.errors import Usage
from slackwater.store.sst.arrow_types import to_arrow
from slackwater.store.sst.hashing import (
    has_negative_zero,
    hash_keys,
    hash_values,
    normalise_keys,
    partition_of,
    same_keys,
    sort_keys,
)

from tests.models.profiles import scaled

NAN = float("nan")

# What Spark 4.3.0 answered to `SELECT xxhash64(k)` for columns of these types.
SPARK: dict[str, list[tuple[Any, int]]] = {
    "bool": [(True, -6698625589789238999), (False, 3614696996920510707), (None, 42)],
    "int8": [(0, 3614696996920510707), (-1, 2017008487422258757), (-128, 4160238337661960656)],
    "int16": [(0, 3614696996920510707), (32767, 8952525448871805501), (-32768, -904511417458573795)],
    "int32": [
        (0, 3614696996920510707),
        (1, -6698625589789238999),
        (-1, 2017008487422258757),
        (2147483647, 1508894993788531228),
        (-2147483648, 2073849959933241805),
        (None, 42),
    ],
    "int64": [
        (0, -5252525462095825812),
        (1, -7001672635703045582),
        (-1, 3858142552250413010),
        (9223372036854775807, -3246596055638297850),
        (-9223372036854775808, -8619748838626508300),
        (None, 42),
    ],
    "float": [
        (0.0, 3614696996920510707),
        (-0.0, 3614696996920510707),
        (1.5, 6163473420726370430),
        (NAN, 2692338816207849720),
        (float("-inf"), -7580553461823983095),
        (None, 42),
    ],
    "double": [
        (0.0, -5252525462095825812),
        (-0.0, -5252525462095825812),
        (-0.1, 6802672523990651293),
        (NAN, -3127944061524951246),
        (float("inf"), 5810986238603807492),
        (5e-324, -7001672635703045582),
        (None, 42),
    ],
    "date32[day]": [
        (date(1970, 1, 1), 3614696996920510707),
        (date(2013, 1, 31), -2397725477404839249),
        (date(1900, 2, 28), -2695928276362326722),
        (None, 42),
    ],
    "timestamp[us, tz=UTC]": [
        (datetime(1970, 1, 1, tzinfo=UTC), -5252525462095825812),
        (datetime(2013, 1, 31, 23, 59, 59, 999999, UTC), -8097108502463621652),
        (datetime(1900, 2, 28, tzinfo=UTC), -3524682148652054024),
        (None, 42),
    ],
    "timestamp[us]": [(datetime(2013, 1, 31, 23, 59, 59, 999999), -8097108502463621652)],  # noqa: DTZ001
    "decimal128(10, 2)": [
        (Decimal("0.00"), -5252525462095825812),
        (Decimal("1.23"), -3178482946328430151),
        (Decimal("-1.23"), -2573642654262063070),
        (None, 42),
    ],
    "decimal128(18, 0)": [(Decimal(-1), 3858142552250413010), (Decimal(10**18 - 1), 2162198894918931945)],
    "decimal128(19, 0)": [
        (Decimal(0), -8959994473701255385),
        (Decimal(1), 6668291691252061002),
        (Decimal(-1), -4006032525457443936),
        (Decimal(127), -5998106174972408993),
        (Decimal(128), 6715097930120473301),
        (Decimal(-128), -7898411661632158123),
        (Decimal(-129), -6459515886037897956),
        (Decimal(255), 879945414100663330),
        (Decimal(256), 4805153208743283185),
        (Decimal(32767), -5198520329571243073),
        (Decimal(32768), 7486961118722643011),
        (Decimal(-32768), -4443336017607688062),
        (Decimal(-32769), 816881880154201779),
        (Decimal(10**19 - 1), -768917144950141986),
    ],
    "decimal128(38, 10)": [
        (Decimal("1.5"), -3765538183238091397),
        (Decimal("1234567890123456789012345678.0123456789"), -2748047213103270372),
        (Decimal("-9999999999999999999999999999.9999999999"), -2254039905620870768),
        (None, 42),
    ],
    "string": [
        ("", -7444071767201028348),
        ("a", -8582455328737087284),
        ("ab", 2710560539726725091),
        ("EWR", 1139777690536709630),
        ("abcd", -6810745876291105281),
        ("abcde", -990457398947679591),
        ("abcdefgh", 2470326616177429180),
        ("abcdefghijklmno", 7657402997733166237),
        ("x" * 31, -1716462135722163746),
        ("x" * 32, 1299777543150008824),
        ("x" * 33, -2751654916054470392),
        ("0123456789" * 7, 526385166351516111),
        ("xyz" * 400, -7290478567347074807),
        ("日本語", -619341062884681239),
        ("\0", -8959994473701255385),
        ("a\0", -3991939095231492476),
        (None, 42),
    ],
    "binary": [
        (b"", -7444071767201028348),
        (b"\xff\xfe", -1106782947571579601),
        (bytes(range(64)), -3582744155969569138),
        (None, 42),
    ],
}


def one_column(values: Sequence[object], kind: pa.DataType) -> pa.Table:
    return pa.table({"k": pa.array(values, kind)})


@pytest.mark.parametrize("kind", SPARK)
def test_hashes_equal_those_of_spark(kind: str) -> None:
    values, expected = zip(*SPARK[kind], strict=True)
    assert hash_keys(one_column(values, to_arrow(kind)), ["k"]).tolist() == list(expected)


def test_hashes_of_several_columns_are_chained_as_in_spark() -> None:
    rows = pa.table(
        {
            "a": pa.array(["EWR", None, "JFK", None], pa.string()),
            "b": pa.array([1, 2, None, None], pa.int64()),
            "c": pa.array([2.5, -0.0, NAN, None], pa.float64()),
            "d": pa.array([None, True, False, None], pa.bool_()),
        }
    )
    expected = [965681412917051057, 592692062394611613, 5829480121041550033, 42]
    assert hash_keys(rows, ["a", "b", "c", "d"]).tolist() == expected


def test_user_columns_whose_names_begin_with_an_underscore_are_hashed() -> None:
    """Spark hashes all key columns that a program names, even those that begin with an underscore."""
    rows = pa.table(
        {
            "_a": pa.array(["EWR", None, "JFK", None], pa.string()),
            "_key": pa.array([1, 2, None, None], pa.int64()),
            "_position": pa.array([2.5, -0.0, NAN, None], pa.float64()),
            "_d": pa.array([None, True, False, None], pa.bool_()),
        }
    )
    expected = [965681412917051057, 592692062394611613, 5829480121041550033, 42]
    assert hash_keys(rows, ["_a", "_key", "_position", "_d"]).tolist() == expected
    assert hash_keys(one_column(["EWR"], pa.string()).rename_columns(["_key"]), ["_key"]).tolist() == [
        in_signed(xxhash.xxh64_intdigest(b"EWR", 42))
    ]


def in_signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


@given(st.lists(st.binary(max_size=80) | st.binary(min_size=500, max_size=530), max_size=40), st.data())
def test_byte_strings_of_any_length_have_the_hash_of_the_xxhash_package(
    values: list[bytes], data: st.DataObject
) -> None:
    seeds = data.draw(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=len(values), max_size=len(values)))
    rows = pa.table({"seed": pa.array(seeds, pa.int64()), "k": pa.array(values, pa.binary())})
    first = hash_keys(rows, ["seed"])
    expected = [
        in_signed(xxhash.xxh64_intdigest(value, int(seed) % 2**64)) for seed, value in zip(first, values, strict=True)
    ]
    assert hash_keys(rows, ["seed", "k"]).tolist() == expected


@given(st.lists(st.text(max_size=20) | st.none(), max_size=30), st.integers(0, 5), st.integers(0, 5))
def test_slices_and_chunks_of_a_column_have_the_hashes_of_the_whole(
    values: list[str | None], head: int, tail: int
) -> None:
    whole = pa.array(["x", *values, "y"], pa.string())
    parts = pa.chunked_array([whole.slice(0, head), whole.slice(head)])
    sliced = parts.slice(tail)
    expected = hash_keys(pa.table({"k": whole}), ["k"])
    assert hash_keys(pa.table({"k": parts}), ["k"]).tolist() == expected.tolist()
    assert hash_keys(pa.table({"k": sliced}), ["k"]).tolist() == expected[tail:].tolist()


def test_more_strings_than_fit_a_block_have_the_hashes_of_each_alone() -> None:
    values = [f"key-{'0' * (i % 50)}{i}" for i in range(40_000)]
    expected = [in_signed(xxhash.xxh64_intdigest(value.encode(), 42)) for value in values]
    assert hash_keys(one_column(values, pa.string()), ["k"]).tolist() == expected
    assert hash_keys(one_column(values, pa.large_string()), ["k"]).tolist() == expected


def test_strings_that_look_alike_have_different_hashes() -> None:
    rows = one_column(["\u00c5", "A\u030a", "a", "A", "a ", "а"], pa.string())  # noqa: RUF001  Cyrillic, on purpose
    assert len(set(hash_keys(rows, ["k"]).tolist())) == 6


@pytest.mark.parametrize("kind", SPARK)
def test_no_rows_and_only_nulls_can_be_hashed(kind: str) -> None:
    assert hash_keys(one_column([], to_arrow(kind)), ["k"]).shape == (0,)
    assert hash_keys(pa.table({"k": pa.nulls(3, to_arrow(kind))}), ["k"]).tolist() == [42, 42, 42]


@pytest.mark.parametrize("values", [[], [None], [[1]]])
def test_a_list_or_map_is_refused_by_name_even_without_values(values: list[object]) -> None:
    for kind in (pa.list_(pa.int64()), pa.map_(pa.int64(), pa.int64())):
        rows = pa.table({"k": pa.array([], kind), "s": pa.array([], pa.struct([("inner", kind)]))})
        for column, named in (("k", "k"), ("s", "s.inner")):
            with pytest.raises(Usage, match=rf"'{named}' of type (list|map)<.*> cannot be a key") as caught:
                hash_keys(rows, [column])
            assert "list" in caught.value.hint
    with pytest.raises(Usage, match="cannot be a key"):
        hash_keys(pa.table({"k": pa.array(values, pa.list_(pa.int64()))}), ["k"])


NESTED = pa.struct(
    [("a", pa.string()), ("b", pa.struct([("x", pa.float64()), ("d", pa.decimal128(30, 2))])), ("c", pa.int8())]
)
inner = st.none() | st.fixed_dictionaries(
    {"x": st.sampled_from([None, 0.0, -0.0, NAN, 1.5]), "d": st.sampled_from([None, Decimal("0.01"), Decimal(-1)])}
)
structs = st.none() | st.fixed_dictionaries(
    {"a": st.sampled_from([None, "", "é", "e\u0301"]), "b": inner, "c": st.sampled_from([None, 0, -1])}
)


@given(st.lists(structs, min_size=1, max_size=8), st.integers(0, 3))
def test_the_hash_of_a_struct_is_that_of_its_fields_in_order(rows: list[dict[str, Any] | None], skip: int) -> None:
    column = pa.array([*[None] * skip, *rows], NESTED).slice(skip)  # with an offset, as slices have
    flat = {
        "a": pa.array([row and row["a"] for row in rows], pa.string()),
        "x": pa.array([row and row["b"] and row["b"]["x"] for row in rows], pa.float64()),
        "d": pa.array([row and row["b"] and row["b"]["d"] for row in rows], pa.decimal128(30, 2)),
        "c": pa.array([row and row["c"] for row in rows], pa.int8()),
    }
    assert hash_keys(pa.table({"k": column}), ["k"]).tolist() == hash_keys(pa.table(flat), [*flat]).tolist()


@given(st.lists(structs, min_size=1, max_size=12), st.integers(1, 2))
def test_structs_are_sorted_and_distinguished_by_value(rows: list[dict[str, Any] | None], hashes: int) -> None:
    forms = [_form(row) for row in rows]
    keys = normalise_keys(pa.table({"k": pa.array(rows, NESTED)}), ["k"])
    assert repr(keys["k"].to_pylist()).count("-0.0") == 0
    numbers = {form: number % hashes for number, form in enumerate(sorted(set(forms)))}
    order, repeats = sort_keys(np.array([numbers[form] for form in forms], np.int64), keys)
    found = [forms[number] for number in order.tolist()]
    assert repeats.tolist() == [i > 0 and found[i] == found[i - 1] for i in range(len(found))]
    assert (~repeats).sum() == len(set(forms))
    shuffled = keys.take(pa.array(order))
    assert same_keys(keys, shuffled, ["k"]).tolist() == [a == b for a, b in zip(forms, found, strict=True)]


def _form(value: object) -> str:
    if isinstance(value, dict):
        return repr(sorted((name, _form(inner)) for name, inner in value.items()))
    return repr(value).replace("-0.0", "0.0")


tags = st.none() | st.lists(st.none() | st.fixed_dictionaries({"t": st.sampled_from([None, "", "a"])}), max_size=3)
pairs = st.none() | st.lists(st.tuples(st.sampled_from(["a", "b"]), st.none() | st.booleans()), max_size=2)


@given(st.lists(st.tuples(tags, pairs), min_size=1, max_size=10), st.integers(0, 3))
def test_equal_nested_values_have_equal_digests_and_others_do_not(rows: list[Any], skip: int) -> None:
    kind = pa.struct([("t", pa.list_(pa.struct([("t", pa.string())]))), ("m", pa.map_(pa.string(), pa.bool_()))])
    values = [{"t": tag, "m": pair} for tag, pair in rows]
    found = hash_values(pa.array([*values[:skip], *values], kind).slice(min(skip, len(values)))).tolist()
    forms = [repr(value) for value in values]
    assert len({*zip(forms, found, strict=True)}) == len(set(forms)) == len(set(found))


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1), st.integers(1, 4096))
def test_partitions_are_equal_ranges_in_the_order_of_hashes(values: list[int], partitions: int) -> None:
    hashes = np.array(sorted(values), np.int64)
    found = partition_of(hashes, partitions)
    assert found.dtype == np.int32
    assert (np.diff(found) >= 0).all()
    assert found.tolist() == [(((h + 2**63) >> 32) * partitions) >> 32 for h in hashes.tolist()]


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1), st.integers(1, 1024))
def test_doubling_the_partitions_splits_each_into_two(values: list[int], partitions: int) -> None:
    hashes = np.array(values, np.int64)
    assert (partition_of(hashes, 2 * partitions) // 2 == partition_of(hashes, partitions)).all()


def test_the_lowest_and_highest_hash_are_in_the_first_and_last_partition() -> None:
    ends = np.array([-(2**63), 2**63 - 1])
    assert partition_of(ends, 7).tolist() == [0, 6]


@pytest.mark.parametrize(
    ("column", "has"),
    [
        (pa.array([0.0, None, math.nan, -1.0]), False),
        (pa.array([1.0, -0.0]), True),
        (pa.array([-0.0, 1.0]).slice(1), False),
        (pa.chunked_array([[1.0], [-0.0]], pa.float32()), True),
        (pa.array([{"a": {"b": -0.0}}, None]), True),
        (pa.array([{"a": None}], pa.struct([("a", pa.struct([("b", pa.float64())]))])), False),
        (pa.array([0, 1]), False),
    ],
)
def test_a_negative_zero_is_found_in_columns_and_structs(column: pa.Array | pa.ChunkedArray, has: bool) -> None:
    assert has_negative_zero(column) is has


def test_normalised_keys_have_one_zero_and_one_nan() -> None:
    odd_nan = np.array([0x7FF8000000000001, 0xFFF8000000000000], np.uint64).view(np.float64)
    rows = pa.table({"k": pa.array([-0.0, 0.0, *odd_nan, 1.5, None]), "v": pa.array([-0.0] * 6)})
    found = normalise_keys(rows, ["k"])
    bits = found["k"].combine_chunks().fill_null(7.0).to_numpy().view(np.uint64).tolist()
    canonical = int(np.array([np.nan]).view(np.uint64)[0])
    assert bits[:4] == [0, 0, canonical, canonical]
    assert found["k"].to_pylist()[4:] == [1.5, None]
    assert found["v"].combine_chunks().to_numpy().view(np.uint64).tolist() == [1 << 63] * 6
    assert found.schema == rows.schema


def test_null_keys_are_equal_and_so_are_nan_keys() -> None:
    left = pa.table({"a": pa.array([None, NAN, 1.0, None, 0.0]), "b": ["x", "x", "x", "x", None]})
    right = pa.table({"a": pa.array([None, NAN, NAN, 1.0, -0.0]), "b": ["x", "x", "x", "x", ""]})
    assert same_keys(left, right, ["a"]).tolist() == [True, True, False, False, True]
    assert same_keys(left, right, ["a", "b"]).tolist() == [True, True, False, False, False]


@scaled(50)
@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["", "a", "b", None]), st.sampled_from([0.0, NAN, None]))))
def test_keys_are_sorted_by_hash_and_key_and_duplicates_keep_their_order(
    keys: list[tuple[int, str | None, float | None]],
) -> None:
    hashes = np.array([key[0] for key in keys], np.int64)
    rows = pa.table(
        {"a": pa.array([k[1] for k in keys], pa.string()), "b": pa.array([k[2] for k in keys], pa.float64())}
    )
    order, repeats = sort_keys(hashes, rows)
    found = [(keys[i][0], keys[i][1], repr(keys[i][2])) for i in order.tolist()]
    assert sorted(order.tolist()) == list(range(len(keys)))
    assert [key[0] for key in found] == sorted(hashes.tolist())
    assert repeats.tolist() == [i > 0 and found[i] == found[i - 1] for i in range(len(found))]
    # All equal keys stand together: as many firsts as there are keys.
    assert (~repeats).sum() == len(set(found))
    for i in np.flatnonzero(repeats).tolist():
        assert order[i - 1] < order[i]
