"""Start positions of a claimed stage, and the records that the stage skips because Kafka has lost them.

Offsets of a topic only move forward. Lost offsets are refused, or, with `accept_loss`, skipped at once and recorded in
the claim. With `accept_loss`, a claim also continues on a topic that was deleted and created again.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from ...common import instants
from ...errors import AnotherTopic, Gone, Refused
from ...snapshot.cut import in_flight, stored
from ...snapshot.take import audit_log
from ...state.records import (
    TopicState,
    describe_recreated_topic,
    explain_recreated_topic,
    format_windows,
    id_to_store,
    is_kafka_id,
    is_other_topic,
    restart_input,
    was_recreated_since_read,
)
from ...store.objects.protocol import ObjectStore
from ...store.versions import history
from ...store.versions.manifest import Input, LostRecords, Manifest

_log = logging.getLogger("slackwater")

ChooseStartOffsets = Callable[[tuple[int, ...], tuple[int, ...]], tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class StartPosition:
    """Start position of one input."""

    input: Input
    lost: LostRecords | None = None
    broken_snapshots: frozenset[str] = frozenset()
    unseen: str = ""
    """Phrase for a message about records that a new stage will not see because they no longer exist."""
    ends: tuple[int, ...] = ()
    recreated_reason: str = ""
    """Reason to assume that the input's topic was deleted and created again; empty if it was not."""


