"""The app that computes a backfill, and running it, from where an earlier call left it, until it has read all of it.

It has one stage, that reads users' topics itself and keeps the columns in question.

The functions of stateless stages before it are part of its own, so it writes nothing to Kafka: nobody sees what it
does. What stages with state sent it reads from their repartition topics; there are stages for these that do nothing.

It leaves out the records that the stage, or one before it, had rejected when the app was migrated. Their rows are not
in the table. If one is retried later, that adds it to all columns, the new ones too; with the past, it would be there
twice. One that was retried before the migration is part of the past like any other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

from ...common import instants
from ...errors import Refused
from ...pipeline.api.app import App
from ...pipeline.api.event_time import DEFAULT_EVENT_TIME
from ...pipeline.api.stage import Stage
from ...pipeline.api.starting_offsets import EARLIEST
from ...pipeline.api.table import table
from ...pipeline.api.topic import Topic
from ...pipeline.api.update import parse_ddl
from ...pipeline.batch.batch_report import BatchReport
from ...pipeline.batch.transform import over
from ...pipeline.kafka.archived import archived
from ...pipeline.kafka.open import open_kafka
from ...pipeline.reject.table import RejectedTable
from ...pipeline.run.claim import program_of
from ...pipeline.run.news import News
from ...pipeline.run.options import Options
from ...pipeline.run.runner import run
from ...snapshot.cut.moments import version_of
from ...store.objects.protocol import ObjectStore
from ...store.read.cache import SstCache
from ...store.versions import apps, history
from ...store.versions.manifest import AppInfo, Manifest
from ...store.versions.side_tables import rejected_of
from ..maintenance.removal import discard
from .backfill_targets import BackfillTarget
from .backfill_windows import is_told, read_through, tell

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_MAX_RECORDS = 1_000_000
"""A batch, where the program names no bound: what is computed is kept after each."""


def scratch_program(
    app: App, target: BackfillTarget, topics: Mapping[str, str], skipped: Offsets, sent: Mapping[str, str]
) -> App:
    """An app of the target's name with its stage, which alone is run.

    `topics` are users' topics that the program `app` reads under another name, by the declared one, and `skipped`
    records of users' topics that it does not see; `sent` has the columns of repartition topics, as Spark DDL.
    """
    stage = app.stages[target.stage]
    assert stage.state is not None  # noqa: S101  only tables are backfilled
    read = {
        name: replace(one, name=topics.get(name, name)) if isinstance(one, Topic) else one
        for name, one in _sources(app, stage)
    }

    def transform(*frames: DataFrame) -> DataFrame:
        records = {name: _without(one, skipped.get(name, {})) for name, one in zip(read, frames, strict=True)}
        return _made(app, stage, records)  # type: ignore[return-value]

    alone = replace(
        stage,
        transform=transform,
        reads=tuple(read.values()),
        writes=(),
        key=app.key_of(stage),
        state=stage.state.narrowed(target.columns),
        table=table(partitions=stage.table.partitions, compaction=stage.table.compaction),
        max_records=stage.max_records or _MAX_RECORDS,
        trigger=None,
        max_unflushed=None,
        # What it leaves out is what the app did: a record more, and its columns would not be of the same ones.
        on_error="stop",
        rejects="",
        event_time=DEFAULT_EVENT_TIME,
    )
    writers = {name: _writer(app, channel, name, sent[channel]) for channel, name in target.writers.items()}
    return App(target.scratch, {**writers, stage.name: alone}, app.file)


def _writer(app: App, channel: str, name: str, columns: str) -> Stage:
    """A stage of this name that only says which columns a channel has: nobody runs it."""

    def typed(rows: DataFrame) -> DataFrame:
        return rows.select(*(F.lit(None).cast(each.dataType).alias(each.name) for each in parse_ddl(columns)))

    writes = (app.channel(channel),)
    return Stage(name, typed, (Topic(channel, EARLIEST),), writes, None, (), table())


def _sources(app: App, stage: Stage) -> Iterator[tuple[str, Topic | str]]:
    """What is read, by its declared name: users' topics, and the channels that stages with state write."""
    for name, one in stage.inputs.items():
        if (writer := _stateless(app, one)) is None:
            yield name, one
        else:
            yield from _sources(app, writer)


