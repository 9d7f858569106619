"""The first version of each stage of a clone: it shares the SSTs of the source, and has channels of its own."""

from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace
from ulid import ULID

from ... import instants
from ...errors import Refused
from ...store.objects.protocol import ObjectStore
from ...store.versions import history, keys, notes
from ...store.versions import limits as fits
from ...store.versions.amend import begin
from ...store.versions.aside import each_sst
from ...store.versions.commit import carried, without_snapshots
from ...store.versions.manifest import AppInfo, Manifest, Output, Sst
from ..cut.graph import Cut, order
from ..cut.moments import heads_of
from ..cut.stored import Snapshot, of_snapshot, read_snapshot
from .channels import Carried, Channels, carried_input, carry


class _CarriedChannels(Struct, frozen=True):
    """The result of copying, noted before the first manifest: copying again would move the offsets."""

    channels: dict[fits.Topic, Carried]


def finish_clone(
    store: ObjectStore, target: ObjectStore, info: AppInfo, *, channels: Channels, by: str
) -> tuple[str, ...]:
    """Give every stage of a clone its first version, as far as it has none; returns the stages that got one.

    The clone, `info`, lives in `target`, its source in `store`; `by` is user@host.

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
    copied = _carried(store, target, pinned, info.name, channels)
    # Senders first: nobody may see a receiver whose sender is not there.
    for stage in order(cut.stages):
        if stage in missing:
            first = _first_version(store, target, cut, stage, info, copied)
            begin(target, replace(first, by=by))
    _announce(target, info, channels)
    return missing


def has_run(store: ObjectStore, info: AppInfo) -> bool:
    """Whether a clone has gone on from its first versions. The requests of `history.head` for each stage."""
    cut = info.origin.cut if info.origin else {}
    heads = heads_of(store, info.name, history.list_stages(store, info.name))
    return any(head.version != cut.get(stage) for stage, head in heads.items())


def unfinished(store: ObjectStore, info: AppInfo) -> tuple[str, ...]:
    """The stages that a clone has yet to get from its source; empty unless it is an unfinished clone.

    Such a stage must not be started before: it would begin without its state. One request for each stage.
    """
    stages = info.origin.cut if info.origin else {}
    return tuple(stage for stage in stages if not history.first_version(store, info.name, stage))


def check_finished(store: ObjectStore, info: AppInfo) -> None:
    """Raise `Refused` for an unfinished clone. Requests as of `unfinished`."""
    if missing := unfinished(store, info):
        raise Refused(
            f"app {info.name!r} is a clone that was not finished: {', '.join(missing)} have no state yet",
            hint="run the same `slackwater clone` again; it goes on where it stopped",
        )


def _announce(target: ObjectStore, info: AppInfo, channels: Channels) -> None:
    """Tell Kafka's tools where the stages begin; those that run on already tell it themselves."""
    cut = info.origin.cut if info.origin else {}
    for stage, head in heads_of(target, info.name, cut).items():
        if head.version == cut[stage]:
            channels.announce(info.name, stage, {read.topic: read.offsets for read in head.inputs.values()})


def _carried(
    store: ObjectStore, target: ObjectStore, pinned: Snapshot, name: str, kafka: Channels
) -> dict[str, Carried]:
    """Where the copied records lie: as noted by an earlier call, else copied now and noted."""
    key = keys.channels(name)
    noted = notes.find(target, key, _CarriedChannels)
    if noted is None:
        copied = _CarriedChannels(carry(store, of_snapshot(store, pinned), name, kafka, pinned))
        # Somebody may finish the same clone at the same time: the note that was first counts.
        noted = notes.add(target, key, copied)
    return noted.channels


def _first_version(
    store: ObjectStore,
    target: ObjectStore,
    cut: Cut,
    stage: str,
    info: AppInfo,
    copied: Mapping[str, Carried],
) -> Manifest:
    """A stage's first manifest in the clone, under the source's version number: `_seq` goes on from it."""
    source = cut.stages[stage]
    # Snapshots under way are the source's.
    whole = without_snapshots(carried(each_sst(source, lambda sst: _from(sst, store.url, target.url))))
    topics = info.origin.topics if info.origin else {}
    return replace(
        whole,
        app=info.name,
        epoch=1,
        writer=str(ULID()),
        time_ms=max(instants.now_ms(), source.time_ms),
        kind="clone",
        inputs={
            name: carried_input(read, stage, name, info.name, cut, copied)
            if read.upstream
            else replace(read, topic=topics.get(name, name))
            for name, read in whole.inputs.items()
        },
        outputs={
            name: Output(each.topic, each.ends, output.sent, each.attempts, each.rows, output.schema)
            for name, output in source.outputs.items()
            for each in [copied[name]]
        },
        # What the source has not published yet, it publishes itself.
        sinks={},
        # Rows that the source's version wrote are told by it.
        seq=source.seq,
        # What it took is the source's, and so are its migrations, which have numbers of their own, and where its
        # channels were left.
        totals=None,
        migration=0,
        stopped={},
    )


def _from(sst: Sst, source_root: str, target_root: str) -> Sst:
    """The SST as a manifest under another root names it."""
    held_by = sst.root or source_root
    return replace(sst, root="" if held_by == target_root else held_by)
