"""What a clone is to be made of, with everything checked that can be before anything changes."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from msgspec import structs

from ...errors import NotFound, Refused, Usage
from ...snapshot.change.copies import Masks, check_masks, sizes
from ...snapshot.change.first_versions import channel_topic, has_run, users_inputs_by_name
from ...snapshot.cut.graph import Cut, violations
from ...snapshot.cut.graph import channels as edges
from ...snapshot.cut.in_flight import InFlight, in_flight
from ...snapshot.cut.kafka_topics import Topics
from ...snapshot.cut.refs import Latest, Ref, check_new_name
from ...snapshot.cut.resolve import cut_at
from ...snapshot.cut.stored import find_snapshot, of_snapshot, read_snapshot
from ...store.objects.protocol import ObjectStore
from ...store.versions import apps, history, keys
from ...store.versions.apps import Cloning
from ...store.versions.kinds import INIT
from ...store.versions.manifest import AppInfo, Origin
from .mask_flow import still_shown


@dataclass(frozen=True, slots=True)
class Terms:
    """What is asked for of a clone."""

    topics: Mapping[str, str] = field(default_factory=dict)
    """Topics that it reads instead, by their names as declared."""
    sinks: Mapping[str, str] = field(default_factory=dict)
    """Sinks that it publishes, by their names as declared, each to a topic of its own."""
    masks: Mapping[str, str] = field(default_factory=dict)
    """What it hides, `table.column` to how, as `mask` takes it."""
    deep: bool = False
    """Whether it gets everything for itself."""
    empty: bool = False
    """True for a clone without state, which reads all topics from the beginning."""
    owner: str = ""
    reason: str = ""
    ttl_ms: int = 0
    left: Collection[str] = ()
    """Topics in Kafka that are left of an earlier clone of that name: they become this one's."""


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
    copies: Mapping[str, int]
    """Of tables whose SSTs the clone gets for itself, by name, the bytes of the source's."""
    resumed: bool
    """Whether an earlier call had begun this clone: its cut and snapshot are those of that call."""
    done: bool = False
    """Whether that call, or another one, had finished it too."""
    note: Cloning | None = None
    """What an earlier call noted, of a clone that is not whole."""
    still_shown: tuple[str, ...] = ()
    """Where else values stand that it hides, a sentence each."""

    @property
    def state(self) -> Cut:
        """Cut whose state the clone gets; without stages for an empty clone."""
        return _state(self.source, self.info)


def make_plan(
    store: ObjectStore,
    target: ObjectStore,
    ref: Ref,
    name: str,
    terms: Terms,
    kafka: Topics,
    now_ms: int,
    *,
    over: bool = False,
    at: Cut | None = None,
) -> ClonePlan:
    """What a clone is made of, of the cut `at`, or else of what `ref` names now. Raises as `clone`.

    With `over`, as if there were none of that name.
    """
    check_new_name("app", name)
    if terms.empty:
        _check_empty(store, target, ref, terms)
    check_roots(store, target, deep=terms.deep)
    if (target.url, name) == (store.url, ref.app):
        raise Refused(f"app {name!r} cannot be cloned onto itself", hint="give the clone a name of its own")
    cut = at if at is not None else cut_at(store, ref)
    read_topics = _topics_read(cut, terms.topics)
    _check_sinks(cut, terms.sinks)
    masks = Masks.of(terms.masks)
    origin = Origin(
        root="" if terms.deep else store.url,
        app=cut.app,
        snapshot="",
        cut={} if terms.empty else cut.versions,
        topics={declared: topic for declared, topic in sorted(read_topics.items()) if declared != topic},
        sinks=dict(sorted(terms.sinks.items())),
        masks=dict(sorted(terms.masks.items())),
    )
    source = apps.find_app(store, cut.app)
    # Stages that have no version yet begin in the clone where they would have begun here.
    starts = source.starts if source is not None else {}
    info = AppInfo(name, now_ms, origin, starts, owner=terms.owner, reason=terms.reason, ttl_ms=terms.ttl_ms)
    begun = None if over else _begun(store, target, ref, info)
    done, note = isinstance(begun, AppInfo), begun if isinstance(begun, Cloning) else None
    if begun is not None:
        info = begun.info if isinstance(begun, Cloning) else begun
        cut = cut if terms.empty else _as_begun(store, cut, info, note)
    if wrong := violations(cut.stages):
        raise Refused(f"{ref.text} is not a consistent cut: {'; '.join(wrong)}", hint="choose another moment")
    check_masks(cut, masks)
    state = _state(cut, info)
    states = in_flight(store, state)
    if not done:  # else it has all that it needs of Kafka, which need not have that any more
        masks.check_in_flight(states)
        _check_offsets(store, state, read_topics, terms.topics, states, kafka)
    if begun is None:
        _check_channels_free(cut, name, kafka, terms.left)
        _check_published(cut, read_topics, terms.sinks, kafka)
    copies = sizes(state, masks, deep=terms.deep)
    shown = tuple(still_shown(cut, masks))
    return ClonePlan(cut, info, target.url, read_topics, states, copies, begun is not None, done, note, shown)


