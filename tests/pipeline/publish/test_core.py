"""The publishers' law: after any kills, errors and takeovers, each committed row is published once, in order."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from slackwater.errors import Corruption
from slackwater.pipeline.publish.core import Backlog
from slackwater.store.versions.manifest import Manifest
from slackwater.store.versions.published import PublishedPosition

from tests.pipeline.publish.model import (
    SINK,
    START,
    Broker,
    Function,
    Killed,
    Receiver,
    Runner,
    Stage,
    Topic,
)

Batches = st.lists(st.tuples(st.lists(st.integers(1, 5), max_size=4), st.integers(0, 3)), max_size=3)


class World:
    """A stage, its runners, and a random schedule of events at each external call."""

    def __init__(self, data: st.DataObject, make: Callable[[Callable[[], str]], Topic | Function]) -> None:
        self.data = data
        self.make = make
        self.stage = Stage()
        self.runners: list[Runner] = []
        self.depth = 0
        self.calm = False

    def start(self) -> Runner:
        runner = Runner(self.stage, self.make(self.happens))
        self.runners.append(runner)
        runner.hear()
        return runner

    def happens(self) -> str:
        """Choose what happens at an external call of a publisher: others run, the publisher is killed, or nothing."""
        if self.calm:
            return ""
        what = self.data.draw(st.sampled_from(("", "", "", "", "killed", "broken", "other", "commit")))
        if what == "commit":
            self.commit()
        if what == "other" and self.runners and self.depth < 3:
            self.depth += 1
            try:
                self.step(self.data.draw(st.sampled_from(self.runners)))
            finally:
                self.depth -= 1
        return what

    def commit(self) -> None:
        for messages, losers in self.data.draw(Batches):
            self.stage.commit(messages, losers)
            for runner in self.runners:
                if self.data.draw(st.booleans()):
                    runner.hear()

    def step(self, runner: Runner) -> None:
        """Run a step of a runner, unless the runner is inside a step: a publisher has a single thread."""
        if getattr(runner, "busy", False):
            return
        runner.busy = True  # type: ignore[attr-defined]
        try:
            runner.step()
        except Killed:
            self.runners.remove(runner)
        finally:
            runner.busy = False  # type: ignore[attr-defined]

    def play(self) -> None:
        """Run random steps; then let one last runner finish undisturbed."""
        for _ in range(self.data.draw(st.integers(0, 25))):
            what = self.data.draw(st.sampled_from(("start", "commit", "step", "step", "step")))
            if what == "start" and len(self.runners) < 3:
                self.start()
            elif what == "commit":
                self.commit()
            elif self.runners:
                self.step(self.data.draw(st.sampled_from(self.runners)))
        self.calm = True
        last = self.start()
        while last.step():
            pass


@given(st.data())
def test_a_read_committed_consumer_gets_each_row_once_and_in_order(data: st.DataObject) -> None:
    broker, most = Broker(), data.draw(st.sampled_from((1, 4, 1_000)))
    world = World(data, lambda happens: Topic(broker, happens, most))
    world.play()
    assert broker.published == list(range(world.stage.rows))
    assert broker.place.rows == world.stage.rows


@given(st.data())
def test_a_function_that_skips_known_versions_gets_each_version_once_and_in_order(data: st.DataObject) -> None:
    receiver, store = Receiver(), list[PublishedPosition]()
    world = World(data, lambda happens: Function(receiver, store, happens))
    world.play()
    assert receiver.rows == list(range(world.stage.rows))
    with_rows = [at.version for at in world.stage.versions if at.sinks[SINK].rows]
    assert sorted(set(receiver.calls)) == with_rows


@given(st.data())
def test_a_version_is_published_atomically_unless_it_exceeds_a_transaction(data: st.DataObject) -> None:
    broker = Broker()
    world = World(data, lambda happens: Topic(broker, happens, 1_000))
    ends = {0}
    commits = Topic.commit

    class Watched(Topic):
        def commit(self, place: PublishedPosition) -> None:
            commits(self, place)
            ends.add(len(broker.published))

    world.make = lambda happens: Watched(broker, happens, 1_000)
    world.play()
    assert ends <= {0, *(at.sinks[SINK].sent for at in world.stage.versions)}


def test_rows_missing_from_the_internal_topic_are_corruption() -> None:
    stage, broker = Stage(), Broker()
    stage.commit([3, 2], 0)
    stage.log[1] = ("another", [])
    runner = Runner(stage, Topic(broker, lambda: "", 10))
    runner.hear()
    runner.step()
    with pytest.raises(Corruption, match=r"3 rows up to offset 2; the manifests up to v2 have 5"):
        runner.step()
    assert (broker.published, broker.place) == ([], START)


def test_versions_of_which_the_publisher_was_not_told_are_read_from_the_store() -> None:
    stage, reads = Stage(), list[int]()

    def after(version: int) -> list[Manifest]:
        reads.append(version)
        return stage.versions[version:]

    backlog = Backlog(SINK, after)
    backlog.restart(1)
    for _ in range(5):
        stage.commit([2], 0)
        backlog.offer(stage.versions[-1])
    assert backlog.next_range(START, 1_000).position == PublishedPosition(6, 5, 10)  # type: ignore[union-attr]
    assert reads == []
    stage.commit([2], 0)
    stage.commit([2], 0)
    backlog.offer(replace(stage.versions[-1]))
    assert backlog.next_range(PublishedPosition(6, 5, 10), 1_000).position == PublishedPosition(8, 7, 14)  # type: ignore[union-attr]
    assert reads == [6]


def test_a_rarely_written_sink_does_not_keep_versions_waiting() -> None:
    stage, broker = Stage(), Broker()
    stage.commit([2], 0)
    runner = Runner(stage, Topic(broker, lambda: "", 10))
    for _ in range(50):
        stage.commit([], 0)
    runner.hear()
    while runner.step():
        pass
    assert runner.publisher.position == PublishedPosition(52, 1, 2)
    assert broker.place == PublishedPosition(2, 1, 2)


def test_lost_rows_are_skipped_one_version_at_a_time() -> None:
    stage, broker = Stage(), Broker()
    for count in (2, 3, 4):
        stage.commit([count], 0)
    runner = Runner(stage, Topic(broker, lambda: "", 1_000))
    runner.hear()
    runner.step()
    assert [runner.publisher.skip_version(), runner.publisher.skip_version()] == [2, 3]
    while runner.step():
        pass
    assert broker.published == list(range(5, 9))
    assert runner.publisher.skip_version() == 0
