"""The history of an app: the versions of all its stages, as they stand on its line; and which could be replayed."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice, zip_longest
from typing import NamedTuple

from ...store.objects.protocol import ObjectStore
from ...store.versions import history, horizon
from ...store.versions.horizon import Boundary
from ...store.versions.kinds import VersionKind
from ...store.versions.manifest import Input, Lost, Manifest
from ..cut.line import newest_first
from ..cut.lineage import Window, direct, losses, rows_read
from ..cut.moments import heads_of, newest, stages_of
from ..cut.stored import list_snapshots

_CLOCK_SLACK_MS = 3_600_000
"""How far the clocks of storage and of writers may differ, before a snapshot's name could be missing."""


class Remaining(NamedTuple):
    """What is still there of the topic that an input has read."""

    starts: tuple[int, ...] = ()
    """By partition, the first offset from which on Kafka or the input archive has all; empty where nothing is left."""
    is_another: bool = False
    """Whether the topic that has the name now is another one: it was deleted and made again."""

    def has(self, partition: int, offset: int) -> bool:
        """Whether nothing of a partition from this offset on is gone."""
        return partition < len(self.starts) and self.starts[partition] <= offset


RemainingOf = Callable[[Input], Remaining]
"""Raises `Refused` (the broker does not let us look) and `Unavailable` (Kafka did not answer)."""


class Unreplayable(NamedTuple):
    """How far back the versions of a stage cannot be replayed."""

    version: int
    """The last version whose input is gone, in part at least."""
    replaced: tuple[str, ...]
    """Topics that it read and that were deleted and made again since."""


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One version of one stage."""

    stage: str
    version: int
    kind: VersionKind
    time_ms: int
    rows_in: int | None
    rows_out: int
    """Rows written to channels; the table's changes are not counted."""
    windows: tuple[Window, ...]
    """What it read of each input partition, empty ones left out."""
    lost: dict[str, Lost]
    """By input, what a claim passed over because Kafka did not have it any more."""
    duration_ms: int
    snapshots: tuple[str, ...]
    """Names of the snapshots whose part of this stage it is."""
    epoch: int
    by: str
    thinned: tuple[int, int] | None = None
    """The first and the last of the versions right before it, when these were thinned out: none can be restored."""
    added: tuple[str, ...] = ()
    """Of a migration, the columns that the table has from this version on."""
    renamed: str = ""
    """Of the version that retires a stage because it is renamed, what it is called from then on; of the first under
    another name, what it was called before."""
    watermark_ms: int | None = None
    """The stage's watermark at this version; None where it has none."""
    deployed: str = ""
    """Of a claim by another program than the one before: its file, with its checksum."""
    edited: str = ""
    """Of an edit, the statement, or where the rows came from."""
    rewound: int | None = None
    """Of a rewind, the version whose content it has; 0 for none."""
    reset: tuple[str, ...] = ()
    """Of a reset, the partitions that are read on from elsewhere, as in `flights[0] 42 to 17`."""
    attached: str = ""
    """Of the state of a query of Spark's, the batches that this version brought, as in `batches 41 to 97`."""
    replayable: bool | None = None
    """Whether the version before it and all that it read are still there; None when that is not known, and for one
    that read nothing."""
    replaced: tuple[str, ...] = ()
    """Topics that it read and that were deleted and made again since, as far as that is known."""


def entries(
    store: ObjectStore, app: str, limit: int = 50, *, stage: str = "", held_of: RemainingOf | None = None
) -> tuple[LogEntry, ...]:
    """The newest `limit` versions of the app (0 for all), or of one stage, newest first: the app's line from its end.

    Where old versions were collected, those that are left follow the others. Reads the manifests it shows, one more for
    each stage, and the snapshots written since the oldest of them. With `held_of`, Kafka is asked what it still holds.

    Raises `NotFound` (there is no such app or stage).
    """
    stages = stages_of(store, app, stage)
    line = newest_first(store, app, newest(store, app, (stage,) if stage else stages), with_kept=True)
    manifests = tuple(islice(line, min(limit, sys.maxsize) or None))
    if not manifests:
        return ()
    # A snapshot is written after the versions it names, so an older one can name none of these.
    since_ms = min(manifest.time_ms for manifest in manifests) - _CLOCK_SLACK_MS
    names: dict[tuple[str, int], list[str]] = {}
    for snapshot in list_snapshots(store, app, since_ms=since_ms):
        for part in snapshot.stages.items():
            names.setdefault(part, []).append(snapshot.name)
    limits = horizon.newest(store, app)
    return tuple(_entry(store, manifest, names, held_of, limits) for manifest in manifests)


