"""Simulated runners of apps with sinks, without Spark; they claim, commit and publish step by step.

An app has two stages: `numbers` sends the records of a topic on a channel, and `alerts` sends each to a sink as
`FOLDER:NUMBER`. Steps of several runners can be interleaved, and a runner can be killed after any step. With `timed`,
`alerts` holds each record until it is due (`due_ms`).
"""

import dataclasses
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random

import numpy as np
import pyarrow as pa
import slackwater as sw
from msgspec.structs import replace
from pyspark.sql.types import BinaryType, StructField, StructType
from slackwater.common import instants
from slackwater.pipeline.api.sink import Sink as DeclaredSink
from slackwater.pipeline.batch.committer import CommittedVersion, Committer, PendingVersion, PromotedMeanwhile
from slackwater.pipeline.batch.schemas import StageSchemas
from slackwater.pipeline.kafka.messages import filter_by_attempts, rows_of, send_messages, split_into_messages
from slackwater.pipeline.kafka.protocol import Kafka, ProducerFenced, TransactionFailed
from slackwater.pipeline.messages import outgoing
from slackwater.pipeline.publish.core import Backlog, Publisher, Target
from slackwater.pipeline.publish.publishers import open_target
from slackwater.pipeline.publish.targets import SinkProgress
from slackwater.pipeline.run.claim import Claimer
from slackwater.pipeline.source.planner import admit_records
from slackwater.pipeline.source.wake import PlannerFiles, RequestWatch
from slackwater.snapshot.change.switch import settle_promotion
from slackwater.snapshot.cut.moments import heads_of
from slackwater.snapshot.cut.stored import notify_runners
from slackwater.snapshot.under_way.runners import HEARTBEATS, Heartbeat
from slackwater.state.event_time import due_span_after
from slackwater.store.objects.protocol import ObjectStore
from slackwater.store.versions import apps, commit, history
from slackwater.store.versions.manifest import AppInfo, EventTime, Input, Manifest, Sink
from ulid import ULID

STAGES = ("numbers", "alerts")
_ROWS = StructType([StructField("body", BinaryType())])
_SHAPE = StageSchemas({}, {"passed": _ROWS}, (), None, None)


def program(name: str, topic: str, out: str | DeclaredSink) -> sw.App:
    """Return the app, which publishes to a topic or a table; its functions are never called."""
    app = sw.App(name)
    passed = sw.repartition("passed", key=["body"], partitions=1)
    app.stage(reads=sw.topic(topic), writes=passed, name="numbers")(lambda raw: raw)
    app.stage(reads="passed", writes=sw.sink(out, value="body") if isinstance(out, str) else out, name="alerts")(
        lambda rows: rows
    )
    return app


@dataclass(slots=True)
class _Published:
    """The publisher of a sink, driven step by step."""

    book: SinkProgress
    publisher: Publisher
    backlog: Backlog
    opened: bool = False
    again: bool = False


