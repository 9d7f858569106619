"""Clone an app at a moment: new manifests that point at the source's SSTs, and channels of its own.

No byte of state is read or copied, so a clone costs the same at ten thousand keys and at five million. The
order makes it safe to stop anywhere: the source's cut is pinned first, then the clone's identity is written,
and with it the clone exists; the rest only rolls forward, and the same call again finishes it.
"""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from msgspec import Struct
from msgspec.structs import replace
from ulid import ULID

from ...errors import CommitConflict, NotFound, ObjectExists, ObjectNotFound, Refused
from ...store.objects.protocol import ObjectStore
from ...store.versions import apps, codec, history, keys
from ...store.versions import limits as fits
from ...store.versions.commit import commit
from ...store.versions.manifest import AppInfo, Input, Manifest, Origin, Sst
from ..cut.graph import Cut, channels, order, violations
from ..cut.in_flight import InFlight, in_flight
from ..cut.refs import Ref, parse
from ..cut.resolve import cut_at
from ..cut.stored import Snapshot, find_snapshot, of_snapshot, read_snapshot
from ..take.audit_log import record_once
from ..take.snapshots import pin, remove_pins_without_clone
from .channels import Carried, Channels, carried_input, carried_output, carry, channel_topic

__all__ = ["Channels", "ClonePlan", "channel_topic", "clone", "finish_clone", "has_run", "plan_clone", "unfinished"]


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


class _CarriedChannels(Struct, frozen=True):
    """The result of copying, noted before the first manifest: copying again would move the offsets."""

    channels: dict[fits.Topic, Carried]


def clone(
    store: ObjectStore,
    source: str,
    name: str,
    *,
    topics: Mapping[str, str],
    channels: Channels,
    target_store: ObjectStore | None = None,
    by: str,
    now_ms: int | None = None,
    dry_run: bool = False,
) -> ClonePlan:
    """Make app `name` from another app's moment; the source only gets a snapshot that pins its cut.

    A call that was interrupted is finished by the same call again, which finds nothing to do when the clone is there.

    Args:
        store: the source's store.
        source: ref of the moment to clone.
        name: the new app's name.
        topics: topics the clone reads instead of the source's, by their names as declared; with the same
            partitions and offsets. Those that are not named are read on by both.
        channels: Kafka.
        target_store: where the clone lives; default the source's store.
        by: user@host.
        now_ms: what relative refs count from; default the wall clock.
        dry_run: check everything, change nothing, and return what would be done.

    Raises:
        Usage: the ref, or the name, is malformed.
        NotFound: there is no such app, moment or topic.
        Refused: the name or one of its topics is taken, a topic does not hold the offsets, or records in
            flight are gone.
        Unavailable: storage or Kafka did not answer; the clone may have been begun, the same call finishes
            it.
    """
    target = target_store or store
    moment_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    plan = plan_clone(store, source, name, topics=topics, channels=channels, target_store=target, now_ms=moment_ms)
    if dry_run:
        return plan
    if not plan.resumed:
        plan = _begin(store, target, plan, by)
    if plan.info.origin is not None:
        root = _root_from(store, target)
        remove_pins_without_clone(store, plan.info.origin.app, plan.info.name, root)
    finish_clone(store, target, plan.info, channels=channels, by=by)
    _record(store, source, target, plan, by)
    return plan


def _record(store: ObjectStore, source: str, target: ObjectStore, plan: ClonePlan, by: str) -> None:
    """Add the clone to the logs of both apps, unless it is there: an earlier call may have died before or after it."""
    since_ms, where = plan.info.created_ms, plan.info.name
    if target.url != store.url:
        where += f" in {target.url}"
    detail = f"{source} as {where}"
    record_once(
        store, plan.source.app, "clone", detail, by, since_ms=since_ms, same=lambda had: had.endswith(f" as {where}")
    )
    born = f"from {source} in {store.url}"
    record_once(target, plan.info.name, "clone", born, by, since_ms=since_ms, same=lambda _had: True)


def plan_clone(
    store: ObjectStore,
    source: str,
    name: str,
    *,
    topics: Mapping[str, str],
    channels: Channels,
    target_store: ObjectStore,
    now_ms: int,
) -> ClonePlan:
    """Check everything that can be checked before anything changes. Arguments and errors as of `clone`."""
    keys.check_name("app", name)
    ref = parse(source, now_ms=now_ms)
    if (target_store.url, name) == (store.url, ref.app):
        raise Refused(f"app {name!r} cannot be cloned onto itself", hint="give the clone a name of its own")
    cut = cut_at(store, ref)
    read_topics = _read_topics(cut, topics)
    origin = Origin(
        root=store.url,
        app=cut.app,
        snapshot="",
        cut=cut.versions,
        topics={declared: topic for declared, topic in sorted(read_topics.items()) if declared != topic},
    )
    info = AppInfo(name=name, created_ms=now_ms, origin=origin)
    begun = _begun(store, target_store, ref, info)
    done = begun is not None and not unfinished(target_store, begun)
    if begun is not None and begun.origin is not None:
        info = begun
        cut = of_snapshot(store, read_snapshot(store, cut.app, begun.origin.snapshot))
    if wrong := violations(cut.stages):
        raise Refused(f"{source} is not a consistent cut: {'; '.join(wrong)}", hint="choose another moment")
    flights = in_flight(store, cut)
    if done:
        # It has all that it needs of Kafka, which need not have that any more.
        return ClonePlan(cut, info, target_store.url, read_topics, flights, resumed=True, done=True)
    keeper = find_snapshot(store, cut.app, cut.snapshot) if cut.snapshot else None
    _check_topics(cut, read_topics, [one for one in flights if not (keeper and keeper.captured(one))], channels)
    if begun is None:
        _check_free(cut, name, channels)
    return ClonePlan(cut, info, target_store.url, read_topics, flights, begun is not None)


