"""Checks that each version of a stage follows from the version before: no offset, count or clock decreases."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise, zip_longest
from typing import TypeVar

from msgspec.structs import replace

from ...errors import ObjectNotFound
from ...store.objects.protocol import ObjectStore
from ...store.versions import history, horizon, keys
from ...store.versions.manifest import Input, LostRecords, Manifest, Output, Reset, Sink
from ...store.versions.side_tables import has_parts
from .report import CheckOutcome, collect_errors

T = TypeVar("T")
Compare = Callable[[str, T, T], Iterable[str]]


def check_last_step(store: ObjectStore, manifest: Manifest) -> Iterator[CheckOutcome]:
    """Check that a version follows from the version before, if stored. Makes at most two requests."""
    wrong: list[str] = []
    earlier = None
    with collect_errors(wrong):
        earlier = history.previous_version(store, manifest)
    if earlier is not None:
        wrong += version_faults(earlier, manifest)
    if earlier is not None or wrong:
        yield CheckOutcome("history", f"{manifest.stage}@v{manifest.version}", tuple(wrong))


def check_history(store: ObjectStore, app: str, stage: str, on_progress: Callable[[str], None]) -> CheckOutcome:
    """Check that each kept version of a stage follows from the version before. Makes one request per version.

    Raises only `Unavailable`.
    """
    wrong: list[str] = []
    earlier: Manifest | None = None
    versions = _kept_versions(store, app, stage, wrong)
    for number, version in enumerate(versions):
        manifest = None
        with collect_errors(wrong), suppress(ObjectNotFound):  # collected since the listing
            manifest = history.read_stored(store, app, stage, version)
        if manifest is not None and earlier is not None and version == versions[number - 1] + 1:
            wrong += version_faults(earlier, manifest)
        earlier = manifest
        if number % 100 == 0:
            on_progress(f"history of {stage}: v{version} of v{versions[-1]}")
    return CheckOutcome("history", stage, tuple(wrong), len(versions))


def _kept_versions(store: ObjectStore, app: str, stage: str, wrong: list[str]) -> list[int]:
    versions = [version for version, _ in history.list_manifests(store, app, stage)]
    limit = horizon.NOTHING_COLLECTED
    with collect_errors(wrong):
        # Read after the listing, so that the boundary covers everything that a collection deletes meanwhile.
        limit = horizon.newest(store, app)
    first = min(versions, default=0)
    if stage in limit.first:
        first = limit.first[stage]
        versions = [version for version in versions if limit.allows(stage, version)]
        wrong += (
            f"{keys.manifest(app, stage, version)} is missing: garbage collection kept v{version} of {stage}"
            for version in (*limit.kept.get(stage, ()), first)
            if version not in versions
        )
    gapless = [version for version in versions if version >= first]
    wrong += (
        f"{keys.manifest(app, stage, version + 1)} is missing: {stage} has v{version}, then v{following}"
        for version, following in pairwise(gapless)
        if following != version + 1
    )
    return versions


def version_faults(earlier: Manifest, later: Manifest) -> Iterator[str]:
    """Yield a sentence for every value that is lower in the version `later` than in the version `earlier`.

    The first version of a clone, and the first version after a rename, are not compared. A rewind may lower the values
    that it undoes.
    """
    if later.starts_history:
        return
    version, restarted = f"{later.app}/{later.stage} v{later.version}", later.traits.restarts
    if later.rewind is not None:
        yield from (f"{version} {fault}" for fault in _order_faults(earlier, later))
        return
    yield from (f"{version} {fault}" for fault in _regressions(earlier, later))

    def of_input(name: str, old: Input, current: Input) -> Iterator[str]:
        if resets := current.resets[len(old.resets) :]:
            yield from _reset_differences(old, current, later, resets)
            return
        yield from _input_differences(old, current, restarted)
        yield from _loss_faults(old, current, later.lost.get(name))

    yield from _faults_by_name(version, "input", earlier.inputs, later.inputs, of_input, may_vanish=restarted)
    if not restarted:
        for name in sorted(later.lost):
            yield f"{version}, input {name!r}: records were skipped; only a claim may do that"

    def of_output(_name: str, old: Output, current: Output) -> Iterator[str]:
        # A recreated topic has new offsets.
        is_recreated = restarted and bool(old.topic_id) and old.topic_id != current.topic_id
        yield from _output_differences(replace(old, ends=()) if is_recreated else old, current)

    yield from _faults_by_name(version, "channel", earlier.outputs, later.outputs, of_output, may_vanish=restarted)
    may_vanish = restarted or later.traits.sets_sinks
    yield from _faults_by_name(version, "sink", earlier.sinks, later.sinks, _sink_differences, may_vanish=may_vanish)
    for name, old in sorted(earlier.side_tables.items()):
        if has_parts(old.table):
            continue  # the state variable was removed from the program
        if (new := later.side_tables.get(name)) is None:
            yield f"{version} has no table of {name} records; the previous version had"
            continue
        added, most = new.total - old.total, old.waiting + new.rows
        if new.rows != added:
            yield f"{version}, {name} records: {new.rows} rows added; expected {added}, by the totals before and after"
        if not 0 <= new.waiting <= most:
            expected = f"at most {most}, the earlier and the new ones"
            yield f"{version}, {name} records: {new.waiting} are waiting; expected {expected}"


def _order_faults(earlier: Manifest, later: Manifest) -> Iterator[str]:
    if later.version != earlier.version + 1:
        yield f"follows v{earlier.version}"
    if later.time_ms <= earlier.time_ms:
        yield f"was committed at {later.time_ms} ms; expected a time after {earlier.time_ms}"
    if later.epoch < earlier.epoch:
        yield f"has epoch {later.epoch}; expected at least {earlier.epoch}, as in the previous version"


def _regressions(earlier: Manifest, later: Manifest) -> Iterator[str]:
    yield from _order_faults(earlier, later)
    # `_seq` decides which of two rows of a key is newer.
    newest = max((sst.seq_max for sst in earlier.ssts), default=0)
    if later.traits.writes_rows and not newest < later.row_seq <= later.version:
        yield f"wrote rows of _seq {later.row_seq}; expected more than {newest}, and at most {later.version}"
    clock_ms = earlier.clock_ms if earlier.table is not None and earlier.table.ttl is not None else None
    was_due, due = (
        manifest.event_time.due_ms if manifest.event_time is not None else None for manifest in (earlier, later)
    )
    for label, old, new in (
        ("has the clock", clock_ms, later.clock_ms),
        ("has the watermark", earlier.watermark_ms, later.watermark_ms),
        ("has rows due up to", was_due, due),
    ):
        if old is not None and (new is None or new < old):
            yield f"{label} {new} ms; expected at least {old}, as in the previous version"


def _faults_by_name(
    at: str, kind: str, old: Mapping[str, T], new: Mapping[str, T], compare: Compare[T], *, may_vanish: bool
) -> Iterator[str]:
    for name in sorted(old):
        if name in new:
            yield from (f"{at}, {kind} {name!r}: {fault}" for fault in compare(name, old[name], new[name]))
        elif not may_vanish:
            yield f"{at} has no {kind} {name!r}; the previous version had"


def _input_differences(earlier: Input, later: Input, restarted: bool) -> Iterator[str]:
    if restarted and later.upstream and earlier.topic_id and earlier.topic_id != later.topic_id:
        pass  # the topic was recreated and has new offsets
    else:
        yield from _decreases("offset", earlier.offsets, later.offsets)
    if later.version < earlier.version:
        yield f"version {later.version} of {later.upstream!r} is consumed; previously {earlier.version}"
    yield from _decreases("number of records lost", earlier.lost, later.lost)
    if earlier.consumed and later.consumed:
        yield from _decreases("number of records consumed", earlier.consumed, later.consumed)
        read = sum(later.consumed) - sum(earlier.consumed)
    elif later.upstream or restarted:
        return  # unknown, or skipped by a claim
    else:
        # New partitions are read from their beginning. Not every offset has a record.
        offsets = sum(later.offsets) - sum(earlier.offsets)
        if not 0 <= later.rows <= offsets:
            yield f"{later.rows} records read; expected at most {offsets}, the offsets that were passed"
        return
    if later.rows != read:
        yield f"{later.rows} records read; expected {read}, by what was consumed before and after"


def _reset_differences(earlier: Input, later: Input, manifest: Manifest, new: Sequence[Reset]) -> Iterator[str]:
    is_recreated = manifest.traits.claims and bool(new[0].topic_id)
    if not (manifest.traits.sets_offsets or is_recreated) or len(new) > 1 or new[0].version != manifest.version:
        yield "its offsets were changed; only a single reset may do that"
        return
    old_offsets = earlier.offsets + (0,) * (len(new[0].starts) - len(earlier.offsets))
    for side, actual, expected in (("from", new[0].starts, old_offsets), ("to", new[0].ends, later.offsets)):
        if actual != expected:
            yield f"it was reset {side} {actual}; expected {expected}"
    if later.rows:
        yield f"{later.rows} records read; a reset reads none"


def _loss_faults(earlier: Input, later: Input, lost: LostRecords | None) -> Iterator[str]:
    if lost is None:
        if later.upstream and earlier.lost != later.lost:
            yield f"{sum(later.lost)} records are lost, previously {sum(earlier.lost)}, for no given reason"
        return
    old_offsets = earlier.offsets + (0,) * (len(lost.starts) - len(earlier.offsets))
    for side, actual, expected in (
        ("from offsets", lost.starts, old_offsets),
        ("to offsets", lost.ends, later.offsets),
        ("from version", lost.after, earlier.version),
        ("to version", lost.up_to, later.version),
    ):
        if actual != expected:
            yield f"the lost records are {side} {actual}; expected {expected}"
    skipped = lost.rows or tuple(end - start for start, end in zip(lost.starts, lost.ends, strict=False))
    if (lost.rows or not later.upstream) and sum(later.lost) - sum(earlier.lost) != sum(skipped):
        yield f"{sum(skipped)} records are lost; expected {sum(later.lost) - sum(earlier.lost)}, by the counts"


def _output_differences(earlier: Output, later: Output) -> Iterator[str]:
    yield from _decreases("end", earlier.ends, later.ends)
    for snapshot, markers in sorted(later.markers.items()):
        for partition, (start, marker, end) in enumerate(zip(earlier.ends, markers, later.ends, strict=False)):
            if not start <= marker < end:
                yield f"marker of {snapshot} at {later.topic}[{partition}]@{marker}; expected within {start}..{end}"
    yield from _decreases("number of records sent", earlier.sent, later.sent)
    written = sum(later.sent) - sum(earlier.sent)
    if later.rows != written:
        yield f"{later.rows} records written; expected {written}, by what was sent before and after"


def _sink_differences(_name: str, earlier: Sink, later: Sink) -> Iterator[str]:
    if later.since != earlier.since:
        return  # the sink was started again
    if later.end < earlier.end:
        yield f"end went back from {earlier.end} to {later.end}"
    if later.rows != later.sent - earlier.sent:
        yield f"{later.rows} rows written; expected {later.sent - earlier.sent}, by what was sent before and after"


def _decreases(label: str, earlier: Sequence[int], later: Sequence[int]) -> Iterator[str]:
    for partition, (old, new) in enumerate(zip_longest(earlier, later)):
        if new is None:
            yield f"{label} of partition {partition} is gone; it was {old}"
        elif old is not None and new < old:
            yield f"{label} of partition {partition} went back from {old} to {new}"