@dataclass
class Runner:
    """A simulated runner of an app. Its methods raise the errors that would stop a real runner."""

    store: ObjectStore
    kafka: Kafka
    declared: sw.App
    chance: Random
    clock: Callable[[], float]
    ahead: int = 0
    """Maximum number of acknowledged versions that are not committed yet, as `max_unflushed`."""
    timed: bool = False
    slow_s: float = 0.0
    """Duration of a batch in seconds, by `clock`."""
    wrap: Callable[[Target], Target] = lambda target: target
    """Function that may wrap the sink's target."""
    folder: str = ""
    committers: dict[str, Committer] = field(default_factory=dict)
    _failures: list[BaseException] = field(default_factory=list)
    _pending: dict[str, PendingVersion] = field(default_factory=dict)
    _began: dict[str, float] = field(default_factory=dict)
    _published: dict[tuple[str, int], _Published] = field(default_factory=dict)
    _files: Path | None = None

    def start(self) -> Iterator[None]:
        """Claim the app's stages one by one. A generator, so that steps of others may run between the claims."""
        store, name = self.store, self.declared.name
        self.folder = apps.folder_of(store, name)
        declared = program(self.folder, *self.declared.topics, self.declared.stages["alerts"].sinks[0])
        app = dataclasses.replace(declared, file=self.declared.file)
        info = apps.ensure_app(store, AppInfo(self.folder, 1))
        heads = heads_of(store, self.folder, history.list_stages(store, self.folder)).values()
        promotion = settle_promotion(store, heads, by="runner", now_ms=1, claims=STAGES) if heads else None
        yield
        claimer = Claimer(store, self.kafka, app, {}, str(ULID()), f"runner:{self.folder}", accept_loss=False)
        number = promotion.number if promotion is not None else 0
        claimer = dataclasses.replace(claimer, publishes=apps.published_sinks(store, info, promotion), promotion=number)
        claimer.create_channels(app.stages_in_order())
        for stage in app.stages_in_order():
            claimed = claimer.claim(stage, _SHAPE, instants.now_ms())
            committer = Committer(store, claimed, max_unflushed=self.ahead, on_failure=self._failures.append)
            self.committers[stage.name] = committer
            yield
        notify_runners(store, self.folder)
        self.write_heartbeat()
        self._files = Path(tempfile.mkdtemp())
        self._planners = PlannerFiles(self._files)
        self._watch = RequestWatch(store, self.folder, self._planners, clock=self.clock)
        self._info = info

    def write_heartbeat(self) -> None:
        """Write a heartbeat. It remains if the runner is killed."""
        heads = {stage: each.head for stage, each in self.committers.items()}
        writer, epochs = heads["numbers"].writer, {stage: head.epoch for stage, head in heads.items()}
        HEARTBEATS.put(self.store, Heartbeat(writer, f"runner:{self.folder}", epochs), self.folder)

    def stop(self) -> None:
        """Stop cleanly."""
        HEARTBEATS.remove(self.store, self.committers["numbers"].head.writer, self.folder)
        self.close()

    def close(self) -> None:
        """Release all resources."""
        for committer in self.committers.values():
            committer.close()
        if self._files is not None:
            shutil.rmtree(self._files)

    @property
    def held(self) -> bool:
        """True if a promotion holds the app at certain offsets."""
        return self._watch.is_held

    def look(self) -> None:
        """Poll for requests and for commits of others. Raises the error if a stage can no longer commit."""
        if self._failures:
            raise self._failures[0]
        if self._watch.poll(busy=True):
            for committer in self.committers.values():
                committer.adopt_newest()

    def begin(self, stage: str, most: int = 1_000) -> None:
        """Compute a batch on the current state, unless one is already computed."""
        if stage in self._pending:
            return
        base = self.committers[stage].tip
        made = self._numbers(base, most) if stage == "numbers" else self._alerts(base)
        if made is not None:
            made = replace(made, duration_ms=round(self.slow_s * 1_000))
            self._began[stage] = self.clock()
            self._pending[stage] = PendingVersion(base, made, (), 0.0, lambda _done: None)

    def end(self, stage: str) -> None:
        """Commit the computed batch."""
        if self.clock() - self._began.get(stage, 0.0) < self.slow_s:
            return
        if (change := self._pending.pop(stage, None)) is not None:

            def tell(done: CommittedVersion) -> None:
                for each in list(self._published.values()) if stage == "alerts" else ():
                    each.backlog.offer(done.manifest)

            try:
                self.committers[stage].submit(dataclasses.replace(change, on_commit=tell))
            except PromotedMeanwhile:
                if self.ahead:  # what follows it is lost with it: the stage ends
                    raise
                self.committers[stage].adopt_newest()

    def publish(self) -> bool:
        """Run one step of the publisher, if the app may publish to the sink. Returns True if anything was done."""
        head = self.committers["alerts"].head
        for name, sink in head.sinks.items():
            one = self._published.get((name, sink.since)) or self._publisher(head, name)
            self._published = {(name, sink.since): one}
            if not one.book.may_publish():
                return False
            try:
                if one.again:
                    one.book.check_epoch()
                if not one.opened:
                    one.publisher.open()
                    one.opened, one.again = True, False
                    return True
                moved = one.publisher.publish_next()
            except (ProducerFenced, TransactionFailed):
                one.opened, one.again = False, True
                return True
            if one.publisher.position != one.book.stored_position and self.chance.random() < 0.7:
                one.book.store_position(one.publisher.position)
                return True
            return moved or one.publisher.position != one.book.stored_position
        return False

    def step(self) -> None:
        """Run a random step."""
        what = self.chance.choice(("look", "begin", "end", "publish", "publish"))
        if what in ("begin", "end"):
            stage = self.chance.choice(STAGES)
            self.begin(stage, self.chance.choice((1, 3, 1_000))) if what == "begin" else self.end(stage)
        else:
            self.look() if what == "look" else self.publish()

    def _publisher(self, head: Manifest, name: str) -> _Published:
        book = SinkProgress(self.store, head, name)
        backlog = Backlog(name, lambda version: history.iter_after(self.store, head.app, head.stage, version))
        backlog.offer(head)
        (sink,) = self.declared.stages["alerts"].sinks
        target = self.wrap(open_target(self.kafka, sink, book, self._info, accept_loss=False, patience_s=180))
        return _Published(book, Publisher(book.title, backlog, target, partial(self._read, book.sink.topic)), backlog)

    def _numbers(self, base: Manifest, most: int) -> Manifest | None:
        ((name, at),) = base.inputs.items()
        ends, bounds = self.kafka.offset_bounds(at.topic)[1], self._planners.end_offsets(at.topic)
        if bounds is not None:
            ends = tuple(map(min, ends, bounds + at.offsets[len(bounds) :]))
        ends = admit_records(at.offsets, ends, most)
        rows = [
            message.value() or b""
            for partition, (start, end) in enumerate(zip(at.offsets, ends, strict=True))
            for messages in self.kafka.read(at.topic, partition, start, end, patience_s=180)
            for message in messages
        ]
        if not rows:
            return None
        output = base.outputs["passed"]
        attempt, end = self._send(output.topic, pa.table({"body": pa.array(rows, pa.binary())}))
        sent = replace(output, ends=(end,), sent=(output.sent[0] + len(rows),), attempts=(attempt,), rows=len(rows))
        return replace(_draft(base), inputs={name: replace(at, offsets=ends, rows=len(rows))}, outputs={"passed": sent})

    def _alerts(self, base: Manifest) -> Manifest | None:
        at, read, rows, now_ms = base.inputs["passed"], base.inputs, list[bytes](), round(self.clock() * 1_000)
        times = due_span_after(base.event_time, "clock", self._planners.clock_ms(now_ms)) if self.timed else None
        new = list(history.iter_after(self.store, base.app, "numbers", at.version))
        if any(each.outputs["passed"].rows for each in new):
            last = new[-1].outputs["passed"]
            rows = self._passed(base.app, at, last.ends)
            count = sum(last.sent) - sum(at.consumed)
            now = replace(at, offsets=last.ends, version=new[-1].version, consumed=last.sent, rows=count)
            read = {"passed": now}
        elif times is None or not times.pending:
            return None
        event_time = base.event_time
        if times is not None:
            assert times.until_ms is not None
            waiting = self._waiting(base)
            kept = {row: max(due_ms(row), times.until_ms + 1) for row in rows}
            rows = [row for row, at_ms in waiting.items() if at_ms <= times.until_ms]
            kept |= {row: at_ms for row, at_ms in waiting.items() if at_ms > times.until_ms}
            next_ms = min(kept.values(), default=None)
            event_time = EventTime(due_ms=times.until_ms, next_due_ms=next_ms, by_clock=True)
        draft = _draft(base)
        sinks = {name: self._give(sink, base.app, rows) if rows else sink for name, sink in draft.sinks.items()}
        return replace(draft, inputs=read, sinks=sinks, event_time=event_time)

    def _waiting(self, head: Manifest) -> dict[bytes, int]:
        """Return the rows of `alerts` that are not due yet, with their due times. A new clone has none."""
        kept: dict[bytes, int] = {}
        first = history.first_version(self.store, head.app, "alerts")
        at = history.read(self.store, head.app, "alerts", first).inputs["passed"]
        for each in history.iter_between(self.store, head.app, "alerts", first, head.version):
            if each.kind == "batch":
                times = each.event_time
                assert times is not None
                assert times.due_ms is not None
                kept = {row: at_ms for row, at_ms in kept.items() if at_ms > times.due_ms}
                rows = self._passed(head.app, at, each.inputs["passed"].offsets)
                kept |= {row: max(due_ms(row), times.due_ms + 1) for row in rows}
                at = each.inputs["passed"]
        return kept

    def _passed(self, app: str, at: Input, ends: tuple[int, ...]) -> list[bytes]:
        """Return the rows that `numbers` has sent after the position of `alerts`, up to these offsets."""
        new = history.iter_after(self.store, app, "numbers", at.version)
        attempts = frozenset(one for each in new for one in each.outputs["passed"].attempts)
        parts = (part for _, part in self._read(at.topic, at.offsets[0], ends[0], attempts))
        return [row for part in parts for row in part["body"].to_pylist()]

    def _give(self, sink: Sink, app: str, rows: list[bytes]) -> Sink:
        table = pa.table({"body": pa.array([app.encode() + b":" + row for row in rows], pa.binary())})
        encoding = self.declared.stages["alerts"].sinks[0].encoding
        mine = outgoing.encode_records(table, encoding, 30) if encoding is not None else table
        attempt, end = self._send(sink.topic, mine)
        return replace(sink, end=end, attempts=(attempt,), rows=len(rows), sent=sink.sent + len(rows))

    def _send(self, topic: str, rows: pa.Table) -> tuple[str, int]:
        """Send rows as a task's messages; return the attempt and the end offset."""
        attempt, messages = str(ULID()), list(split_into_messages(rows, np.zeros(len(rows), np.int32)))
        return attempt, send_messages(self.kafka, topic, messages, attempt.encode(), patience_s=180)[0]

    def _read(self, topic: str, start: int, end: int, attempts: frozenset[str]) -> Iterator[tuple[int, pa.Table]]:
        for messages in self.kafka.read(topic, 0, start, end, patience_s=180):
            for message in filter_by_attempts(messages, attempts):
                yield message.offset() + 1, rows_of(message)


def due_ms(row: bytes) -> int:
    """Return the due time of a row. Some rows are overdue when they arrive."""
    return 700 * int(row) % 20_000


def _draft(base: Manifest) -> Manifest:
    return commit.successor(
        base, kind="batch", epoch=base.epoch, writer=base.writer, by=base.by, now_ms=instants.now_ms()
    )


def until_idle(runner: Runner, steps: int = 10_000) -> None:
    """Run a runner until nothing is left to do."""
    for _ in range(steps):
        runner.look()
        before = {stage: each.head.version for stage, each in runner.committers.items()}
        for stage in STAGES:
            runner.begin(stage)
            runner.end(stage)
            runner.committers[stage].drain(30)
        if not runner.publish() and before == {stage: each.head.version for stage, each in runner.committers.items()}:
            return
    raise AssertionError("it never has nothing to do")


def started(runner: Runner) -> Runner:
    """Start a runner, without steps of others in between."""
    for _ in runner.start():
        pass
    return runner