@dataclass(frozen=True, slots=True)
class StartFinder:
    """Finds the start positions of one stage. `head` is None for a new stage.

    With `accept_loss`, lost records may be skipped. With `claiming`, the head is the draft of a claim, and upstream
    stages of this run are already claimed.
    """

    store: ObjectStore
    app: str
    stage: str
    head: Manifest | None
    topic_state: Callable[[str], TopicState]
    accept_loss: bool
    claiming: bool = False
    offsets_since: Callable[[str, int], Sequence[int]] | None = None
    """Function from one time (ms since 1970) per partition to the first offset at or after each time; -1 for none."""

    def start_on_topic(self, name: str, topic: str, begin: ChooseStartOffsets | None) -> StartPosition:
        """Return the start position on a user's topic. A new stage starts at the offsets that `begin` returns.

        Without `begin`, a new stage starts at the earliest offsets. Raises `Refused` if records are lost, unless loss
        is accepted, and the errors of `topic_state` and `begin`.
        """
        earliest, ends, topic_id = now = self.topic_state(topic)
        if self.head is None:
            # A declared or stored start may be older than Kafka's records.
            at = begin(earliest, ends) if begin is not None else (0,) * len(earliest)
            missing = ", ".join(format_windows(topic, at, earliest))
            if missing and begin is not None:
                self._refuse_loss(
                    f"is to begin at offsets that are gone from Kafka: {missing}",
                    "restore the topic with these records, or begin without them: --accept-loss",
                )
            unseen = f"{missing}, gone from Kafka" if missing else ""
            first = Input(topic, tuple(map(max, at, earliest)), topic_id=topic_id)
            return StartPosition(first, unseen=unseen, ends=ends)
        source = self.head.inputs[name]
        if why := explain_recreated_topic(topic, source.topic_id, source.offsets, now) or self._younger_reason(
            topic, source, now
        ):
            self._refuse_recreated(why, recreated_user_topic_hint(self.app, topic))
            restarted = restart_input(source, now, self.head.version)
            return StartPosition(restarted, ends=ends, recreated_reason=why)
        source = replace(source, topic_id=id_to_store(source.topic_id, topic_id))
        at = self._check_not_past_end(
            topic, source.offsets, ends, "restore it, or start afresh under another app name (--app NAME)"
        )
        offsets = tuple(map(max, at, earliest))
        if offsets == at:
            return StartPosition(replace(source, offsets=at), ends=ends)
        gone = format_windows(topic, at, earliest)
        self._refuse_loss(
            f"would continue at offsets that are gone from Kafka: {', '.join(gone)}",
            "restore the topic with these records, or continue without them: --accept-loss. "
            "A longer retention of the topic prevents this",
        )
        lost_before = source.lost + (0,) * (len(at) - len(source.lost))
        total = tuple(loss + until - start for loss, start, until in zip(lost_before, at, offsets, strict=True))
        return StartPosition(replace(source, offsets=offsets, lost=total), LostRecords(topic, at, offsets), ends=ends)

    def _younger_reason(self, topic: str, source: Input, now: TopicState) -> str:
        """Return a reason to assume, from its records' times, that a topic was created again; empty for none.

        Used for topics without a known id.
        """
        if is_kafka_id(now.id) or self.offsets_since is None or self.head is None:
            return ""
        head = self.head
        if self.claiming:
            head = history.read(self.store, self.app, self.stage, head.version - 1)
        since_read, since_now = (self.offsets_since(topic, at_ms) for at_ms in (head.time_ms + 1, instants.now_ms()))
        if not was_recreated_since_read(source.offsets, now, since_read, since_now):
            return ""
        why = describe_recreated_topic(topic, source.topic_id, source.offsets, now)
        return (
            f"{why}, none of them from before {instants.format_iso(head.time_ms, 'milliseconds')}, when the "
            f"stage last read it"
        )

    def start_on_channel(self, name: str, topic: str, upstream: str) -> StartPosition:
        """Return the start position on the repartition topic that the stage `upstream` writes.

        Raises `Refused` if rows are lost, unless loss is accepted, and the errors of `topic_state`.
        """
        # The topic is read before the sender's versions. Otherwise records deleted in between would be compared with
        # older versions.
        now = self.topic_state(topic)
        sender = history.head(self.store, self.app, upstream)
        output = sender.outputs.get(name) if sender is not None else None
        if output is not None:
            # Only partitions that the sender knows count. Other partitions were added by hand and stay empty.
            count = len(output.ends)
            now = now._replace(earliest=now.earliest[:count], ends=now.ends[:count])
            # The newest version may be newer than the answer from Kafka.
            if is_other_topic(output.topic_id, now.id):
                why = explain_recreated_topic(topic, output.topic_id, output.ends, now)
                self._refuse_recreated(why, recreated_channel_hint(self.app))
                if self.claiming:
                    order = f"stage {upstream!r}, which writes the topic, must start on the new one before its readers"
                    raise AnotherTopic(f"{why}; {order}", hint=f"run {upstream!r}, too, with --accept-loss")
                return StartPosition(self.head.inputs[name] if self.head is not None else Input(topic, now.earliest))
        earliest, ends, topic_id = now
        if self.head is None:
            return self._start_of_new_stage(name, topic, upstream, now)
        source = self.head.inputs[name]
        if why := explain_recreated_topic(topic, source.topic_id, source.offsets, now):
            self._refuse_recreated(why, recreated_channel_hint(self.app))
            return self._start_on_recreated(name, source, topic_id, why)
        source = replace(source, topic_id=id_to_store(source.topic_id, topic_id))
        # Garbage collection may have removed versions that a retired stage has not read.
        first = history.first_version(self.store, self.app, source.upstream) if self.head.retired else 0
        if source.version + 1 < first:
            raise Refused(
                f"stage {self.stage!r} cannot continue: it was retired after reading {source.upstream} up to "
                f"v{source.version}, but the history of {source.upstream} now begins at v{first} (slackwater gc)",
                hint="give the stage a new name to start afresh",
            )
        way_out = "restore it, or clone the app from a snapshot: a clone has topics of its own"
        source = replace(source, offsets=self._check_not_past_end(topic, source.offsets, ends, way_out))
        if all(map(int.__ge__, source.offsets, earliest)):
            return StartPosition(source)
        return self._start_after_gap(name, source, earliest, "continue at offsets that are") or StartPosition(source)

    def _start_of_new_stage(self, name: str, topic: str, upstream: str, now: TopicState) -> StartPosition:
        earliest, none = now.earliest, (0,) * len(now.earliest)
        first = history.first_version(self.store, self.app, upstream)
        # The history does not begin at version 1 in a clone, or if versions were removed by retention.
        skipped = max(0, first - 1)
        at = Input(topic, none, upstream, skipped, consumed=none, topic_id=now.id)
        if (
            any(earliest)
            and first
            and (lost := self._start_after_gap(name, at, earliest, "begin without rows that are"))
        ):
            return lost
        if skipped:
            unseen = f"rows that {upstream} sent before v{first}, which are no longer in this app's history"
            return StartPosition(replace(at, consumed=()), unseen=unseen)
        output = history.read(self.store, self.app, upstream, first).outputs.get(name) if first else None
        if output is not None and is_other_topic(output.topic_id, now.id):
            return self._start_on_recreated(name, at, now.id, "")
        # A topic older than the channel has messages that do not belong to the channel.
        begins = output.ends if output is not None and not (output.rows or output.markers) else none
        return StartPosition(replace(at, offsets=begins if first else earliest))

    def _start_on_recreated(self, name: str, at: Input, topic_id: str, why: str) -> StartPosition:
        """Return the start position on a re-created repartition topic: its writer's first position in the new topic.

        Rows of the former topic that the stage had not read are skipped.
        """
        markers: set[str] = set()
        for version in history.iter_after(self.store, self.app, at.upstream, at.version):
            output = version.outputs.get(name)
            if output is None or is_other_topic(output.topic_id, topic_id):
                markers |= output.markers.keys() if output is not None else set()
                continue
            gap = in_flight.Gap(
                at.version, version.version, at.offsets, output.ends, (), output.sent, frozenset(markers)
            )
            position, lost = in_flight.skip_gap(replace(at, topic_id=topic_id), gap)
            broken = in_flight.snapshots_broken_by_gap(self.head, name, gap)
            if lost.rows and not any(lost.rows):
                return StartPosition(replace(position, lost=at.lost), None, broken, recreated_reason=why)
            return StartPosition(position, lost, broken, recreated_reason=why)
        return StartPosition(replace(at, topic_id=topic_id), recreated_reason=why)

    def _start_after_gap(self, name: str, at: Input, earliest: tuple[int, ...], would: str) -> StartPosition | None:
        newer = history.iter_after(self.store, self.app, at.upstream, at.version)
        gap = in_flight.find_gap(name, at, newer, earliest)
        if gap is None:
            return None
        position, lost = in_flight.skip_gap(at, gap)
        gone = ", ".join(f"{at.topic}[{partition}] {start}..{end}" for partition, start, end in gap.missing_ranges)
        rows = f"{_row_count_text(lost)} " if lost.rows else ""
        self._refuse_loss(
            f"would {would} gone from Kafka: {gone} ({rows}of {at.upstream}, "
            f"{_version_range_text(gap.after + 1, gap.up_to)})",
            "clone the app from a moment whose records Kafka still has, or continue without these rows: --accept-loss",
        )
        return StartPosition(position, lost, in_flight.snapshots_broken_by_gap(self.head, name, gap))

    def _check_not_past_end(
        self, topic: str, offsets: tuple[int, ...], ends: tuple[int, ...], way_out: str
    ) -> tuple[int, ...]:
        at = offsets + (0,) * (len(ends) - len(offsets))
        if beyond := ", ".join(format_windows(topic, ends, at)):
            raise Refused(
                f"stage {self.stage!r} has read past the end of topic {topic!r}: {beyond} (the topic's end, and the "
                "stage's position). The topic's id is unchanged: Kafka has lost its last records",
                hint=way_out,
            )
        return at

    def _refuse_loss(self, problem: str, way_out: str) -> None:
        if not self.accept_loss:
            raise Gone(f"stage {self.stage!r} {problem}", hint=way_out)

    def _refuse_recreated(self, why: str, way_out: str) -> None:
        if not self.accept_loss:
            raise AnotherTopic(f"stage {self.stage!r} cannot continue: {why}", hint=way_out)


