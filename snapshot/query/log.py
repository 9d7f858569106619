"""Log of an app: versions of all stages in one order, each with a flag that tells if it can be replayed."""

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
from ...store.versions.manifest import Input, LostRecords, Manifest
from ..cut.line import commits_newest_first
from ..cut.lineage import Window, direct_windows, rows_read, skipped_windows
from ..cut.moments import heads_of, newest_versions, stages_of
from ..cut.stored import list_snapshots

_CLOCK_SLACK_MS = 3_600_000


class Remaining(NamedTuple):
    """Offsets of an input's topic that Kafka or the input archive still has."""

    starts: tuple[int, ...] = ()
    """Offset of the first remaining record, by partition; all later records exist as well. Empty if none are left."""
    is_recreated: bool = False

    def has(self, partition: int, offset: int) -> bool:
        return partition < len(self.starts) and self.starts[partition] <= offset


RemainingOf = Callable[[Input], Remaining]
"""Function that returns the `Remaining` of an input. Raises `Refused` and `Unavailable`."""


class Unreplayable(NamedTuple):
    """Newest version of a stage that cannot be replayed because its input is gone.

    Older versions cannot be replayed either.
    """

    version: int
    replaced: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One version of one stage."""

    stage: str
    version: int
    kind: VersionKind
    time_ms: int
    rows_in: int | None
    rows_out: int
    """Number of rows written to channels and sinks; changes of the table are not counted."""
    windows: tuple[Window, ...]
    """Offsets read from each input partition, without empty ranges."""
    lost: dict[str, LostRecords]
    duration_ms: int
    snapshots: tuple[str, ...]
    epoch: int
    by: str
    thinned: tuple[int, int] | None = None
    """First and last removed version directly before this version; None if no versions were removed there."""
    added: tuple[str, ...] = ()
    renamed: str = ""
    """Other name of a renamed stage: the new name at its last version, the old name at its first version."""
    watermark_ms: int | None = None
    deployed: str = ""
    edited: str = ""
    rewound: int | None = None
    """Version whose content a rewind restores, 0 for the empty state; None if the version is not a rewind."""
    reset: tuple[str, ...] = ()
    """Offsets of partitions that a reset changed, in the format `flights[0] 42 to 17`."""
    attached: str = ""
    """Batches that this version of an attached Spark query imported, in the format `batches 41 to 97`."""
    followed: bool = False
    """True if the version read a followed topic: `rows_in` counts offsets, of which some may have no record."""
    replayable: bool | None = None
    """True if the previous version and all of the input still exist; None if unknown or if there is no input."""
    replaced: tuple[str, ...] = ()


def log_entries(
    store: ObjectStore, app: str, limit: int = 50, *, stage: str = "", remaining_of: RemainingOf | None = None
) -> tuple[LogEntry, ...]:
    """Return the newest `limit` versions of the app, or of one stage, newest first; 0 for all.

    If old versions were collected, the single old versions that were kept come last. Reads a manifest for each returned
    version, one more per stage, and the snapshots written since the oldest returned version. `remaining_of` returns the
    offsets of an input that can still be read.

    Raises `NotFound` (no such app or stage).
    """
    stages = stages_of(store, app, stage)
    line = commits_newest_first(store, app, newest_versions(store, app, (stage,) if stage else stages), with_kept=True)
    manifests = tuple(islice(line, min(limit, sys.maxsize) or None))
    if not manifests:
        return ()
    # A snapshot is written after the versions that it names, so older snapshots cannot name these.
    since_ms = min(manifest.time_ms for manifest in manifests) - _CLOCK_SLACK_MS
    names: dict[tuple[str, int], list[str]] = {}
    for snapshot in list_snapshots(store, app, since_ms=since_ms):
        for part in snapshot.stages.items():
            names.setdefault(part, []).append(snapshot.name)
    limits = horizon.newest(store, app)
    return tuple(_log_entry(store, manifest, names, remaining_of, limits) for manifest in manifests)


def _log_entry(
    store: ObjectStore,
    manifest: Manifest,
    names: Mapping[tuple[str, int], Sequence[str]],
    remaining_of: RemainingOf | None,
    limits: Boundary,
) -> LogEntry:
    previous_kept, table = limits.previous_version(manifest.stage, manifest.version), manifest.table
    thinned = (
        (previous_kept + 1, manifest.version - 1)
        if previous_kept + 1 < manifest.version and not manifest.starts_history
        else None
    )
    earlier = history.previous_version(store, manifest) if thinned is None else None
    windows = direct_windows(earlier, manifest, skipped_windows(manifest)) if earlier else ()
    replayable, replaced = False if thinned else None, tuple[str, ...]()
    if remaining_of is not None and windows:
        replayable, replaced = _is_replayable(manifest, windows, remaining_of)
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
        thinned=thinned,
        renamed=manifest.called or manifest.former_name,
        added=tuple(name for name, at in (table.added_columns if table else {}).items() if at == manifest.version),
        watermark_ms=manifest.watermark_ms,
        edited=manifest.edited.what if manifest.edited is not None else "",
        deployed=_deployed_program(earlier, manifest),
        rewound=manifest.rewind.to if manifest.rewind is not None else None,
        reset=_describe_resets(manifest),
        attached=describe_imported_batches(manifest),
        followed=manifest.traits.reads_records and manifest.attached is not None and manifest.attached.follows_topic,
        replayable=replayable,
        replaced=replaced,
    )


def _is_replayable(
    manifest: Manifest, windows: Sequence[Window], remaining_of: RemainingOf
) -> tuple[bool, tuple[str, ...]]:
    remaining = {source.topic: remaining_of(source) for source in manifest.inputs.values()}
    replaced = (topic for topic in {window.topic: None for window in windows} if remaining[topic].is_recreated)
    return all(remaining[window.topic].has(window.partition, window.start) for window in windows), tuple(replaced)


def _deployed_program(earlier: Manifest | None, manifest: Manifest) -> str:
    program, previous = manifest.program, earlier.program if earlier is not None else None
    if not manifest.traits.claims or program is None or previous is None or program.checksum == previous.checksum:
        return ""
    return str(program)


def _describe_resets(manifest: Manifest) -> tuple[str, ...]:
    """Return the offsets that this version has reset, by partition, as in `flights[0] 42 to 17`."""
    return tuple(
        f"{source.topic}[{partition}] {'-' if start is None else start} to {'-' if end is None else end}"
        for _, source in sorted(manifest.inputs.items())
        for reset in source.resets
        if reset.version == manifest.version
        # A recreated topic may have a different number of partitions.
        for partition, (start, end) in enumerate(zip_longest(reset.starts, reset.ends))
        if start != end
    )


def describe_imported_batches(manifest: Manifest) -> str:
    """Return the Spark batches that a version imported: `batch 12`, `batches 41 to 97`; empty for none, or a topic."""
    if (query := manifest.attached or manifest.adopted) is None or not query.batches or query.follows_topic:
        return ""
    last, first = query.next_batch - 1, query.next_batch - query.batches
    return f"batch {last}" if first == last else f"batches {first} to {last}"


def find_unreplayable(store: ObjectStore, app: str, remaining_of: RemainingOf) -> dict[str, Unreplayable]:
    """Return the newest version of each stage that cannot be replayed. Stages without such a version are left out.

    Makes one request per topic, and reads manifests for a binary search over versions. Raises `NotFound` (no such app)
    and `Refused` (not authorized).
    """

    def is_gone(manifest: Manifest) -> bool:
        remaining_by_source = ((remaining_of(source), source) for source in manifest.inputs.values())
        return any(
            not remaining.has(*position)
            for remaining, source in remaining_by_source
            for position in enumerate(source.offsets)
        )

    last_by_stage, read, first = {}, partial(history.read, store, app), partial(history.first_version, store, app)
    for stage, head in heads_of(store, app, stages_of(store, app)).items():
        if (last := history.newest_where(read, first, head, is_gone)) is not None:
            replaced = (source.topic for source in last.inputs.values() if remaining_of(source).is_recreated)
            last_by_stage[stage] = Unreplayable(min(last.version + 1, head.version), tuple(replaced))
    return last_by_stage
