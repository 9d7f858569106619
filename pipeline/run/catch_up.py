"""Whether every stage has read what was there when the run began, as Structured Streaming's `availableNow` does."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from ...fold import event_time as progress
from ...fold.records import ranges
from ...store.objects.protocol import ObjectStore
from ...store.versions import history
from ...store.versions.manifest import Input, Manifest


@dataclass(slots=True)
class CatchUp:
    """Watches committed versions; what comes in later may be read as well, and is waited for by nobody.

    A stage is done when it has read its topics up to where they ended when the run began, and its channels up to the
    version with which their writers were done, and no row is left that falls due at its watermark; a writer that runs
    elsewhere, or nowhere, up to its head at the start.
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
        elsewhere = {
            at.upstream for head in heads.values() for at in head.inputs.values() if at.upstream
        } - heads.keys()
        for writer in elsewhere - self._done.keys():
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
            or (not own and progress.later(at.watermark_ms, manifest.handed_on_ms) != at.watermark_ms)
            for manifest, output in sent
            if output is not None
        )
