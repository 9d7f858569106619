"""Look-ups in open SSTs equal other look-ups, for keys and values of all types.

The store's models check the same while versions are committed, rows expire, columns change and keys are forgotten.
"""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from slackwater.errors import Usage
from slackwater.snapshot.query.columns import hashed_key, hashed_keys
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.read.cache import SstCache
from slackwater.store.read.multi_get import multi_get
from slackwater.store.sst.arrow_types import python_rows
from slackwater.store.sst.hashing import FAST_KEY_TYPES, hash_key, hash_keys
from slackwater.store.versions.entries.ssts import Sst
from slackwater.store.versions.manifest import Column, Table, Ttl

from tests.models.profiles import scaled
from tests.models.tables import TABLES, VALUES, same_form
from tests.support.state_rows import Hashes, Key, Values, columns, rows_of_open, write_version

MORE = (*VALUES, Column("on", "date32[day]"), Column("z", "float"), Column("o", "struct<a: int32, b: list<string>>"))


class Struct(dict[str, object]):
    """A struct value that can be hashed."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple(self.items()))


STRUCTS = (None, *(Struct(x=x, y=y) for x in (0.0, float("nan"), None) for y in ("a", None)))
NESTED = (Column("k", "struct<x: double, y: string>"),), st.tuples(st.sampled_from(STRUCTS))
KINDS = {name: each for name, each in TABLES.items() if not name.startswith("long text")} | {"struct": NESTED}
rows_put = st.none() | st.tuples(
    st.none() | st.integers(-5, 5),
    st.sampled_from((None, "", "å", "x" * 40)),
    # Beyond what Python's times can hold.
    st.sampled_from((None, 0, 1 << 55)),
    st.sampled_from((None, 0, 1 << 29)),
    st.sampled_from((None, float("nan"), 0.5)),
    st.sampled_from((None, {"a": 1, "b": ["c", None]})),
)


def as_text(rows: list[dict[str, object] | None]) -> list[str]:
    """Return rows as text, so that NaN equals NaN."""
    return [repr(row) for row in rows]


@scaled(60, in_ci=2_000)
@given(st.data(), st.sampled_from(sorted(KINDS)), st.sampled_from([1, 5]), st.sampled_from([0, 2]), st.booleans())
def test_look_ups_in_open_ssts_equal_other_look_ups(
    tmp_path_factory: pytest.TempPathFactory,
    data: st.DataObject,
    kind: str,
    partitions: int,
    modulus: int,
    expires: bool,
) -> None:
    key, keys = KINDS[kind]
    table = Table(key, MORE, partitions, ttl=Ttl(1_000) if expires else None)
    store, cache, hashes = MemoryStore(), SstCache(tmp_path_factory.mktemp("cache"), 1 << 40), Hashes(modulus)
    ssts, asked = tuple[Sst, ...](), list[Key](data.draw(st.lists(keys, max_size=3)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("slackwater.store.read.decode.BLOCK_ROWS", data.draw(st.sampled_from([1, 2, 1 << 20])))
        for seq in range(1, data.draw(st.integers(1, 4)) + 1):
            each = st.lists(st.tuples(keys, rows_put), min_size=1, max_size=5, unique_by=lambda one: same_form(one[0]))
            changes: dict[Key, Values | None] = dict(data.draw(each))
            asked += changes
            ssts += write_version(store, cache, table, changes, seq, hashes, clock_ms=seq * 500)
        asked_for = columns(table.key, asked)
        hashed = hashes.of(table, asked_for)
        for clock_ms in (0, 1_600, 2_000) if expires else (None,):
            found, there = multi_get(store, cache, ssts, table, hashed, asked_for, clock_ms=clock_ms)
            expected = [row if is_there else None for row, is_there in zip(python_rows(found), there, strict=True)]
            opened = rows_of_open(store, cache, ssts, table, hashed, asked_for, clock_ms)
            assert as_text(opened) == as_text(expected)
    cache.close()


TYPES = sorted(FAST_KEY_TYPES)


@given(st.data(), st.lists(st.sampled_from(TYPES), min_size=1, max_size=3))
def test_a_single_key_of_text_and_numbers_is_parsed_and_hashed_like_many(data: st.DataObject, types: list[str]) -> None:
    def value(kind: str) -> st.SearchStrategy[object]:
        bits = int(kind.removeprefix("int")) if kind != "string" else 0
        numbers = st.integers(-(1 << bits - 1), (1 << bits - 1) - 1).map(str) if bits else st.nothing()
        return st.none() | numbers | st.text(max_size=40) | st.sampled_from(("0", "-0", "+1", " 1", "01", "1_0", "٣"))

    table = Table(tuple(Column(f"k{at}", kind) for at, kind in enumerate(types)), (), 1)
    key = data.draw(st.tuples(*map(value, types)))
    found = hashed_key(table, key)
    try:
        (expected,) = hashed_keys("t", table, [key])
    except Usage:
        assert found is None
    else:
        assert found in (None, expected)
        assert found is not None or any(kind != "string" for kind in types)


@given(st.text(max_size=80), st.integers(-(1 << 63), (1 << 63) - 1), st.none() | st.integers(-128, 127))
def test_a_key_has_the_same_hash_alone_and_in_a_table(text: str, long: int, byte: int | None) -> None:
    rows = pa.table({"s": [text], "n": [long], "i": pa.array([byte], pa.int8())})
    assert hash_key((text, long, byte), ("string", "int64", "int8")) == hash_keys(rows, rows.schema.names)[0]
