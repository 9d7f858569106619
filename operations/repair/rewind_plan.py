"""Plan of a rewind: target versions of the stages, offsets to re-read, and published rows that cannot be undone."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from msgspec.structs import replace

from ...errors import Refused
from ...snapshot.cut.graph import Cut, channels, topological_order, violations
from ...snapshot.cut.in_flight import channel_state
from ...snapshot.cut.kafka_topics import KafkaTopics
from ...snapshot.cut.migrations import MigratedStage, Unread
from ...snapshot.cut.moments import read_line, with_retired
from ...snapshot.cut.refs import Ref
from ...snapshot.cut.resolve import cut_of_ref
from ...state.records import format_windows
from ...store.objects.protocol import ObjectStore
from ...store.versions import apps, history, published
from ...store.versions.manifest import Manifest


@dataclass(frozen=True, slots=True)
class SinkRows:
    """Numbers of rows committed for a sink since a moment, including rows of versions that an earlier rewind undid."""

    stage: str
    sink: str
    topic: str
    """Topic of the sink; empty for a function or a table."""
    rows: int
    """Number of published rows, as far as the store knows. A rewind cannot undo them."""
    offsets: tuple[str, ...]
    """Offset ranges written to the topic since the moment. Other producers may have written some of the records."""
    dropped: int
    """Number of committed rows that are not published yet. A rewind drops them."""
    table: str = ""
    """Table of the sink, which the next run restores to the moment; empty for a topic or a function."""


def sink_rows(
    store: ObjectStore, heads: Mapping[str, Manifest], then: Mapping[str, Manifest], kafka: KafkaTopics
) -> Iterator[SinkRows]:
    """Yield, for each sink and topic, the numbers of rows that stages committed after the versions `then`.

    Raises `Refused` if a sink has not yet published all rows of the versions `then`.
    """
    for stage in topological_order(heads):
        head, was = heads[stage], then.get(stage)
        first = history.find(store, head.app, stage, was.version + 1) if was is not None else None
        for name in {**head.sinks, **head.silent, **(was.sinks if was is not None else {})}:
            rows, dropped = _count_sink_rows(store, head, was, name)
            for topic in sorted(rows.keys() | dropped.keys()):
                since_ms = first.time_ms if first is not None else 0
                offsets = _sent_since(kafka, topic, since_ms) if topic and rows[topic] else ()
                if rows[topic] or dropped[topic]:
                    sink = head.sinks.get(name) or (was.sinks.get(name) if was is not None else None)
                    table = sink.table if sink is not None and not topic else ""
                    yield SinkRows(stage, name, topic, rows[topic], offsets, dropped[topic], table)


def find_other_publishers(store: ObjectStore, heads: Mapping[str, Manifest], since_ms: int) -> tuple[str, ...]:
    """Return other apps that have published under this app's name since a time, after promotions.

    Makes no request if the app took part in no promotion.
    """
    app = next(iter(heads.values())).app
    name = next((head.promotion.name for head in heads.values() if head.promotion is not None), "")
    if not name:
        return ()
    notes = apps.promotions(store, name)
    until_ms = (*(note.time_ms for note in notes), None)
    holders = zip((name, *(note.folder for note in notes)), until_ms, strict=True)
    folders = (folder for folder, end_ms in holders if folder != app and (end_ms is None or end_ms > since_ms))
    return tuple(dict.fromkeys(folders))


def _count_sink_rows(
    store: ObjectStore, head: Manifest, was: Manifest | None, name: str
) -> tuple[Counter[str], Counter[str]]:
    info = apps.find_app(store, head.app)
    previous = was.sinks.get(name) if was is not None else None
    rows, dropped = Counter[str](), Counter[str]()
    for at in _sink_periods(store, head, name, was.version if was is not None else 0):
        sink = at.sinks[name]
        sent = previous.sent if previous is not None and previous.since == sink.since else 0
        done = _published(store, at, name, is_newest=at is head)
        if at is head and done < sent:
            raise Refused(
                f"the sink {name!r} of {head.app}/{head.stage} has not published {sent - done:,} rows from before that "
                "moment yet; a rewind would lose them",
                hint=f"run the app until `slackwater status {head.app}` shows them as published",
            )
        topics = apps.published_sinks(store, info, at.promotion) or {}
        topic = topics.get(name, name) if sink.kind == "topic" else ""
        rows[topic] += max(0, done - sent)
        dropped[topic] += sink.sent - done if at is head else 0
    return rows, dropped


def _sink_periods(store: ObjectStore, head: Manifest, name: str, after: int) -> Iterator[Manifest]:
    read, first = partial(history.find, store, head.app), partial(history.first_version, store, head.app)
    at: Manifest | None = head
    # The head also if the rewind leaves its state as it is: a rewind empties each sink.
    while at is not None and (at is head or at.version > after):
        if (sink := at.sinks.get(name)) is None:
            # An earlier rewind, or the claim after a promotion, removed the sink.
            at = history.newest_where(read, first, at, partial(_is_earlier, _change_counts(at)))
            continue
        if not _is_withdrawn(store, at):
            yield at
        at = history.find(store, at.app, at.stage, sink.since - 1) if sink.since > 1 else None


def _change_counts(manifest: Manifest) -> tuple[int, int]:
    return manifest.promotion.number if manifest.promotion is not None else 0, len(manifest.rewinds)


def _is_earlier(counts: tuple[int, int], manifest: Manifest) -> bool:
    return _change_counts(manifest) < counts


def _is_withdrawn(store: ObjectStore, at: Manifest) -> bool:
    promotion = at.promotion
    return promotion is not None and promotion.to == at.app and apps.is_promotion_decided(store, promotion) is False


def _published(store: ObjectStore, at: Manifest, name: str, *, is_newest: bool) -> int:
    if is_newest:
        position = published.newest(store, at, name)
        return position.rows if position is not None else 0
    sink = at.sinks[name]
    positions = published.POSITIONS.all(store, at.app, at.stage, name)
    return max(
        (position.rows for position in positions if sink.since <= position.version <= at.version), default=sink.sent
    )


def _sent_since(kafka: KafkaTopics, topic: str, since_ms: int) -> tuple[str, ...]:
    ends = kafka.ends(topic)
    return format_windows(topic, kafka.since(topic, since_ms), ends) if ends is not None else ()


@dataclass(frozen=True, slots=True)
class UndoneStage:
    """Effects of a rewind on one stage."""

    stage: str
    version: int
    to: int
    """Version whose content is restored; 0 if the stage did not exist at the moment."""
    time_ms: int
    retires: bool
    """True if the rewind retires the stage, because it did not exist or was retired at the moment."""
    offsets: tuple[str, ...]
    """Offset ranges of users' topics that will be read a second time."""


