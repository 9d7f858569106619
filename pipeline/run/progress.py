"""How far the stages of one runner are: whether writers must wait for readers, and whether all have caught up."""

import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from ...fold import event_time
from ...fold.records import ranges, unread
from ...store.objects.protocol import ObjectStore
from ...store.versions import history
from ...store.versions.manifest import Input, Manifest
from ..source.wake import PlannerFiles


@dataclass(slots=True)
class Backpressure:
    """A stage does not run far ahead of those that read it, where they run in the same runner. Safe with many threads.

    What lies in a channel must be read before a marker behind it is reached, so a backlog delays every snapshot, and
    every instant cut has it in flight. A reader with an admission limit takes at most so many rows a batch: while more
    than one such batch waits for it, its writer starts none. Readers without a limit take all there is.
    """

    planners: PlannerFiles
    max_records: Mapping[str, int]
    """The stages of this runner that have an admission limit: records of each input a batch."""
    _heads: dict[str, Manifest] = field(default_factory=dict)
    _tips: dict[str, Manifest] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def move(self, head: Manifest, tip: Manifest) -> None:
        """Note where a stage is, hold the writers whose readers lag, and let the others go on.

        `head` is its newest committed version: what there is to read of it. `tip` is its newest acknowledged version:
        what that has read waits for nobody, whether it is committed yet or not.
        """
        with self._lock:
            self._heads[head.stage], self._tips[tip.stage] = head, tip
            held = set(self._held())
            for stage in self._heads:
                self.planners.hold(stage, held=stage in held)

    def _held(self) -> Iterator[str]:
        """The stages whose next batch has to wait."""
        for reader, max_records in self.max_records.items():
            inputs = self._tips[reader].inputs if reader in self._tips else {}
            for name, at in inputs.items():
                writer = self._heads.get(at.upstream)
                # Who wrote the channel may not do so any more.
                output = writer.outputs.get(name) if writer is not None else None
                if output is not None and (unread(output, at) or 0) > max_records:
                    yield at.upstream


@dataclass(slots=True)
class CatchUp:
    """Whether all stages have read what was there when the run began, as Structured Streaming's `availableNow` does.

    What comes in later may be read as well, and is waited for by nobody. A stage is done when it has read its topics up
    to where they ended when the run began, and its channels up to the version with which their writers were done, and
    no row is left that falls due at its watermark. A writer elsewhere, or nowhere, is done with its head at the start.
    """

    store: ObjectStore
    app: str
    ends: Mapping[str, Sequence[int]]
    """End offsets of the users' topics when the run began, by topic and Kafka partition."""
    own: Mapping[str, Collection[str]] = field(default_factory=dict)
    """By stage, the inputs of whose rows it says the watermark itself: what upstream's is, nobody there waits for."""
    _done: dict[str, int] = field(default_factory=dict)
    """By stage: a version at which it was done."""

    def done(self, heads: Mapping[str, Manifest]) -> bool:
        """Whether all stages of the run are done, by their newest committed versions, upstream first.

        Raises `Unavailable`.
        """
        writers = {at.upstream for head in heads.values() for at in head.inputs.values() if at.upstream}
        for writer in writers - heads.keys() - self._done.keys():
            found = history.head(self.store, self.app, writer)
            self._done[writer] = found.version if found is not None else 0
        for stage, head in heads.items():
            if (
                stage not in self._done
                and not (head.event_time is not None and head.event_time.owed)
                and all(self._has_read(stage, name, at) for name, at in head.inputs.items())
            ):
                self._done[stage] = head.version
        return heads.keys() <= self._done.keys()

    def _has_read(self, stage: str, name: str, at: Input) -> bool:
        if not at.upstream:
            return not any(ranges(at.offsets, self.ends[at.topic]))
        if at.upstream not in self._done:
            return False
        left = max(0, self._done[at.upstream] - at.version)
        versions = islice(history.after(self.store, self.app, at.upstream, at.version), left)
        sent = ((manifest, manifest.outputs.get(name)) for manifest in versions)
        own = name in self.own.get(stage, ())
        # A version without rows, markers and a new watermark, such as a compaction, is no news to a reader.
        return not any(
            output.rows
            or output.markers
            or (not own and event_time.later(at.watermark_ms, manifest.handed_on_ms) != at.watermark_ms)
            for manifest, output in sent
            if output is not None
        )
