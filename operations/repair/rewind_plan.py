"""What a rewind would do: the versions that stages go back to, what is read once more, what cannot be unsent."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from msgspec.structs import replace

from ...errors import Refused
from ...snapshot.cut.graph import Cut, channels, order, violations
from ...snapshot.cut.in_flight import channel_state
from ...snapshot.cut.kafka_topics import Topics
from ...snapshot.cut.migrations import MigratedStage, Unread
from ...snapshot.cut.moments import line_of, with_retired
from ...snapshot.cut.refs import Ref
from ...snapshot.cut.resolve import cut_at
from ...state.records import windows
from ...store.objects.protocol import ObjectStore
from ...store.versions import apps, history, published
from ...store.versions.manifest import Manifest


@dataclass(frozen=True, slots=True)
class SinkRows:
    """Rows that a sink was given since a moment, of versions that an earlier rewind has undone, too."""

    stage: str
    sink: str
    topic: str
    """Where they went; empty for a function."""
    rows: int
    """That are published, and cannot be unsent, as far as the store knows."""
    offsets: tuple[str, ...]
    """Where they lie in that topic, among what others may have sent there since."""
    dropped: int
    """That were committed and not published yet: they never will be."""


def sink_rows(
    store: ObjectStore, heads: Mapping[str, Manifest], then: Mapping[str, Manifest], kafka: Topics
) -> Iterator[SinkRows]:
    """What was committed for sinks of these stages since their versions `then`; of each topic by itself.

    Raises `Refused` where they lack rows from before.
    """
    for stage in order(heads):
        head, was = heads[stage], then.get(stage)
        first = history.find(store, head.app, stage, was.version + 1) if was is not None else None
        for name in {**head.sinks, **head.silent, **(was.sinks if was is not None else {})}:
            rows, dropped = _of_sink(store, head, was, name)
            for topic in sorted(rows.keys() | dropped.keys()):
                since_ms = first.time_ms if first is not None else 0
                offsets = _sent_since(kafka, topic, since_ms) if topic and rows[topic] else ()
                if rows[topic] or dropped[topic]:
                    yield SinkRows(stage, name, topic, rows[topic], offsets, dropped[topic])


def others(store: ObjectStore, heads: Mapping[str, Manifest], since_ms: int) -> tuple[str, ...]:
    """The other apps that had the name at some time since, by promotions, and published under it.

    No request for an app that took part in none.
    """
    app = next(iter(heads.values())).app
    name = next((head.promotion.name for head in heads.values() if head.promotion is not None), "")
    if not name:
        return ()
    notes = apps.promotions(store, name)
    until_ms = (*(note.time_ms for note in notes), None)
    held = zip((name, *(note.folder for note in notes)), until_ms, strict=True)
    found = (folder for folder, end_ms in held if folder != app and (end_ms is None or end_ms > since_ms))
    return tuple(dict.fromkeys(found))


def _of_sink(store: ObjectStore, head: Manifest, was: Manifest | None, name: str) -> tuple[Counter[str], Counter[str]]:
    """By topic, the rows of one sink that were published since `was`, and those that are not yet."""
    info = apps.find_app(store, head.app)
    had = was.sinks.get(name) if was is not None else None
    rows, dropped = Counter[str](), Counter[str]()
    for at in _ends(store, head, name, was.version if was is not None else 0):
        sink = at.sinks[name]
        sent = had.sent if had is not None and had.since == sink.since else 0
        done = _published(store, at, name, is_newest=at is head)
        if at is head and done < sent:
            raise Refused(
                f"the sink {name!r} of {head.app}/{head.stage} has still to publish {sent - done:,} rows from before "
                "that moment, which a rewind would drop",
                hint=f"run the app until `slackwater status {head.app}` shows that they are published",
            )
        topics = apps.publishes(store, info, at.promotion) or {}
        topic = topics.get(name, name) if sink.kind == "topic" else ""
        rows[topic] += max(0, done - sent)
        dropped[topic] += sink.sent - done if at is head else 0
    return rows, dropped


def _ends(store: ObjectStore, head: Manifest, name: str, after: int) -> Iterator[Manifest]:
    """The last version of each time that a sink was begun, newest first, down to the one that was there at `after`.

    A few requests for each, and for each rewind and promotion since.
    """
    read, first = partial(history.find, store, head.app), partial(history.first_version, store, head.app)
    at: Manifest | None = head
    while at is not None and at.version > after:
        if (sink := at.sinks.get(name)) is None:
            # It is given up by a rewind, or in the claim after a promotion.
            at = history.newest_where(read, first, at, partial(_is_before, _mark(at)))
            continue
        if not _withdrawn(store, at):
            yield at
        at = history.find(store, at.app, at.stage, sink.since - 1) if sink.since > 1 else None


def _mark(each: Manifest) -> tuple[int, int]:
    """Grows with each promotion and each rewind."""
    return each.promotion.number if each.promotion is not None else 0, len(each.rewinds)


def _is_before(mark: tuple[int, int], each: Manifest) -> bool:
    return _mark(each) < mark


def _withdrawn(store: ObjectStore, at: Manifest) -> bool:
    """Whether a promotion gave the sinks which was withdrawn: nothing of them is published."""
    mark = at.promotion
    return mark is not None and mark.to == at.app and apps.outcome(store, mark) is False


def _published(store: ObjectStore, at: Manifest, name: str, *, is_newest: bool) -> int:
    """Rows published since the sink of a version began, and up to that version; all where nobody has noted any."""
    if is_newest:
        place = published.newest(store, at, name)
        return place.rows if place is not None else 0
    sink = at.sinks[name]
    noted = published.PLACES.all(store, at.app, at.stage, name)
    return max((each.rows for each in noted if sink.since <= each.version <= at.version), default=sink.sent)


def _sent_since(kafka: Topics, topic: str, since_ms: int) -> tuple[str, ...]:
    """What was sent to a topic from a time on; nothing where there is no such topic any more."""
    ends = kafka.ends(topic)
    return windows(topic, kafka.since(topic, since_ms), ends) if ends is not None else ()


@dataclass(frozen=True, slots=True)
class Undone:
    """What becomes of one stage."""

    stage: str
    version: int
    """Its newest version."""
    to: int
    """The version whose content it gets; 0 where it had none then."""
    time_ms: int
    """When that was committed; 0 for none."""
    retires: bool
    """Whether it has no part in the app from then on: it had not begun, or was retired then."""
    offsets: tuple[str, ...]
    """What is read once more of users' topics."""