def _stateless(app: App, one: Topic | str) -> Stage | None:
    """The stage without state whose functions give an input; None for one that is read."""
    if isinstance(one, Topic):
        return None
    writer = app.writer_of(one)
    return writer if writer.state is None else None


def _made(app: App, stage: Stage, records: Mapping[str, DataFrame]) -> tuple[DataFrame, ...]:
    """What a stage's function gives, of what is read."""
    found = []
    for name, one in stage.inputs.items():
        if (writer := _stateless(app, one)) is None:
            found.append(records[name])
        else:
            frames = _made(app, writer, records)
            # One for each of its outputs, or one for all of them.
            found.append(frames[[each.name for each in writer.writes].index(name) if len(frames) > 1 else 0])
    return over(stage, found)


Offsets = Mapping[str, Mapping[int, tuple[int, ...]]]
"""Of each topic as declared, by partition."""


def left_out(store: ObjectStore, cache: SstCache, migrated: Manifest) -> Offsets:
    """The records that waited to be retried at the version of a migration, of what had come to the stage by then.

    Raises `Refused` where a version on the way was collected, and as `RejectedTable.rows`.
    """
    found: dict[str, dict[int, tuple[int, ...]]] = {}
    for each in read_through(store, migrated):
        if not rejected_of(each).waiting:
            continue
        rows = RejectedTable(store, cache, each.app, each.stage).rows(each)
        waiting = rows.filter(pc.is_null(rows["retried"])).select(["input", "partition", "offset"])
        grouped = pa.TableGroupBy(waiting, ["input", "partition"]).aggregate([("offset", "list")])
        for row in grouped.to_pylist():
            found.setdefault(row["input"], {})[row["partition"]] = tuple(sorted(row["offset_list"]))
    return found


def _without(records: DataFrame, offsets: Mapping[int, tuple[int, ...]]) -> DataFrame:
    """A user's topic without these records, by partition: no function or expression after it sees them."""
    for partition, some in offsets.items():
        # As text: a column made of each number is a call to the JVM.
        numbers = ", ".join(map(str, some))
        records = records.where(F.expr(f"NOT (partition = {partition} AND offset IN ({numbers}))"))
    return records


