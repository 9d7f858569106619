"""Bundles: a written bundle reads back equal; invalid or hostile files are refused with one sentence."""

import dataclasses
import io
import json
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from slackwater.errors import Refused
from slackwater.operations.debugging.replay import bundle as bundles
from slackwater.operations.debugging.replay.bundle import (
    Bundle,
    BundledInput,
    BundledOutput,
    Index,
    before_schema,
    committed_schema,
)
from slackwater.operations.debugging.replay.inputs import ORIGIN_SCHEMA, InputRecords
from slackwater.store.versions.manifest import Column, Table, Ttl

from tests.models.profiles import scaled

ROUTES = Table(
    key=(Column("origin", "string"), Column("number", "int32")),
    values=(Column("flights", "int64"), Column("_sum", "decimal128(38, 2)"), Column("at", "timestamp[us, tz=UTC]")),
    partitions=4,
)

TOPIC = pa.schema([("key", pa.binary()), ("value", pa.binary()), ("offset", pa.int64())])
SENT = pa.schema([("origin", pa.string()), ("delays", pa.list_(pa.float64()))])
INT64 = st.integers(-(2**63), 2**63 - 1)
NO_TIMES = {
    "seq": 1,
    "before_clock_ms": 0,
    "clock_ms": 0,
    "before_watermark_ms": None,
    "bound_ms": None,
    "before_due_ms": None,
    "next_due_ms": None,
    "due_ms": None,
    "some_keys": False,
}
VALUES = {
    pa.binary(): st.binary(max_size=8),
    pa.string(): st.text(max_size=8),
    pa.bool_(): st.booleans(),
    pa.int8(): st.integers(0, 1),
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.int64(): INT64,
    pa.decimal128(38, 2): st.decimals(-(10**6), 10**6, places=2),
    pa.timestamp("us", "UTC"): INT64,
    pa.list_(pa.float64()): st.lists(st.floats(allow_nan=False), max_size=3),
}


def tables(schema: pa.Schema, *, nulls: bool = True) -> st.SearchStrategy[pa.Table]:
    def column(field: pa.Field) -> st.SearchStrategy[object]:
        return st.none() | VALUES[field.type] if nulls and field.nullable else VALUES[field.type]

    def table(rows: list[tuple[object, ...]]) -> pa.Table:
        columns = [pa.array([row[at] for row in rows], field.type) for at, field in enumerate(schema)]
        return pa.Table.from_arrays(columns, schema=schema)

    return st.lists(st.tuples(*map(column, schema)), max_size=4).map(table)


@st.composite
def some_bundles(draw: st.DrawFn) -> Bundle:
    table = draw(st.sampled_from([None, ROUTES, with_ttl()]))
    records = {}
    for name in draw(st.sampled_from([("flights",), ("flights", "weather")])):
        place = draw(tables(ORIGIN_SCHEMA, nulls=False))
        rows = draw(tables(TOPIC))
        size = min(place.num_rows, rows.num_rows)
        records[name] = InputRecords(f"{name}-topic", "", rows.slice(0, size), place.slice(0, size))
    known = draw(st.booleans())
    return Bundle(
        Index(
            app="flights",
            stage="routes",
            version=draw(st.integers(2, 2**53 - 1)),
            time_ms=1,
            program="flights.py",
            inputs=tuple(BundledInput(name, each.topic, "") for name, each in records.items()),
            outputs=(BundledOutput("by-route", ("origin",), known),),
            table=table,
            **{**NO_TIMES, "clock_ms": draw(INT64), "some_keys": draw(st.booleans())},
        ),
        draw(st.binary(max_size=50)),
        records,
        draw(tables(before_schema(table))) if table is not None else None,
        draw(tables(committed_schema(table))) if table is not None else None,
        {"by-route": draw(tables(SENT))} if known else {},
    )


def with_ttl() -> Table:
    return Table(ROUTES.key, ROUTES.values, 2, ttl=Ttl(1_000, "at"))


def one(**index: object) -> Bundle:
    rows = pa.Table.from_arrays([pa.array([b"k"]), pa.array([b"v"]), pa.array([7])], schema=TOPIC)
    place = pa.Table.from_arrays(
        [pa.array([each], kind) for each, kind in zip((0, 7, 0, 5, 0), ORIGIN_SCHEMA.types, strict=True)],
        schema=ORIGIN_SCHEMA,
    )
    said = {
        "app": "flights",
        "stage": "routes",
        "version": 3,
        "time_ms": 1,
        "program": "flights.py",
        "inputs": (BundledInput("flights", "flights", ""),),
        "outputs": (),
        "table": ROUTES,
        **NO_TIMES,
    }
    return Bundle(
        Index(**{**said, **index}),  # type: ignore[arg-type]
        b"app = 1\n",
        {"flights": InputRecords("flights", "", rows, place)},
        before_schema(ROUTES).empty_table(),
        committed_schema(ROUTES).empty_table(),
        {},
    )


def read(path: Path, data: bytes) -> Bundle:
    path.write_bytes(data)
    return bundles.read(path)


def rebuilt(bundle: Bundle, change: Callable[[dict[str, bytes]], object]) -> bytes:
    """Return the bytes of a bundle with changed members."""
    with zipfile.ZipFile(io.BytesIO(bundles.encode(bundle))) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    change(members)
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, member in members.items():
            archive.writestr(name, member)
    return data.getvalue()


def with_index(**said: object) -> Callable[[dict[str, bytes]], object]:
    def change(members: dict[str, bytes]) -> None:
        members["index.json"] = json.dumps({**json.loads(members["index.json"]), **said}).encode()

    return change


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bundles") / "case.zip"