def finish_clone(
    store: ObjectStore, target: ObjectStore, info: AppInfo, *, channels: Channels, by: str
) -> tuple[str, ...]:
    """Give every stage of a clone its first version, as far as it has none; returns the stages that got one.

    Args:
        store: the source's store.
        target: the clone's store.
        info: the clone's identity.
        channels: Kafka.
        by: user@host.

    Raises:
        NotFound: the source's snapshot, a manifest or a topic is gone.
        Refused: the app is no clone, or records in flight are gone.
        Unavailable: storage or Kafka did not answer.
    """
    missing = unfinished(target, info)
    if info.origin is None:
        raise Refused(f"app {info.name!r} is no clone: there is nothing to finish")
    if not missing:
        _announce(target, info, channels)
        return ()
    pinned = read_snapshot(store, info.origin.app, info.origin.snapshot)
    cut = of_snapshot(store, pinned)
    carried = _carried(store, target, pinned, info.name, channels)
    # Senders first: nobody may see a receiver whose sender is not there.
    for stage in order(cut.stages):
        if stage in missing:
            first = _first_version(store, target, cut, stage, info, carried)
            _commit(target, replace(first, by=by))
    _announce(target, info, channels)
    return missing


def _announce(target: ObjectStore, info: AppInfo, channels: Channels) -> None:
    """Tell Kafka's tools where the stages begin; those that run on already tell it themselves."""
    for stage, version in (info.origin.cut if info.origin else {}).items():
        head = history.head(target, info.name, stage)
        if head is not None and head.version == version:
            channels.announce(info.name, stage, {read.topic: read.offsets for read in head.inputs.values()})


def _root_from(store: ObjectStore, target: ObjectStore) -> str:
    """How a pin in `store` names the root of a clone in `target`."""
    return "" if target.url == store.url else target.url


def has_run(store: ObjectStore, info: AppInfo) -> bool:
    """Whether a clone has gone on from its first versions. The requests of `history.head` for each stage."""
    cut = info.origin.cut if info.origin else {}
    heads = {stage: history.head(store, info.name, stage) for stage in history.list_stages(store, info.name)}
    return any(head is not None and head.version != cut.get(stage) for stage, head in heads.items())


def _is_pinned(store: ObjectStore, origin: Origin) -> bool:
    return find_snapshot(store, origin.app, origin.snapshot) is not None


def unfinished(store: ObjectStore, info: AppInfo) -> tuple[str, ...]:
    """The stages that a clone has yet to get from its source; empty unless it is an unfinished clone.

    Such a stage must not be started before: it would begin without its state. One request for each stage.
    """
    stages = info.origin.cut if info.origin else {}
    return tuple(stage for stage in stages if not history.first_version(store, info.name, stage))


def _begin(store: ObjectStore, target: ObjectStore, plan: ClonePlan, by: str) -> ClonePlan:
    """Pin the source's cut and write the clone's identity: from here on the clone exists."""
    origin = plan.info.origin
    if origin is None:
        raise AssertionError("a clone without an origin")
    root = _root_from(store, target)
    snapshot = _pin_for(store, plan.source, plan.info.name, root, by)
    info = replace(plan.info, origin=replace(origin, snapshot=snapshot))
    try:
        apps.create_app(target, info)
    except Refused:
        if apps.find_app(target, info.name) is not None:
            # Somebody else was faster: what was pinned for this call keeps nothing alive.
            remove_pins_without_clone(store, origin.app, info.name, root)
        raise
    return ClonePlan(plan.source, info, plan.target_root, plan.topics, plan.in_flight, plan.resumed)


