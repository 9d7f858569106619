"""Claims of a stage whose topic was recreated: how that is detected, and what `--accept-loss` does.

A topic is recognised by its id, or on brokers without ids by leader epochs and record times.
"""

from dataclasses import replace
from uuid import uuid4

import pytest
import slackwater as sw
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from pyspark.sql import DataFrame
from pyspark.sql.types import LongType, StructField, StructType
from slackwater.errors import AnotherTopic, Refused
from slackwater.pipeline.batch.schemas import StageSchemas
from slackwater.pipeline.kafka.memory import MemoryKafka
from slackwater.pipeline.kafka.protocol import Record
from slackwater.pipeline.run.claim import Claimer
from slackwater.snapshot.verify.version_chain import version_faults
from slackwater.state.records import (
    NOT_KNOWN,
    TopicState,
    explain_recreated_topic,
    id_of_epochs,
    is_other_topic,
    ranges,
    read_spans,
    was_recreated_since_read,
)
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.versions.apps import ensure_app
from slackwater.store.versions.commit import commit, successor
from slackwater.store.versions.manifest import AppInfo, Manifest, Reset

SHAPE = StageSchemas({}, {"by-n": StructType([StructField("n", LongType())])}, (), None, None)
LATER_MS = 4_102_444_800_000
"""Time later than any record of these tests."""


class World:
    """An app of two stages, `sends` and `reads`. The first one reads a user's topic."""

    def __init__(self, kafka: MemoryKafka, partitions: int = 2) -> None:
        self.kafka, self.store = kafka, MemoryStore()
        self.app = sw.App(f"a{uuid4().hex[:8]}")
        self.events = f"events-{self.app.name}"
        self.channel = f"{self.app.name}-by-n-repartition"
        kafka.create_topics({self.events: partitions})

        @self.app.stage(
            reads=sw.topic(self.events), writes=sw.repartition("by-n", key=["n"], partitions=2), name="sends"
        )
        def sends(rows: DataFrame) -> DataFrame:
            return rows

        self.sends = self.app.stages["sends"]
        self.reads = self.app.stages["reads"] = replace(self.sends, name="reads", reads=("by-n",), writes=())
        self.refusing = Claimer(self.store, kafka, self.app, {}, "w", "test", accept_loss=False)
        self.accepting = replace(self.refusing, accept_loss=True)
        ensure_app(self.store, AppInfo(self.app.name, 1))
        self.refusing.create_channels((self.sends,))
        self.heads = {stage: self.refusing.claim(self.app.stages[stage], SHAPE, 1) for stage in ("sends", "reads")}

    def feed(self, *counts: int, time_ms: int | None = None) -> None:
        records = [
            Record(b"x", partition, time_ms=time_ms) for partition, count in enumerate(counts) for _ in range(count)
        ]
        self.kafka.send(self.events, records, patience_s=180)

    def batch(self, stage: str, now_ms: int = 10, **changes: object) -> Manifest:
        """Commit a batch of a stage, with these fields replaced in the manifest."""
        head = self.heads[stage]
        draft = successor(head, kind="batch", epoch=head.epoch, writer=head.writer, by="test", now_ms=now_ms)
        self.heads[stage] = made = structs.replace(draft, **changes)
        commit(self.store, made)
        return made

    def read_all(self, now_ms: int = 10) -> Manifest:
        """Let the first stage read everything."""
        at, ends = self.heads["sends"].inputs[self.events], self.kafka.offset_bounds(self.events)[1]
        after = structs.replace(at, offsets=ends, rows=sum(ends) - sum(at.offsets))
        return self.batch("sends", now_ms, inputs={self.events: after})

    def send(self, *counts: int) -> Manifest:
        """Let the first stage send this many messages, with one row each, to each partition."""
        output = self.heads["sends"].outputs["by-n"]
        records = [Record(b"x", partition) for partition, count in enumerate(counts) for _ in range(count)]
        ends = self.kafka.send(self.channel, records, patience_s=180)
        sent = tuple(had + more for had, more in zip(output.sent, counts, strict=True))
        after = structs.replace(
            output,
            ends=tuple(ends.get(partition, end) for partition, end in enumerate(output.ends)),
            sent=sent,
            rows=sum(counts),
            attempts=("a",),
        )
        return self.batch("sends", outputs={"by-n": after})

    def make_again(self, topic: str, partitions: int) -> tuple[str, str]:
        """Delete a topic and recreate it; return its ids before and after."""
        before = self.kafka.topic_id(topic)
        self.kafka.delete_topics([topic])
        self.kafka.create_topics({topic: partitions})
        return before, self.kafka.topic_id(topic)

    def claim(self, stage: str) -> Manifest:
        """Claim a stage with `--accept-loss`, and check the version by `verify`'s rules."""
        before = self.heads[stage]
        self.heads[stage] = made = self.accepting.claim(self.app.stages[stage], SHAPE, 100)
        assert tuple(version_faults(before, made)) == ()
        return made


