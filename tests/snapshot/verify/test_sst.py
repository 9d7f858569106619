"""Damage of each kind to the SSTs of a cut is found, and the object is named."""

import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import get_type_hints

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, reject
from hypothesis import strategies as st
from msgspec.structs import replace
from slackwater.operations.staging.clone import clone
from slackwater.snapshot.take.taking import request_snapshot, try_complete
from slackwater.snapshot.verify.sst import check_sizes, reread_sst, row_faults
from slackwater.snapshot.verify.verify import Report, verify
from slackwater.store.objects.counting import CountingStore
from slackwater.store.objects.local import LocalStore
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.objects.protocol import ObjectStore
from slackwater.store.sst.hashing import hash_keys, partition_of
from slackwater.store.sst.schema import TOMBSTONE
from slackwater.store.sst.writer import SstWriter, prepare_rows
from slackwater.store.versions import codec, keys
from slackwater.store.versions.entries.ssts import Sst
from slackwater.store.versions.manifest import Column, Manifest, Table

from tests.models.profiles import scaled
from tests.support.histories import TABLES, FlightsApp, Kafka, flights, write_columns
from tests.support.hostile import as_it_is
from tests.support.manifests import any_value

STAGE = "aircraft"


class History:
    """A history that is written once. Tests damage copies of it."""

    def __init__(self) -> None:
        self.app = history_in(MemoryStore())
        self.objects = {info.key: self.app.store.get(info.key) for info in self.app.store.list("")}

    def fresh(self) -> FlightsApp:
        self.app.store = MemoryStore()
        for key, data in self.objects.items():
            self.app.store.put(key, data)
        return self.app


@pytest.fixture(scope="module")
def made() -> History:
    return History()


@pytest.fixture
def app(made: History) -> FlightsApp:
    """Return an app that has had compactions, deletions and a snapshot. Each test gets its own store."""
    return made.fresh()


def with_all(rows: pa.Table, column: str, value: int) -> pa.Table:
    """Return the rows with this value in all rows of a column."""
    place = rows.schema.get_field_index(column)
    field = rows.schema.field(place)
    return rows.set_column(place, field, pa.array([value] * rows.num_rows, field.type))


def history_in(store: ObjectStore) -> FlightsApp:
    app = FlightsApp(store, Kafka())
    app.run(flights(40, aircraft=30))
    app.delete(STAGE, "N003", "N004")
    app.compact(STAGE)
    asked = request_snapshot(store, "flights", "good", "ada@host")
    app.run(flights(20))
    app.delete("carriers", "C1")
    app.step_all()
    assert try_complete(store, "flights", asked) is not None
    app.claim(STAGE)
    app.send(*flights(5))
    app.step("legs")
    return app


def report(app: FlightsApp, ref: str = "flights", *, deep: bool = True) -> Report:
    return verify(app.store, ref, now_ms=app.clock.now_ms, deep=deep)


@pytest.mark.parametrize("ref", ["flights", "flights@good", "flights@~3", "flights/carriers@v4"])
@pytest.mark.parametrize("deep", [False, True])
def test_a_healthy_table_has_no_difference(app: FlightsApp, ref: str, deep: bool) -> None:
    found = report(app, ref, deep=deep)
    assert found.differences == ()
    checked = {each.check: each.checked for each in found.checks}
    assert checked["objects"] > 4
    assert (checked.get("rows", 0) > 0) is deep


@dataclass
class Damage:
    """Damages an SST of the head: gives it other rows, with a matching checksum."""

    app: FlightsApp

    @property
    def head(self) -> Manifest:
        key = keys.manifest("flights", STAGE, self.app.heads[STAGE].version)
        return codec.decode(self.app.store.get(key), Manifest, key=key)

    @property
    def sst(self) -> Sst:
        return max(self.head.ssts, key=lambda sst: sst.rows)

    def rows(self) -> pa.Table:
        return pq.read_table(io.BytesIO(self.app.store.get(self.sst.object)))

    def put(self, rows: pa.Table, /, **said: object) -> None:
        """Write an SST with these rows, and change fields of its entry in the manifest."""
        writer = SstWriter(TABLES[STAGE])
        writer.append(rows)
        new, data = writer.finish(app="flights", stage=STAGE, partition=self.sst.partition, level=self.sst.level)
        self.app.store.put(self.sst.object, data)
        self.say(**{"object": self.sst.object, **said}, of=new)

    def retype(self) -> None:
        """Declare another type for the key in the manifest."""
        table = replace(TABLES[STAGE], key=(Column("tail", "binary"),))
        key = keys.manifest("flights", STAGE, self.head.version)
        self.app.store.put(key, codec.encode(replace(self.head, table=table)))

    def say(self, of: Sst | None = None, **said: object) -> None:
        """Change fields of the SST's entry in the manifest."""
        head, sst = self.head, self.sst
        ssts = tuple(replace(of or sst, **said) if each == sst else each for each in head.ssts)
        self.app.store.put(keys.manifest("flights", STAGE, head.version), as_it_is(replace(head, ssts=ssts)))


