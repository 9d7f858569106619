"""Plan of a promotion: checks that it is possible, from the newest versions and the end offsets of topics."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import zip_longest

from msgspec.structs import replace

from ...common import instants
from ...errors import AnotherTopic, NotFound, Refused, Usage
from ...snapshot.change.switch import (
    Switchover,
    SwitchoverPosition,
    declared_sinks,
    highest_offsets,
    newest_promotion,
    users_inputs,
)
from ...snapshot.cut.kafka_topics import KafkaTopics
from ...snapshot.cut.moments import heads_of, stages_of
from ...snapshot.under_way.runners import live_heartbeats
from ...state.records import id_to_store, is_other_topic
from ...store.objects.protocol import ObjectStore
from ...store.versions import apps, history
from ...store.versions.manifest import Manifest, Promotion, SinkKind

Heads = Mapping[str, Manifest]


@dataclass(frozen=True, slots=True)
class PromotedSink:
    """Sink that the promoted app takes over."""

    stage: str
    sink: str
    topic: str
    new: bool
    kind: SinkKind


@dataclass(frozen=True, slots=True)
class PromotionPlan:
    """Plan of a promotion."""

    name: str
    staging: str
    to: str
    """Folder of the new app."""
    over: str
    """Folder of the app that has the name before the promotion."""
    number: int
    sinks: tuple[PromotedSink, ...] = ()
    old_sinks: Mapping[str, str] | None = None
    """Sinks that the old app publishes, in the format of `Origin.sinks`."""
    new_sinks: Mapping[str, str] | None = None
    """Sinks that the new app published before the promotion, in the format of `Origin.sinks`."""

    gives_back: bool = False

    @property
    def done(self) -> bool:
        return self.to == self.over

    def switchover(self, number: int, at: SwitchoverPosition, by: str) -> Switchover:
        topics, before = (dict(sinks) if sinks is not None else None for sinks in (self.old_sinks, self.new_sinks))
        promote = Promotion(self.name, number, self.to, dict(at.offsets), at.clock_ms, topics, before)
        return Switchover(promote, replace(promote, sinks={}, before=topics), self.over, by, self.gives_back)


def make_plan(store: ObjectStore, name: str, staging: str, kafka: KafkaTopics) -> tuple[PromotionPlan, Heads, Heads]:
    """Plan a promotion. Returns the plan and the newest versions of the old and the new app. Changes nothing.

    Without `staging`, the name is given back to the app that had it before the newest promotion. If that promotion was
    itself such a return, the plan is `done`.

    Raises `NotFound` if an app, stage or topic does not exist. Raises `Refused` if the apps can never reach equal
    offsets, are not clones of each other, or a sink of the old app is missing in the new app.
    """
    is_return, over = not staging, apps.folder_of(store, name)
    if is_return:
        done = apps.promotions(store, name)
        if not done:
            apps.read_app(store, over)
            raise NotFound("app", f"{name}~1", found=f"no app was promoted over {name}")
        staging = name if done[-1].back else f"{name}~1"
    elif "~" in staging:
        # After the promotion, the same name would stand for the other app.
        raise Usage(
            f"the name {staging} refers to a different app after each promotion",
            hint="use --back to give the name back",
        )
    to = apps.folder_of(store, staging)
    old, new = (heads_of(store, app_name, stages_of(store, app_name)) for app_name in (over, to))
    last = apps.PROMOTION_OUTCOMES.newest(store, name)
    number = last.number if last is not None else 0
    if to == over:
        if not number or (staging == name and not is_return):
            current_name = apps.promoted_names(store).get(to, to)
            hint = "name the app to promote: a clone"
            if current_name != to:
                hint = (
                    f"{apps.take_back_command(current_name, current_name)} gives the name back to the app that was "
                    f"{current_name} before"
                )
            fact = f"has the name {name} already" if staging == name else f"and {name} are the same app, in folder {to}"
            raise Refused(f"{staging} {fact}", hint=hint)
        return PromotionPlan(name, staging, to, over, number), old, new
    _check_names(store, name, (over, to), (old, new))
    if not set(apps.iter_clone_sources(store, to)) & set(apps.iter_clone_sources(store, over)):
        raise Refused(
            f"{staging} is not a clone of {name}, and they have no common source",
            hint=f"slackwater clone {name} NAME, run the new program as the clone, and promote the clone",
        )
    for app_name, heads in ((name, old), (staging, new)):
        if not heads:
            raise Refused(f"{app_name} never ran, so it has no offsets", hint=f"slackwater run FILE --app {app_name}")
    _check_topics(name, staging, old, new, kafka)
    topics, before = _current_sinks(store, over, old), _current_sinks(store, to, new)
    sinks = _sinks(name, staging, old, new, topics, kafka)
    return PromotionPlan(name, staging, to, over, number + 1, sinks, topics, before, is_return), old, new


def _current_sinks(store: ObjectStore, app: str, heads: Heads) -> Mapping[str, str] | None:
    promotion = newest_promotion(heads.values())
    if promotion is not None and not apps.is_promotion_decided(store, promotion):
        return promotion.before
    return apps.published_sinks(store, apps.read_app(store, app), promotion)


def _check_names(store: ObjectStore, name: str, folders: tuple[str, str], heads: tuple[Heads, Heads]) -> None:
    for folder, stages in zip(folders, heads, strict=True):
        promotion = newest_promotion(stages.values())
        if promotion is not None and promotion.name != name:
            has = folder == apps.folder_of(store, promotion.name)
            raise Refused(
                f"app {folder} {'has' if has else 'had'} the name {promotion.name}, so it cannot take over {name}",
                hint=f"promote over {promotion.name}" if has else "promote a clone of it",
            )


def _check_topics(name: str, staging: str, old: Heads, new: Heads, kafka: KafkaTopics) -> None:
    new_topics, old_topics = (
        {declared_as: at.topic for head in heads.values() if not head.retired for declared_as, at in head.inputs.items()
         if not at.upstream}
        for heads in (new, old)
    )  # fmt: skip
    for declared_name, topic in old_topics.items():
        if new_topics.get(declared_name, topic) != topic:
            raise Refused(
                f"{staging} reads {new_topics[declared_name]} where {name} reads {topic}: their "
                "offsets can never match",
                hint="promote a clone that was made without --topic",
            )
    if not set(new_topics.values()) & set(old_topics.values()):
        raise Refused(
            f"{staging} reads no topic that {name} reads: their offsets can never match",
            hint=f"{name} reads {', '.join(sorted(old_topics.values())) or 'none'}",
        )
    heads = (*old.values(), *new.values())
    ids: dict[str, str] = {}
    for read in users_inputs(heads):
        if is_other_topic(ids.setdefault(read.topic, read.topic_id), read.topic_id):
            raise AnotherTopic(
                f"{name} and {staging} have read different topics named {read.topic}: the topic was recreated, so "
                "their offsets can never match",
                hint=f"run or reset the app that has read the old topic, or clone {name} again",
            )
        ids[read.topic] = id_to_store(ids[read.topic], read.topic_id)
    for topic, at in highest_offsets(heads).items():
        if (ends := kafka.ends(topic)) is None:
            raise NotFound("Kafka topic", topic, (), hint="both apps read this topic")
        short = any(reached > end for reached, end in zip_longest(at, ends, fillvalue=0))
        if short or is_other_topic(ids[topic], kafka.topic_id(topic)):
            fact = "ends before the offsets that were read" if short else "is not the one that was read"
            raise AnotherTopic(
                f"topic {topic} {fact}: it was recreated, so its offsets can never match",
                hint="run both with --accept-loss, or reset both, so that they read the new topic",
            )


def _sinks(
    name: str, staging: str, old: Heads, new: Heads, topics: Mapping[str, str] | None, kafka: KafkaTopics
) -> tuple[PromotedSink, ...]:
    old_kinds = {sink: info.kind for head in old.values() if not head.retired for sink, info in head.sinks.items()}
    new_kinds = {
        (head.stage, sink): kind
        for head in new.values()
        if not head.retired
        for sink, kind in declared_sinks(head).items()
    }
    kinds = {sink: kind for (_, sink), kind in new_kinds.items()}
    for sink, kind in old_kinds.items():
        if sink not in kinds:
            names = ", ".join(sorted(kinds)) or "none"
            raise Refused(
                f"the sink {sink!r} of {name} has no counterpart in the program of {staging}, which has {names}: its "
                "readers would get no more rows",
                hint=f"give that program a sink {sink!r}, run it once as {staging}, and promote it then",
            )
        if kinds[sink] != kind:
            raise Refused(
                f"the sink {sink!r} is a {kind} in {name} and a {kinds[sink]} in {staging}: its rows would go "
                "elsewhere",
                hint=f"declare it as a {kind} in both",
            )
    promoted = []
    for (stage, sink), kind in new_kinds.items():
        if topics is None or sink in topics:
            topic = (topics or {}).get(sink, sink) if kind == "topic" else ""
            if topic and kafka.ends(topic) is None:
                raise NotFound(
                    "Kafka topic", topic, (), hint=f"create the topic: the sink {sink!r} of {staging} publishes to it"
                )
            promoted.append(PromotedSink(stage, sink, topic, sink not in old_kinds, kind))
    return tuple(promoted)


_FIRST_HEARTBEAT_S = 5.0
"""Time in seconds to wait for the first heartbeat of a runner that has just claimed its stages."""


def check_running(
    store: ObjectStore, planned: PromotionPlan, new: Heads, pause: Callable[[], None], clock: Callable[[], float]
) -> bool:
    """Return True if a runner runs the new app, and False if neither app is running.

    Raises `Refused` if only the old app is running, because nothing would be published under the name after the
    promotion. Also raises `Refused` if no runner has claimed a stage of the new app since the app was cloned. The
    function `pause` is called between two polls; the function `clock` returns seconds.
    """
    hint = f"slackwater run FILE --app {planned.staging}, and promote while it runs"
    if never := [stage for stage, head in new.items() if not head.retired and not _was_claimed(store, head)]:
        raise Refused(
            f"{planned.staging} is not ready to take over: its {' and '.join(never)} never ran since it was "
            "cloned or renamed",
            hint=hint,
        )
    until = clock() + _FIRST_HEARTBEAT_S
    while not live_heartbeats(store, planned.to, instants.now_ms()):
        if not live_heartbeats(store, planned.over, instants.now_ms()):
            return False
        if clock() > until:
            raise Refused(
                f"{planned.staging} is not running, and {planned.name} is: the promotion would stop it, and nothing "
                "would be published any more",
                hint=hint,
            )
        pause()
    return True


def _was_claimed(store: ObjectStore, head: Manifest) -> bool:
    info = apps.find_app(store, head.app)
    cut = info.origin.cut if info is not None and info.origin is not None else {}
    began = max(1, cut.get(head.stage, 0), *(former.version for former in head.formerly))
    if history.first_version(store, head.app, head.stage) > began:
        return True  # garbage collection already removed the first versions, so a runner has committed since
    return any(manifest.traits.by_runner for manifest in history.iter_after(store, head.app, head.stage, began - 1))