@pytest.fixture
def world(memory_kafka: MemoryKafka) -> World:
    return World(memory_kafka)


@pytest.mark.parametrize("partitions", [1, 2, 4])
@pytest.mark.parametrize("count", [0, 2, 12])
def test_a_recreated_topic_stops_its_stage_and_is_read_from_its_beginning_if_accepted(
    world: World, partitions: int, count: int
) -> None:
    world.feed(5, 3)
    world.read_all()
    former, now = world.make_again(world.events, partitions)
    world.feed(*[count] * partitions)
    with pytest.raises(AnotherTopic) as no:
        world.refusing.check_stage(world.sends)
    said, hint = no.value.message, no.value.hint
    holds = ", ".join(f"{world.events}[{each}] 0..{count}" for each in range(partitions)) if count else "no records"
    assert f"it had id {former} and 2 partitions, read up to {world.events}[0]@5" in said
    assert f"now it has id {now} and {partitions} partition" in said
    assert said.endswith(f"and holds {holds}")
    assert f"slackwater reset {world.app.name} --topic {world.events} --to-earliest" in hint
    assert "--accept-loss" in hint

    world.accepting.check_stage(world.sends)
    claimed = world.claim("sends")
    at = claimed.inputs[world.events]
    assert (at.offsets, at.topic_id) == ((0,) * partitions, now)
    assert at.resets == (Reset(claimed.version, (5, 3), (0,) * partitions, former),)
    assert list(read_spans(None, at)) == [((), (5, 3)), ((0,) * partitions, (0,) * partitions)]
    assert list(read_spans(None, at, with_former_topics=False)) == [((0,) * partitions, (0,) * partitions)]
    # From here on it is the one that it reads.
    assert world.refusing.claim(world.sends, SHAPE, 200).inputs[world.events] == at


def test_a_topic_with_added_partitions_is_the_same_topic(world: World) -> None:
    world.feed(5, 3)
    world.read_all()
    world.kafka.add_partitions(world.events, 4)
    assert world.refusing.claim(world.sends, SHAPE, 100).inputs[world.events].offsets == (5, 3, 0, 0)