@dataclass(frozen=True, slots=True)
class RewindPlan:
    """Plan of a rewind."""

    app: str
    ref: str
    to: Cut
    stages: tuple[UndoneStage, ...]
    """Stages that change, upstream first."""
    sinks: tuple[SinkRows, ...]
    steps: Mapping[str, MigratedStage]
    table_only: bool
    others: tuple[str, ...] = ()
    """Apps that published under this app's name since the moment. A rewind does not undo their rows."""


def plan(store: ObjectStore, target: Ref, heads: Mapping[str, Manifest], kafka: KafkaTopics | None) -> RewindPlan:
    """Plan the rewind of an app from its newest versions `heads` to an earlier moment. Changes nothing.

    Without `kafka`, only the tables are rolled back; offsets and in-flight records stay.

    Raises `NotFound` if the moment or a topic does not exist, and `Refused` if a stage was renamed since, Kafka no
    longer has the records that must be read again, or a sink has not published all rows from before that moment.
    """
    cut, table_only = cut_of_ref(store, target), kafka is None
    if problems := violations(cut.stages):
        raise Refused(f"{target.text} is not a consistent cut: {'; '.join(problems)}", hint="choose another moment")
    then = with_retired(read_line(store, cut.app), cut).stages
    _check_not_renamed(cut, heads)
    steps = _steps(heads, then, table_only=table_only)
    if all(_is_unchanged_by(heads[stage], step) for stage, step in steps.items()):
        return RewindPlan(cut.app, target.text, cut, (), (), {}, table_only)
    if kafka is not None:
        _check_inputs(cut, kafka)
        for stage, unread in _unread(store, cut, kafka).items():
            steps[stage] = replace(steps[stage], unread=unread)
    undone = tuple(
        _undone(heads[stage], then.get(stage), steps[stage]) for stage in topological_order(heads) if stage in steps
    )
    if kafka is None:
        return RewindPlan(cut.app, target.text, cut, undone, (), steps, table_only)
    sinks = tuple(sink_rows(store, {stage: heads[stage] for stage in steps}, then, kafka))
    publishes = any(head.sinks or head.silent for head in heads.values())
    other_apps = find_other_publishers(store, heads, cut.time_ms) if publishes else ()
    return RewindPlan(cut.app, target.text, cut, undone, sinks, steps, table_only, other_apps)