@scaled(25)
@given(some_bundles())
def test_a_written_bundle_reads_back_equal(path: Path, bundle: Bundle) -> None:
    data = bundles.encode(bundle)
    assert read(path, data) == bundle
    assert bundles.encode(bundle) == data


def test_equal_bundles_are_equal_bytes_on_disk_and_no_other_files_stay(tmp_path: Path) -> None:
    for name in ("a.zip", "b.zip"):
        bundles.write(one(), tmp_path / name)
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()
    assert {each.name for each in tmp_path.iterdir()} == {"a.zip", "b.zip"}


def test_an_unwritable_bundle_path_is_reported(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="cannot be written: No such file"):
        bundles.write(one(), tmp_path / "nowhere" / "a.zip")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda members: members.update({"../../escaped.py": b""}), r"a member '\.\./\.\./escaped\.py'"),
        (lambda members: members.update({"/etc/passwd": b""}), "a member '/etc/passwd'"),
        (lambda members: members.update({"inputs/1.arrow": b""}), "a member 'inputs/1.arrow'"),
        (lambda members: members.pop("index.json"), "it lacks 'index.json'"),
        (lambda members: members.pop("program.py"), "it lacks 'program.py'"),
        (lambda members: members.pop("inputs/0.arrow"), "it lacks 'inputs/0.arrow'"),
        (lambda members: members.pop("committed.arrow"), "it lacks 'committed.arrow'"),
        (lambda members: members.update({"inputs/0.arrow": b"no Arrow"}), "'inputs/0.arrow' is not an Arrow stream"),
        (lambda members: members.update({"inputs/0.arrow": members["inputs/0.arrow"][:300]}), "is not an Arrow stream"),
        (lambda members: members.update({"inputs/0.arrow": members["before.arrow"]}), "the origin of its records"),
        (lambda members: members.update({"before.arrow": members["committed.arrow"]}), "'before.arrow' has columns"),
        (lambda members: members.update({"index.json": b"{"}), "its index.json is not readable"),
        (lambda members: members.update({"index.json": b"\xff"}), "its index.json is not readable"),
        (lambda members: members.update({"index.json": b"[" * 100_000}), "its index.json is not readable"),
        (with_index(format=0), "its format is 0"),
        (with_index(format="1"), "its index.json is not readable"),
        (with_index(version=0), "its index.json is not readable"),
        (with_index(app="../up"), "its index.json is not readable"),
        (with_index(program="../../bad.py"), "its index.json is not readable"),
        (with_index(program="/etc/bad.py"), "its index.json is not readable"),
        (with_index(seq=9), "seq is 9"),
        (with_index(table=None), "a member 'before.arrow'"),
    ],
)
def test_a_zip_that_is_no_bundle_is_refused(path: Path, change: Callable[[dict[str, bytes]], object], why: str) -> None:
    with pytest.raises(Refused, match=why) as refused:
        read(path, rebuilt(one(), change))
    assert str(path) in refused.value.message
    assert "--bundle" in refused.value.hint


def test_columns_of_an_unsupported_type_are_refused(path: Path) -> None:
    table = json.loads(zipfile.ZipFile(io.BytesIO(bundles.encode(one()))).read("index.json"))["table"]
    table["values"][0]["type"] = "pickle"
    with pytest.raises(Refused, match=r"table\.values\[0\]\.type is 'pickle'"):
        read(path, rebuilt(one(), with_index(table=table)))


def test_a_newer_format_asks_for_a_newer_slackwater(path: Path) -> None:
    with pytest.raises(Refused, match="a bundle of format 2; this slackwater reads formats up to 1") as refused:
        read(path, rebuilt(one(), with_index(format=2)))
    assert "upgrade" in refused.value.hint


def test_unknown_fields_of_a_newer_bundle_are_ignored(path: Path) -> None:
    assert read(path, rebuilt(one(), with_index(mood="good"))) == one()


def test_a_zip_bomb_is_refused_before_it_is_unpacked(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = rebuilt(one(), lambda members: members.update({"program.py": b" " * 10_000_000}))
    assert len(bomb) < 50_000
    monkeypatch.setattr(bundles, "MAX_BYTES", 1_000_000)
    with pytest.raises(Refused, match="its members have 10,"):
        read(path, bomb)
    with pytest.raises(Refused, match="expected at most 1,000,000 in a bundle"):
        bundles.encode(dataclasses.replace(one(), program=b" " * 10_000_000))


def test_a_member_larger_than_its_declared_size_is_refused(path: Path) -> None:
    data = bytearray(rebuilt(one(), lambda members: members.update({"program.py": b" " * 100_000})))
    for where in range(len(data) - 4):
        if data[where : where + 4] == (100_000).to_bytes(4, "little"):
            data[where : where + 4] = (10).to_bytes(4, "little")
    with pytest.raises(Refused, match="is not a valid bundle"):
        read(path, bytes(data))


@given(st.data())
def test_damaged_bytes_are_a_bundle_or_are_refused(path: Path, data: st.DataObject) -> None:
    written = bytearray(bundles.encode(one()))
    for _ in range(data.draw(st.integers(1, 4))):
        written[data.draw(st.integers(0, len(written) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(written)) | st.just(len(written)))
    with suppress(Refused):
        read(path, bytes(written[:cut]))


def test_a_missing_file_and_a_text_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="cannot be read: No such file"):
        bundles.read(tmp_path / "none.zip")
    with pytest.raises(Refused, match="is not a valid bundle"):
        read(tmp_path / "text.zip", b"text")
