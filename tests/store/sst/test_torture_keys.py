"""Difficult keys are written, looked up, queried, merged and typed on the command line."""

import json
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import duckdb
import pytest
from msgspec.structs import replace
from slackwater.snapshot.cut.graph import Cut
from slackwater.snapshot.diff.candidates import changed_keys
from slackwater.snapshot.query.columns import get
from slackwater.snapshot.query.sql import connect, run_query
from slackwater.snapshot.verify.sst import reread_sst
from slackwater.store.compaction.merge import run_compaction
from slackwater.store.compaction.plan import Compaction, apply_results
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.read.cache import SstCache
from slackwater.store.read.duckdb_view import register_table
from slackwater.store.read.multi_get import multi_get
from slackwater.store.sst.sorted_runs import by_partition, sorted_runs
from slackwater.store.versions.entries.ssts import Sst
from slackwater.store.versions.manifest import Column, Table

from tests.support.state_rows import Hashes, Key, Values, columns, manifest_of, write_version

NAN = float("nan")
MIB = "m" * (1 << 20)

KEYS: dict[str, list[Any]] = {
    "string": [None, "", " ", "\0", "a", "A", "NULL", MIB, MIB[:-1] + "n", MIB[:-1]],
    # é composed and decomposed, Latin and Cyrillic a, a space that is none, an emoji and its parts.
    "string that looks alike": [
        "\u00e9",
        "e\u0301",
        "a",
        "\u0430",
        "a\u00a0",
        "a ",
        "a\u200b",
        "👩‍🚀",
        "👩🚀",
        "ﬁ",
        "fi",
    ],
    "binary": [None, b"", b"\0", b"\0\0", b"\xff" * 40],
    "bool": [None, True, False],
    "int8": [None, 0, -1, 127, -128],
    "int64": [None, 0, -1, 2**63 - 1, -(2**63)],
    "float": [None, 0.0, NAN, float("inf"), float("-inf"), 1e-45],
    "double": [None, 0.0, NAN, float("inf"), float("-inf"), 5e-324, 0.1],
    "decimal128(4, 2)": [None, Decimal("0.00"), Decimal("-0.01"), Decimal("99.99")],
    "decimal128(18, 0)": [None, Decimal(0), Decimal(10**18 - 1), Decimal(1 - 10**18)],
    "decimal128(19, 5)": [None, Decimal("0.00001"), Decimal("-99999999999999.99999")],
    "decimal128(38, 0)": [None, Decimal(0), Decimal(10**38 - 1), Decimal(1 - 10**38), Decimal(128), Decimal(-128)],
    "timestamp[us, tz=UTC]": [
        None,
        datetime(1, 1, 1, tzinfo=UTC),
        datetime(1969, 12, 31, 23, 59, 59, 999999, UTC),
        datetime(9999, 12, 31, 23, 59, 59, 999999, UTC),
    ],
    "timestamp[us]": [None, datetime(2013, 3, 31, 2, 30), datetime(1, 1, 1)],  # noqa: DTZ001
    "date32[day]": [None, date(1, 1, 1), date(1970, 1, 1), date(9999, 12, 31)],
    "struct<s: string, x: double>": [
        None,
        {"s": None, "x": None},
        {"s": "", "x": 0.0},
        {"s": "a", "x": NAN},
        {"s": "a", "x": None},
        {"s": None, "x": NAN},
    ],
    "struct<at: timestamp[us, tz=UTC], `a b`: struct<d: decimal128(38, 2), b: binary>>": [
        None,
        {"at": None, "a b": None},
        {"at": None, "a b": {"d": None, "b": None}},
        {"at": datetime(2013, 1, 1, tzinfo=UTC), "a b": {"d": Decimal("0.01"), "b": b"\xff"}},
        {"at": datetime(2013, 1, 1, tzinfo=UTC), "a b": {"d": Decimal("-0.01"), "b": b"\xff"}},
    ],
}
"""Different keys of each column type."""
SAME: dict[str, list[tuple[Any, Any]]] = {
    "float": [(0.0, -0.0), (NAN, -NAN)],
    "double": [(0.0, -0.0), (NAN, -NAN)],
    "struct<s: string, x: double>": [({"s": "", "x": 0.0}, {"s": "", "x": -0.0}), ({"s": "a", "x": NAN},) * 2],
    "decimal128(4, 2)": [(Decimal("0.00"), Decimal("-0.0"))],
}
"""Pairs of forms of the same key."""

NESTED = (
    Column("n", "int64"),
    Column("trip", "struct<from: string, stops: list<struct<at: date32[day], late: bool>>>"),
    Column("tags", "list<string>"),
    Column("fares", "map<string, decimal128(10, 2)>"),
)


def values_of(number: int) -> Values:
    """Return nested values that identify `number`, with some null or empty parts."""
    trip = (
        None if number % 3 == 0 else {"from": f"stop {number}", "stops": [{"at": date(2013, 1, 1), "late": None}, None]}
    )
    tags = None if number % 4 == 1 else ["a", None, "é"][: number % 4]
    fares = None if number % 5 == 2 else [("one way", Decimal(number)), ("return", None)][: number % 3]
    return (number, trip, tags, fares)


def as_text(value: Any) -> str | None:
    """Return a key as it is typed on the command line."""
    match value:
        case None:
            return None
        case bool():
            return str(value).lower()
        case bytes():
            return value.hex()
        case datetime() | date():
            return value.isoformat()
        case dict():
            return json.dumps({k: v if isinstance(v, dict) else as_text(v) for k, v in value.items()}, default=as_text)
        case _:
            return str(value)


