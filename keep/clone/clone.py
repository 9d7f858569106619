"""Clone an app at a moment: new manifests that point at the source's SSTs, and channels of its own.

No byte of state is read or copied, so a clone costs the same at ten thousand keys and at five million. The order makes
it safe to stop anywhere: the source's cut is pinned first, then the clone's identity is written, and with it the clone
exists; the rest only rolls forward, and the same call again finishes it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from msgspec import structs

from ... import instants
from ...errors import NotFound, Refused
from ...moments.cut.graph import Cut, order, violations
from ...moments.cut.graph import channels as edges
from ...moments.cut.in_flight import InFlight, in_flight
from ...moments.cut.refs import Ref, parse
from ...moments.cut.resolve import cut_at
from ...moments.cut.stored import find_snapshot, of_snapshot, read_snapshot
from ...moments.take.audit_log import record_once
from ...moments.take.remove import remove_pins_without_clone
from ...moments.take.snapshots import pin
from ...store.objects.protocol import ObjectStore
from ...store.versions import apps, history, keys
from ...store.versions.manifest import AppInfo, Input, Origin
from .first_versions import Channels, channel_topic, finish_clone, has_run, unfinished


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


def clone(
    store: ObjectStore,
    source: str,
    name: str,
    *,
    topics: Mapping[str, str],
    channels: Channels,
    sinks: Mapping[str, str] | None = None,
    target_store: ObjectStore | None = None,
    by: str,
    now_ms: int | None = None,
    dry_run: bool = False,
) -> ClonePlan:
    """Make app `name` from another app's moment; the source only gets a snapshot that pins its cut.

    A call that was interrupted is finished by the same call again, which finds nothing to do when the clone is there.

    The clone reads `topics` instead of the source's, by their names as declared, with the same partitions and offsets;
    those that are not named are read on by both. It publishes `sinks`: a topic of its own for each sink by its name as
    declared, where a function gets its own name; those that are not named are not written at all. It lives in
    `target_store`, or in the source's. Relative refs count from `now_ms`, or the wall clock. With `dry_run`, everything
    is checked and nothing changed.

    Raises `Usage` where the ref, or the name, is malformed, `NotFound` where there is no such app, moment, topic or
    sink, `Refused` where the name or one of its topics is taken, a topic lacks the offsets, or records in flight are
    gone, and `Unavailable`: the clone may have been begun then, and the same call finishes it.
    """
    target = target_store or store
    moment_ms = instants.now_ms() if now_ms is None else now_ms
    plan = _make_plan(store, target, parse(source, now_ms=moment_ms), name, topics, sinks or {}, channels, moment_ms)
    if dry_run:
        return plan
    # How a pin names the clone's root.
    root = "" if target.url == store.url else target.url
    if not plan.resumed:
        plan = _begin(store, target, plan, root, by)
    remove_pins_without_clone(store, plan.source.app, name, root)
    finish_clone(store, target, plan.info, channels=channels, by=by)
    # In the logs of both apps, unless it is there: an earlier call may have died before or after it.
    since_ms, where = plan.info.created_ms, f"{name} in {root}" if root else name
    detail, same = f"{source} as {where}", f" as {where}"
    record_once(store, plan.source.app, "clone", detail, by, since_ms=since_ms, same=lambda had: had.endswith(same))
    born = f"from {source} in {store.url}"
    made = {stage: (0, version) for stage, version in plan.source.versions.items()}
    record_once(target, name, "clone", born, by, made, since_ms=since_ms, same=lambda _had: True)
    return plan


def _begin(store: ObjectStore, target: ObjectStore, plan: ClonePlan, root: str, by: str) -> ClonePlan:
    """Pin the source's cut and write the clone's identity: from here on the clone exists.

    An earlier clone of that name, or a call that stopped before the clone existed, may have left its own pin. That is
    not ours to remove: whoever made it may be just about to go on.
    """
    cut, name, origin = plan.source, plan.info.name, plan.info.origin
    assert origin is not None  # noqa: S101  every clone has one
    keeper = read_snapshot(store, cut.app, cut.snapshot) if cut.snapshot else None
    if keeper is not None and keeper.stages != cut.versions:
        found = "there is another one of that name since this clone was planned"
        raise NotFound(f"snapshot of app {cut.app!r}", cut.snapshot, found=found, hint="say it again to clone that one")
    base = f"clone-{name}"[:56]
    candidates = (base, *(f"{base}-{number}" for number in range(2, 1000)))
    for candidate in candidates:
        try:
            pinned = pin(store, cut, candidate, "clone", by=by, clone=name, clone_root=root, keeper=keeper)
            break
        except Refused:
            if violations(cut.stages) or not cut.stages:
                raise
    else:
        raise Refused(
            f"all snapshot names from {base} to {candidates[-1]} of {cut.app} are taken",
            hint=f"`slackwater snapshot list {cut.app}` shows them; remove those whose clones are gone",
        )
    info = structs.replace(plan.info, origin=structs.replace(origin, snapshot=pinned.name))
    try:
        apps.create_app(target, info)
    except Refused:
        if apps.find_app(target, name) is not None:
            # Somebody else was faster: what was pinned for this call keeps nothing alive.
            remove_pins_without_clone(store, origin.app, name, root)
        raise
    return replace(plan, info=info)


def _make_plan(
    store: ObjectStore,
    target: ObjectStore,
    ref: Ref,
    name: str,
    topics: Mapping[str, str],
    sinks: Mapping[str, str],
    channels: Channels,
    now_ms: int,
) -> ClonePlan:
    """What a clone is made of, with everything checked that can be before anything changes."""
    keys.check_name("app", name)
    if (target.url, name) == (store.url, ref.app):
        raise Refused(f"app {name!r} cannot be cloned onto itself", hint="give the clone a name of its own")
    cut = cut_at(store, ref)
    read_topics = {name: read.topic for name, read in _users_inputs(cut)}
    for declared in topics:
        if declared not in read_topics:
            raise NotFound(f"topic read by {cut.app}", declared, read_topics, hint="--topic takes NAME=OTHER")
    read_topics |= topics
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
        for declared, read in _users_inputs(cut):
            channels.check_topic(read_topics[declared], read.offsets)
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


def _users_inputs(cut: Cut) -> Iterator[tuple[str, Input]]:
    """Declared name and input of everything that the app reads from users' topics."""
    for stage in order(cut.stages):
        yield from ((name, read) for name, read in sorted(cut.stages[stage].inputs.items()) if not read.upstream)