def test_accepting_a_recreated_repartition_topic_loses_only_its_in_flight_rows(world: World) -> None:
    world.send(4, 2)
    output = world.heads["sends"].outputs["by-n"]
    at = structs.replace(
        world.heads["reads"].inputs["by-n"],
        offsets=output.ends,
        consumed=output.sent,
        version=world.heads["sends"].version,
        rows=6,
    )
    world.batch("reads", inputs={"by-n": at})
    world.send(1, 0)
    former, now = world.make_again(world.channel, 2)
    for stage in (world.sends, world.reads):
        with pytest.raises(AnotherTopic, match=f"id {former} .* now it has id {now}") as no:
            world.refusing.check_stage(stage)
        assert "run the app with --accept-loss" in no.value.hint
        assert f"slackwater clone {world.app.name}@SNAPSHOT NAME" in no.value.hint
        world.accepting.check_stage(stage)
    # Who reads it can only begin where its writer has begun.
    with pytest.raises(AnotherTopic, match="'sends', which writes the topic, must start on the new one") as alone:
        world.accepting.claim(world.reads, SHAPE, 100)
    assert "run 'sends', too" in alone.value.hint
    sender = world.claim("sends").outputs["by-n"]
    assert (sender.ends, sender.sent, sender.topic_id) == ((0, 0), (5, 2), now)
    world.send(2, 2)
    reader = world.claim("reads")
    known, lost = reader.inputs["by-n"], reader.lost["by-n"]
    assert (known.offsets, known.version, known.topic_id) == ((0, 0), world.heads["sends"].version - 1, now)
    assert (known.consumed, known.lost, lost.rows) == ((4, 2), (1, 0), (1, 0))
    assert world.refusing.claim(world.reads, SHAPE, 200).inputs["by-n"] == known


def test_nothing_is_lost_if_no_rows_were_in_flight(world: World) -> None:
    world.send(4, 2)
    output = world.heads["sends"].outputs["by-n"]
    at = structs.replace(
        world.heads["reads"].inputs["by-n"],
        offsets=output.ends,
        consumed=output.sent,
        version=world.heads["sends"].version,
        rows=6,
    )
    world.batch("reads", inputs={"by-n": at})
    world.make_again(world.channel, 2)
    world.claim("sends")
    reader = world.claim("reads")
    assert (reader.lost, reader.inputs["by-n"].lost) == ({}, ())


def test_a_recreated_repartition_topic_with_fewer_partitions_is_refused(world: World) -> None:
    world.send(1, 1)
    world.make_again(world.channel, 1)
    with pytest.raises(AnotherTopic, match=r"and 2 partitions, .* and 1 partition"):
        world.accepting.check_stage(world.sends)


def test_a_deleted_repartition_topic_is_reported_before_it_is_recreated(world: World) -> None:
    world.send(1, 1)
    world.kafka.delete_topics([world.channel])
    with pytest.raises(AnotherTopic, match="was deleted"):
        world.refusing.check_stage(world.sends)
    assert world.channel not in world.kafka.partition_counts()


class TestWithoutIds:
    """Brokers from before topics had ids."""

    @pytest.fixture(autouse=True)
    def _without_ids(self, memory_kafka: MemoryKafka) -> None:
        memory_kafka.has_topic_ids = False

    def test_leader_epochs_reveal_a_recreated_topic(self, world: World) -> None:
        world.feed(5, 3)
        world.kafka.elect_leaders(world.events)
        world.heads["sends"] = world.refusing.claim(world.sends, SHAPE, 5)
        world.read_all(now_ms=LATER_MS)
        world.kafka.elect_leaders(world.events)
        world.refusing.check_stage(world.sends)
        world.make_again(world.events, 2)
        world.feed(12, 12)
        with pytest.raises(AnotherTopic, match=r"leader epochs 1,1 and .* leader epochs 0,0"):
            world.refusing.check_stage(world.sends)

    def test_record_times_reveal_a_recreated_topic(self, world: World) -> None:
        world.feed(5, 3, time_ms=5)
        world.read_all(now_ms=10)
        world.refusing.check_stage(world.sends)
        world.make_again(world.events, 2)
        world.feed(12, 12, time_ms=20)
        with pytest.raises(
            AnotherTopic, match=r"none of them from before 1970-01-01T00:00:00\.010Z, when the stage last read it"
        ):
            world.refusing.check_stage(world.sends)
        world.accepting.check_stage(world.sends)
        claimed = world.claim("sends").inputs[world.events]
        assert (claimed.offsets, claimed.resets[-1].topic_id) == ((0, 0), "~0,0")

    def test_record_times_in_the_future_reveal_nothing(self, world: World) -> None:
        world.feed(5, 3, time_ms=LATER_MS)
        world.read_all()
        world.refusing.check_stage(world.sends)

    def test_the_limits_of_detection_are_logged(self, world: World, caplog: pytest.LogCaptureFixture) -> None:
        world.refusing.check_shape(world.sends, SHAPE, *world.refusing.check_stage(world.sends))
        assert f"if {world.events} is deleted and created again, only offsets" in caplog.text


