"""The first bad record of a batch, found without Spark, and compared with its definition in plain Python."""

import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import slackwater as sw
from hypothesis import given
from hypothesis import strategies as st
from slackwater.operations.debugging.replay.batches import OpenBatches, ReplayBatch
from slackwater.operations.debugging.replay.first import FirstRecord, RecordSearch
from slackwater.operations.debugging.replay.inputs import ORIGIN_SCHEMA, InputRecords
from slackwater.operations.debugging.replay.program import LoadedProgram
from slackwater.operations.debugging.replay.stage_replay import StageReplay
from slackwater.pipeline.batch.schemas import StageSchemas
from slackwater.snapshot.bisect.predicate import SqlPredicate
from slackwater.snapshot.bisect.verdict import RecordLocation
from slackwater.snapshot.cut.graph import Cut
from slackwater.state.failing import RECORD
from slackwater.store.objects.local import LocalStore
from slackwater.store.read.cache import SstCache
from slackwater.store.sst.hashing import hash_keys

from tests.state.event_time.falling import Stage

ROWS = pa.schema([("user", pa.string()), ("amount", pa.int64()), ("at", pa.timestamp("us", "UTC"))])
LIMIT = 20
STATE = sw.aggregate(total=sw.sum("amount"), most=sw.max("amount"))


@dataclass(frozen=True)
class Order:
    """A record: its position, time and row."""

    partition: int
    offset: int
    time_ms: int
    user: str
    amount: int


@dataclass(frozen=True)
class Known(StageReplay):
    """Replay that returns records unchanged, without Spark."""

    @property
    def _all(self) -> tuple[pa.Table, bool]:
        (records,), (numbers,) = self.records.values(), self.numbers.values()
        rows = records.rows
        return rows.append_column("_hash", pa.array(hash_keys(rows, ["user"]))).append_column(
            RECORD, pa.array(numbers)
        ), True


def order(records: list[Order]) -> list[Order]:
    """Sort in the app's order: by offset within a partition, across partitions by the latest time so far."""
    latest = {
        each: max(o.time_ms for o in records if o.partition == each.partition and o.offset <= each.offset)
        for each in records
    }
    return sorted(records, key=lambda each: (latest[each], each.partition, each.offset))


@st.composite
def batches(draw: st.DrawFn, least: int) -> list[Order]:
    amounts = st.one_of(st.integers(least, 6), st.sampled_from([7, LIMIT + 1, LIMIT + 5]))
    found = []
    for partition in range(draw(st.integers(1, 3))):
        some = draw(st.lists(st.tuples(st.integers(0, 4), st.sampled_from("abc"), amounts), max_size=10))
        found += [Order(partition, offset, *each) for offset, each in enumerate(some)]
    return found


def search_of(records: list[Order], where: str, folder: Path) -> RecordSearch:
    """Return a search for the record that made a query return rows.

    The query reads a table of users, at first empty.
    """
    bound = STATE.bind([ROWS], ("user",))
    stage = Stage(bound, ("user",), ROWS, STATE.stored)
    before = stage.head
    rows = [{"user": each.user, "amount": each.amount, "at": 0} for each in records]
    stage.batch(rows)
    app = sw.App("a")
    app.stage(name="s", reads=sw.topic("t"), key="user", state=STATE)(lambda rows: rows)
    shape = StageSchemas({}, {}, ("user",), stage.table, bound)
    cache = SstCache(folder / "cache", 1 << 30)
    program = LoadedProgram(app, None, {"s": shape}, stage.store, cache, {}, LocalStore(folder / "scratch"))  # type: ignore[arg-type]
    places = [[each.partition, each.offset, 0, each.time_ms, 0] for each in records]
    columns = [
        pa.array(column, field.type) for column, field in zip(zip(*places, strict=True), ORIGIN_SCHEMA, strict=True)
    ]
    read = InputRecords(
        "t", "", pa.Table.from_pylist(rows, schema=ROWS), pa.Table.from_arrays(columns, schema=ORIGIN_SCHEMA)
    )
    root = ReplayBatch(Known(program, before, stage.head, loaded={"t": read}))
    return RecordSearch(OpenBatches(program), SqlPredicate(where), Cut("a", {"s": stage.head}), root)


def totals(records: Iterable[Order]) -> Iterator[bool]:
    """Yield, for each prefix of the records beginning with the empty one, True if a user's total exceeds the limit."""
    users: dict[str, int] = {}
    yield False
    for each in records:
        users[each.user] = users.get(each.user, 0) + each.amount
        yield any(total > LIMIT for total in users.values())


WHERE = f"SELECT user FROM s WHERE total > {LIMIT}"


def place(address: RecordLocation) -> tuple[int, int]:
    return address.partition, address.offset


def named(found: FirstRecord) -> tuple[int, int]:
    return place(found.part.batch.address(found.number))


@given(batches(0))
def test_for_a_monotonic_predicate_the_record_ends_the_shortest_bad_prefix(records: list[Order]) -> None:
    ordered = {(each.partition, each.offset): each for each in order(records)}
    states = [*totals(ordered.values())]
    if not states[-1]:
        return
    with tempfile.TemporaryDirectory() as folder:
        search = search_of(records, WHERE, Path(folder))
        found = search.run()
        assert found is not None
        first = [*ordered][states.index(True) - 1]
        assert named(found) == first
        assert found.proved
        assert search.records_bad_alone is not None
        alone = {where for where, each in ordered.items() if each.amount > LIMIT}
        assert {place(search.root.address(number)) for number in search.records_bad_alone.tolist()} == alone
        assert found.alone == (first in alone)
        if not found.alone and found.needs is not None:
            # The moment is bad with the needed records, and good without any one of them.
            needed = [place(search.root.address(number)) for _, number in found.needs]
            assert [*totals(ordered[where] for where in (*needed, first))][-1]
            for left_out in needed:
                some = [ordered[where] for where in (*needed, first) if where != left_out]
                assert not [*totals(some)][-1]


@given(batches(-30))
def test_for_any_other_predicate_the_state_is_good_before_the_record_and_bad_with_it(
    records: list[Order],
) -> None:
    ordered = order(records)
    states = [*totals(ordered)]
    if not states[-1]:
        return
    with tempfile.TemporaryDirectory() as folder:
        found = search_of(records, WHERE, Path(folder)).run()
        assert found is not None
        at = [(each.partition, each.offset) for each in ordered].index(named(found))
        assert not states[at]
        assert states[at + 1]
        alone = [place for place, each in enumerate(ordered) if each.amount > LIMIT]
        assert not any(states[place + 1] for place in alone[:8] if place < at)
        if len(ordered) <= 8:
            assert at == states.index(True) - 1


@given(batches(0))
def test_tied_records_are_those_of_other_partitions_that_could_be_first(records: list[Order]) -> None:
    bad = [each for each in order(records) if each.amount > LIMIT]
    if not bad:
        return
    with tempfile.TemporaryDirectory() as folder:
        found = search_of(records, f"SELECT user FROM s WHERE most > {LIMIT}", Path(folder)).run()
        assert found is not None
        latest = [
            max(o.time_ms for o in records if o.partition == each.partition and o.offset <= each.offset) for each in bad
        ]
        # The first bad record of each partition, if no bad record of another partition is earlier.
        heads = {each.partition: (each, time_ms) for each, time_ms in zip(reversed(bad), reversed(latest), strict=True)}
        expected = {(each.partition, each.offset) for each, time_ms in heads.values() if time_ms == latest[0]}
        assert {named(found), *map(place, found.tied)} == expected
