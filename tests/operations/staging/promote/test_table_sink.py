"""A table as the sink of an app that is promoted, rewound and killed: each row is in the table once."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from slackwater.client.show.maintenance import rewind_result
from slackwater.common import instants
from slackwater.errors import CommitConflict, Fenced, Refused
from slackwater.operations.repair.rewind import Rewound, rewind
from slackwater.pipeline.kafka.channels import KafkaChannels
from slackwater.pipeline.kafka.protocol import TransactionFailed
from slackwater.pipeline.publish.core import Target
from slackwater.pipeline.publish.tables.open import open_table
from slackwater.pipeline.publish.tables.protocol import LakeTable, Mark, SinkState, TableCommit
from slackwater.pipeline.publish.tables.target import TableTarget
from slackwater.pipeline.publish.targets import SinkProgress
from slackwater.snapshot.cut.refs import parse_ref
from slackwater.snapshot.cut.resolve import resolve
from slackwater.snapshot.take.snapshots import pin_cut
from slackwater.store.read.cache import SstCache

from tests.crash.points import Killed
from tests.models.profiles import scaled
from tests.operations.staging.promote.runners import STAGES, Runner, until_idle
from tests.operations.staging.promote.world import World
from tests.pipeline.publish.tables.lakes import DeltaLake, IcebergLake, Lake


@dataclass
class Interrupted:
    """A table whose commits may lose their answer or end the process, before or after they happen."""

    inner: LakeTable
    happens: Callable[[], None]

    def load(self, sink: str, period: str) -> SinkState:
        self.happens()
        return self.inner.load(sink, period)

    def publish(self, mark: Mark, rows: pa.Table) -> None:
        self.happens()
        self.inner.publish(mark, rows)
        self.happens()

    def begin(self, mark: Mark, snapshot: str | None) -> None:
        self.happens()
        self.inner.begin(mark, snapshot)
        self.happens()

    def log(self) -> "list[TableCommit]":
        return list(self.inner.log())

    def compact(self, max_small_files: int) -> None:
        self.inner.compact(max_small_files)


class TableWorld(World):
    """A world whose apps publish to a table."""

    def __init__(self, chance: Random, lake: Lake, *, faults: float = 0.0) -> None:
        self.lake, self.faults = lake, 0.0
        super().__init__(chance, out=lake.sink())
        self.faults = faults

    def runner(self, folder: str) -> Runner:
        runner = super().runner(folder)
        runner.wrap = self.interrupted
        return runner

    def interrupted(self, target: Target) -> Target:
        assert isinstance(target, TableTarget)
        target.table = Interrupted(target.table, self.fails)
        return target

    def fails(self) -> None:
        chance = self.chance.random()
        if chance < self.faults:
            raise Killed
        if chance < 2 * self.faults:
            raise TransactionFailed("the answer is lost")

    def guarded(self, folder: str, act: Callable[[], object]) -> None:
        try:
            act()
        except (CommitConflict, Refused, Killed):
            self.end(folder)

    def published(self) -> list[tuple[str, int]]:
        rows = (body.decode().partition(":") for body in self.lake.read()["body"].to_pylist())
        return [(folder, int(number)) for folder, _, number in rows]

    def settle(self, folder: str) -> None:
        """Let an app finish without faults."""
        self.faults = 0.0
        for _ in range(2):
            self.start(folder)
            until_idle(self.runners[folder])

    def rewind(self, folder: str, name: str, cache: SstCache) -> Rewound:
        now_ms = instants.now_ms()
        ref, kafka = parse_ref(f"{folder}@{name}", now_ms=now_ms), KafkaChannels(self.kafka)
        return rewind(self.store, folder, ref, kafka, by="ada@host", now_ms=now_ms, cache=cache, fence=True)

    def pin(self, folder: str, name: str) -> None:
        pin_cut(self.store, resolve(self.store, folder, now_ms=instants.now_ms()), name)


@pytest.fixture(params=[DeltaLake, IcebergLake])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[TableWorld]:
    world = TableWorld(Random(1), request.param(tmp_path))
    yield world
    world.close()


def test_a_promotion_hands_the_table_over_once(world: TableWorld) -> None:
    world.start("s")
    world.send(4)
    until_idle(world.runners["p"])
    world.promote("p", "s", calm=True)
    world.send(5)
    until_idle(world.runners["s"])
    assert sorted(world.published()) == [*(("p", number) for number in range(7)), *(("s", n) for n in range(7, 12))]
    world.promote("p", "", calm=True)
    world.send(2)
    until_idle(world.runners["p"])
    assert sorted(number for _, number in world.published()) == list(range(14))
    assert {number for folder, number in world.published() if folder == "s"} == set(range(7, 12))


def test_a_rewind_takes_the_table_with_it(world: TableWorld, cache: SstCache) -> None:
    world.pin("p", "base")
    world.send(4)
    until_idle(world.runners["p"])
    world.pin("p", "later")
    assert len(world.published()) == 7
    done = world.rewind("p", "base", cache)
    sink = world.lake.sink()
    table = f"{sink.format}:{sink.address}"
    assert [(rows.sink, rows.rows, rows.table) for rows in done.plan.sinks] == [("out", 4, table)]
    said = f"sink out: published since and withdrawn from {table} by the next run: 4 rows; re-read"
    assert said in str(rewind_result(done, dry_run=True))
    world.start("p")
    runner = world.runners["p"]
    while runner.publish():
        pass
    assert sorted(number for _, number in world.published()) == [0, 1, 2]
    until_idle(runner)
    assert sorted(number for _, number in world.published()) == list(range(7))
    # The former line, which the first rewind undid, is in the table's history, too.
    world.send(1)
    until_idle(runner)
    world.rewind("p", "later", cache)
    world.settle("p")
    assert sorted(number for _, number in world.published()) == list(range(8))


def test_a_zombie_neither_publishes_what_was_undone_nor_opens_the_table_again(
    world: TableWorld, cache: SstCache
) -> None:
    zombie, sink = world.runners["p"], world.lake.sink()
    world.pin("p", "base")
    world.send(2)
    for stage in STAGES:
        zombie.begin(stage)
        zombie.end(stage)
        zombie.committers[stage].drain(30)
    old = zombie.committers["alerts"].head
    assert old.sinks["out"].rows == 2
    world.rewind("p", "base", cache)
    with pytest.raises(Fenced):
        TableTarget(open_table(sink, sink.address), SinkProgress(world.store, old, "out"), 1).open()
    world.runners.pop("p")
    world.start("p")
    assert world.runners["p"].publish()
    with pytest.raises(Fenced):
        run_on(zombie)
    assert sorted(number for _, number in world.published()) == [0, 1, 2]
    until_idle(world.runners["p"])
    assert sorted(number for _, number in world.published()) == list(range(5))
    zombie.close()


def test_rows_of_others_since_then_are_not_undone_without_a_word(world: TableWorld, cache: SstCache) -> None:
    world.pin("p", "base")
    world.send(1)
    until_idle(world.runners["p"])
    world.lake.write(pa.table({"body": [b"x:99"]}))
    world.rewind("p", "base", cache)
    world.start("p")
    with pytest.raises(Refused, match="1 later commits of others would be undone, too"):
        until_idle(world.runners["p"])
    assert sorted(number for _, number in world.published()) == [0, 1, 2, 3, 99]


def test_a_table_that_was_dropped_is_noticed(world: TableWorld, tmp_path: Path) -> None:
    world.start("p")
    until_idle(world.runners["p"])
    if isinstance(world.lake, IcebergLake):
        world.lake.catalog.drop_table("sales.out")
    else:
        (tmp_path / "out").rename(tmp_path / "gone")
    world.start("p")
    with pytest.raises(Refused, match="its table no longer has the rows up to v"):
        until_idle(world.runners["p"])


def test_a_snapshot_that_was_removed_is_noticed(tmp_path: Path, cache: SstCache) -> None:
    world = TableWorld(Random(1), IcebergLake(tmp_path))
    world.send(1)
    until_idle(world.runners["p"])
    world.pin("p", "base")
    world.send(1)
    until_idle(world.runners["p"])
    assert isinstance(world.lake, IcebergLake)
    table = world.lake.catalog.load_table("sales.out")
    table.maintenance.expire_snapshots().by_id(table.snapshots()[1].snapshot_id).commit()
    world.rewind("p", "base", cache)
    world.start("p")
    with pytest.raises(Refused, match="the history of its table no longer has the newest version up to"):
        until_idle(world.runners["p"])
    book = SinkProgress(world.store, world.runners["p"].committers["alerts"].head, "out")
    TableTarget(open_table(world.lake.sink(), world.lake.sink().address), book, 1, accept_loss=True).open()
    world.close()


def test_versions_without_rows_may_be_collected(world: TableWorld) -> None:
    (name,) = world.runners["p"].committers["alerts"].head.sinks
    head = world.runners["p"].committers["alerts"].head
    book = SinkProgress(world.store, head, name)
    place = book.read_position()
    assert place is not None
    book.store_position(replace(place, version=place.version + 5))
    table = TableTarget(open_table(world.lake.sink(), world.lake.sink().address), book, 1)
    assert table.open() == replace(place, version=place.version + 5)


@pytest.mark.parametrize("make", [DeltaLake, IcebergLake])
@scaled(20)
@given(seed=st.integers(0, 1 << 32))
def test_each_row_is_in_the_table_once_after_kills_promotions_and_rewinds(
    make: type[DeltaLake] | type[IcebergLake],
    tmp_path_factory: pytest.TempPathFactory,
    cache: SstCache,
    seed: int,
) -> None:
    world = TableWorld(Random(seed), make(tmp_path_factory.mktemp("lake")), faults=0.05)
    world.start("s")
    chance, moments = world.chance, list[str]()
    for _ in range(chance.randrange(2, 6)):
        for _ in range(chance.randrange(30)):
            world.step()
        if moments and chance.random() < 0.5:
            # Its publishers must have published all of that moment; and a zombie may still publish.
            zombie = world.runners.get("p")
            try:
                world.rewind("p", chance.choice(moments), cache)
            except Refused:
                continue
            if zombie is not None and chance.random() < 0.5:
                world.guarded("p", partial(run_on, zombie))
            world.start("p")
        moments.append(f"moment-{len(moments)}")
        world.pin("p", moments[-1])
    world.settle("p")
    if chance.random() < 0.5:
        world.promote("p", "s", calm=True)
        world.send(3)
        world.settle("s")
    world.close()
    assert sorted(number for _, number in world.published()) == list(range(world.sent))


def run_on(zombie: Runner) -> None:
    for _ in range(10):
        zombie.publish()
