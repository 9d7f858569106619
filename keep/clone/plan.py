"""What a clone is made of, with everything checked that can be checked before anything changes."""

from collections.abc import Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from ...errors import NotFound, Refused
from ...moments.cut.graph import Cut, order, violations
from ...moments.cut.graph import channels as edges
from ...moments.cut.in_flight import InFlight, in_flight
from ...moments.cut.refs import Ref
from ...moments.cut.resolve import cut_at
from ...moments.cut.stored import find_snapshot, of_snapshot, read_snapshot
from ...store.objects.protocol import ObjectStore
from ...store.versions import apps, history, keys
from ...store.versions.manifest import AppInfo, Input, Origin
from .first_versions import Channels, channel_topic, has_run, unfinished


@dataclass(frozen=True, slots=True)
class ClonePlan:
    """What a clone is made of."""

    source: Cut
    info: AppInfo
    """The clone's identity. In a plan that was not carried out, `origin.snapshot` is not pinned yet."""
    target_root: str
    topics: Mapping[str, str]
    """The topic that the clone reads for each user's topic, by its name as declared."""
    in_flight: tuple[InFlight, ...]
    """What is copied into the clone's channels."""
    resumed: bool
    """Whether an earlier call had begun this clone: its cut and snapshot are those of that call."""
    done: bool = False
    """Whether that call, or another one, had finished it too."""


def make_plan(
    store: ObjectStore,
    target: ObjectStore,
    ref: Ref,
    name: str,
    topics: Mapping[str, str],
    sinks: Mapping[str, str],
    channels: Channels,
    now_ms: int,
) -> ClonePlan:
    """What is to be done, with everything checked that can be before anything changes."""
    keys.check_name("app", name)
    if (target.url, name) == (store.url, ref.app):
        raise Refused(f"app {name!r} cannot be cloned onto itself", hint="give the clone a name of its own")
    cut = cut_at(store, ref)
    read_topics = _read_topics(cut, topics)
    _check_sinks(cut, sinks)
    origin = Origin(
        root=store.url,
        app=cut.app,
        snapshot="",
        cut=cut.versions,
        topics={declared: topic for declared, topic in sorted(read_topics.items()) if declared != topic},
        sinks=dict(sorted(sinks.items())),
    )
    source = apps.find_app(store, cut.app)
    # Stages that have no version yet begin in the clone where they would have begun here.
    starts = source.starts if source is not None else {}
    info = AppInfo(name=name, created_ms=now_ms, origin=origin, starts=starts)
    begun = _begun(store, target, ref, info)
    done = begun is not None and not unfinished(target, begun)
    if begun is not None and begun.origin is not None:
        info = begun
        cut = of_snapshot(store, read_snapshot(store, cut.app, begun.origin.snapshot))
    if wrong := violations(cut.stages):
        raise Refused(f"{ref.text} is not a consistent cut: {'; '.join(wrong)}", hint="choose another moment")
    plan = ClonePlan(cut, info, target.url, read_topics, in_flight(store, cut), begun is not None, done)
    if not done:  # else it has all that it needs of Kafka, which need not have that any more
        for _, declared, one in _users_inputs(cut):
            channels.check_topic(read_topics[declared], one.offsets)
        keeper = find_snapshot(store, cut.app, cut.snapshot) if cut.snapshot else None
        for state in plan.in_flight:
            if not (keeper and keeper.captured(state)):
                channels.check_topic(state.topic, state.starts)
    if begun is None:
        for channel in sorted({edge.name for edge in edges(cut)}):
            if channels.ends(topic := channel_topic(name, channel)) is not None:
                # Whose it is, cannot be told.
                raise Refused(
                    f"topic {topic!r} exists already in Kafka: another app {name!r} may use it",
                    hint="choose another name, or delete the topic if it is left from an app that is gone",
                )
        _check_published(cut, read_topics, sinks, channels)
    return plan


