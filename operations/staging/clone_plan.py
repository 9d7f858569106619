"""Plan of a clone: checks that the clone can be created, without changes."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import cast

from msgspec import structs

from ...errors import NotFound, Refused, Usage
from ...pipeline.api.table_sink import TableFormat, parse_address
from ...snapshot.change.copies import ColumnMask, Masks, bytes_to_copy, check_masks
from ...snapshot.change.first_versions import channel_topic, has_run, users_inputs_by_name
from ...snapshot.cut.graph import Cut, downstream_stages, violations
from ...snapshot.cut.graph import channels as edges
from ...snapshot.cut.in_flight import InFlight, in_flight
from ...snapshot.cut.kafka_topics import KafkaTopics
from ...snapshot.cut.refs import Latest, Ref, check_new_name
from ...snapshot.cut.resolve import cut_of_ref
from ...snapshot.cut.stored import cut_of_snapshot, find_snapshot, read_snapshot
from ...state.kinds.kind import kind_of
from ...store.objects.protocol import ObjectStore
from ...store.sst.schema import visible_columns
from ...store.versions import apps, history, keys
from ...store.versions.apps import CloneJournal
from ...store.versions.kinds import INIT
from ...store.versions.manifest import AppInfo, Manifest, Origin


@dataclass(frozen=True, slots=True)
class CloneTerms:
    """Options of a clone."""

    topics: Mapping[str, str] = field(default_factory=dict)
    """Topics that the clone reads instead of the source's topics, by the name that the program declares."""
    sinks: Mapping[str, str] = field(default_factory=dict)
    """Topic or table address to which the clone publishes, by the sink's declared name."""
    masks: Mapping[str, str] = field(default_factory=dict)
    """Masks by `TABLE.COLUMN`, in the format of `Masks`."""
    deep: bool = False
    empty: bool = False
    """True for a clone without state, which reads all topics from the beginning."""
    owner: str = ""
    reason: str = ""
    ttl_ms: int = 0
    inherited_topics: Collection[str] = ()
    """Repartition topics that an earlier clone of that name left in Kafka; the new clone uses them."""


@dataclass(frozen=True, slots=True)
class ClonePlan:
    """Plan of a clone."""

    source: Cut
    info: AppInfo
    """Identity of the clone. `origin.snapshot` is empty until the clone is created."""
    target_root: str
    topics: Mapping[str, str]
    in_flight: tuple[InFlight, ...]
    copies: Mapping[str, int]
    """Size in bytes of the source's SSTs that the clone copies, by table name."""
    resumed: bool
    """True if an earlier call began this clone. The plan then has the cut and snapshot of that call."""
    done: bool = False
    journal: CloneJournal | None = None
    """Journal of an earlier call that reserved the name and did not complete the clone; else None."""
    still_shown: tuple[str, ...] = ()

    @property
    def initial_cut(self) -> Cut:
        return _state(self.source, self.info)