def _steps(
    heads: Mapping[str, Manifest], then: Mapping[str, Manifest], *, table_only: bool
) -> dict[str, MigratedStage]:
    steps = {}
    for stage, head in heads.items():
        previous = then.get(stage)
        if table_only and (previous is None or previous.retired or previous.table is None or head.retired):
            continue
        if not head.called and not (head.retired and previous == head):
            to, retires = (previous.version, previous.retired) if previous is not None else (0, True)
            steps[stage] = MigratedStage(rewound=to, retires=retires, table_only=table_only)
    return steps


def _is_unchanged_by(head: Manifest, step: MigratedStage) -> bool:
    last = head.rewind
    was_made_so = last is not None and (last.to, last.table_only) == (step.rewound, step.table_only)
    return was_made_so or head.version == step.rewound


def _check_not_renamed(cut: Cut, heads: Mapping[str, Manifest]) -> None:
    for stage, head in heads.items():
        old = next((former.stage for former in head.formerly if former.stage in cut.stages), "")
        if old and stage not in cut.stages:
            raise Refused(
                f"{cut.ref} is older than the rename of {old} to {stage}, which a rewind cannot undo",
                hint=f"clone that moment, and run the old program as the clone: slackwater clone {cut.ref} NAME",
            )


def _check_inputs(cut: Cut, kafka: KafkaTopics) -> None:
    for manifest in cut.stages.values():
        for read in manifest.inputs.values():
            if not read.upstream:
                # New partitions of the topic are read from their beginning.
                count = len(kafka.ends(read.topic) or read.offsets)
                kafka.check_topic(read.topic, read.offsets + (0,) * (count - len(read.offsets)), read.topic_id)


def _unread(store: ObjectStore, cut: Cut, kafka: KafkaTopics) -> dict[str, dict[str, Unread]]:
    unread: dict[str, dict[str, Unread]] = {}
    for channel in channels(cut):
        if channel.input is None:
            continue  # a future reader starts at the channel's beginning
        state = channel_state(store, cut, channel)
        if state.attempts:
            kafka.check_topic(state.topic, state.starts, state.topic_id)
        slowest = unread.setdefault(channel.sender, {}).get(channel.name, Unread())
        if len(state.attempts) > len(slowest.attempts):
            unread[channel.sender][channel.name] = Unread(state.attempts, state.rows)
    return unread


def _undone(head: Manifest, was: Manifest | None, step: MigratedStage) -> UndoneStage:
    offsets = (
        format_windows(read.topic, was.inputs[name].offsets, read.offsets)
        for name, read in sorted(head.inputs.items())
        if was is not None and not step.table_only and not read.upstream and name in was.inputs
    )
    return UndoneStage(
        head.stage,
        head.version,
        step.rewound or 0,
        was.time_ms if was is not None else 0,
        step.retires,
        tuple(window for ranges in offsets for window in ranges),
    )
