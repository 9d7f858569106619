"""What a stage with state had sent to the one that is backfilled: rows in a repartition topic, and which of them count.

Computed again it would be other rows, for what a state sends depends on where batches end. So those that were sent are
read from Kafka once more. Which task attempts count is told to the app that computes a backfill as to any reader: by
versions of a stage that writes the channel. That stage is there in name only, and its versions say of the channel what
those of the real one do, many of them in one.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import takewhile, zip_longest

from msgspec import structs

from ...fold import records
from ...moments.cut import in_flight
from ...store.objects.protocol import ObjectStore
from ...store.versions import history
from ...store.versions.amend import Amendment, amend
from ...store.versions.manifest import Input, Kind, Manifest, Output
from ..clone.first_versions import channel_topic

_ROWS = 1_000_000
_ATTEMPTS = 10_000
"""Of real versions, in one: what is well read at once, and fits into one manifest."""


@dataclass(frozen=True, slots=True)
class Channel:
    """What is read once more of a repartition topic: what its reader had consumed between two places."""

    start: Input
    end: Input

    @property
    def rows(self) -> int:
        """How many."""
        return sum(self.end.passed) - sum(self.start.passed)


def channel(store: ObjectStore, app: str, name: str, begun: Input | None, end: Input) -> tuple[Channel, bool]:
    """What can be read of a channel up to `end`, by those manifests of its writer that are left.

    With it, whether it begins where its reader began, or is to begin: `begun`, None where nobody knows.
    """
    first = history.first_version(store, app, end.upstream)
    if not 0 < first <= end.version:
        return Channel(end, end), False
    end = _with_counts(store, app, name, end)
    if begun is not None and begun.upstream == end.upstream and first <= begun.version:
        return Channel(_with_counts(store, app, name, begun), end), True
    # As a stage without versions begins: behind the first that there is. That of a whole history sent nothing.
    output = history.read(store, app, end.upstream, first).outputs.get(name)
    if output is None:
        return Channel(end, end), False
    begins_there = begun is not None and not begun.version and not output.rows and first == 1
    return Channel(records.behind(output, end.upstream, first), end), begins_there


def _with_counts(store: ObjectStore, app: str, name: str, at: Input) -> Input:
    """A place in a channel with the rows that were sent before it, as its writer says, whoever has read them."""
    found = history.find(store, app, at.upstream, at.version) if at.version else None
    output = found.outputs.get(name) if found is not None else None
    return structs.replace(at, consumed=output.sent, lost=()) if output is not None else at


def left_in(store: ObjectStore, app: str, name: str, one: Channel, earliest: tuple[int, ...]) -> Channel:
    """What is left of it in Kafka, which has these offsets and later ones: whole versions of its writer."""
    gap = in_flight.find_gap(name, one.start, _versions(store, app, one), earliest[: len(one.start.offsets)])
    if gap is None:
        return one
    behind = structs.replace(one.start, offsets=gap.ends, version=gap.up_to, consumed=gap.sent, lost=())
    return replace(one, start=behind)


def tell(store: ObjectStore, app: str, name: str, one: Channel, scratch: str, writer: str, now_ms: int) -> None:
    """Have `scratch`, which computes a backfill of an app, know which attempts of a channel count of what it reads.

    By versions of a stage of its own, `writer`, which stands for the channel's writer. Raises `Unavailable`; the same
    call goes on.
    """
    # In Kafka there is none of this name: whoever removes the app removes nobody's records.
    topic = channel_topic(scratch, name)
    begins = Output(topic, one.start.offsets, (0,) * len(one.start.offsets))

    def committed(of: Manifest | tuple[str, str], kind: Kind, output: Output) -> Manifest:
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


def is_told(store: ObjectStore, name: str, one: Channel, scratch: str, writer: str) -> bool:
    """Whether what an app was told of a channel begins where that is read from."""
    first = history.find(store, scratch, writer, 1)
    return first is not None and first.outputs[name].ends == one.start.offsets


def _told(store: ObjectStore, app: str, name: str, one: Channel, known: int) -> Iterator[Output]:
    """What the writer's versions wrote, several in one, but for the first `known` rows."""
    attempts: list[str] = []
    rows = 0
    last: Output | None = None
    for manifest in _versions(store, app, one):
        output = manifest.outputs.get(name)
        if output is None or not output.rows:
            continue
        pairs = zip_longest(output.sent, one.start.passed, fillvalue=0)
        sent = tuple(now - before for now, before in pairs)
        if sum(sent) <= known:
            continue
        attempts, rows = [*attempts, *output.attempts], rows + output.rows
        last = structs.replace(output, attempts=tuple(attempts), rows=rows, markers={}, sent=sent)
        if rows >= _ROWS or len(attempts) >= _ATTEMPTS:
            yield last
            attempts, rows, last = [], 0, None
    if last is not None:
        yield last


def _versions(store: ObjectStore, app: str, one: Channel) -> Iterator[Manifest]:
    after = history.after(store, app, one.end.upstream, one.start.version)
    return takewhile(lambda each: each.version <= one.end.version, after)