def _check_sinks(cut: Cut, sinks: Mapping[str, str]) -> None:
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
            hint = f"the sink {name!r} of the clone is to publish there: make it"
            raise NotFound("Kafka topic", topic, (), hint=hint)


def _begun(store: ObjectStore, target: ObjectStore, ref: Ref, planned: AppInfo) -> AppInfo | None:
    """This very clone's identity if an earlier call began it, and perhaps finished it; None if the name is free."""
    try:
        found = apps.read_app(target, planned.name)
    except NotFound:
        if history.list_stages(target, planned.name):
            raise Refused(
                f"{target.url} has stages of an app {planned.name!r} that has no identity",
                hint="choose another name, or remove what is left of that app",
            ) from None
        return None
    hint = "choose another name"
    if found.origin is None or planned.origin is None:
        raise Refused(f"app {planned.name!r} exists already under {target.url}", hint=hint)
    made_from = f"{found.origin.app}@{found.origin.snapshot} in {found.origin.root}"
    # `app@now` was another moment when the clone was begun; a fixed moment must be the same.
    ours = structs.replace(planned.origin, snapshot="", cut=found.origin.cut if ref.moves else planned.origin.cut)
    is_same = ours == structs.replace(found.origin, snapshot="")
    if not (missing := unfinished(target, found)):
        # A moment that moves only goes on: an earlier one is another. And who asks for the present of an app, and finds
        # a clone that runs, means another clone.
        is_same = is_same and all(planned.origin.cut.get(stage, 0) >= at for stage, at in found.origin.cut.items())
        pinned = find_snapshot(store, found.origin.app, found.origin.snapshot)
        if is_same and not (ref.moves and has_run(target, found)) and pinned is not None:
            return found
        raise Refused(f"app {planned.name!r} exists already under {target.url}, a clone of {made_from}", hint=hint)
    if not is_same:
        raise Refused(
            f"app {planned.name!r} is an unfinished clone of {made_from}; {', '.join(missing)} are missing, "
            "and this call is for another moment or other topics",
            hint="finish it with the arguments it was begun with, or choose another name",
        )
    return found
