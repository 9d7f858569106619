"""What a stage had read, through the stages before it."""

import pytest
import slackwater as sw
from msgspec.structs import replace
from slackwater.errors import Refused
from slackwater.operations.program_changes.backfill_targets import backfillable
from slackwater.operations.program_changes.backfill_windows import beginnings, positions
from slackwater.state.fits import Declared, DeclaredStage
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.objects.protocol import ObjectStore
from slackwater.store.versions import commit, history, keys
from slackwater.store.versions.kinds import VersionKind
from slackwater.store.versions.manifest import Column, Input, Manifest, Output, SideTable, Table
from slackwater.store.versions.side_tables import REJECTED

COLUMNS = Column("k", "int64", 1), Column("n", "int64", 2), Column("m", "int64", 3, since=3)
STATE = sw.aggregate(n=sw.count(), m=sw.sum("x")).stored
TABLE = Table(COLUMNS[:1], COLUMNS[1:], 1, STATE, schema=1, next_id=4)


def write(store: ObjectStore, stage: str, version: int, kind: VersionKind, **content: object) -> Manifest:
    made = replace(Manifest("app", stage, version, version, "w", version, kind), **content)
    commit.commit(store, made)
    return made


def sent(rows: int, schema: str = "`k` bigint") -> dict[str, Output]:
    return {"c": Output("app-c-repartition", (0,), (rows,), rows=rows, schema=schema)}


@pytest.fixture
def store() -> MemoryStore:
    """`first` reads the topic from 5 on and sends to `stage`, which has read its v2 when both are migrated."""
    store = MemoryStore()
    write(store, "first", 1, "claim", inputs={"t": Input("t", (5,))}, outputs=sent(0))
    write(store, "first", 2, "batch", inputs={"t": Input("t", (10,))}, outputs=sent(5))
    write(store, "first", 3, "batch", inputs={"t": Input("t", (20,))}, outputs=sent(10))
    write(store, "first", 4, "migration", inputs={"t": Input("t", (20,))}, outputs=sent(0), migration=1)
    for version, kind, consumed in ((1, "claim", 0), (2, "batch", 2), (3, "migration", 2)):
        channel = Input("app-c-repartition", (0,), "first", consumed)
        write(store, "stage", version, kind, inputs={"c": channel}, table=TABLE, migration=version // 3)  # type: ignore[arg-type]
    return store


def head(store: ObjectStore, stage: str = "stage") -> Manifest:
    found = history.head(store, "app", stage)
    assert found is not None
    return found


def declared(schema: str = "`k` bigint") -> Declared:
    first = DeclaredStage("first", {"t": ""}, {"c": schema}, None)
    return Declared("app", {"first": first, "stage": DeclaredStage("stage", {"c": "first"}, {}, TABLE)})


def test_a_channel_stands_where_its_writer_did(store: MemoryStore) -> None:
    assert positions(store, head(store)) == {"t": Input("t", (10,))}
    assert positions(store, history.read(store, "app", "stage", 1)) == {"t": Input("t", (5,))}
    assert beginnings(store, head(store)) == ({"t": Input("t", (5,))}, True)
    (target,) = backfillable(store, {"stage": head(store)}, declared()).targets
    assert (target.starts, target.ends, target.begins) == ({"t": (5,)}, {"t": (10,)}, True)
    assert (target.columns, target.ids, target.since) == (("m",), (3,), 3)


def test_rows_on_their_way_without_the_new_columns_are_counted_by_nobody(store: MemoryStore) -> None:
    (left,) = backfillable(store, {"stage": head(store)}, declared("`k` bigint, `x` bigint")).left
    assert "rows were on their way in 'c'" in left.why
    assert "give the changed stage a new name" in left.hint


def test_rows_of_a_channel_that_waited_to_be_retried_have_no_offset_to_leave_out(store: MemoryStore) -> None:
    tables = {REJECTED: SideTable(TABLE, rows=2, total=2, waiting=2)}
    migrated = replace(head(store), side_tables=tables)
    (left,) = backfillable(store, {"stage": migrated}, declared()).left
    assert left.why.startswith("2 rows that stage rejected waited to be retried when the app was migrated")
    assert "slackwater rejected app --retry" in left.hint
    # Retried, or of a topic: each has its offset.
    retried = replace(migrated, side_tables={REJECTED: SideTable(TABLE, total=2)})
    assert backfillable(store, {"stage": retried}, declared()).left == ()
    of_topic = replace(migrated, inputs={"t": Input("t", (9,))})
    assert backfillable(store, {"stage": of_topic}, declared()).left == ()


def test_what_was_collected_is_told(store: MemoryStore) -> None:
    migrated = head(store)
    store.delete(keys.manifest("app", "first", 2))
    fresh = MemoryStore()
    for info in list(store.list("")):
        fresh.put(info.key, store.get(info.key))
    with pytest.raises(Refused, match="v2 of first, up to which stage v3 had read, was collected") as refused:
        positions(fresh, migrated)
    assert "give the changed stage a new name" in refused.value.hint
    fresh.delete(keys.manifest("app", "first", 1))
    assert beginnings(fresh, migrated) is None


def test_a_topic_that_comes_by_two_ways_has_no_one_position(store: MemoryStore) -> None:
    both = replace(head(store), inputs={**head(store).inputs, "t": Input("t", (12,))})
    with pytest.raises(Refused, match="'t' comes to stage by two ways") as refused:
        positions(store, both)
    assert "give the changed stage a new name" in refused.value.hint


def test_an_input_that_a_migration_added_began_there(store: MemoryStore) -> None:
    channel = head(store).inputs["c"]
    both = {"c": channel, "u": Input("u", (7,))}
    write(store, "stage", 4, "migration", inputs=both, table=TABLE, migration=2)
    write(store, "stage", 5, "batch", inputs={"c": channel, "u": Input("u", (9,))}, table=TABLE, migration=2)
    assert beginnings(store, head(store)) == ({"t": Input("t", (5,)), "u": Input("u", (7,))}, True)
