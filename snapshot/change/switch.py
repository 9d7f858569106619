"""Switchover of a promotion: prepare both apps, then decide by creating one object, the name's `PromotionOutcome`.

If the process is killed, a later command completes or withdraws the switchover.

1. The new app's stages get the sinks. Each stage commits a version of kind `promote` after it has reached the target
   offsets. Rows that it writes for sinks wait: no publisher starts before the decision.
2. The old app's stages are fenced. Each stage commits a version of kind `demote` after it has reached the target
   offsets and published everything. From now on the old app can commit nothing.
3. The name's object (`apps.PromotionOutcome`) records the decision. The object is created only if absent, so a
   promotion is either decided or withdrawn, and only once. This call withdraws the promotion if a stage has moved on;
   a new run of the old app withdraws it as well.

A `SwitchoverPosition` consists of offsets of users' topics and a clock time; `why_not_reached` explains why a stage has
not reached the position.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import NamedTuple

from msgspec.structs import replace

from ...common import runtime
from ...errors import Refused, SlackwaterError
from ...store.objects.protocol import ObjectStore, exists
from ...store.versions import apps, history, keys, published
from ...store.versions.amend import Amendment, amend
from ...store.versions.manifest import EventTime, Input, Manifest, Promotion, Sink, SinkKind
from ..cut.graph import topological_order
from ..cut.kafka_topics import KafkaTopics, internal_topic

Offsets = Mapping[str, tuple[int, ...]]
"""Offsets by user's topic: one for each partition."""


class SwitchoverPosition(NamedTuple):
    """Offsets and clock time that both apps must reach before the switchover."""

    offsets: Offsets
    clock_ms: int | None


def reachable_position(heads: Iterable[Manifest]) -> SwitchoverPosition:
    manifests = tuple(heads)
    times = (head.event_time for head in manifests if not head.retired)
    # A late row falls due one millisecond later, which the other app may have passed already.
    clocks = (
        at.next_due_ms if at.next_due_ms == at.due_ms + 1 else at.due_ms
        for at in times
        if at is not None and at.by_clock and at.due_ms is not None
    )
    return SwitchoverPosition(highest_offsets(manifests), max(clocks, default=None))


def users_inputs(heads: Iterable[Manifest]) -> Iterator[Input]:
    return (at for head in heads if not head.retired for at in head.inputs.values() if not at.upstream)


def highest_offsets(heads: Iterable[Manifest]) -> dict[str, tuple[int, ...]]:
    offsets: dict[str, tuple[int, ...]] = {}
    for source in users_inputs(heads):
        previous = offsets.get(source.topic, ())
        offsets[source.topic] = tuple(max(pair) for pair in zip_longest(previous, source.offsets, fillvalue=0))
    return offsets


def max_lag(heads: Iterable[Manifest], at: Offsets) -> int:
    """Return the largest lag of a user's topic: the number of offsets up to `at` that these stages have not read."""
    return max((input_lag(source, at) for source in users_inputs(heads)), default=0)


def input_lag(source: Input, at: Offsets) -> int:
    return sum(max(0, end - read) for end, read in _pairs(source, at))


def why_not_reached(store: ObjectStore, head: Manifest, at: SwitchoverPosition) -> str:
    """Return the reason why a stage has not reached a position, as a sentence; empty if the stage has reached it.

    A stage has reached the position if its offsets match, its channels are read, no row is due by its watermark or by
    the clock, and its sinks are published. Makes a request for each unread version of the stage's senders, and the
    requests of `published.read_positions`.
    """
    if head.retired:
        return ""
    name = f"{head.app}/{head.stage}"
    for source in users_inputs((head,)):
        if reason := _offsets_apart(source, at.offsets):
            return f"{name} has {reason}"
    for channel, source in head.inputs.items():
        if source.upstream and _has_unread(store, head.app, channel, source):
            return f"{name} has still to read rows from {source.upstream}"
    if head.event_time is not None and (reason := _rows_due(head.event_time, at.clock_ms)):
        return f"{name} has {reason}"
    for sink, place in published.read_positions(store, head).items():
        if rows := published.unpublished_rows(head.sinks[sink], place):
            return f"{name} has still to publish {rows:,} rows for its sink {sink!r}"
    return ""