def _entry(
    store: ObjectStore,
    manifest: Manifest,
    names: Mapping[tuple[str, int], Sequence[str]],
    held_of: RemainingOf | None,
    limits: Boundary,
) -> LogEntry:
    left, table = limits.before(manifest.stage, manifest.version), manifest.table
    gone = (left + 1, manifest.version - 1) if left + 1 < manifest.version and not manifest.begins else None
    earlier = history.before(store, manifest) if gone is None else None
    windows = direct(earlier, manifest, losses(manifest)) if earlier else ()
    replayable = False if gone else None
    replaced: tuple[str, ...] = ()
    if held_of is not None and windows:
        held = {source.topic: held_of(source) for source in manifest.inputs.values()}
        replayable = all(held[each.topic].has(each.partition, each.start) for each in windows)
        replaced = tuple(topic for topic in {each.topic: None for each in windows} if held[topic].is_another)
    program, before = manifest.program, earlier.program if earlier is not None else None
    is_another = program is not None and before is not None and program.checksum != before.checksum
    return LogEntry(
        stage=manifest.stage,
        version=manifest.version,
        kind=manifest.kind,
        time_ms=manifest.time_ms,
        rows_in=rows_read(manifest),
        rows_out=sum(output.rows for output in manifest.outputs.values())
        + sum(sink.rows for sink in manifest.sinks.values()),
        windows=windows,
        lost=manifest.lost,
        duration_ms=manifest.duration_ms,
        snapshots=tuple(names.get((manifest.stage, manifest.version), ())),
        epoch=manifest.epoch,
        by=manifest.by,
        thinned=gone,
        renamed=manifest.called or manifest.former_name,
        added=tuple(name for name, at in (table.added if table else {}).items() if at == manifest.version),
        watermark_ms=manifest.watermark_ms,
        edited=manifest.edited.what if manifest.edited is not None else "",
        deployed=str(program) if is_another and manifest.traits.claims else "",
        rewound=manifest.rewind.to if manifest.rewind is not None else None,
        reset=tuple(
            f"{read.topic}[{partition}] {'-' if start is None else start} to {'-' if end is None else end}"
            for _, read in sorted(manifest.inputs.items())
            for made in read.resets
            if made.version == manifest.version
            # A topic that was made again may have another number of partitions.
            for partition, (start, end) in enumerate(zip_longest(made.starts, made.ends))
            if start != end
        ),
        attached=batches_brought(manifest),
        replayable=replayable,
        replaced=replaced,
    )


def batches_brought(manifest: Manifest) -> str:
    """Which batches of a query of Spark's a version brought: `batch 12`, `batches 41 to 97`; empty for none."""
    if (query := manifest.attached or manifest.adopted) is None or not query.batches:
        return ""
    last, first = query.next_batch - 1, query.next_batch - query.batches
    return f"batch {last}" if first == last else f"batches {first} to {last}"


def unreplayable(store: ObjectStore, app: str, held_of: RemainingOf) -> dict[str, Unreplayable]:
    """By stage, up to which version the input is gone from Kafka, in part at least; stages without one are left out.

    A request a topic, and manifests as a binary search over versions reads them. Raises `NotFound` (there is no such
    app), and `Refused` (the broker does not let us look).
    """

    def is_gone(manifest: Manifest) -> bool:
        """Whether the version after this one read what is gone."""
        held = ((held_of(source), source) for source in manifest.inputs.values())
        return any(not left.has(*place) for left, source in held for place in enumerate(source.offsets))

    found, read, first = {}, partial(history.read, store, app), partial(history.first_version, store, app)
    for stage, head in heads_of(store, app, stages_of(store, app)).items():
        if (last := history.newest_where(read, first, head, is_gone)) is not None:
            replaced = (source.topic for source in last.inputs.values() if held_of(source).is_another)
            found[stage] = Unreplayable(min(last.version + 1, head.version), tuple(replaced))
    return found
