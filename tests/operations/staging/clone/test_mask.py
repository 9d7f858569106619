"""Masked clones: all other columns equal the source's."""

import re
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from slackwater.errors import NotFound, Refused, SlackwaterError, Usage
from slackwater.operations.staging.clone import clone
from slackwater.operations.staging.clone_plan import ClonePlan, CloneTerms, find_unmasked_columns
from slackwater.snapshot.change.copies import ColumnMask, Masks
from slackwater.snapshot.cut.graph import Cut
from slackwater.state.kinds import aggregate, join, update, upsert
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.objects.protocol import ObjectStore
from slackwater.store.read.cache import SstCache
from slackwater.store.sst.schema import PUT, TOMBSTONE
from slackwater.store.versions import apps, history
from slackwater.store.versions.commit import commit
from slackwater.store.versions.manifest import AppInfo, Column, Declaration, Input, Manifest, Table

from tests.support.histories import Kafka, write_parts

PEOPLE = Table(
    (Column("id", "int64"),),
    (Column("name", "string"), Column("phone", "int32"), Column("seal", "binary"), Column("at", "int64")),
    2,
    state=upsert.upsert(by="at").stored,
)
Row = tuple[int, str | None, int | None, bytes | None, int, int]
"""Key, values, and a flag for tombstones."""


def people(store: ObjectStore, batches: list[list[Row]], table: Table = PEOPLE) -> Manifest:
    """Write an app of one stage, `people`, with one or two SSTs per batch."""
    from slackwater.store.sst.hashing import hash_keys

    apps.create_app(store, AppInfo("crm", 1))
    ssts: list[Any] = []
    for seq, batch in enumerate(batches, 1):
        by_key = {row[0]: row for row in batch}
        if not by_key:
            continue
        columns = list(zip(*by_key.values(), strict=True))
        kinds = (pa.int64(), pa.string(), pa.int32(), pa.binary(), pa.int64())
        names = [each.name for each in table.columns]
        rows = pa.table([pa.array(values, kind) for values, kind in zip(columns, kinds, strict=False)], names)
        rows = rows.append_column("_hash", pa.array(hash_keys(rows, ["id"])))
        rows = rows.append_column("_seq", pa.array([seq] * rows.num_rows))
        rows = rows.append_column("_op", pa.array(columns[-1], pa.int8()))
        ssts += write_parts(store, "crm", "people", table, rows)
    manifest = Manifest(
        "crm", "people", len(batches), 1, "w", 1, "batch", table=table, ssts=tuple(reversed(ssts)), by="test"
    )
    for version in range(1, len(batches)):
        commit(store, replace(manifest, version=version, time_ms=version, ssts=()))
    commit(store, replace(manifest, time_ms=len(batches) + 1))
    return manifest


def masked(store: ObjectStore, cache: SstCache, masks: Mapping[str, str], name: str = "test", **more: Any) -> ClonePlan:
    return clone(
        store, "crm", name, terms=CloneTerms(masks=masks), channels=Kafka(), cache=cache, by="ada@host", **more
    )


def rows_in(store: ObjectStore, app: str) -> list[list[dict[str, Any]]]:
    """Return the rows of each SST of the newest version, as stored."""
    import pyarrow.parquet as pq

    head = history.head(store, app, "people")
    assert head is not None
    in_order = sorted(head.ssts, key=lambda sst: (sst.seq_max, sst.hash_min))
    return [pq.read_table(pa.BufferReader(store.get(sst.object))).to_pylist() for sst in in_order]


ROWS = st.tuples(
    st.integers(0, 20),
    st.none() | st.sampled_from(["ada", "eve", "", "ünï", "a" * 300]),
    st.none() | st.integers(-5, 5),
    st.none() | st.sampled_from([b"", b"\0", b"ada"]),
    st.integers(0, 9),
    st.sampled_from([PUT, PUT, PUT, TOMBSTONE]),
)