def _offsets_apart(source: Input, at: Offsets) -> str:
    moves = [end - had for end, had in _pairs(source, at)]
    if any(step < 0 for step in moves):
        return f"has read {-sum(min(0, step) for step in moves):,} offsets of {source.topic} too many"
    return f"still to read {sum(moves):,} offsets of {source.topic}" if any(moves) else ""


def _rows_due(times: EventTime, clock_ms: int | None) -> str:
    if not times.by_clock or clock_ms is None:
        return "rows that are due" if times.has_unemitted_due_rows else ""
    if times.due_ms is not None and times.due_ms > clock_ms:
        return "processed due rows since"
    return "rows that are due" if times.next_due_ms is not None and times.next_due_ms <= clock_ms else ""


def _pairs(source: Input, at: Offsets) -> Iterator[tuple[int, int]]:
    return zip_longest(at.get(source.topic, ()), source.offsets, fillvalue=0)


def _has_unread(store: ObjectStore, app: str, channel: str, at: Input) -> bool:
    last_read = history.find(store, app, at.upstream, at.version) if at.version else None
    watermark_ms = last_read.downstream_watermark_ms if last_read is not None else at.watermark_ms
    for version in history.iter_after(store, app, at.upstream, at.version):
        sent = version.outputs.get(channel)
        if sent is not None and (sent.rows or sent.markers or version.downstream_watermark_ms != watermark_ms):
            return True
        watermark_ms = version.downstream_watermark_ms
    return False


class SwitchoverFailed(SlackwaterError):
    """Error raised if a stage left the required position during a promotion, or if the promotion was withdrawn."""


@dataclass(slots=True)
class Switchover:
    """Switchover of one promotion, as recorded in versions of the new app and of the old app."""

    promote: Promotion
    demote: Promotion
    old_folder: str
    """Folder of the old app, which loses the name."""
    by: str
    gives_back: bool = False
    """True if the promotion returns the name to an app that had it before."""
    committed_versions: dict[str, dict[str, tuple[int, int]]] = field(default_factory=dict)

    @property
    def new_folder(self) -> str:
        return self.promote.to

    def prepare(
        self, store: ObjectStore, kafka: KafkaTopics, heads: Iterable[Mapping[str, Manifest]], now_ms: int
    ) -> None:
        """Commit the `promote` and `demote` versions that stages of the two apps do not have yet.

        `heads` has two elements: the newest versions of the old app's stages, and those of the new app's stages. Raises
        `SwitchoverFailed` if a stage is not at the required position, `Refused` if all stages are retired, and the
        errors of `amend`.
        """
        old, new = heads
        if all(head.retired for head in new.values()):
            raise Refused(f"every stage of {self.new_folder} is retired: its removal may be under way")
        for stage in topological_order(new):
            if not new[stage].retired:
                self._amend(store, new[stage], self._promotion_amendment(store, kafka, new[stage]), now_ms)
        for stage in topological_order(old):
            if not old[stage].retired:
                # The sinks stay, and continue to be published if the promotion is withdrawn.
                requires = self._precondition(store, self.demote)
                change = Amendment("demote", lambda draft: replace(draft, promotion=self.demote), requires)
                self._amend(store, old[stage], change, now_ms)
        # If a removal writes its journal after this check, the removal finds and withdraws the prepared promotion.
        if exists(store, keys.removal_journal(self.new_folder)):
            raise SwitchoverFailed(f"{self.new_folder} is being removed")

    def decide(self, store: ObjectStore, now_ms: int) -> None:
        promotion = self.promote
        note = apps.PromotionOutcome(
            promotion.name, promotion.number, self.new_folder, self.old_folder, self.by, now_ms, self.gives_back
        )
        winner = apps.PROMOTION_OUTCOMES.add(store, note)
        if winner.folder != self.new_folder:
            outcome = "withdrawn" if winner.withdrawn else f"preceded by that of {winner.folder}"
            raise SwitchoverFailed(
                f"the promotion of {self.new_folder} over {promotion.name} was {outcome}, by {winner.by}"
            )

    def _amend(self, store: ObjectStore, head: Manifest, change: Amendment, now_ms: int) -> None:
        done = amend(store, head, change, by=self.by, now_ms=now_ms)
        if done.changed:
            version = done.manifest.version
            self.committed_versions.setdefault(head.app, {})[head.stage] = (version - 1, version)

    def _precondition(self, store: ObjectStore, promotion: Promotion) -> Callable[[Manifest], bool]:
        def requires(head: Manifest) -> bool:
            if head.promotion == promotion:
                return False
            if why := why_not_reached(store, head, SwitchoverPosition(promotion.at, promotion.clock_ms)):
                raise SwitchoverFailed(why)
            return True

        return requires

    def _promotion_amendment(self, store: ObjectStore, kafka: KafkaTopics, head: Manifest) -> Amendment:
        ends: dict[str, tuple[str, int, str]] = {}
        sink_id = str(runtime.ulid())
        is_ready = self._precondition(store, self.promote)

        def requires(head: Manifest) -> bool:
            if not is_ready(head):
                return False
            for name in self._published_sinks(head):
                topic = internal_topic(head.app, head.stage, name)
                ends[name] = (topic, *kafka.create_internal_topic(topic))
            return True

        def update(draft: Manifest) -> Manifest:
            sinks = {
                name: Sink(topic, end, draft.version, kind, topic_id=topic_id, id=sink_id if kind == "table" else "")
                for name, kind in self._published_sinks(draft).items()
                for topic, end, topic_id in [ends[name]]
            }
            silent = {name: kind for name, kind in declared_sinks(draft).items() if name not in sinks}
            return replace(draft, sinks=sinks, silent=silent, promotion=self.promote)

        return Amendment("promote", update, requires)

    def _published_sinks(self, head: Manifest) -> dict[str, SinkKind]:
        topics = self.promote.sinks
        return {name: kind for name, kind in declared_sinks(head).items() if topics is None or name in topics}


