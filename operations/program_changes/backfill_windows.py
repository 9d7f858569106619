"""What a stage had read at a version of it, and where it began: of users' topics, and of stages with state before it.

A repartition topic has no offsets of users' topics; its writer has, at the version that was consumed. Only where the
writer keeps state it is the repartition topic itself that was read, and is read from Kafka once more: of the same
records, a state may send other rows. Which task attempts count, the app that computes a backfill knows as any reader
does: from versions of a stage that writes the channel, which is there in name only.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import zip_longest

from msgspec import structs

from ...errors import Refused
from ...snapshot.change.first_versions import channel_topic
from ...snapshot.cut import in_flight
from ...snapshot.diff.versions import VersionList
from ...state import records
from ...state.fits import ANOTHER_STAGE
from ...store.objects.protocol import ObjectStore
from ...store.versions import apps, history
from ...store.versions.amend import Amendment, amend
from ...store.versions.kinds import VersionKind
from ...store.versions.manifest import Input, Manifest, Output

OffsetsByTopic = dict[str, Input]
"""By user's topic, or repartition topic of a stage with state, as declared."""


def positions(store: ObjectStore, at: Manifest) -> OffsetsByTopic:
    """How far a version of a stage had read, by itself and by way of the stages before it.

    Raises `Refused` where a version on the way was collected, or a topic is read by two ways, each with a position of
    its own, and `Unavailable`.
    """
    found: OffsetsByTopic = {}
    for name, source in sorted(at.inputs.items()):
        is_read = _is_read(store, at, source)
        _add(found, {name: source} if is_read else positions(store, _writer(store, at, source)), at)
    return found


def beginnings(store: ObjectStore, at: Manifest) -> tuple[OffsetsByTopic, bool] | None:
    """Where the stage of a version began to read what that reads, in the same way; of a clone, where its source did.

    Repartition topics that its source began to read are another app's, and left out.

    With it, whether it began with nothing: a table that began with rows from elsewhere knows more. None where that was
    collected. Raises as `positions`.
    """
    found: OffsetsByTopic = {}
    with_nothing = True
    for name, source in sorted(at.inputs.items()):
        first = _first_with(store, at, name)
        if first is None:
            return None
        with_nothing &= first.kind != "init"
        begun = first.inputs[name]
        if not begun.upstream:
            more = {name: begun}
        elif _is_read(store, at, source):
            more = {name: begun} if first.app == at.app else {}
        elif begun.version and history.first_version(store, first.app, begun.upstream) < begun.version:
            more = positions(store, _writer(store, first, begun))
        else:
            writer = history.head(store, first.app, source.upstream)
            earlier = beginnings(store, writer) if writer is not None else ({}, True)
            if earlier is None:
                return None
            more = earlier[0]
            with_nothing &= earlier[1]
        _add(found, more, at)
    return found, with_nothing


def _add(found: OffsetsByTopic, more: OffsetsByTopic, at: Manifest) -> None:
    if twice := sorted(found.keys() & more.keys()):
        why = f"topic {twice[0]!r} comes to {at.stage} by two ways, and stands at other offsets on each"
        raise Refused(why, hint=ANOTHER_STAGE)
    found |= more


def _is_read(store: ObjectStore, at: Manifest, source: Input) -> bool:
    """Whether an input is what is read, and not what its writer had read."""
    writer = history.head(store, at.app, source.upstream) if source.upstream else None
    return not source.upstream or (writer is not None and writer.table is not None)


def read_through(store: ObjectStore, at: Manifest) -> Iterator[Manifest]:
    """A version of a stage, and those of the stages without state before it whose rows it had read.

    Raises `Refused` where one of them was collected, and `Unavailable`.
    """
    yield at
    for source in at.inputs.values():
        if not _is_read(store, at, source):
            yield from read_through(store, _writer(store, at, source))


def _writer(store: ObjectStore, at: Manifest, source: Input) -> Manifest:
    """The version of a channel's writer that `at` consumed last; its first, if none was."""
    number = source.version or history.first_version(store, at.app, source.upstream)
    found = history.find(store, at.app, source.upstream, number) if number else None
    if found is None:
        raise Refused(
            f"v{number} of {source.upstream}, up to which {at.stage} v{at.version} had read, was collected: nobody "
            "knows where in the topics that is",
            hint=f"with --from, name a later moment; else {ANOTHER_STAGE}",
        )
    return found


def _first_with(store: ObjectStore, at: Manifest, name: str) -> Manifest | None:
    """The version with which the stage began to read an input; None when that was collected."""
    versions = VersionList(store, at.app, at.stage)
    # Of a version that is planned and not there, the newest.
    last = min(versions.from_number(at.version), len(versions) - 1)
    if last < 0 or name not in versions[last].inputs:
        return at
    place = versions.first_where(0, last, lambda each: name in each.inputs)
    first = versions[place]
    if first.version == 1 or (place and first.kind in ("claim", "migration") and not versions.is_gap(place)):
        return first
    if first.kind == "rename":
        former = first.formerly[-1]
        last_so_called = history.find(store, at.app, former.stage, former.version)
        return _first_with(store, last_so_called, name) if last_so_called is not None else None
    info = apps.find_app(store, at.app) if first.kind == "clone" else None
    if info is None or info.origin is None or info.origin.topics or info.origin.deep:
        return None
    source = store.at(info.origin.root)
    origin = history.find(source, info.origin.app, at.stage, first.version)
    return _first_with(source, origin, name) if origin is not None else None