@dataclass(frozen=True, slots=True)
class ScratchRun:
    """Runs the app that computes one backfill of a program."""

    program: App
    store: ObjectStore
    options: Options
    news: News
    topics: Mapping[str, str]
    """Users' topics that the app reads under another name, by the declared one."""
    sent: Mapping[str, str]
    """The columns of repartition topics, as Spark DDL."""
    target: BackfillTarget
    records: int
    """How many are to be read."""

    def compute(self) -> tuple[Manifest, Mapping[str, tuple[int, ...]]]:
        """Compute it, as far as an earlier call has not.

        Gives the version that has the values, and the offsets from which on they are complete, by topic as declared.
        Raises `Refused` where it was stopped, or Kafka has lost records meanwhile: the same call goes on or begins
        anew; else as `runner.run`.
        """
        target = self.target
        made = scratch_program(self.program, target, self.topics, self._left_out(), self.sent)
        starts = {self._name(topic): at for topic, at in target.starts.items() if topic not in target.channels}
        info = AppInfo(target.scratch, instants.now_ms(), starts=starts)
        if not self._goes_on(made, info):
            discard(self.store, info.name)
            apps.ensure_app(self.store, info)
        for name, writer in target.writers.items():
            tell(self.store, target.app, name, target.channels[name], info.name, writer, now_ms=instants.now_ms())
        head = self._finished() or self._run(made)
        first = history.read(self.store, info.name, target.stage, 1)
        if any(sum(each.lost) for each in head.inputs.values()):
            discard(self.store, info.name)
            raise Refused(
                f"Kafka has lost records of {', '.join(target.starts)} while they were read for {target.stage}",
                hint="the same command begins anew, with what there is",
            )
        channels = target.channels
        declared_as = {
            channels[each].end.topic if each in channels else self._name(each): each for each in target.starts
        }
        return head, {declared_as[each.topic]: each.offsets for each in first.inputs.values()}

    def _run(self, made: App) -> Manifest:
        target, read = self.target, 0
        what = f"computing {', '.join(target.columns)} of {target.stage}"

        def on_commit(report: BatchReport) -> None:
            nonlocal read
            read += report.rows_in
            self.news.doing(f"{what}: {read:,} of {self.records:,} records")

        # Of a topic that the stage did not read then, nothing.
        until = dict.fromkeys(made.stages[target.stage].inputs, ()) | self._ends()
        options = replace(
            self.options,
            stages=(target.stage,),
            until_caught_up=True,
            # Where it begins is noted; what is lost later is refused.
            accept_loss=True,
            max_unflushed=0,
            gc_every_ms=None,
            archive=False,
            archives=(target.app,),
            until=until,
            channels={name: each.end.topic for name, each in target.channels.items()},
        )
        self.news.doing(what)
        run(made, options, on_commit, news=News(self.news.doing))
        if (head := self._finished()) is None:
            raise Refused(
                f"the backfill of {target.app} was stopped: {target.stage} has not its values yet",
                hint="the same command goes on where it stopped",
            )
        return head

    def _finished(self) -> Manifest | None:
        """The version that has read all that is to be read, if there is one."""
        head = history.head(self.store, self.target.scratch, self.target.stage)
        return head if head is not None and all(at >= end for at, end in self._pairs(head)) else None

    def _pairs(self, head: Manifest) -> Iterator[tuple[int, int]]:
        """How far each partition is read that the program reads, and is to be read."""
        channels, ends = self.target.channels, self._ends()
        for name, each in head.inputs.items():
            if name in channels:
                yield sum(each.passed), channels[name].rows
            else:
                yield from zip_longest(each.offsets, ends.get(each.topic, ()), fillvalue=0)

    def _ends(self) -> dict[str, tuple[int, ...]]:
        """By topic as Kafka has it."""
        target = self.target
        return {self._name(topic): at for topic, at in target.ends.items() if topic not in target.channels}

    def _left_out(self) -> Offsets:
        target = self.target
        head = history.head(self.store, target.app, target.stage)
        migrated = version_of(self.store, head, target.since) if head is not None else None
        if migrated is None:
            raise Refused(f"v{target.since} of {target.stage}, up to which the past is read, was collected meanwhile")
        with closing(SstCache(self.options.cache_folder, self.options.cache_bytes)) as cache:
            return left_out(self.store, cache, migrated)

    def _goes_on(self, made: App, info: AppInfo) -> bool:
        """Whether an earlier call has begun just this."""
        found, target = apps.find_app(self.store, info.name), self.target
        if found is None or found.starts != info.starts:
            return False
        writers = target.writers.items()
        if not all(is_told(self.store, name, target.channels[name], info.name, writer) for name, writer in writers):
            return False
        stage = made.stages[target.stage]
        head = history.head(self.store, info.name, stage.name)
        if head is None:
            return True
        state = stage.state.stored if stage.state is not None else None
        before, now = (each.checksum if each is not None else "" for each in (head.program, program_of(made)))
        if head.table is None or head.table.state != state or before != now:
            return False
        if any(at > end for at, end in self._pairs(head)):
            return False
        kafka = archived(open_kafka(self.options.kafka), self.store, target.app)
        earliest = {each.topic: kafka.offsets(each.topic)[0] for each in head.inputs.values()}
        return all(all(map(int.__ge__, each.offsets, earliest[each.topic])) for each in head.inputs.values())

    def _name(self, topic: str) -> str:
        return self.topics.get(topic, topic)