def declared_sinks(head: Manifest) -> dict[str, SinkKind]:
    return head.silent | {name: sink.kind for name, sink in head.sinks.items()}


def withdraw_promotion(store: ObjectStore, promotion: Promotion, old_folder: str, *, by: str, now_ms: int) -> bool:
    """Withdraw a promotion over the app in folder `old_folder`. Returns False if the promotion was already decided."""
    note = apps.PromotionOutcome(promotion.name, promotion.number, old_folder, old_folder, by, now_ms)
    return apps.PROMOTION_OUTCOMES.add(store, note).folder != promotion.to


def settle_promotion(
    store: ObjectStore, heads: Iterable[Manifest], *, by: str, now_ms: int, claims: Collection[str] = ()
) -> Promotion | None:
    """Return an app's newest promotion. An undecided promotion under which the stages cannot run is withdrawn first.

    Stages cannot run if another app is being promoted over this app. They cannot run either if this app is being
    promoted and a stage in `claims` is not prepared: the claim would start the stage's sinks before the stage may
    publish. Makes no request for an app without promotions.
    """
    manifests = tuple(heads)
    newest = newest_promotion(manifests)
    prepared = {head.stage for head in manifests if head.promotion == newest or head.retired}
    is_ready = newest is not None and newest.to == manifests[0].app and prepared.issuperset(claims)
    if newest is not None and not is_ready and apps.is_promotion_decided(store, newest) is None:
        withdraw_promotion(store, newest, apps.folder_of(store, newest.name), by=by, now_ms=now_ms)
    return newest


def withdraw_own_promotion(store: ObjectStore, app: str, heads: Iterable[Manifest], *, by: str, now_ms: int) -> None:
    """Withdraw a prepared, undecided promotion of an app that is about to be removed."""
    newest = newest_promotion(heads)
    if newest is not None and newest.to == app and apps.is_promotion_decided(store, newest) is None:
        withdraw_promotion(store, newest, apps.folder_of(store, newest.name), by=by, now_ms=now_ms)


def newest_promotion(heads: Iterable[Manifest]) -> Promotion | None:
    promotions = (head.promotion for head in heads if head.promotion is not None)
    return max(promotions, key=lambda promotion: promotion.number, default=None)