def recreated_user_topic_hint(app: str, topic: str) -> str:
    return (
        f"to read the new topic from its beginning: slackwater reset {app} --topic {topic} --to-earliest, or run with "
        "--accept-loss; if it has the same records at the same offsets: slackwater reset with --shift-by 0"
    )


def recreated_channel_hint(app: str) -> str:
    return (
        "rows in flight were lost with the topic: run the app with --accept-loss, which continues without them and "
        "says how many they are; or clone the app from a snapshot, which has such rows: slackwater clone "
        f"{app}@SNAPSHOT NAME"
    )


def with_start_positions(store: ObjectStore, draft: Manifest, starts: Mapping[str, StartPosition], by: str) -> Manifest:
    """Return the claim `draft` with these start positions, by the inputs' declared names.

    First withdraws the snapshots that cannot complete because records are lost.
    """
    broken = frozenset(name for start in starts.values() for name in start.broken_snapshots)
    for request in stored.open_requests(store, draft.app) if broken else ():
        if request.id in broken:
            lost = ", ".join(
                f"{_version_range_text(start.lost.after + 1, start.lost.up_to)} of {start.input.upstream} on {name}"
                for name, start in starts.items()
                if start.lost is not None and request.id in start.broken_snapshots
            )
            why = f"stage {draft.stage!r} continued without {lost}, where its marker or in-flight records were"
            _log.warning("snapshot %s of %s was dropped: %s", request.name, draft.app, why)
            audit_log.record_operation(store, draft.app, "snapshot failed", f"{request.name}: {why}", by)
            stored.withdraw_request(store, draft.app, request)
    return replace(
        in_flight.without_answers(draft, broken),
        inputs={name: start.input for name, start in starts.items()},
        lost={name: start.lost for name, start in starts.items() if start.lost is not None},
    )


def log_unseen_records(stage: str, starts: Mapping[str, StartPosition]) -> None:
    for name, start in starts.items():
        if start.ends and not is_kafka_id(start.input.topic_id):
            _log.warning(
                "this Kafka has no topic ids: if %s is deleted and created again, only offsets, leader epochs and "
                "record times can show it",
                start.input.topic,
            )
        if start.recreated_reason:
            _log.warning("stage %r continues on the new topic: %s", stage, start.recreated_reason)
        if start.lost is not None:
            skipped = ", ".join(format_windows(start.lost.topic, start.lost.starts, start.lost.ends))
            rows = f" ({_row_count_text(start.lost)})" if start.lost.rows else ""
            where = f"rows in flight on {name}" if start.recreated_reason else skipped
            _log.warning("stage %r continues without %s%s: gone from Kafka", stage, where, rows)
        elif start.unseen:
            _log.warning("new stage %r on input %s will not see %s", stage, name, start.unseen)


def _row_count_text(lost: LostRecords) -> str:
    count = sum(lost.rows)
    return f"{count:,} row{'' if count == 1 else 's'}"


def _version_range_text(first: int, last: int) -> str:
    return f"v{first}" if first == last else f"v{first} to v{last}"
