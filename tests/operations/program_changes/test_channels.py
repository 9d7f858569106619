"""What a stage with state had sent is read once more: which rows, and which attempts count."""

import pytest
import slackwater as sw
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from slackwater.operations.program_changes import backfill_windows as channels
from slackwater.operations.program_changes.backfill_targets import backfillable
from slackwater.operations.program_changes.backfill_windows import ChannelRange, channel, is_told, left_in, tell
from slackwater.state.fits import Declared, DeclaredStage
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.objects.protocol import ObjectStore
from slackwater.store.versions import commit, history, keys
from slackwater.store.versions.manifest import Column, Input, Manifest, Output, Table

COLUMNS = Column("k", "int64", 1), Column("n", "int64", 2), Column("m", "int64", 3, since=3)
STATE = sw.aggregate(n=sw.count(), m=sw.sum("x")).stored
TABLE = Table(COLUMNS[:1], COLUMNS[1:], 1, STATE, schema=1, next_id=4)
TOPIC = "app-c-repartition"


def write(store: ObjectStore, rows: list[int]) -> None:
    """The versions of `first`: each sends so many rows, a message each, after one of an attempt that failed."""
    end = sent = 0
    for version, count in enumerate([0, *rows], 1):
        end, sent = end + count + (count > 0), sent + count
        output = Output(TOPIC, (end,), (sent,), (f"a{version}",) if count else (), count)
        kind = "batch" if version > 1 else "claim"
        commit.commit(
            store, Manifest("app", "first", version, 1, "w", version, kind, table=TABLE, outputs={"c": output})
        )


def at(store: ObjectStore, version: int) -> Input:
    """A reader that has consumed up to there."""
    output = history.read(store, "app", "first", version).outputs["c"]
    return Input(TOPIC, output.ends, "first", version, consumed=output.sent)


BEGUN = Input(TOPIC, (0,), "first", 0, consumed=(0,))


@given(
    rows=st.lists(st.integers(0, 5), min_size=1, max_size=8),
    stops=st.lists(st.integers(1, 9), min_size=1, max_size=3),
    begun=st.integers(0, 4),
    most=st.integers(1, 9),
)
def test_what_is_told_is_what_was_sent(rows: list[int], stops: list[int], begun: int, most: int) -> None:
    """However many versions are one, and from wherever it went on."""
    store = MemoryStore()
    write(store, rows)
    last = len(rows) + 1
    start = at(store, min(begun, last)) if begun else BEGUN
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(channels, "_ROWS", most)
        for stop in sorted({min(max(stop, start.version, 1), last) for stop in stops}):
            one, whole = channel(store, "app", "c", start, at(store, stop))
            assert whole
            tell(store, "app", "c", one, "scratch", "sent-1", 9)
    told = list(history.after(store, "scratch", "sent-1", 0))
    wanted = [history.read(store, "app", "first", number).outputs["c"] for number in range(1, stop + 1)]
    wanted = [each for each in wanted if each.sent > start.passed and each.rows]
    assert [name for each in told for name in each.outputs["c"].attempts] == [
        name for each in wanted for name in each.attempts
    ]
    assert told[-1].outputs["c"].sent == (one.rows,) == (sum(each.rows for each in wanted),)
    assert told[-1].outputs["c"].ends == (wanted[-1].ends if wanted else one.start.offsets)
    assert is_told(store, "c", one, "scratch", "sent-1")
    assert {each.outputs["c"].topic for each in told} == {"scratch-c-repartition"}, "nobody's who removes the app"


def test_it_begins_where_kafka_and_the_writers_history_do() -> None:
    store = MemoryStore()
    write(store, [3, 0, 4, 2])
    one, whole = channel(store, "app", "c", BEGUN, at(store, 5))
    assert (one.start.offsets, one.rows, whole) == ((0,), 9, True)
    assert left_in(store, "app", "c", one, (0,)) == one
    # Of a version that is partly gone nothing is read.
    left = left_in(store, "app", "c", one, (2,))
    assert (left.start.version, left.start.offsets, left.rows) == (2, (4,), 6)
    assert left_in(store, "app", "c", one, (99,)).rows == 0
    for version in (1, 2, 3):
        store.delete(keys.manifest("app", "first", version))
    later, whole = channel(store, "app", "c", BEGUN, at(store, 5))
    assert (later.start.version, later.rows, whole) == (4, 2, False)
    assert channel(store, "app", "c", at(store, 4), at(store, 5)) == (ChannelRange(at(store, 4), at(store, 5)), True)
    # Nobody counted what its reader got; its writer knows what it sent.
    uncounted = replace(at(store, 4), consumed=())
    assert channel(store, "app", "c", uncounted, at(store, 5))[0].rows == 2


def test_a_stage_behind_one_with_state_reads_what_that_sent() -> None:
    store = MemoryStore()
    write(store, [3, 4])
    for version, place in enumerate((BEGUN, at(store, 3), at(store, 3)), 1):
        kind = ("claim", "batch", "migration")[version - 1]
        made = Manifest("app", "stage", version, version, "w", version, kind, inputs={"c": place}, table=TABLE)  # type: ignore[arg-type]
        commit.commit(store, replace(made, migration=version // 3))
    head = history.read(store, "app", "stage", 3)
    first = DeclaredStage("first", {"t": ""}, {"c": "`k` bigint"}, TABLE)
    declared = Declared("app", {"first": first, "stage": DeclaredStage("stage", {"c": "first"}, {}, TABLE)})
    (target,) = backfillable(store, {"stage": head}, declared).targets
    assert (target.starts, target.ends) == ({"c": (0,)}, {"c": (9,)})
    assert (target.records, target.begins, target.writers) == (7, True, {"c": "sent-1"})