def make_plan(
    store: ObjectStore,
    target: ObjectStore,
    ref: Ref,
    name: str,
    terms: CloneTerms,
    kafka: KafkaTopics,
    now_ms: int,
    *,
    replaces_existing: bool = False,
    at: Cut | None = None,
) -> ClonePlan:
    """Plan a clone of the cut `at`, by default of the cut that `ref` names now. Raises the errors of `clone`.

    With `replaces_existing`, an existing clone of that name is ignored.
    """
    check_new_name("app", name)
    if terms.empty:
        _check_empty(store, target, ref, terms)
    check_roots(store, target, deep=terms.deep)
    if (target.url, name) == (store.url, ref.app):
        raise Refused(f"app {name!r} cannot be cloned onto itself", hint="choose a different name for the clone")
    cut = at if at is not None else cut_of_ref(store, ref)
    read_topics = _topics_read(cut, terms.topics)
    terms = replace(terms, sinks=_checked_sinks(cut, terms.sinks))
    masks = Masks.from_options(terms.masks)
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
    # Stages without a version start in the clone at the offsets planned for the source.
    starts = source.starts if source is not None else {}
    info = AppInfo(name, now_ms, origin, starts, owner=terms.owner, reason=terms.reason, ttl_ms=terms.ttl_ms)
    begun = None if replaces_existing else _find_begun(store, target, ref, info)
    done, note = isinstance(begun, AppInfo), begun if isinstance(begun, CloneJournal) else None
    if begun is not None:
        info = begun.info if isinstance(begun, CloneJournal) else begun
        cut = cut if terms.empty else _cut_of_begun_clone(store, cut, info, note)
    if wrong := violations(cut.stages):
        raise Refused(f"{ref.text} is not a consistent cut: {'; '.join(wrong)}", hint="choose another moment")
    check_masks(cut, masks)
    state = _state(cut, info)
    states = in_flight(store, state)
    if not done:  # a complete clone no longer needs these records in Kafka
        masks.check_in_flight(states)
        _check_offsets(store, state, read_topics, terms.topics, states, kafka)
    if begun is None:
        _check_channels_free(cut, name, kafka, terms.inherited_topics)
        _check_published(cut, read_topics, terms.sinks, kafka)
    copies = bytes_to_copy(state, masks, deep=terms.deep)
    shown = tuple(find_unmasked_columns(cut, masks))
    return ClonePlan(cut, info, target.url, read_topics, states, copies, begun is not None, done, note, shown)


def _state(cut: Cut, info: AppInfo) -> Cut:
    return Cut(cut.app, {}) if info.origin is not None and info.origin.is_empty else cut


def _check_empty(store: ObjectStore, target: ObjectStore, ref: Ref, terms: CloneTerms) -> None:
    if terms.deep or terms.masks or target.url != store.url:
        raise Usage("--empty takes no state, so it cannot be combined with --deep, --mask or --to")
    if not isinstance(ref.moment, Latest):
        raise Usage(f"--empty takes no state, but {ref.text} names a moment", hint=f"name the app: {ref.app}")
    for app in apps.iter_clone_sources(store, ref.app):
        for stage in history.list_stages(store, app):
            first = history.find(store, app, stage, 1)
            if first is not None and first.traits is INIT:
                raise Refused(
                    f"{stage} of {app} began with imported rows, which no topic has",
                    hint=f"clone it with its state, and migrate the clone: slackwater clone {ref.app} NAME",
                )


def check_roots(source: ObjectStore, target: ObjectStore, *, deep: bool) -> None:
    """Raise `Usage` or `Refused` if apps in the root `source` cannot be cloned to the root `target`.

    Makes the requests of `apps.check_root`.
    """
    if source.url == target.url:
        if deep:
            raise Usage("--deep copies everything into another store root", hint="name that root: --deep --to ROOT")
        return
    outer, inner = sorted((source.url, target.url), key=len)
    if inner.startswith(f"{outer.rstrip('/')}/"):
        raise Refused(
            f"the store root {inner} lies inside the store root {outer}",
            hint="choose a root outside of it, or clone within one root",
        )
    apps.check_root(target)


def _cut_of_begun_clone(store: ObjectStore, cut: Cut, info: AppInfo, note: CloneJournal | None) -> Cut:
    origin = info.origin
    assert origin is not None  # noqa: S101  every clone has one
    snapshot = note.snapshot if note is not None else origin.snapshot
    if snapshot:
        return cut_of_snapshot(store, read_snapshot(store, cut.app, snapshot))
    if cut.versions == origin.cut:
        return cut
    return Cut(cut.app, {stage: history.read(store, cut.app, stage, at) for stage, at in origin.cut.items()})


