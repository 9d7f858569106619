"""Whether each version of a stage follows from the one before: nothing that was read or written is taken back."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise, zip_longest
from typing import TypeVar

from msgspec.structs import replace

from ...errors import ObjectNotFound
from ...store.objects.protocol import ObjectStore
from ...store.versions import history, horizon, keys
from ...store.versions.manifest import Input, Lost, Manifest, Output, Reset, Sink
from .report import Verified, noted

T = TypeVar("T")
Compare = Callable[[str, T, T], Iterable[str]]


def last_step(store: ObjectStore, manifest: Manifest) -> Iterator[Verified]:
    """Whether a version follows from the one before, if that is kept. At most two requests."""
    wrong: list[str] = []
    earlier = None
    with noted(wrong):
        earlier = history.before(store, manifest)
    if earlier is not None:
        wrong += differences(earlier, manifest)
    if earlier is not None or wrong:
        yield Verified("history", f"{manifest.stage}@v{manifest.version}", tuple(wrong))


def whole_history(
    store: ObjectStore, app: str, stage: str, on_progress: Callable[[str], None]
) -> tuple[Verified, int, frozenset[int]]:
    """Whether each kept version of a stage follows from the one before. One request each. Raises only `Unavailable`.

    With it, the version from which on the history is whole, 0 when there is none, and every number of state partitions
    that the stage had from there on.
    """
    wrong: list[str] = []
    partitions = set()
    earlier: Manifest | None = None
    first, versions = _versions(store, app, stage, wrong)
    for number, version in enumerate(versions):
        manifest = None
        with noted(wrong), suppress(ObjectNotFound):  # collected since the listing
            manifest = history.read_fresh(store, app, stage, version)
        if manifest is not None and earlier is not None and version == versions[number - 1] + 1:
            wrong += differences(earlier, manifest)
        if manifest is not None and manifest.table is not None and version >= first:
            partitions.add(manifest.table.partitions)
        earlier = manifest
        if number % 100 == 0:
            on_progress(f"history of {stage}: v{version} of v{versions[-1]}")
    return Verified("history", stage, tuple(wrong), len(versions)), first, frozenset(partitions)


def _versions(store: ObjectStore, app: str, stage: str, wrong: list[str]) -> tuple[int, list[int]]:
    """From where on the history is whole, and all versions that belong to it; what is missing is added to `wrong`."""
    found = [version for version, _ in history.list_manifests(store, app, stage)]
    limit = horizon.NOTHING_COLLECTED
    with noted(wrong):
        # After the listing: what a collection takes meanwhile is beyond the boundary that is seen then.
        limit = horizon.newest(store, app)
    first = min(found, default=0)
    if stage in limit.first:
        first = limit.first[stage]
        found = [version for version in found if limit.allows(stage, version)]
        wrong += (
            f"{keys.manifest(app, stage, version)} is missing: what was collected of {stage} left v{version}"
            for version in (*limit.kept.get(stage, ()), first)
            if version not in found
        )
    whole = [version for version in found if version >= first]
    wrong += (
        f"{keys.manifest(app, stage, one + 1)} is missing: {stage} has v{one}, and next v{other}"
        for one, other in pairwise(whole)
        if other != one + 1
    )
    return first, found


def differences(earlier: Manifest, later: Manifest) -> Iterator[str]:
    """What a version takes back of the one before it, one sentence each.

    A clone's first version begins a history, and so does the first under another name: it follows from nothing here.
    A rewind takes back what it undoes.
    """
    if later.begins:
        return
    at, restarted = f"{later.app}/{later.stage} v{later.version}", later.traits.restarts
    if later.rewind is not None:
        yield from (f"{at} {each}" for each in _out_of_order(earlier, later))
        return
    yield from (f"{at} {each}" for each in _taken_back(earlier, later))

    def of_input(name: str, before: Input, after: Input) -> Iterator[str]:
        if new := after.resets[len(before.resets) :]:
            yield from _reset_differences(before, after, later, new)
            return
        yield from _input_differences(before, after, restarted)
        yield from _losses(before, after, later.lost.get(name))

    yield from _by_name(at, "input", earlier.inputs, later.inputs, of_input, may_go=restarted)
    if not restarted:
        for name in sorted(later.lost):
            yield f"{at}, input {name!r}: records are passed over; only a claim may do that"

    def of_output(_name: str, before: Output, after: Output) -> Iterator[str]:
        # One whose topic was made again has offsets of its own.
        made_again = restarted and bool(before.topic_id) and before.topic_id != after.topic_id
        yield from _output_differences(replace(before, ends=()) if made_again else before, after)

    yield from _by_name(at, "channel", earlier.outputs, later.outputs, of_output, may_go=restarted)
    may_go = restarted or later.traits.sets_sinks
    yield from _by_name(at, "sink", earlier.sinks, later.sinks, _sink_differences, may_go=may_go)
    for name, had in sorted(earlier.side_tables.items()):
        if (has := later.side_tables.get(name)) is None:
            yield f"{at} has no table of {name} records; the one before had"
            continue
        added, most = has.total - had.total, had.waiting + has.rows
        if has.rows != added:
            yield f"{at}, {name} records: {has.rows} rows added; expected {added}, by the totals before and after"
        if not 0 <= has.waiting <= most:
            yield f"{at}, {name} records: {has.waiting} wait; expected at most {most}, those from before and the new"


def _out_of_order(earlier: Manifest, later: Manifest) -> Iterator[str]:
    if later.version != earlier.version + 1:
        yield f"follows v{earlier.version}"
    if later.time_ms <= earlier.time_ms:
        yield f"was committed at {later.time_ms} ms; expected more than {earlier.time_ms}, that of the one before"
    if later.epoch < earlier.epoch:
        yield f"has epoch {later.epoch}; expected {earlier.epoch}, that of the one before, or more"


def _taken_back(earlier: Manifest, later: Manifest) -> Iterator[str]:
    yield from _out_of_order(earlier, later)
    # It says which of two rows of a key is newer.
    newest = max((sst.seq_max for sst in earlier.ssts), default=0)
    if later.traits.writes_rows and not newest < later.row_seq <= later.version:
        yield f"wrote rows of _seq {later.row_seq}; expected more than {newest}, and at most {later.version}"
    clock_ms = earlier.clock_ms if earlier.table is not None and earlier.table.ttl is not None else None
    was_due, due = (one.event_time.due_ms if one.event_time is not None else None for one in (earlier, later))
    for what, old, new in (
        ("has the clock", clock_ms, later.clock_ms),
        ("has the watermark", earlier.watermark_ms, later.watermark_ms),
        ("says that rows fell due up to", was_due, due),
    ):
        if old is not None and (new is None or new < old):
            yield f"{what} {new} ms; expected {old}, that of the one before, or more"


def _by_name(
    at: str, what: str, had: Mapping[str, T], has: Mapping[str, T], compare: Compare[T], *, may_go: bool
) -> Iterator[str]:
    for name in sorted(had):
        if name in has:
            yield from (f"{at}, {what} {name!r}: {each}" for each in compare(name, had[name], has[name]))
        elif not may_go:
            yield f"{at} has no {what} {name!r}; the one before had"


def _input_differences(earlier: Input, later: Input, restarted: bool) -> Iterator[str]:
    if restarted and later.upstream and earlier.topic_id and earlier.topic_id != later.topic_id:
        pass  # its topic was made again, and has offsets of its own
    else:
        yield from _gone_back("offset", earlier.offsets, later.offsets)
    if later.version < earlier.version:
        yield f"version {later.version} of {later.upstream!r} is consumed; before it was {earlier.version}"
    yield from _gone_back("number of records lost", earlier.lost, later.lost)
    if earlier.consumed and later.consumed:
        yield from _gone_back("number of records consumed", earlier.consumed, later.consumed)
        read = sum(later.consumed) - sum(earlier.consumed)
    elif later.upstream or restarted:
        return  # not known, or skipped
    else:
        # Partitions that a topic got since are read from their beginning. Not each offset has a record.
        offsets = sum(later.offsets) - sum(earlier.offsets)
        if not 0 <= later.rows <= offsets:
            yield f"{later.rows} records read; expected at most {offsets}, the offsets that were passed"
        return
    if later.rows != read:
        yield f"{later.rows} records read; expected {read}, by what was consumed before and after"


def _reset_differences(earlier: Input, later: Input, made: Manifest, new: Sequence[Reset]) -> Iterator[str]:
    made_again = made.traits.claims and bool(new[0].topic_id)
    if not (made.traits.sets_offsets or made_again) or len(new) > 1 or new[0].version != made.version:
        yield "it is read on from elsewhere; only a reset may do that, and once"
        return
    known = earlier.offsets + (0,) * (len(new[0].starts) - len(earlier.offsets))
    for what, said, stands in (("from", new[0].starts, known), ("to", new[0].ends, later.offsets)):
        if said != stands:
            yield f"it was reset {what} {said}; expected {stands}"
    if later.rows:
        yield f"{later.rows} records read; a reset reads none"


def _losses(earlier: Input, later: Input, lost: Lost | None) -> Iterator[str]:
    """What a step of an input does not say of what it passed over, or says otherwise."""
    if lost is None:
        if later.upstream and earlier.lost != later.lost:
            yield f"{sum(later.lost)} records are lost; before they were {sum(earlier.lost)}, and nothing says why"
        return
    known = earlier.offsets + (0,) * (len(lost.starts) - len(earlier.offsets))
    for what, said, stands in (
        ("from offsets", lost.starts, known),
        ("to offsets", lost.ends, later.offsets),
        ("from version", lost.after, earlier.version),
        ("to version", lost.up_to, later.version),
    ):
        if said != stands:
            yield f"what is lost goes {what} {said}; expected {stands}"
    skipped = lost.rows or tuple(end - start for start, end in zip(lost.starts, lost.ends, strict=False))
    if (lost.rows or not later.upstream) and sum(later.lost) - sum(earlier.lost) != sum(skipped):
        yield f"{sum(skipped)} are lost; expected {sum(later.lost) - sum(earlier.lost)}, by the counts before and after"


def _output_differences(earlier: Output, later: Output) -> Iterator[str]:
    yield from _gone_back("end", earlier.ends, later.ends)
    for snapshot, markers in sorted(later.markers.items()):
        for partition, (start, marker, end) in enumerate(zip(earlier.ends, markers, later.ends, strict=False)):
            if not start <= marker < end:
                yield f"marker of {snapshot} at {later.topic}[{partition}]@{marker}; expected within {start}..{end}"
    yield from _gone_back("number of records sent", earlier.sent, later.sent)
    written = sum(later.sent) - sum(earlier.sent)
    if later.rows != written:
        yield f"{later.rows} records written; expected {written}, by what was sent before and after"


def _sink_differences(_name: str, earlier: Sink, later: Sink) -> Iterator[str]:
    if later.since != earlier.since:
        return  # begun anew
    if later.end < earlier.end:
        yield f"end went back from {earlier.end} to {later.end}"
    if later.rows != later.sent - earlier.sent:
        yield f"{later.rows} rows written; expected {later.sent - earlier.sent}, by what was sent before and after"


def _gone_back(what: str, earlier: Sequence[int], later: Sequence[int]) -> Iterator[str]:
    for partition, (old, new) in enumerate(zip_longest(earlier, later)):
        if new is None:
            yield f"{what} of partition {partition} is gone; it was {old}"
        elif old is not None and new < old:
            yield f"{what} of partition {partition} went back from {old} to {new}"