def _state(cut: Cut, info: AppInfo) -> Cut:
    return Cut(cut.app, {}) if info.origin is not None and info.origin.empty else cut


def _check_empty(store: ObjectStore, target: ObjectStore, ref: Ref, terms: Terms) -> None:
    """Check that an app can begin anew. Raises `Usage`, and `Refused` where a table began with rows from elsewhere."""
    if terms.deep or terms.masks or target.url != store.url:
        raise Usage("--empty takes no state: --deep, --mask and --to do not go with it")
    if not isinstance(ref.moment, Latest):
        raise Usage(f"--empty takes no state, and {ref.text} is a moment", hint=f"name the app: {ref.app}")
    for app in apps.ancestors(store, ref.app):
        for stage in history.list_stages(store, app):
            first = history.find(store, app, stage, 1)
            if first is not None and first.traits is INIT:
                raise Refused(
                    f"{stage} of {app} began with rows from elsewhere, which are in no topic",
                    hint=f"clone it with its state, and migrate the clone: slackwater clone {ref.app} NAME",
                )


def check_roots(source: ObjectStore, target: ObjectStore, *, deep: bool) -> None:
    """See that a clone may go from one root to another. Raises `Usage` or `Refused`. Requests as `apps.check_root`."""
    if source.url == target.url:
        if deep:
            raise Usage("--deep copies everything into another store root", hint="--to says which: --deep --to ROOT")
        return
    outer, inner = sorted((source.url, target.url), key=len)
    if inner.startswith(f"{outer.rstrip('/')}/"):
        raise Refused(
            f"the store root {inner} lies inside the root {outer}: an app of one would be objects of the other",
            hint="choose a root beside it, or clone within one root",
        )
    apps.check_root(target)


def _as_begun(store: ObjectStore, cut: Cut, info: AppInfo, note: Cloning | None) -> Cut:
    """The cut of the call that began the clone."""
    origin = info.origin
    assert origin is not None  # noqa: S101  every clone has one
    snapshot = note.snapshot if note is not None else origin.snapshot
    if snapshot:
        return of_snapshot(store, read_snapshot(store, cut.app, snapshot))
    if cut.versions == origin.cut:
        return cut
    return Cut(cut.app, {stage: history.read(store, cut.app, stage, at) for stage, at in origin.cut.items()})


def _topics_read(cut: Cut, others: Mapping[str, str]) -> dict[str, str]:
    """The topic that an app made of this cut reads for each user's topic, by its name as declared.

    `others` are those that it reads instead. Raises `NotFound` where the app reads no such topic.
    """
    found = {name: read.topic for name, read in users_inputs_by_name(cut)}
    for declared in others:
        if declared not in found:
            raise NotFound(f"topic read by {cut.app}", declared, found, hint="--topic takes NAME=OTHER")
    return found | dict(others)