def _pin_for(store: ObjectStore, cut: Cut, name: str, root: str, by: str) -> str:
    """Pin the cut for the clone and return the snapshot's name.

    An earlier clone of that name, or a call that stopped before the clone existed, may have left its own pin.
    It is not ours to remove: whoever made it may be just about to go on.
    """
    keeper = read_snapshot(store, cut.app, cut.snapshot) if cut.snapshot else None
    if keeper is not None and keeper.stages != cut.versions:
        found = "there is another one of that name since this clone was planned"
        raise NotFound(f"snapshot of app {cut.app!r}", cut.snapshot, found=found, hint="say it again to clone that one")
    base = f"clone-{name}"[:56]
    candidates = (base, *(f"{base}-{number}" for number in range(2, 1000)))
    for candidate in candidates:
        try:
            return pin(store, cut, candidate, "clone", by=by, clone=name, clone_root=root, keeper=keeper).name
        except Refused:
            if violations(cut.stages) or not cut.stages:
                raise
    raise Refused(
        f"all snapshot names from {base} to {candidates[-1]} of {cut.app} are taken",
        hint=f"`slackwater snapshot list {cut.app}` shows them; remove those whose clones are gone",
    )


def _read_topics(cut: Cut, wanted: Mapping[str, str]) -> dict[str, str]:
    """The topic to read for each user's topic, by its declared name. Raises `NotFound` for unknown ones."""
    current = {name: source.topic for _, name, source in _users_inputs(cut)}
    for declared in wanted:
        if declared not in current:
            raise NotFound(f"topic read by {cut.app}", declared, current, hint="--topic takes NAME=OTHER")
    return current | dict(wanted)


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
        if is_same and not (ref.moves and has_run(target, found)) and _is_pinned(store, found.origin):
            return found
        raise Refused(f"app {wanted.name!r} exists already under {target.url}, a clone of {made_from}", hint=hint)
    if not is_same:
        raise Refused(
            f"app {wanted.name!r} is an unfinished clone of {made_from}; {', '.join(missing)} are missing, "
            "and this call is for another moment or other topics",
            hint="finish it with the arguments it was begun with, or choose another name",
        )
    return found


def _check_topics(cut: Cut, read_topics: Mapping[str, str], flights: Iterable[InFlight], kafka: Channels) -> None:
    """Raise unless Kafka still holds all that the clone has to read or copy from there."""
    for _, declared, source in _users_inputs(cut):
        kafka.check_topic(read_topics[declared], source.offsets)
    for flight in flights:
        kafka.check_topic(flight.topic, flight.starts)


def _check_free(cut: Cut, name: str, kafka: Channels) -> None:
    """Raise `Refused` if a channel of the clone is there already: whose it is, cannot be told."""
    for channel in sorted({channel.name for channel in channels(cut)}):
        topic = channel_topic(name, channel)
        if kafka.ends(topic) is not None:
            raise Refused(
                f"topic {topic!r} exists already in Kafka: another app {name!r} may use it",
                hint="choose another name, or delete the topic if it is left from an app that is gone",
            )


def _carried(
    store: ObjectStore, target: ObjectStore, pinned: Snapshot, name: str, kafka: Channels
) -> dict[str, Carried]:
    """Where the copied records lie: as noted by an earlier call, else copied now and noted."""
    key = keys.channels(name)
    try:
        return codec.read(target, key, _CarriedChannels).channels
    except ObjectNotFound:
        copied = _CarriedChannels(carry(store, of_snapshot(store, pinned), name, kafka, pinned))
    try:
        target.put_if_absent(key, codec.encode(copied))
    except ObjectExists:
        # Somebody finishes the same clone at the same time; their note was first, so it counts.
        return codec.read(target, key, _CarriedChannels).channels
    return copied.channels


def _first_version(
    store: ObjectStore,
    target: ObjectStore,
    cut: Cut,
    stage: str,
    info: AppInfo,
    carried: Mapping[str, Carried],
) -> Manifest:
    """A stage's first manifest in the clone, under the source's version number: `_seq` goes on from it."""
    source = cut.stages[stage]
    topics = info.origin.topics if info.origin else {}
    return replace(
        source,
        app=info.name,
        epoch=1,
        writer=str(ULID()),
        time_ms=max(time.time_ns() // 1_000_000, source.time_ms),
        kind="clone",
        inputs={
            name: carried_input(read, stage, name, info.name, cut, carried)
            if read.upstream
            else replace(read, topic=topics.get(name, name), rows=0)
            for name, read in source.inputs.items()
        },
        outputs={name: carried_output(output, carried[name]) for name, output in source.outputs.items()},
        ssts=tuple(_from(sst, store.url, target.url) for sst in source.ssts),
        # Snapshots under way are the source's.
        recorded={},
        awaited={},
        captured={},
        lost={},
        duration_ms=0,
        stats=None,
        totals=None,
    )


def _from(sst: Sst, source_root: str, target_root: str) -> Sst:
    """The SST as a manifest under another root names it."""
    held_by = sst.root or source_root
    return replace(sst, root="" if held_by == target_root else held_by)


def _commit(target: ObjectStore, manifest: Manifest) -> None:
    try:
        commit(target, manifest)
    except CommitConflict:
        found = history.read(target, manifest.app, manifest.stage, manifest.version)
        if found.kind != "clone":
            raise