_ROWS = 1_000_000
_ATTEMPTS = 10_000
"""Of real versions, in one: what is well read at once, and fits into one manifest."""


@dataclass(frozen=True, slots=True)
class ChannelRange:
    """What is read once more of a repartition topic: what its reader had consumed between two places."""

    start: Input
    end: Input

    @property
    def rows(self) -> int:
        """How many."""
        return sum(self.end.passed) - sum(self.start.passed)


def channel(store: ObjectStore, app: str, name: str, begun: Input | None, end: Input) -> tuple[ChannelRange, bool]:
    """What can be read of a channel up to `end`, by those manifests of its writer that are left.

    With it, whether it begins where its reader began, or is to begin: `begun`, None where nobody knows.
    """
    first = history.first_version(store, app, end.upstream)
    if not 0 < first <= end.version:
        return ChannelRange(end, end), False
    end = _with_counts(store, app, name, end)
    if begun is not None and begun.upstream == end.upstream and first <= begun.version:
        return ChannelRange(_with_counts(store, app, name, begun), end), True
    # As a stage without versions begins: behind the first that there is. That of a whole history sent nothing.
    output = history.read(store, app, end.upstream, first).outputs.get(name)
    if output is None:
        return ChannelRange(end, end), False
    begins_there = begun is not None and not begun.version and not output.rows and first == 1
    return ChannelRange(records.behind(output, end.upstream, first), end), begins_there


def _with_counts(store: ObjectStore, app: str, name: str, at: Input) -> Input:
    """A place in a channel with the rows that were sent before it, as its writer says, whoever has read them."""
    found = history.find(store, app, at.upstream, at.version) if at.version else None
    output = found.outputs.get(name) if found is not None else None
    return structs.replace(at, consumed=output.sent, lost=()) if output is not None else at


def left_in(store: ObjectStore, app: str, name: str, one: ChannelRange, earliest: tuple[int, ...]) -> ChannelRange:
    """What is left of it in Kafka, which has these offsets and later ones: whole versions of its writer."""
    gap = in_flight.find_gap(name, one.start, _versions(store, app, one), earliest[: len(one.start.offsets)])
    if gap is None:
        return one
    behind = structs.replace(one.start, offsets=gap.ends, version=gap.up_to, consumed=gap.sent, lost=())
    return replace(one, start=behind)


def tell(store: ObjectStore, app: str, name: str, one: ChannelRange, scratch: str, writer: str, now_ms: int) -> None:
    """Have `scratch`, which computes a backfill of an app, know which attempts of a channel count of what it reads.

    By versions of a stage of its own, `writer`, which stands for the channel's writer. Raises `Unavailable`; the same
    call goes on.
    """
    # In Kafka there is none of this name: whoever removes the app removes nobody's records.
    topic = channel_topic(scratch, name)
    begins = Output(topic, one.start.offsets, (0,) * len(one.start.offsets))

    def committed(of: Manifest | tuple[str, str], kind: VersionKind, output: Output) -> Manifest:
        change = Amendment(
            kind,
            lambda draft: structs.replace(draft, outputs={name: structs.replace(output, topic=topic)}),
            # Another call of this may have come first.
            requires=lambda head: sum(head.outputs[name].sent) < sum(output.sent),
        )
        return amend(store, of, change, by="", now_ms=now_ms, writer=scratch).manifest

    head = committed((scratch, writer), "claim", begins)
    for output in _told(store, app, name, one, sum(head.outputs[name].sent)):
        head = committed(head, "batch", output)


def is_told(store: ObjectStore, name: str, one: ChannelRange, scratch: str, writer: str) -> bool:
    """Whether what an app was told of a channel begins where that is read from."""
    first = history.find(store, scratch, writer, 1)
    return first is not None and first.outputs[name].ends == one.start.offsets


def _told(store: ObjectStore, app: str, name: str, one: ChannelRange, known: int) -> Iterator[Output]:
    """What the writer's versions wrote, several in one, but for the first `known` rows."""
    attempts: list[str] = []
    rows = 0
    last: Output | None = None
    for manifest in _versions(store, app, one):
        output = manifest.outputs.get(name)
        if output is None or not output.rows:
            continue
        sent = tuple(now - before for now, before in zip_longest(output.sent, one.start.passed, fillvalue=0))
        if sum(sent) <= known:
            continue
        attempts, rows = [*attempts, *output.attempts], rows + output.rows
        last = structs.replace(output, attempts=tuple(attempts), rows=rows, markers={}, sent=sent)
        if rows >= _ROWS or len(attempts) >= _ATTEMPTS:
            yield last
            attempts, rows, last = [], 0, None
    if last is not None:
        yield last


def _versions(store: ObjectStore, app: str, one: ChannelRange) -> Iterator[Manifest]:
    return history.between(store, app, one.end.upstream, one.start.version, one.end.version)
