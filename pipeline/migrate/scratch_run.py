"""Running the app that computes a backfill, from where an earlier call left it, until it has read all of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import zip_longest

from ... import instants
from ...errors import Refused
from ...keep.backfill.fill import discard
from ...keep.backfill.targets import Target
from ...keep.backfill.windows import is_told, tell
from ...moments.cut.moments import version_of
from ...store.objects.protocol import ObjectStore
from ...store.read.cache import SstCache
from ...store.versions import apps, history
from ...store.versions.manifest import AppInfo, Manifest, Program
from ..api.app import App
from ..batch.batch_report import BatchReport
from ..claim.claim import program_of
from ..kafka.open import open_kafka
from ..run.news import News
from ..run.options import Options
from ..run.runner import run
from .backfilled import Filled
from .scratch import Offsets, left_out, scratch_program


@dataclass(frozen=True, slots=True)
class ScratchRun:
    """Runs apps that compute backfills of one program."""

    program: App
    store: ObjectStore
    options: Options
    news: News
    topics: Mapping[str, str]
    """Users' topics that the app reads under another name, by the declared one."""
    sent: Mapping[str, str]
    """The columns of repartition topics, as Spark DDL."""

    def compute(self, planned: Filled) -> tuple[Manifest, Mapping[str, tuple[int, ...]]]:
        """Compute it, as far as an earlier call has not.

        Gives the version that has the values, and the offsets from which on they are complete, by topic as declared.
        Raises `Refused` where it was stopped, or Kafka has lost records meanwhile: the same call goes on or begins
        anew; else as `runner.run`.
        """
        target = planned.target
        made = scratch_program(self.program, target, self.topics, self._left_out(target), self.sent)
        starts = {self._name(topic): at for topic, at in target.starts.items() if topic not in target.channels}
        info = AppInfo(target.scratch, instants.now_ms(), starts=starts)
        if not self._goes_on(made, info, target):
            discard(self.store, info.name)
            apps.ensure_app(self.store, info)
        for name, writer in target.writers.items():
            tell(self.store, target.app, name, target.channels[name], info.name, writer, now_ms=instants.now_ms())
        head = self._finished(target) or self._run(made, planned)
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

    def _run(self, made: App, planned: Filled) -> Manifest:
        target, read = planned.target, 0
        what = f"computing {', '.join(target.columns)} of {target.stage}"

        def on_commit(report: BatchReport) -> None:
            nonlocal read
            read += report.rows_in
            self.news.doing(f"{what}: {read:,} of {planned.records:,} records")

        stage = made.stages[target.stage]
        # Of a topic that the stage did not read then, nothing.
        until = dict.fromkeys(stage.inputs, ()) | self._ends(target)
        options = replace(
            self.options,
            stages=(target.stage,),
            until_caught_up=True,
            # Where it begins is noted; what is lost later is refused.
            accept_loss=True,
            max_unflushed=0,
            gc_every_ms=None,
            until=until,
            channels={name: each.end.topic for name, each in target.channels.items()},
        )
        self.news.doing(what)
        run(made, options, on_commit, news=News(self.news.doing))
        if (head := self._finished(target)) is None:
            raise Refused(
                f"the backfill of {target.app} was stopped: {target.stage} has not its values yet",
                hint="the same command goes on where it stopped",
            )
        return head

    def _finished(self, target: Target) -> Manifest | None:
        """The version that has read all that is to be read, if there is one."""
        head = history.head(self.store, target.scratch, target.stage)
        return head if head is not None and all(at >= end for at, end in self._pairs(head, target)) else None

    def _pairs(self, head: Manifest, target: Target) -> Iterator[tuple[int, int]]:
        """How far each partition is read that the program reads, and is to be read."""
        ends = self._ends(target)
        for name, each in head.inputs.items():
            if name in target.channels:
                yield sum(each.passed), target.channels[name].rows
                continue
            yield from zip_longest(each.offsets, ends.get(each.topic, ()), fillvalue=0)

    def _ends(self, target: Target) -> dict[str, tuple[int, ...]]:
        """By topic as Kafka has it."""
        return {self._name(topic): at for topic, at in target.ends.items() if topic not in target.channels}

    def _left_out(self, target: Target) -> Offsets:
        head = history.head(self.store, target.app, target.stage)
        migrated = version_of(self.store, head, target.since) if head is not None else None
        if migrated is None:
            raise Refused(f"v{target.since} of {target.stage}, up to which the past is read, was collected meanwhile")
        with closing(SstCache(self.options.cache_folder, self.options.cache_bytes)) as cache:
            return left_out(self.store, cache, migrated)

    def _goes_on(self, made: App, info: AppInfo, target: Target) -> bool:
        """Whether an earlier call has begun just this."""
        found = apps.find_app(self.store, info.name)
        if found is None or found.starts != info.starts:
            return False
        told = (
            is_told(self.store, name, target.channels[name], info.name, writer)
            for name, writer in target.writers.items()
        )
        if not all(told):
            return False
        stage = made.stages[target.stage]
        head = history.head(self.store, info.name, stage.name)
        if head is None:
            return True
        state = stage.state.stored if stage.state is not None else None
        if head.table is None or head.table.state != state or _checksum(head.program) != _checksum(program_of(made)):
            return False
        if any(at > end for at, end in self._pairs(head, target)):
            return False
        kafka = open_kafka(self.options.kafka)
        earliest = {each.topic: kafka.offsets(each.topic)[0] for each in head.inputs.values()}
        return all(all(map(int.__ge__, each.offsets, earliest[each.topic])) for each in head.inputs.values())

    def _name(self, topic: str) -> str:
        return self.topics.get(topic, topic)


def _checksum(program: Program | None) -> str:
    return program.checksum if program is not None else ""