@given(
    batches=st.lists(st.lists(ROWS, min_size=1, max_size=12), min_size=1, max_size=4),
    hidden=st.dictionaries(
        st.sampled_from(["name", "phone", "seal"]), st.sampled_from(["hash", "null"]), min_size=1, max_size=3
    ),
)
def test_unmasked_columns_are_equal_and_equal_values_get_equal_hashes(
    batches: list[list[Row]], hidden: dict[str, str], cache: SstCache
) -> None:
    store = MemoryStore()
    people(store, batches)
    masked(store, cache, {f"people.{column}": how for column, how in hidden.items()})
    became: dict[tuple[str, object], set[object]] = {}
    for before, after in zip(rows_in(store, "crm"), rows_in(store, "test"), strict=True):
        assert len(before) == len(after)
        for old, new in zip(before, after, strict=True):
            assert {n: v for n, v in old.items() if n not in hidden} == {
                n: v for n, v in new.items() if n not in hidden
            }
            for column in hidden:
                became.setdefault((column, old[column]), set()).add(new[column])
    for (column, value), values in became.items():
        (new,) = values
        if value is None or hidden[column] == "null":
            assert new is None
        elif column != "phone":
            assert new != value
        else:
            assert 0 <= new < 2**31
    texts = [new for (column, old), (new,) in became.items() if column == "name" and new is not None]
    assert len(set(texts)) == len(texts), "what differs goes on to differ"


def two(cache: SstCache) -> tuple[MemoryStore, list[Row]]:
    store = MemoryStore()
    rows: list[Row] = [(1, "ada", 7, b"x", 1, PUT), (2, "eve", 8, b"y", 1, PUT), (3, "ada", 7, b"x", 1, PUT)]
    people(store, [rows])
    return store, rows


def values(store: ObjectStore, app: str, column: str) -> dict[int, Any]:
    return {row["id"]: row[column] for rows in rows_in(store, app) for row in rows}


def test_a_mask_can_be_a_text_that_contains_the_hash(cache: SstCache) -> None:
    store, _ = two(cache)
    plan = masked(store, cache, {"people.name": "person-{}@example.org"})
    found = values(store, "test", "name")
    assert found[1] == found[3] != found[2]
    assert re.fullmatch(r"person-[0-9a-f]{16}@example\.org", found[1])
    assert plan.copies == {"people": sum(sst.bytes for sst in plan.source.stages["people"].ssts)}


def test_each_clone_hashes_with_its_own_salt_which_is_not_stored(cache: SstCache) -> None:
    store, _ = two(cache)
    for name in ("one", "other"):
        masked(store, cache, {"people.name": "hash"}, name)
    assert values(store, "one", "name")[1] != values(store, "other", "name")[1]
    notes = [info.key for info in store.list("") if b'"salt"' in store.get(info.key)]
    assert notes == []


def test_tables_without_masked_columns_are_shared(cache: SstCache) -> None:
    store, _ = two(cache)
    before = {info.key for info in store.list("")}
    masked(store, cache, {})
    assert [key for key in {info.key for info in store.list("")} - before if "/sst/" in key] == []


def test_a_dry_run_reports_the_bytes_to_write_and_changes_nothing(cache: SstCache) -> None:
    store, _ = two(cache)
    before = {info.key: store.get(info.key) for info in store.list("")}
    plan = masked(store, cache, {"people.phone": "null"}, dry_run=True)
    assert plan.copies["people"] == sum(len(data) for key, data in before.items() if "/sst/" in key)
    assert {info.key: store.get(info.key) for info in store.list("")} == before


@pytest.mark.parametrize(
    ("place", "how", "error", "words"),
    [
        ("people", "hash", Usage, "is malformed"),
        ("people.name", "blur", Usage, "is malformed"),
        ("poeple.name", "hash", NotFound, "the nearest: people"),
        ("people.nmae", "hash", NotFound, "the nearest: name"),
        ("people.id", "hash", Refused, "people.id cannot be masked: it is part of the key"),
        ("people.at", "null", Refused, "people.at cannot be masked: it says which of two rows is the later one"),
        ("people.phone", "tel {}", Refused, "people.phone is int32, but 'tel {}' masks only text"),
    ],
)
def test_a_column_that_cannot_be_masked_is_refused_by_name_and_nothing_is_left(
    place: str, how: str, error: type[SlackwaterError], words: str, cache: SstCache
) -> None:
    store, _ = two(cache)
    before = {info.key for info in store.list("")}
    with pytest.raises(error, match=words):
        masked(store, cache, {place: how})
    assert {info.key for info in store.list("")} == before