def named(damage: Damage, name: str, seq: int = 1) -> pa.Table:
    """Return a row of this key."""
    row = damage.rows().slice(0, 1)
    key = pa.table({"tail": [name]})
    row = row.set_column(row.schema.get_field_index("tail"), row.schema.field("tail"), key["tail"])
    row = row.set_column(0, row.schema.field(0), pa.array(hash_keys(key, ["tail"])))
    return row.set_column(row.schema.get_field_index("_seq"), row.schema.field("_seq"), pa.array([seq]))


def elsewhere(damage: Damage) -> str:
    """Return a key of the other state partition."""
    names = pa.table({"tail": [f"X{number}" for number in range(20)]})
    here = partition_of(damage.rows()["_hash"].to_numpy()[:1], 2)[0]
    wanted = partition_of(hash_keys(names, ["tail"]), 2) != here
    return str(names["tail"].to_pylist()[int(np.argmax(wanted))])


def ordered(rows: pa.Table) -> pa.Table:
    return rows.sort_by([("_hash", "ascending"), ("tail", "ascending")])


def flip(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def rehashed(damage: Damage) -> None:
    rows = damage.rows()
    hashes = rows["_hash"].to_numpy().copy()
    hashes[1] += 1
    damage.put(rows.set_column(0, rows.schema.field(0), pa.array(hashes)))


DAMAGE: dict[str, tuple[Callable[[Damage], None], str]] = {
    "a missing object": (lambda damage: damage.app.store.delete(damage.sst.object), "the object is missing"),
    "a truncated object": (
        lambda damage: damage.app.store.put(damage.sst.object, damage.app.store.get(damage.sst.object)[:-3]),
        " bytes, found ",
    ),
    "a flipped byte": (
        lambda damage: damage.app.store.put(damage.sst.object, flip(damage.app.store.get(damage.sst.object), 99)),
        "expected checksum",
    ),
    "a row in the wrong partition": (
        lambda damage: damage.put(ordered(pa.concat_tables([damage.rows(), named(damage, elsewhere(damage))]))),
        "overlap in hashes and versions",
    ),
    "a row beyond the hashes of its SST": (
        lambda damage: damage.put(
            ordered(pa.concat_tables([damage.rows(), named(damage, elsewhere(damage))])),
            hash_min=damage.sst.hash_min,
            hash_max=damage.sst.hash_max,
        ),
        "; expected ",
    ),
    "a wrong hash": (rehashed, "its key hashes to"),
    "a key twice": (
        lambda damage: damage.put(damage.rows().take([0, 0, *range(1, damage.rows().num_rows)])),
        "occurs twice",
    ),
    "rows out of order": (
        lambda damage: damage.put(
            damage.rows().take([1, 0, *range(2, damage.rows().num_rows)]),
            hash_min=damage.sst.hash_min,
            hash_max=damage.sst.hash_max,
        ),
        "is not sorted by (_hash, key)",
    ),
    "a row from the future": (
        lambda damage: damage.put(
            ordered(pa.concat_tables([damage.rows().slice(1), named(damage, damage.rows()["tail"][0].as_py(), 99)])),
            seq_max=damage.sst.seq_max,
        ),
        "has _seq 99; expected",
    ),
    "a row too few": (lambda damage: damage.put(damage.rows().slice(1), rows=damage.sst.rows), "rows, found"),
    "tombstones that are not there": (lambda damage: damage.say(tombstones=1), "it has 0 tombstones; expected 1"),
    "an operation that is none": (
        lambda damage: damage.put(with_all(damage.rows(), "_op", 7)),
        "has _op 7; expected 0 or 1",
    ),
    "a row that replaced a later one": (
        lambda damage: damage.put(with_all(damage.rows(), "_prev_seq", 9_999)),
        "has _prev_seq 9999; expected less than its _seq",
    ),
    "other columns": (lambda damage: damage.retype(), "expected columns"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_to_an_sst_is_found_and_the_object_is_named(app: FlightsApp, kind: str) -> None:
    damage = Damage(app)
    how, expected = DAMAGE[kind]
    how(damage)
    messages = [difference.message for difference in report(app).differences]
    assert any(expected in message and damage.sst.object in message for message in messages), messages


SAID: dict[str, tuple[dict[str, int], str]] = {
    "hashes upside down": ({"hash_min": 5, "hash_max": 4}, "hash_max is 4; expected not below hash_min, 5"),
    "hashes of more than 64 bits": ({"hash_max": 1 << 63}, "hash_max is 9223372036854775808; expected a hash"),
    "versions to come": ({"seq_max": 1_000}, "seq_max is 1000; expected at most the version"),
    "more tombstones than rows": (
        {"tombstones": 10**6},
        "tombstones is 1000000; expected with others at most its rows",
    ),
    "no rows": ({"rows": 0}, "rows is 0; expected a number of rows from 1"),
}


@pytest.mark.parametrize("kind", SAID)
def test_impossible_metadata_of_an_sst_is_found_without_reading_it(app: FlightsApp, kind: str) -> None:
    said, expected = SAID[kind]
    Damage(app).say(**said)
    messages = [difference.message for difference in report(app, deep=False).differences]
    assert any(expected in message for message in messages), messages
    report(app)


def test_ssts_may_not_overlap_in_both_keys_and_versions(app: FlightsApp) -> None:
    head = app.heads[STAGE]
    twin = replace(head.ssts[0], object=keys.sst("flights", STAGE, "TWIN"))
    app.store.put(twin.object, app.store.get(head.ssts[0].object))
    app.store.put(keys.manifest("flights", STAGE, head.version), codec.encode(replace(head, ssts=(*head.ssts, twin))))
    (difference,) = report(app, deep=False).differences
    assert "overlap in hashes and versions" in difference.message


def test_new_rows_must_be_newer_than_all_existing_ones() -> None:
    app = history_in(MemoryStore())
    head = app.step(STAGE)
    app.store.put(keys.manifest("flights", STAGE, head.version), codec.encode(replace(head, seq=1)))
    (difference,) = report(app, deep=False).differences
    assert "wrote rows of _seq 1; expected more than" in difference.message
    app.store.put(keys.manifest("flights", STAGE, head.version), as_it_is(replace(head, seq=head.version + 1)))
    assert any("seq is" in difference.message for difference in report(app, deep=False).differences)


@pytest.mark.parametrize("key", ["", "/etc", "a/../b", "flights//x"])
def test_a_key_that_no_store_accepts_is_a_difference(app: FlightsApp, key: str) -> None:
    Damage(app).say(object=key)
    for deep in (False, True):
        assert any(
            ("object is" in difference.message and key in difference.message) or "prefix is" in difference.message
            for difference in report(app, deep=deep).differences
        )


def test_missing_and_truncated_objects_are_found_by_their_sizes(app: FlightsApp) -> None:
    first, second, *_ = app.heads[STAGE].ssts
    app.store.delete(first.object)
    app.store.put(second.object, app.store.get(second.object)[:-1])
    messages = {difference.message for difference in report(app, deep=False).differences}
    assert messages == {
        f"object {first.object} is missing",
        f"object {second.object} has {second.bytes - 1} bytes; expected {second.bytes}",
    }


def test_each_object_of_a_cut_is_checked_once(app: FlightsApp) -> None:
    ssts = {sst.object for manifest in app.heads.values() for sst in manifest.ssts}
    objects = next(each.checked for each in report(app, deep=False).checks if each.check == "objects")
    assert objects == len(ssts)


def test_sizes_come_from_a_listing_or_from_the_objects_whichever_is_faster() -> None:
    store = CountingStore(MemoryStore())
    for number in range(3_500):
        store.put(f"a/sst/{number:04}.parquet", b"12345")
    expected = {"a/sst/0000.parquet": 5, "a/sst/0999.parquet": 5}
    store.reset()
    assert [one.faults for one in check_sizes(store, expected)] == [(), ()]
    assert store.counts == {"list": 1}
    expected = {"a/sst/0000.parquet": 5, "a/sst/3400.parquet": 5, "a/sst/3499.parquet": 4}
    expected |= {"a/sst/3498.parquet": 6, "a/sst/9.parquet": 5}
    del expected["a/sst/3400.parquet"]
    for key in [f"a/sst/x{number}" for number in range(1_000)]:
        store.put(key, b"1")
    store.reset()
    wrong = [fault for one in check_sizes(store, expected) for fault in one.faults]
    assert wrong == [
        "object a/sst/3498.parquet has 5 bytes; expected 6",
        "object a/sst/3499.parquet has 5 bytes; expected 4",
        "object a/sst/9.parquet is missing",
    ]
    for number in range(5_000):
        store.put(f"b/sst/{number:04}.parquet", b"12345")
    expected = {"b/sst/0000.parquet": 5, "b/sst/4998.parquet": 4, "b/sst/4999.parquet": 6}
    store.reset()
    assert [one.faults for one in check_sizes(store, expected)] == [
        (),
        ("object b/sst/4998.parquet has more than 4 bytes",),
        ("object b/sst/4999.parquet has fewer than 6 bytes",),
    ]
    assert store.counts == {"list": 3, "get_range": 2}


def requests_for(num_keys: int) -> dict[str, int]:
    store = CountingStore(MemoryStore())
    app = FlightsApp(store, Kafka())
    app.run(flights(20))
    app.load(STAGE, num_keys)
    store.reset()
    assert report(app, deep=False).consistent
    return store.counts


def test_verification_takes_the_same_requests_at_any_size_of_the_state() -> None:
    assert requests_for(1_000) == requests_for(100_000)


def test_ssts_that_a_clone_shares_are_verified_under_their_own_root(tmp_path: Path) -> None:
    app = history_in(LocalStore(tmp_path / "production"))
    other = LocalStore(tmp_path / "staging")
    clone(app.store, "flights", "staging", topics={}, channels=app.kafka, target_store=other, by="ada@host")
    for deep in (False, True):
        assert verify(other, "staging", now_ms=10**14, deep=deep).differences == ()
    staging = FlightsApp(other, app.kafka, "staging", clock=app.clock)
    staging.run(flights(10))
    staging.compact(STAGE)
    for ref in ("staging", "staging@~1"):
        for deep in (False, True):
            assert verify(other, ref, now_ms=10**14, deep=deep).differences == ()
    shared = next(sst for sst in staging.heads["carriers"].ssts if sst.root)
    app.store.delete(shared.object)
    for deep in (False, True):
        (difference,) = verify(other, "staging", now_ms=10**14, deep=deep).differences
        assert shared.object in difference.message
        assert "missing" in difference.message


def test_copied_counts_per_reader_of_a_channel_are_unknown_in_a_clone() -> None:
    app = FlightsApp(MemoryStore(), Kafka(), start=["legs", "aircraft"])
    app.send(*flights(4))
    app.step("legs")
    app.step(STAGE)
    app.send(*flights(3))
    app.step("legs")
    head = app.heads[STAGE]
    second = {"stage": "second", "version": 1, "outputs": {}, "table": None, "ssts": ()}
    app.commit(Manifest(**{name: getattr(head, name) for name in head.__struct_fields__} | second))
    app.step(STAGE)
    app.send(*flights(2))
    app.step("legs")
    clone(app.store, "flights", "staging", topics={}, channels=app.kafka, by="ada@host")
    at_source, copied = (verify(app.store, ref, now_ms=10**14) for ref in ("flights@clone-staging", "staging"))
    books = [[(each.receiver, each.in_flight.rows) for each in report.ledger] for report in (at_source, copied)]
    assert books == [[(STAGE, 2), ("second", 5)], [(STAGE, None), ("second", None)]]
    assert copied.consistent


def test_an_invalid_root_is_a_difference(app: FlightsApp) -> None:
    Damage(app).say(root="gopher://x")
    for deep in (False, True):
        assert any("gopher://x" in difference.message for difference in report(app, deep=deep).differences)


NUMBERS = Table((Column("n", "int64"),), (Column("v", "int64"),), 1)


def numbers(values: list[int]) -> pa.Table:
    keyed = pa.table({"n": pa.array(values, pa.int64())})
    filled = np.ones(len(values), np.int64)
    ops = pa.array([TOMBSTONE if value % 3 == 0 else 0 for value in values], pa.int8())
    return prepare_rows(
        pa.table({"_hash": hash_keys(keyed, ["n"]), "n": keyed["n"], "v": filled, "_seq": filled, "_op": ops}), NUMBERS
    )


def faults(rows: pa.Table, sst: Sst, block: int) -> list[str]:
    return list(row_faults(rows.combine_chunks().to_batches(max_chunksize=block), sst, ["n"]))


def entry(rows: pa.Table) -> Sst:
    hashes = pc.min_max(rows["_hash"]).as_py()
    tombstones = pc.sum(rows["_op"]).as_py()
    return Sst("x", 0, 0, rows.num_rows, 1, "", hashes["min"], hashes["max"], 1, 1, 0, "", 0, tombstones)


@scaled(50)
@given(
    values=st.lists(st.integers(-(2**63), 2**63 - 1), min_size=2, max_size=40, unique=True),
    block=st.integers(1, 10),
    one=st.integers(0, 39),
    other=st.integers(0, 39),
)
def test_rows_must_be_ordered_and_unique_across_blocks(values: list[int], block: int, one: int, other: int) -> None:
    rows = numbers(values)
    sst = entry(rows)
    assert faults(rows, sst, block) == []
    one, other = one % rows.num_rows, other % rows.num_rows
    if one == other:
        twice = rows.take([*range(one + 1), *range(one, rows.num_rows)])
        assert any("occurs twice" in fault for fault in faults(twice, entry(twice), block))
    else:
        order = list(range(rows.num_rows))
        order[one], order[other] = order[other], order[one]
        assert any("is not sorted by" in fault for fault in faults(rows.take(order), sst, block))


def test_a_tombstone_with_column_values_is_no_damage(app: FlightsApp) -> None:
    head = app.heads[STAGE]
    columns = {name: np.ones(1, np.int64) for name in ("flights", "delay", "_squares")}
    runs = write_columns(app.store, "flights", STAGE, head.version, pa.array(["N999"]), columns, op=TOMBSTONE)
    assert [each.faults for run in runs for each in reread_sst(app.store, run, TABLES[STAGE])] == [(), ()]


@scaled(30, in_ci=300)
@given(data=st.data())
def test_any_changed_byte_of_any_sst_is_found_and_the_object_is_named(made: History, data: st.DataObject) -> None:
    app = made.fresh()
    key = data.draw(st.sampled_from([sst.object for sst in app.heads[STAGE].ssts]))
    old = made.objects[key]
    app.store.put(key, flip(old, data.draw(st.integers(0, len(old) - 1))))
    (difference,) = report(app).differences
    assert (difference.check, difference.subject) == ("objects", key)


NOT_JUDGED = {"partition", "level"}
"""Fields of an entry that are not checked: hashes determine the partition, and the level only guides compaction."""


@scaled(75, in_ci=750)
@given(data=st.data())
def test_any_wrong_field_of_an_ssts_entry_is_found(made: History, data: st.DataObject) -> None:
    damage = Damage(made.fresh())
    sst = damage.sst
    name = data.draw(st.sampled_from(sorted(set(Sst.__struct_fields__) - NOT_JUDGED)))
    value = data.draw(
        any_value(get_type_hints(Sst, include_extras=True)[name]).filter(lambda value: value != getattr(sst, name))
    )
    try:
        damage.say(**{name: value})
    except ValueError:  # a checksum of half a byte has no stored form
        reject()
    assert not report(damage.app).consistent


@scaled(30, in_ci=300)
@given(data=st.data())
def test_any_other_table_in_the_manifest_is_a_difference(made: History, data: st.DataObject) -> None:
    damage = Damage(made.fresh())
    head = damage.head
    table = data.draw(st.one_of(st.none(), any_value(Table)))
    damage.app.store.put(keys.manifest("flights", STAGE, head.version), as_it_is(replace(head, table=table)))
    assert not report(damage.app).consistent
