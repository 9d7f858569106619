"""Where a stage that is claimed reads its inputs on from, and what it does not get because Kafka has lost it.

Offsets only go forward. What is lost is refused, or, where that is accepted, passed over at once; the claim says so.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from ...errors import Gone, Refused
from ...fold.records import windows
from ...moments.cut import in_flight, stored
from ...moments.take import audit_log
from ...store.objects.protocol import ObjectStore
from ...store.versions import history
from ...store.versions.manifest import Input, Lost, Manifest

_log = logging.getLogger("slackwater")

Bounds = tuple[tuple[int, ...], tuple[int, ...]]
"""The earliest and the end offset of each partition of a topic."""

Begin = Callable[[tuple[int, ...], tuple[int, ...]], tuple[int, ...]]
"""Gets the earliest and the end offset of each partition; gives the first that is read."""


@dataclass(frozen=True, slots=True)
class StartPosition:
    """Where one input is read on from."""

    at: Input
    """As the claim is to say it."""
    lost: Lost | None = None
    """What the claim passes over."""
    broken: frozenset[str] = frozenset()
    """Ids of snapshots that cannot complete then."""
    unseen: str = ""
    """What a new stage will not see though nobody lost it on its way, as half a sentence."""
    ends: tuple[int, ...] = ()
    """Where a user's topic ended then."""


@dataclass(frozen=True, slots=True)
class StartFinder:
    """Finds the start positions of one stage, whose `head` is None when it is new; asks Kafka for `offsets` by topic.

    With `accept_loss`, what is gone may be passed over.
    """

    store: ObjectStore
    app: str
    stage: str
    head: Manifest | None
    offsets: Callable[[str], Bounds]
    accept_loss: bool

    def topic(self, name: str, topic: str, begin: Begin | None) -> StartPosition:
        """The start of a user's topic; a new stage begins where `begin` says, or at the earliest offsets.

        Raises `Refused`, or what `offsets` and `begin` raise.
        """
        earliest, ends = self.offsets(topic)
        if self.head is None:
            # Perhaps it was chosen long ago.
            at = begin(earliest, ends) if begin is not None else (0,) * len(earliest)
            missing = ", ".join(windows(topic, at, earliest))
            if missing and begin is not None:
                self._refuse(
                    f"is to begin at offsets that are gone from Kafka: {missing}",
                    "restore the topic with these records, or begin without them by --accept-loss",
                )
            unseen = f"{missing}, gone from Kafka" if missing else ""
            return StartPosition(Input(topic, tuple(map(max, at, earliest))), unseen=unseen, ends=ends)
        known = self.head.inputs[name]
        at = self._within(topic, known.offsets, ends, "restore it, or start afresh under another app name (--app NAME)")
        offsets = tuple(map(max, at, earliest))
        if offsets == at:
            return StartPosition(replace(known, offsets=at), ends=ends)
        gone = windows(topic, at, earliest)
        self._refuse(
            f"would go on at offsets that are gone from Kafka: {', '.join(gone)}",
            "restore the topic with these records, or go on without them by --accept-loss; "
            "longer retention keeps it from happening again",
        )
        before = known.lost + (0,) * (len(at) - len(known.lost))
        total = tuple(had + until - start for had, start, until in zip(before, at, offsets, strict=True))
        return StartPosition(replace(known, offsets=offsets, lost=total), Lost(topic, at, offsets), ends=ends)

    def channel(self, name: str, topic: str, upstream: str) -> StartPosition:
        """The start of a repartition topic that the stage `upstream` writes. Raises as `topic` does."""
        # Before the sender's versions: what is deleted later is not judged by older ones.
        earliest, ends = self.offsets(topic)
        sender = history.head(self.store, self.app, upstream)
        if sender is not None and name in sender.outputs:
            # Those count that the sender knows: others were added by hand and stay empty.
            count = len(sender.outputs[name].ends)
            earliest, ends = earliest[:count], ends[:count]
        if self.head is None:
            return self._new(name, topic, upstream, earliest)
        known = self.head.inputs[name]
        # What a stage that was retired has still to read may have been collected meanwhile.
        first = history.first_version(self.store, self.app, known.upstream) if self.head.retired else 0
        if known.version + 1 < first:
            raise Refused(
                f"stage {self.stage!r} was retired when it had read {known.upstream} up to v{known.version}, and the "
                f"history of {known.upstream} begins at v{first} by now (slackwater gc): it cannot go on",
                hint="give the stage a new name to start afresh",
            )
        way_out = "restore it, or clone the app from a snapshot: a clone has topics of its own"
        known = replace(known, offsets=self._within(topic, known.offsets, ends, way_out))
        if all(map(int.__ge__, known.offsets, earliest)):
            return StartPosition(known)
        return self._behind(name, known, earliest, "go on at offsets that are") or StartPosition(known)

    def _new(self, name: str, topic: str, upstream: str, earliest: tuple[int, ...]) -> StartPosition:
        """The start of a stage that has not read the channel yet: where the channel begins."""
        none = (0,) * len(earliest)
        first = history.first_version(self.store, self.app, upstream)
        # A clone's history, and one that was thinned out, does not begin at version 1.
        before = max(0, first - 1)
        at = Input(topic, none, upstream, before, consumed=none)
        if any(earliest) and first and (lost := self._behind(name, at, earliest, "begin without what is")):
            return lost
        if before:
            unseen = f"what {upstream} sent before its v{first}, which is no part of this app's history any more"
            return StartPosition(replace(at, consumed=()), unseen=unseen)
        output = history.read(self.store, self.app, upstream, first).outputs.get(name) if first else None
        # A topic that is older than the channel has messages that are none of its own.
        begins = output.ends if output is not None and not (output.rows or output.markers) else none
        return StartPosition(replace(at, offsets=begins if first else earliest))

    def _behind(self, name: str, at: Input, earliest: tuple[int, ...], would: str) -> StartPosition | None:
        """The start behind a gap; None when no row is lost in one."""
        newer = history.after(self.store, self.app, at.upstream, at.version)
        gap = in_flight.find_gap(name, at, newer, earliest)
        if gap is None:
            return None
        behind, lost = in_flight.pass_over(at, gap)
        gone = ", ".join(f"{at.topic}[{partition}] {start}..{end}" for partition, start, end in gap.gone)
        rows = f"{_rows(lost)} " if lost.rows else ""
        self._refuse(
            f"would {would} gone from Kafka: {gone} ({rows}of {at.upstream}, {_versions(gap.after + 1, gap.up_to)})",
            "clone the app from a moment whose records Kafka still has, or go on without these rows by --accept-loss",
        )
        return StartPosition(behind, lost, in_flight.broken(self.head, name, gap))

    def _within(self, topic: str, offsets: tuple[int, ...], ends: tuple[int, ...], way_out: str) -> tuple[int, ...]:
        """The offsets, with those of partitions that the topic got since. No option goes back behind them."""
        at, what = offsets + (0,) * (len(ends) - len(offsets)), ""
        if len(ends) < len(offsets):
            what = f"topic {topic!r} has {len(ends)} partitions; stage {self.stage!r} has read {len(offsets)}"
        elif beyond := ", ".join(windows(topic, ends, at)):
            what = f"stage {self.stage!r} has read further than the topic goes: {beyond} (where it ends, and where the "
            what += "stage stands)"
        if what:
            raise Refused(f"{what}: it was deleted and made again", hint=way_out)
        return at

    def _refuse(self, what: str, way_out: str) -> None:
        if not self.accept_loss:
            raise Gone(f"stage {self.stage!r} {what}", hint=way_out)