@pytest.mark.parametrize(
    ("state", "column", "why"),
    [
        (aggregate.aggregate(name=aggregate.sum("n")).stored, "name", r"it is sum\(n\), to which later records add"),
        (aggregate.aggregate(name=aggregate.max("n")).stored, "name", r"it is max\(n\), to which later records add"),
        (aggregate.aggregate(name=aggregate.last("n", by="t")).stored, "name", ""),
        (aggregate.aggregate(name=aggregate.first("n", by="t")).stored, "name", ""),
        (join.join("a", "b", within="1 hour").stored, "name", "it holds rows that wait for a join"),
        (update.Update("name").stored, "name", "it decides when rows fall due"),
        (update.Update().stored, "name", ""),
        ({"kind": "of-the-program"}, "name", ""),
    ],
)
def test_a_column_that_later_batches_need_cannot_be_masked(
    state: Declaration, column: str, why: str, cache: SstCache
) -> None:
    store = MemoryStore()
    people(store, [[(1, "ada", 7, b"x", 1, PUT)]], replace(PEOPLE, state=state))
    if why:
        with pytest.raises(Refused, match=f"people.{column} cannot be masked: {why}"):
            masked(store, cache, {f"people.{column}": "null"})
    else:
        masked(store, cache, {f"people.{column}": "null"})
        assert values(store, "test", column) == {1: None}


def test_in_flight_rows_with_a_masked_column_prevent_the_clone(cache: SstCache) -> None:
    from tests.operations.staging.clone.test_deep import source_app

    app = source_app(MemoryStore())
    # A table of the app that has a column of the channel's.
    with pytest.raises(Refused, match="6 in-flight rows on 'by-aircraft' have delay unmasked"):
        Masks.from_options({"aircraft.delay": "null"}).check_in_flight(app_states(app.store))


def app_states(store: ObjectStore) -> Any:
    from slackwater.snapshot.cut.in_flight import in_flight
    from slackwater.snapshot.cut.resolve import resolve

    return in_flight(store, resolve(store, "flights", now_ms=0))


def test_hashing_requires_a_salt() -> None:
    column = pa.chunked_array([["ada", None, "ada"]])
    mask = ColumnMask("people", "name", "hash")
    one, other = (mask.apply(column, salt).to_pylist() for salt in (b"1" * 16, b"2" * 16))
    assert one[0] == one[2] != other[0]
    assert one[1] is None
    assert mask.apply(column, b"1" * 16).to_pylist() == one


def test_other_places_of_masked_values_are_listed() -> None:
    reads = {"in": Input("t", (0,), upstream="people", consumed=(0,))}
    text = Column("k", "string")

    def stage(name: str, *values: str, state: Declaration | None = None, inputs: Any = None) -> Manifest:
        table = Table((text,), tuple(Column(each, "string") for each in values), 1, state=state)
        return Manifest("crm", name, 1, 1, "w", 1, "batch", table=table, inputs=inputs or {})

    latest = aggregate.aggregate(latest=aggregate.max("email"), rows=aggregate.count()).stored
    stages = (
        stage("people", "email", "city"),
        stage("totals", "latest", "rows", state=latest, inputs=reads),
        stage("regions", "latest", inputs={"in": replace(reads["in"], upstream="totals")}),
        stage("renamed", "contact", inputs=reads),
        stage("others", "city"),
    )
    cut = Cut("crm", {each.stage: each for each in stages})

    def said(*places: str) -> list[str]:
        return list(find_unmasked_columns(cut, Masks.from_options(dict.fromkeys(places, "hash"))))

    assert said("people.email") == [
        "people.email is masked, but columns of the same name or source are not: "
        "totals.latest (max(email)), regions.latest",
        "renamed may have values of people.email under other names, from functions of the program",
    ]
    assert said("people.email", "totals.latest", "regions.latest")[0].startswith("renamed may have values")
    assert said("renamed.contact") == []
    assert said("others.city") == ["others.city is masked, but columns of the same name or source are not: people.city"]
