"""What a promotion would do, and what speaks against it: pure but for the newest versions, and where topics end."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import zip_longest

from msgspec.structs import replace

from ...common import instants
from ...errors import AnotherTopic, NotFound, Refused, Usage
from ...snapshot.change.switch import Standing, Switch, declared, furthest, newest_of, users_inputs
from ...snapshot.cut.kafka_topics import Topics
from ...snapshot.cut.moments import heads_of, stages_of
from ...snapshot.under_way.runners import beats
from ...state.topics import are_two, merged
from ...store.objects.protocol import ObjectStore
from ...store.versions import apps, history
from ...store.versions.manifest import Manifest, Promotion

Heads = Mapping[str, Manifest]
"""The newest versions of an app, by stage."""


@dataclass(frozen=True, slots=True)
class PromotedSink:
    """A sink that goes over."""

    stage: str
    """The new app's."""
    sink: str
    topic: str
    """Where it publishes; empty for a function."""
    new: bool
    """Whether the old app has none of that name: it begins with the promotion."""


@dataclass(frozen=True, slots=True)
class PromotionPlan:
    """What goes over."""

    name: str
    staging: str
    """The new app, as it was called."""
    to: str
    """Its folder."""
    over: str
    """The folder of the app that has the name now."""
    number: int
    """Of the name's promotions; that of the one which is there already, when `to` has the name."""
    sinks: tuple[PromotedSink, ...] = ()
    topics: Mapping[str, str] | None = None
    """What the old app publishes, as `Origin.sinks`."""
    before: Mapping[str, str] | None = None
    """What the new app published until now, likewise."""

    back: bool = False
    """Whether it gives the name back."""

    @property
    def done(self) -> bool:
        """Whether the name has gone over already."""
        return self.to == self.over

    def switch(self, number: int, at: Standing, by: str) -> Switch:
        """The switch at this place."""
        topics, before = (dict(each) if each is not None else None for each in (self.topics, self.before))
        promote = Promotion(self.name, number, self.to, dict(at.offsets), at.clock_ms, topics, before)
        return Switch(promote, replace(promote, sinks={}, before=topics), self.over, by, self.back)


def plan(store: ObjectStore, name: str, staging: str, kafka: Topics) -> tuple[PromotionPlan, Heads, Heads]:
    """What promoting an app over a name means, with the newest versions of the old app and of the new one.

    Without `staging`, back to the app that had the name before the newest promotion, if that was none back.

    Raises `NotFound` where there is no such app, stage or topic, and `Refused` where they can never stand at the same
    offsets, are no clones of each other, or a sink has no counterpart; nothing was changed.
    """
    back, over = not staging, apps.folder_of(store, name)
    if back:
        done = apps.promotions(store, name)
        if not done:
            apps.read_app(store, over)
            raise NotFound("app", f"{name}~1", found=f"no app was promoted over {name}")
        staging = name if done[-1].back else f"{name}~1"
    elif "~" in staging:
        # Typed again once it is done, it would name the other one.
        raise Usage(f"{staging} is a name that moves with each promotion", hint="--back gives the name back to it")
    to = apps.folder_of(store, staging)
    old, new = (heads_of(store, each, stages_of(store, each)) for each in (over, to))
    last = apps.NAMES.newest(store, name)
    number = last.number if last is not None else 0
    if to == over:
        if not number or (staging == name and not back):
            has = apps.called(store).get(to, to)
            hint = "name the app that is to have it: a clone"
            if has != to:
                hint = f"{apps.taken_back(has, has)} gives the name back to the app that was {has} before"
            both = f"has the name {name} already" if staging == name else f"and {name} are the same app, in folder {to}"
            raise Refused(f"{staging} {both}", hint=hint)
        return PromotionPlan(name, staging, to, over, number), old, new
    _check_names(store, name, (over, to), (old, new))
    if not set(apps.ancestors(store, to)) & set(apps.ancestors(store, over)):
        raise Refused(
            f"{staging} is no clone of {name}, nor of what {name} is a clone of",
            hint=f"slackwater clone {name} NAME makes one; run the new program as that, and promote it",
        )
    for each, heads in ((name, old), (staging, new)):
        if not heads:
            raise Refused(f"{each} never ran, so it stands nowhere", hint=f"slackwater run FILE --app {each}")
    _check_topics(name, staging, old, new, kafka)
    topics, before = _until_now(store, over, old), _until_now(store, to, new)
    sinks = _sinks(name, staging, old, new, topics, kafka)
    return PromotionPlan(name, staging, to, over, number + 1, sinks, topics, before, back), old, new


def _until_now(store: ObjectStore, app: str, heads: Heads) -> Mapping[str, str] | None:
    """What an app publishes, as `Origin.sinks`; a promotion that is not decided yet has changed nothing of that."""
    promotion = newest_of(heads.values())
    if promotion is not None and not apps.outcome(store, promotion):
        return promotion.before
    return apps.publishes(store, apps.read_app(store, app), promotion)


def _check_names(store: ObjectStore, name: str, folders: tuple[str, str], heads: tuple[Heads, Heads]) -> None:
    for folder, each in zip(folders, heads, strict=True):
        promotion = newest_of(each.values())
        if promotion is not None and promotion.name != name:
            has = folder == apps.folder_of(store, promotion.name)
            raise Refused(
                f"app {folder} {'has' if has else 'had'} the name {promotion.name}, and a name goes over to an app of "
                "its own",
                hint=f"promote over {promotion.name}" if has else "promote a clone of it",
            )