def _read_topics(cut: Cut, wanted: Mapping[str, str]) -> dict[str, str]:
    """The topic to read for each user's topic, by its declared name. Raises `NotFound` for unknown ones."""
    current = {name: source.topic for _, name, source in _users_inputs(cut)}
    for declared in wanted:
        if declared not in current:
            raise NotFound(f"topic read by {cut.app}", declared, current, hint="--topic takes NAME=OTHER")
    return current | dict(wanted)


def _check_sinks(cut: Cut, sinks: Mapping[str, str]) -> None:
    """See that these are sinks of the app, and publish where it does not. Raises `NotFound` or `Refused`."""
    known = {name: sink.kind for stage in cut.stages.values() for name, sink in stage.sinks.items()}
    for name, topic in sinks.items():
        keys.check_topic(topic)
        if name not in known:
            raise NotFound(f"sink of {cut.app}", name, known, hint="--sink takes NAME=TOPIC")
        if known[name] == "topic" and (topic == name or topic in known):
            raise Refused(
                f"{cut.app} publishes to the topic {topic!r} itself: its readers would get records of both",
                hint=f"--sink {name}=OTHER, with a topic of the clone's own",
            )


def _check_published(cut: Cut, read_topics: Mapping[str, str], sinks: Mapping[str, str], kafka: Channels) -> None:
    """See that the topics of sinks are there, and not read by the clone. Raises `NotFound` or `Refused`."""
    for name, topic in sinks.items():
        if all(stage.sinks[name].kind == "function" for stage in cut.stages.values() if name in stage.sinks):
            continue
        if topic in read_topics.values():
            raise Refused(
                f"the clone would read the topic {topic!r} and publish there: records would go round for ever"
            )
        if kafka.ends(topic) is None:
            raise NotFound(
                "Kafka topic", topic, (), hint=f"the sink {name!r} of the clone is to publish there: make it"
            )


def _users_inputs(cut: Cut) -> list[tuple[str, str, Input]]:
    """Stage, declared name and input of everything the app reads from users' topics."""
    return [
        (stage, name, source)
        for stage in order(cut.stages)
        for name, source in sorted(cut.stages[stage].inputs.items())
        if not source.upstream
    ]


def _begun(store: ObjectStore, target: ObjectStore, ref: Ref, wanted: AppInfo) -> AppInfo | None:
    """This very clone's identity if an earlier call began it, and perhaps finished it; None if the name is free."""
    try:
        found = apps.read_app(target, wanted.name)
    except NotFound:
        if history.list_stages(target, wanted.name):
            raise Refused(
                f"{target.url} has stages of an app {wanted.name!r} that has no identity",
                hint="choose another name, or remove what is left of that app",
            ) from None
        return None
    hint = "choose another name"
    if found.origin is None or wanted.origin is None:
        raise Refused(f"app {wanted.name!r} exists already under {target.url}", hint=hint)
    made_from = f"{found.origin.app}@{found.origin.snapshot} in {found.origin.root}"
    # `app@now` was another moment when the clone was begun; a fixed moment must be the same.
    ours = replace(wanted.origin, snapshot="", cut=found.origin.cut if ref.moves else wanted.origin.cut)
    is_same = ours == replace(found.origin, snapshot="")
    if not (missing := unfinished(target, found)):
        # A moment that moves only goes on: an earlier one is another. And who asks for the present of an app, and finds
        # a clone that runs, means another clone.
        is_same = is_same and all(wanted.origin.cut.get(stage, 0) >= at for stage, at in found.origin.cut.items())
        pinned = find_snapshot(store, found.origin.app, found.origin.snapshot)
        if is_same and not (ref.moves and has_run(target, found)) and pinned is not None:
            return found
        raise Refused(f"app {wanted.name!r} exists already under {target.url}, a clone of {made_from}", hint=hint)
    if not is_same:
        raise Refused(
            f"app {wanted.name!r} is an unfinished clone of {made_from}; {', '.join(missing)} are missing, "
            "and this call is for another moment or other topics",
            hint="finish it with the arguments it was begun with, or choose another name",
        )
    return found