@dataclass(frozen=True, slots=True)
class RewindPlan:
    """What a rewind would do."""

    app: str
    ref: str
    """The moment that it goes to, as a person names it."""
    to: Cut
    stages: tuple[Undone, ...]
    """Those that change, upstream first."""
    sinks: tuple[SinkRows, ...]
    steps: Mapping[str, MigratedStage]
    """What it commits, of every stage that the app has."""
    table_only: bool
    others: tuple[str, ...] = ()
    """Apps that had this one's name since, by promotions, and published under it: what they did is not undone."""


def plan(store: ObjectStore, target: Ref, heads: Mapping[str, Manifest], kafka: Topics | None) -> RewindPlan:
    """What taking an app, whose newest versions these are, back to a moment of its own means; changes nothing.

    Without `kafka`, the tables alone: what was read and sent stays so.

    Raises `NotFound` where there is no such moment, or a topic is gone, and `Refused` where a stage has another name
    since, Kafka has not what is to be read once more, or a sink lacks rows from before.
    """
    cut, table_only = cut_at(store, target), kafka is None
    if wrong := violations(cut.stages):
        raise Refused(f"{target.text} is not a consistent cut: {'; '.join(wrong)}", hint="choose another moment")
    then = with_retired(line_of(store, cut.app), cut).stages
    _check_names(cut, heads)
    steps = {}
    for stage, head in heads.items():
        was = then.get(stage)
        if table_only and (was is None or was.retired or was.table is None or head.retired):
            continue
        if not head.called and not (head.retired and was == head):
            to, retires = (was.version, was.retired) if was is not None else (0, True)
            steps[stage] = MigratedStage(rewound=to, retires=retires, table_only=table_only)
    if all(_is_as_then(heads[stage], step) for stage, step in steps.items()):
        return RewindPlan(cut.app, target.text, cut, (), (), {}, table_only)
    if kafka is not None:
        _check_inputs(cut, kafka)
        for stage, unread in _unread(store, cut, kafka).items():
            steps[stage] = replace(steps[stage], unread=unread)
    undone = tuple(_undone(heads[stage], then.get(stage), steps[stage]) for stage in order(heads) if stage in steps)
    if kafka is None:
        return RewindPlan(cut.app, target.text, cut, undone, (), steps, table_only)
    sinks = tuple(sink_rows(store, {stage: heads[stage] for stage in steps}, then, kafka))
    also = others(store, heads, cut.time_ms) if any(head.sinks or head.silent for head in heads.values()) else ()
    return RewindPlan(cut.app, target.text, cut, undone, sinks, steps, table_only, also)