def _check_topics(name: str, staging: str, old: Heads, new: Heads, kafka: Topics) -> None:
    """See that both can stand at the same offsets of the same topics."""
    mine, theirs = (
        {declared_as: at.topic for head in heads.values() if not head.retired for declared_as, at in head.inputs.items()
         if not at.upstream}
        for heads in (new, old)
    )  # fmt: skip
    for each, topic in theirs.items():
        if mine.get(each, topic) != topic:
            raise Refused(
                f"{staging} reads {mine[each]} where {name} reads {topic}: their offsets can never meet",
                hint="promote a clone that was made without --topic",
            )
    if not set(mine.values()) & set(theirs.values()):
        raise Refused(
            f"{staging} reads no topic that {name} reads: their offsets can never meet",
            hint=f"{name} reads {', '.join(sorted(theirs.values())) or 'none'}",
        )
    heads = (*old.values(), *new.values())
    ids: dict[str, str] = {}
    for read in users_inputs(heads):
        if are_two(ids.setdefault(read.topic, read.topic_id), read.topic_id):
            raise AnotherTopic(
                f"{name} and {staging} have read two topics of the name {read.topic}: it was deleted and made again, "
                "and their offsets can never meet",
                hint=f"run or reset the one that has read the former, or clone {name} once more",
            )
        ids[read.topic] = merged(ids[read.topic], read.topic_id)
    for topic, at in furthest(heads).items():
        if (ends := kafka.ends(topic)) is None:
            raise NotFound("Kafka topic", topic, (), hint="it is read by what is to be promoted")
        short = any(had > end for had, end in zip_longest(at, ends, fillvalue=0))
        if short or are_two(ids[topic], kafka.topic_id(topic)):
            what = "ends before the offsets that were read" if short else "is another one than was read"
            raise AnotherTopic(
                f"topic {topic} {what}: it was deleted and made again, and offsets of it can never meet",
                hint="run both with --accept-loss, or reset them, so that they read the one that is there now",
            )


def _sinks(
    name: str, staging: str, old: Heads, new: Heads, topics: Mapping[str, str] | None, kafka: Topics
) -> tuple[PromotedSink, ...]:
    """What goes over. Raises `Refused` where a sink of the old app has no counterpart, or another kind."""
    had = {sink: one.kind for head in old.values() if not head.retired for sink, one in head.sinks.items()}
    has = {
        (head.stage, sink): kind for head in new.values() if not head.retired for sink, kind in declared(head).items()
    }
    kinds = {sink: kind for (_, sink), kind in has.items()}
    for sink, kind in had.items():
        if sink not in kinds:
            there = ", ".join(sorted(kinds)) or "none"
            raise Refused(
                f"the sink {sink!r} of {name} has no counterpart in the program of {staging}, which has {there}: its "
                "readers would get nothing more",
                hint=f"give that program a sink {sink!r}, run it once as {staging}, and promote it then",
            )
        if kinds[sink] != kind:
            raise Refused(
                f"the sink {sink!r} is a {kind} in {name} and a {kinds[sink]} in {staging}: it would go elsewhere",
                hint=f"declare it as a {kind} in both",
            )
    found = []
    for (stage, sink), kind in has.items():
        if topics is None or sink in topics:
            topic = (topics or {}).get(sink, sink) if kind == "topic" else ""
            if topic and kafka.ends(topic) is None:
                raise NotFound(
                    "Kafka topic", topic, (), hint=f"the sink {sink!r} of {staging} publishes there: make it"
                )
            found.append(PromotedSink(stage, sink, topic, sink not in had))
    return tuple(found)


_BEGINS_S = 5.0
"""A runner that has just claimed its stages gives its first sign of life within this time."""


def check_runs(
    store: ObjectStore, found: PromotionPlan, new: Heads, pause: Callable[[], None], clock: Callable[[], float]
) -> bool:
    """Whether somebody runs the app that is to get the name; False where neither of the two runs.

    Raises `Refused` where a stage of it was never claimed since it was cloned, or only the other one runs: then the
    name would go to an app that publishes nothing. `pause` is called between two looks, `clock` gives seconds.
    """
    hint = f"slackwater run FILE --app {found.staging}, and promote while it runs"
    if never := [stage for stage, head in new.items() if not head.retired and not _was_claimed(store, head)]:
        raise Refused(
            f"{found.staging} is not ready to take over: nobody ran its {' and '.join(never)} yet, since it was "
            "cloned, or given another name",
            hint=hint,
        )
    until = clock() + _BEGINS_S
    while not beats(store, found.to, instants.now_ms()):
        if not beats(store, found.over, instants.now_ms()):
            return False
        if clock() > until:
            raise Refused(
                f"nobody runs {found.staging}, and {found.name} runs: it would end, and nobody would publish any more",
                hint=hint,
            )
        pause()
    return True


def _was_claimed(store: ObjectStore, head: Manifest) -> bool:
    """Whether a runner has had a stage since its first version in this app, and under its name."""
    info = apps.find_app(store, head.app)
    cut = info.origin.cut if info is not None and info.origin is not None else {}
    began = max(1, cut.get(head.stage, 0), *(former.version for former in head.formerly))
    if history.first_version(store, head.app, head.stage) > began:
        return True  # it is long ago that it began: garbage collection has been there since
    return any(each.traits.by_runner for each in history.after(store, head.app, head.stage, began - 1))