def _check_channels_free(cut: Cut, name: str, kafka: Topics, left: Collection[str] = ()) -> None:
    """Raise `Refused` where Kafka has a repartition topic of this name, but for those that are `left` to it."""
    for channel in sorted({edge.name for edge in edges(cut)}):
        topic = channel_topic(name, channel)
        if topic not in left and kafka.ends(topic) is not None:
            # Whose it is, cannot be told.
            raise Refused(
                f"topic {topic!r} exists already in Kafka: another app {name!r} may use it",
                hint="choose another name, or delete the topic if it is left from an app that is gone",
            )


def _check_offsets(
    store: ObjectStore,
    cut: Cut,
    read_topics: Mapping[str, str],
    others: Collection[str],
    states: tuple[InFlight, ...],
    kafka: Topics,
) -> None:
    """See that Kafka has what the clone reads on from, and what is in flight, unless a snapshot keeps that.

    Of `others`, the clone reads other topics than the source, by the declared name: those have ids of their own.
    """
    for declared, read in users_inputs_by_name(cut):
        topic_id = "" if declared in others else read.topic_id
        kafka.check_topic(read_topics[declared], read.offsets, topic_id)
    keeper = find_snapshot(store, cut.app, cut.snapshot) if cut.snapshot else None
    for state in states:
        if not (keeper and keeper.captured(state)):
            kafka.check_topic(state.topic, state.starts, state.topic_id)


def _check_sinks(cut: Cut, sinks: Mapping[str, str]) -> None:
    """See that an app made of this cut may publish these: not where the cut's own app does.

    Raises `Usage`, `NotFound` and `Refused`.
    """
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


def _check_published(cut: Cut, read_topics: Mapping[str, str], sinks: Mapping[str, str], kafka: Topics) -> None:
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


def _check_nothing_there(target: ObjectStore, name: str) -> None:
    """See that a new app may have this name. Raises `Refused` where stages are left of it, or a promotion took it."""
    if history.list_stages(target, name):
        raise Refused(
            f"{target.url} has stages of an app {name!r} that has no identity",
            hint="choose another name, or remove what is left of that app",
        )
    apps.check_free(target, name)


def _begun(store: ObjectStore, target: ObjectStore, ref: Ref, planned: AppInfo) -> AppInfo | Cloning | None:
    """This very clone, if an earlier call began it: its note, or its identity when it is whole; None if there is none.

    Raises `Refused` where something else has the name.
    """
    name = planned.name
    found, note = apps.find_begun(target, name)
    if found is None:
        _check_nothing_there(target, name)
        return None
    hint = "choose another name"
    if found.origin is None or planned.origin is None:
        raise Refused(f"app {name!r} exists already under {target.url}", hint=hint)
    root = note.root if note is not None else found.origin.root
    made_from = f"{found.origin.app}@{(note.snapshot if note else found.origin.snapshot) or '…'}"
    made_from += f" in {root}" if root else ", with everything of its own"
    # `app@now` was another moment when the clone was begun; a fixed moment must be the same.
    cut = found.origin.cut if ref.moves else planned.origin.cut
    is_same = structs.replace(planned.origin, cut=cut) == structs.replace(found.origin, snapshot="")
    is_same = is_same and planned.origin.empty == found.origin.empty
    if note is not None:
        if is_same and note.root == store.url:
            return note
        raise Refused(
            f"app {name!r} is an unfinished clone of {made_from}, and this call is for another moment or other terms",
            hint="finish it with the arguments it was begun with, or choose another name; "
            f"`slackwater app rm {name}` gives it up",
        )
    # A moment that moves only goes on: an earlier one is another. And who asks for the present of an app, and finds a
    # clone that runs, means another clone.
    is_same = is_same and all(planned.origin.cut.get(stage, 0) >= at for stage, at in found.origin.cut.items())
    shares = not (found.origin.deep or found.origin.empty)
    is_kept = not shares or find_snapshot(store, found.origin.app, found.origin.snapshot) is not None
    if is_same and is_kept and not (ref.moves and has_run(target, found)):
        return found
    raise Refused(f"app {name!r} exists already under {target.url}, a clone of {made_from}", hint=hint)