def _is_as_then(head: Manifest, step: MigratedStage) -> bool:
    """Whether a stage is already what a step makes of it, and nothing came since."""
    last = head.rewind
    was_made_so = last is not None and (last.to, last.table_only) == (step.rewound, step.table_only)
    return was_made_so or head.version == step.rewound


def _check_names(cut: Cut, heads: Mapping[str, Manifest]) -> None:
    for stage, head in heads.items():
        old = next((former.stage for former in head.formerly if former.stage in cut.stages), "")
        if old and stage not in cut.stages:
            raise Refused(
                f"{cut.ref} is from before {old} was renamed to {stage}, and a rewind does not give a name back",
                hint=f"clone that moment, and run the program of then as the clone: slackwater clone {cut.ref} NAME",
            )


def _check_inputs(cut: Cut, kafka: Topics) -> None:
    """See that users' topics still have what is to be read once more. Raises `NotFound` and `Refused`."""
    for manifest in cut.stages.values():
        for read in manifest.inputs.values():
            if not read.upstream:
                # Partitions that a topic got since are read from their beginning.
                count = len(kafka.ends(read.topic) or read.offsets)
                kafka.check_topic(read.topic, read.offsets + (0,) * (count - len(read.offsets)), read.topic_id)


def _unread(store: ObjectStore, cut: Cut, kafka: Topics) -> dict[str, dict[str, Unread]]:
    """By sender and channel, what the reader furthest behind has still to read. Raises `Refused` where it is gone."""
    found: dict[str, dict[str, Unread]] = {}
    for channel in channels(cut):
        if channel.input is None:
            continue  # who reads it one day begins where the channel does
        state = channel_state(store, cut, channel)
        if state.attempts:
            kafka.check_topic(state.topic, state.starts, state.topic_id)
        known = found.setdefault(channel.sender, {}).get(channel.name, Unread())
        if len(state.attempts) > len(known.attempts):
            found[channel.sender][channel.name] = Unread(state.attempts, state.rows)
    return found


def _undone(head: Manifest, was: Manifest | None, step: MigratedStage) -> Undone:
    offsets = (
        windows(read.topic, was.inputs[name].offsets, read.offsets)
        for name, read in sorted(head.inputs.items())
        if was is not None and not step.table_only and not read.upstream and name in was.inputs
    )
    return Undone(
        head.stage,
        head.version,
        step.rewound or 0,
        was.time_ms if was is not None else 0,
        step.retires,
        tuple(each for several in offsets for each in several),
    )