def _topics_read(cut: Cut, replacements: Mapping[str, str]) -> dict[str, str]:
    topics = {name: read.topic for name, read in users_inputs_by_name(cut)}
    for declared in replacements:
        if declared not in topics:
            raise NotFound(f"topic read by {cut.app}", declared, topics, hint="--topic takes NAME=OTHER")
    return topics | dict(replacements)


def _check_channels_free(cut: Cut, name: str, kafka: KafkaTopics, inherited: Collection[str] = ()) -> None:
    for channel in sorted({edge.name for edge in edges(cut)}):
        topic = channel_topic(name, channel)
        if topic not in inherited and kafka.ends(topic) is not None:
            # The owner of the topic is not known.
            raise Refused(
                f"topic {topic!r} exists already in Kafka: another app {name!r} may use it",
                hint="choose another name, or delete the topic if its app no longer exists",
            )


def _check_offsets(
    store: ObjectStore,
    cut: Cut,
    read_topics: Mapping[str, str],
    replaced: Collection[str],
    states: tuple[InFlight, ...],
    kafka: KafkaTopics,
) -> None:
    for declared, read in users_inputs_by_name(cut):
        topic_id = "" if declared in replaced else read.topic_id
        kafka.check_topic(read_topics[declared], read.offsets, topic_id)
    keeper = find_snapshot(store, cut.app, cut.snapshot) if cut.snapshot else None
    for state in states:
        if not (keeper and keeper.find_captured_channel(state)):
            kafka.check_topic(state.topic, state.starts, state.topic_id)


def _checked_sinks(cut: Cut, sinks: Mapping[str, str]) -> dict[str, str]:
    """Return the topics and table addresses to which the clone publishes, in stored form."""
    kinds = {name: sink.kind for stage in cut.stages.values() for name, sink in stage.sinks.items()}
    tables = {name: sink.table for stage in cut.stages.values() for name, sink in stage.sinks.items() if sink.table}
    checked = dict(sinks)
    for name, topic in sinks.items():
        if name not in kinds:
            raise NotFound(
                f"sink of {cut.app}", name, kinds, hint="--sink takes NAME=TARGET, a topic or the address of a table"
            )
        if kinds[name] == "table":
            kind = cast(TableFormat, tables[name].partition(":")[0])
            checked[name] = address = parse_address(f"--sink {name}", kind, topic)
            if f"{kind}:{address}" in tables.values():
                raise Refused(
                    f"{cut.app} publishes to the table {address} itself: it would have rows of both",
                    hint=f"--sink {name}=OTHER, with the address of a table of the clone's own",
                )
            continue
        keys.check_topic(topic)
        if kinds[name] == "topic" and (topic == name or topic in kinds):
            raise Refused(
                f"{cut.app} publishes to the topic {topic!r} itself: its readers would get records of both",
                hint=f"--sink {name}=OTHER, with a topic of the clone's own",
            )
    return checked


def _check_published(cut: Cut, read_topics: Mapping[str, str], sinks: Mapping[str, str], kafka: KafkaTopics) -> None:
    for name, topic in sinks.items():
        if all(stage.sinks[name].kind != "topic" for stage in cut.stages.values() if name in stage.sinks):
            continue
        if topic in read_topics.values():
            raise Refused(f"the clone would read the topic {topic!r} and publish to it: an endless loop")
        if kafka.ends(topic) is None:
            hint = f"create the topic: the sink {name!r} of the clone publishes to it"
            raise NotFound("Kafka topic", topic, (), hint=hint)


def _check_name_free(target: ObjectStore, name: str) -> None:
    if history.list_stages(target, name):
        raise Refused(
            f"{target.url} has stages of an app {name!r}, but not its app.json",
            hint="choose another name, or remove that app",
        )
    apps.check_name_free(target, name)