def test_a_topic_that_lost_its_last_records_does_not_count_as_recreated(world: World) -> None:
    world.feed(5, 3)
    world.read_all()
    log = world.kafka._topics[world.events][0].log  # an unclean election of a leader
    del log[3:]
    with pytest.raises(Refused, match=r"\[0\] 3\.\.5 .* The topic's id is unchanged: Kafka has lost") as no:
        world.accepting.check_stage(world.sends)
    assert not isinstance(no.value, AnotherTopic)


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("feed"), st.integers(1, 9)),
        st.tuples(st.just("make again"), st.integers(1, 3)),
        st.sampled_from([("read", 0), ("start", 0)]),
    ),
    max_size=25,
)


@given(OPERATIONS)
def test_records_of_each_incarnation_of_a_topic_are_read_in_order_and_never_confused(
    operations: list[tuple[str, int]],
) -> None:
    world = World(MemoryKafka("memory://law"))
    fed = {world.kafka.topic_id(world.events): [0, 0]}
    read: dict[str, dict[int, int]] = {}
    for what, number in operations:
        now = world.kafka.topic_id(world.events)
        is_same = world.heads["sends"].inputs[world.events].topic_id == now
        if what == "feed":
            partition = number % len(fed[now])
            world.feed(*[number if each == partition else 0 for each in range(len(fed[now]))])
            fed[now][partition] += number
        elif what == "make again":
            fed[world.make_again(world.events, number)[1]] = [0] * number
        elif what == "read" and is_same:
            before, after = world.heads["sends"].inputs[world.events], world.read_all().inputs[world.events]
            for part in ranges(before.offsets, after.offsets):
                assert part.first == read.setdefault(now, {}).get(part.partition, 0)
                read[now][part.partition] = part.last
            assert read.get(now, {}) == {each: count for each, count in enumerate(fed[now]) if count}
        elif what == "start":
            if not is_same:
                with pytest.raises(AnotherTopic, match=f"now it has id {now}"):
                    world.refusing.check_stage(world.sends)
            world.claim("sends")
            assert world.heads["sends"].inputs[world.events].topic_id == now


OFFSETS = st.lists(st.integers(0, 9), min_size=1, max_size=4).map(tuple)


@given(OFFSETS, OFFSETS)
def test_a_topic_whose_leader_epochs_did_not_decrease_is_the_same(
    before: tuple[int, ...], more: tuple[int, ...]
) -> None:
    after = tuple(a + b for a, b in zip(before, more + (0,) * len(before), strict=False)) + more[len(before) :]
    assert not is_other_topic(id_of_epochs(before), id_of_epochs(after))
    assert is_other_topic(id_of_epochs(after), id_of_epochs(before)) == (
        len(before) < len(after) or any(a > b for a, b in zip(after, before, strict=True))
    )


@given(OFFSETS, OFFSETS, st.sampled_from(["", "x", "y", "~1,2", NOT_KNOWN]))
def test_a_topic_is_recreated_if_its_id_differs_or_it_is_too_short_and_the_id_unknown(
    read: tuple[int, ...], ends: tuple[int, ...], kept: str
) -> None:
    now = TopicState((0,) * len(ends), ends, "x")
    too_short = len(ends) < len(read) or any(at > end for at, end in zip(read, ends, strict=False))
    expected = kept in ("y", NOT_KNOWN) or (too_short and kept != "x")
    assert bool(explain_recreated_topic("t", kept, read, now)) == expected


def test_without_records_before_the_read_offset_record_times_reveal_nothing() -> None:
    assert not was_recreated_since_read((5,), TopicState((5,), (9,)), (5,), (-1,))
    assert was_recreated_since_read((5,), TopicState((0,), (9,)), (0,), (-1,))