def newest(table: Table, ssts: tuple[Sst, ...], version: int = 1) -> Cut:
    return Cut("app", {"t": replace(manifest_of(table, ssts, version), stage="t")})


ONE_HASH = ["string", "int64", "double", "decimal128(38, 0)", *(kind for kind in KEYS if kind.startswith("struct"))]
"""Types whose keys get equal hashes, so that the keys themselves are compared. Other types are compared alike."""


@pytest.mark.parametrize(
    ("kind", "modulus"),
    [
        *(pytest.param(kind, 0, id=f"{kind}-hashed") for kind in KEYS),
        *(
            # `ONE_HASH` shows it, too.
            pytest.param(kind, 1, id=f"{kind}-one hash for all", marks=[] if kind in ONE_HASH else pytest.mark.ci)
            for kind in KEYS
        ),
    ],
)
def test_every_key_keeps_its_identity_in_all_parts_of_the_store(kind: str, modulus: int, cache: SstCache) -> None:
    store, hashes, keys = MemoryStore(), Hashes(modulus), KEYS[kind]
    # The second column is the same for all: two key columns take other ways than one.
    table = Table((Column("k", kind.removesuffix(" that looks alike")), Column("c", "int32")), NESTED, 1)
    model: dict[int, Values] = {}
    ssts: tuple[Sst, ...] = ()
    versions = [range(len(keys)), range(0, len(keys), 2), range(1, len(keys), 3)]
    for seq, numbers in enumerate(versions, 1):
        changes: list[tuple[Key, Values | None]] = []
        for number in numbers:
            put = None if seq == 2 and number % 4 == 0 else values_of(number + 7 * seq)
            changes.append(((keys[number], 7), put))
            model.pop(number, None)
            model |= {} if put is None else {number: put}
        ssts = (*write_version(store, cache if seq == 1 else None, table, Changes(changes), seq, hashes), *ssts)
    asked = columns(table.key, [(key, 7) for key in keys])
    expected = [model.get(number, (None,) * len(NESTED)) for number in range(len(keys))]
    for _ in ("as written", "merged"):
        found, there = multi_get(store, cache, ssts, table, hashes.of(table, asked), asked)
        assert there.tolist() == [number in model for number in range(len(keys))]
        assert [tuple(row.values()) for row in found.to_pylist()] == expected
        assert multi_get(store, None, ssts, table, hashes.of(table, asked), asked)[0] == found
        with duckdb.connect() as con:
            register_table(con, "t", store, cache, manifest_of(table, ssts))
            rows = con.sql("SELECT n, trip, tags, fares FROM t ORDER BY n").to_arrow_table().to_pylist()
            assert [tuple(row.values()) for row in rows] == sorted(model.values(), key=lambda put: put[0])
        for sst in ssts if not modulus else ():
            assert [fault for checked in reread_sst(store, sst, table) for fault in checked.faults] == []
        (mine,) = by_partition(ssts, 1).values()
        inputs = tuple(sst for one in sorted_runs(mine) for sst in one)
        ssts = apply_results(
            ssts, [run_compaction(store, cache, "app", "stage", table, Compaction(0, 1, inputs, True))]
        )
    assert len(ssts) == 1
    if modulus:
        return
    for number, key in enumerate(keys):
        row = get(store, newest(table, ssts), "t", [as_text(key), "7"]).to_pylist()
        assert [tuple(one.values())[2:] for one in row] == ([model[number]] if number in model else [])


class Changes:
    """Changes by key, for keys that Python cannot hash."""

    def __init__(self, changes: list[tuple[Key, Values | None]]) -> None:
        self._changes = changes

    def __iter__(self) -> Iterator[Key]:
        return (key for key, _ in self._changes)

    def __len__(self) -> int:
        return len(self._changes)

    def values(self) -> list[Values | None]:
        return [put for _, put in self._changes]


@pytest.mark.parametrize("kind", SAME)
def test_equal_keys_in_different_forms_are_the_same_key(kind: str, cache: SstCache) -> None:
    store = MemoryStore()
    table = Table((Column("k", kind),), (Column("v", "int64"),), 1)
    for one, other in SAME[kind]:
        ssts = write_version(store, cache, table, Changes([((one,), (1,))]), 1)
        ssts = (*write_version(store, cache, table, Changes([((other,), (2,))]), 2), *ssts)
        for key in (one, other):
            asked = columns(table.key, [(key,)])
            values, _ = multi_get(store, cache, ssts, table, Hashes().of(table, asked), asked)
            assert values["v"].to_pylist() == [2]
        with closing(connect(store, cache, newest(table, ssts))) as con:
            assert run_query(con, "SELECT v FROM t")["v"].to_pylist() == [2]


def test_bisect_distinguishes_keys_with_the_same_hash(cache: SstCache) -> None:
    store, table = MemoryStore(), Table((Column("k", "struct<s: string>"),), (Column("v", "int64"),), 1)
    keys = [None, {"s": None}]
    hashes = Hashes().of(table, columns(table.key, [(key,) for key in keys]))
    assert len(set(hashes.tolist())) == 1, "Spark gives a null struct and a struct of nulls one hash"
    old = write_version(store, cache, table, Changes([((key,), (1,)) for key in keys]), 1)
    new = (*write_version(store, cache, table, Changes([((None,), (-1,))]), 2), *old)
    with closing(connect(store, cache, newest(table, new, 2))) as con:
        rows = run_query(con, "SELECT * FROM t WHERE v < 0")
    (change,) = changed_keys(store, cache, manifest_of(table, old), manifest_of(table, new, 2), rows)
    assert (change.key, change.before, change.after) == ({"k": None}, {"v": 1}, {"v": -1})