def start_at(store: ObjectStore, draft: Manifest, starts: Mapping[str, StartPosition], by: str) -> Manifest:
    """The claim with these start positions, by the input's declared name.

    Snapshots that the loss breaks are failed by name before: none is left that would wait for ever.
    """
    broken = frozenset(name for start in starts.values() for name in start.broken)
    for request in stored.open_requests(store, draft.app) if broken else ():
        if request.id in broken:
            lost = ", ".join(
                f"{_versions(start.lost.after + 1, start.lost.up_to)} of {start.at.upstream} on {name}"
                for name, start in starts.items()
                if start.lost is not None and request.id in start.broken
            )
            why = f"stage {draft.stage!r} went on without {lost}, where its marker or records in flight of it were"
            _log.warning("snapshot %s of %s was dropped: %s", request.name, draft.app, why)
            audit_log.record(store, draft.app, "snapshot failed", f"{request.name}: {why}", by)
            stored.cancel(store, draft.app, request)
    return replace(
        in_flight.forget(draft, broken),
        inputs={name: start.at for name, start in starts.items()},
        lost={name: start.lost for name, start in starts.items() if start.lost is not None},
    )


def log_unseen(stage: str, starts: Mapping[str, StartPosition]) -> None:
    """Say what a stage will not see, before it starts."""
    for name, start in starts.items():
        if start.lost is not None:
            skipped = windows(start.lost.topic, start.lost.starts, start.lost.ends)
            rows = f" ({_rows(start.lost)})" if start.lost.rows else ""
            _log.warning("stage %r goes on without %s%s: gone from Kafka", stage, ", ".join(skipped), rows)
        elif start.unseen:
            _log.warning("stage %r is new and begins on %s: it will not see %s", stage, name, start.unseen)


def _rows(lost: Lost) -> str:
    count = sum(lost.rows)
    return f"{count:,} row{'' if count == 1 else 's'}"


def _versions(first: int, last: int) -> str:
    return f"v{first}" if first == last else f"v{first} to v{last}"