def _find_begun(store: ObjectStore, target: ObjectStore, ref: Ref, planned: AppInfo) -> AppInfo | CloneJournal | None:
    name = planned.name
    existing, note = apps.find_app_and_journal(target, name)
    if existing is None:
        _check_name_free(target, name)
        return None
    hint = "choose another name"
    if existing.origin is None or planned.origin is None:
        raise Refused(f"app {name!r} exists already under {target.url}", hint=hint)
    root = note.root if note is not None else existing.origin.root
    description = f"{existing.origin.app}@{(note.snapshot if note else existing.origin.snapshot) or '…'}"
    description += f" in {root}" if root else ", a deep clone"
    # For `app@now`, the interrupted call may have begun with an earlier moment. A fixed moment must be the same.
    cut = existing.origin.cut if ref.is_relative else planned.origin.cut
    is_same = structs.replace(planned.origin, cut=cut) == structs.replace(existing.origin, snapshot="")
    is_same = is_same and planned.origin.is_empty == existing.origin.is_empty
    if note is not None:
        if is_same and note.root == store.url:
            return note
        raise Refused(
            f"app {name!r} is an unfinished clone of {description}, and this call has another moment or other options",
            hint="finish it with its original arguments, or choose another name; "
            f"`slackwater app rm {name}` removes it",
        )
    # A relative ref only moves forward, so an earlier cut means a different clone. If the existing clone has already
    # run, a relative ref also means a different clone.
    is_same = is_same and all(planned.origin.cut.get(stage, 0) >= at for stage, at in existing.origin.cut.items())
    shares = not (existing.origin.is_deep or existing.origin.is_empty)
    is_kept = not shares or find_snapshot(store, existing.origin.app, existing.origin.snapshot) is not None
    if is_same and is_kept and not (ref.is_relative and has_run(target, existing)):
        return existing
    raise Refused(f"app {name!r} exists already under {target.url}, a clone of {description}", hint=hint)


def find_unmasked_columns(cut: Cut, masks: Masks) -> Iterator[str]:
    """Yield a sentence for each unmasked column or table that has, or may have, values of a masked column.

    A column has such values if it has the masked column's name, or is computed from such a column, for example by
    `max("email")`. A program's function may also return the values under a different name, so tables downstream of the
    masked table are listed.
    """
    hidden = {(mask.table, mask.column) for mask in masks.column_masks}
    for mask in masks.column_masks:
        masked, columns = f"{mask.table}.{mask.column}", _columns_with_masked_values(cut, mask)
        shown = [text for column, text in columns.items() if column not in hidden]
        if shown:
            yield f"{masked} is masked, but columns of the same name or source are not: {', '.join(shown)}"
        after = downstream_stages(cut.stages, cut.tables[mask.table].stage)
        named = {table for table, _ in columns}
        uncertain = [name for name, at in cut.tables.items() if at.stage in after and name not in named]
        if uncertain:
            yield (
                f"{', '.join(uncertain)} may have values of {masked} under other names, from functions of the program"
            )


def _columns_with_masked_values(cut: Cut, mask: ColumnMask) -> dict[tuple[str, str], str]:
    names, columns = {mask.column}, dict[tuple[str, str], str]()
    while True:
        new = {
            (table, name): f"{table}.{name}{f' ({description})' if (description := _description(at, name)) else ''}"
            for table, at in cut.tables.items()
            for name, sources in _columns(at)
            if (table, name) not in columns
            and (table, name) != (mask.table, mask.column)
            and not names.isdisjoint(sources)
        }
        if not new:
            return columns
        columns |= new
        names |= {name for _, name in new}


def _columns(at: Manifest) -> Iterator[tuple[str, tuple[str, ...]]]:
    assert at.table is not None  # noqa: S101  it is among a cut's tables
    kind = kind_of(at.table.state).core if at.table.state else None
    for column in (*at.table.key, *visible_columns(at.table)):
        yield column.name, (column.name, *(kind.source_columns(column.name) if kind is not None else ()))


def _description(at: Manifest, column: str) -> str:
    state = at.table.state if at.table is not None else None
    return kind_of(state).columns.get(column, "") if state else ""
