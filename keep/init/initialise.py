"""A stage begins with a table from elsewhere: its SSTs are put, and then one commit makes them version 1.

Until that commit nobody sees anything: SSTs that no version names are nothing to readers. Killed before it, the same
call begins again, and what was put lies there until garbage collection takes it, some time after the first claim.
Killed after it, the same call finds that the version has the rows that it would load.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from ... import instants
from ...errors import Refused
from ...moments.take.audit_log import record_once
from ...store.objects.protocol import ObjectStore
from ...store.sst import ttl
from ...store.versions import apps, history
from ...store.versions.amend import Amendment, amend
from ...store.versions.commit import lost_to
from ...store.versions.manifest import AppInfo, Manifest, Output
from .load import Loading, OnProgress, discard
from .source import RowSource

Channels = Callable[[], Mapping[str, Output]]
"""Makes the channels that the stage writes, where there are none, and says where they end."""


@dataclass(frozen=True, slots=True)
class Initialised:
    """What an init did, or would do."""

    app: str
    stage: str
    version: int
    rows: int
    ssts: int
    """Objects that hold them, and then their bytes."""
    bytes: int
    offsets: Mapping[str, tuple[int, ...]]
    """Where reading begins, by topic."""
    already: bool
    """Whether an earlier call had done it: the table has these rows."""


def initialise(
    store: ObjectStore,
    first: Manifest,
    source: RowSource,
    *,
    info: AppInfo | None = None,
    channels: Channels = dict,
    dry_run: bool = False,
    on_progress: OnProgress = lambda _so_far: None,
) -> Initialised:
    """Make rows the first version of a stage's table. The app need not exist; other stages are not touched.

    `first` is the version as it is to be but for rows, time and outputs: kind "init", version 1. `info` is the app's
    identity, which is written if there is none; None for one that says nothing more. `channels` is called when all rows
    are there. With `dry_run`, everything is checked and nothing is changed.

    Raises `Refused` where the stage has versions that are not this very one, the app is an unfinished clone or is being
    removed, or the rows are not the table's (`Loading.load`), with nothing changed, and `Unavailable`: the same call
    again finishes it.
    """
    table = first.table
    if table is None:
        raise Refused(
            f"stage {first.app}/{first.stage} keeps no table, so there is nothing to begin with",
            hint="name a stage with state=",
        )
    check_free(store, first.app, first.stage)
    if (head := history.head(store, first.app, first.stage)) is not None:
        return _again(store, first, head, source, dry_run=dry_run, on_progress=on_progress)
    began_ms = instants.now_ms()
    clock_ms = began_ms if ttl.by_write_time(table.ttl) else ttl.first_clock_ms(None, table, 0)
    names = first.app, first.stage
    loaded = Loading(None if dry_run else store, names, table, clock_ms, on_progress).load(source)
    if not loaded.rows:
        raise Refused(f"{source} has no rows: {first.app}/{first.stage} begins empty without init, too")
    latest_ms = clock_ms if loaded.latest_ms is None else max(clock_ms, loaded.latest_ms)
    first = replace(first, ssts=tuple(loaded.ssts), clock_ms=latest_ms)

    def none_came_first(head: Manifest) -> bool:
        raise _taken(head.app, head.stage, lost_to(head, 1).message)

    if not dry_run:
        try:
            # From its identity on an app is there for everybody.
            found = apps.ensure_app(store, info or AppInfo(first.app, began_ms))
            if info is not None and found.starts != info.starts:
                raise begun_elsewhere(found)
            now_ms = instants.now_ms()
            made = replace(first, outputs=dict(channels()), time_ms=now_ms, duration_ms=now_ms - began_ms)
            change = Amendment("init", lambda _draft: made, requires=none_came_first)
            first = amend(store, names, change, by=made.by, now_ms=now_ms, writer=made.writer).manifest
        except Refused:
            # Not so when nobody knows whether it was committed.
            discard(store, loaded.ssts)
            raise
    return _done(store, first, already=False, dry_run=dry_run)


def waits_for_rows(store: ObjectStore, info: AppInfo) -> bool:
    """Whether an init has made the app and broke off before the rows were committed. One request, or none."""
    return bool(info.initialised) and not history.first_version(store, info.name, info.initialised)


def check_free(store: ObjectStore, app: str, stage: str) -> None:
    """See that a stage may begin with rows: it has no version, or just the one that an init has made.

    Raises `Refused` where it has others, or the app is an unfinished clone.
    """
    history.list_stages(store, app)  # says so where it is half a clone
    head = history.head(store, app, stage)
    if head is not None and (head.version, head.kind) != (1, "init"):
        raise _taken(app, stage, f"up to v{head.version}, a {head.kind} by {head.by or head.writer}")


def _again(
    store: ObjectStore, first: Manifest, head: Manifest, source: RowSource, *, dry_run: bool, on_progress: OnProgress
) -> Initialised:
    """What there is, if it is what this call would do. Costs what loading the rows costs, but for the puts."""
    made = f"v1 by `slackwater init` of {instants.iso(head.time_ms)}, by {head.by}"
    if head.table != first.table or first.table is None:
        raise _taken(head.app, head.stage, f"{made}, with another table than the program declares")
    loaded = Loading(None, (head.app, head.stage), first.table, head.clock_ms, on_progress).load(source)
    if [(sst.checksum, sst.rows) for sst in loaded.ssts] != [(sst.checksum, sst.rows) for sst in head.ssts]:
        raise _taken(head.app, head.stage, f"{made}, with other rows")
    if (there := _offsets(head)) != (expected := _offsets(first)):
        raise _taken(head.app, head.stage, f"{made}, with these rows; it begins at {there}, and not at {expected}")
    return _done(store, head, already=True, dry_run=dry_run)


def _offsets(manifest: Manifest) -> dict[str, tuple[int, ...]]:
    return {each.topic: each.offsets for _, each in sorted(manifest.inputs.items())}


def _done(store: ObjectStore, first: Manifest, *, already: bool, dry_run: bool) -> Initialised:
    rows, size = sum(sst.rows for sst in first.ssts), sum(sst.bytes for sst in first.ssts)
    if not dry_run:
        detail = f"{first.stage} v{first.version}: {rows:,} rows"
        record_once(store, first.app, "init", detail, first.by, {first.stage: (0, first.version)}, since_ms=0)
    offsets = _offsets(first)
    return Initialised(first.app, first.stage, first.version, rows, len(first.ssts), size, offsets, already)


def begun_elsewhere(info: AppInfo) -> Refused:
    """The error for other offsets than an app was begun at, which its identity says, written once."""
    starts = ", ".join(f"{topic} {at}" for topic, at in sorted(info.starts.items())) or "where the program says"
    return Refused(
        f"app {info.name!r} exists already, and begins at other offsets: {starts}",
        hint="leave the offsets out, which takes these; or load the rows under another app name",
    )


def _taken(app: str, stage: str, what: str) -> Refused:
    return Refused(
        f"stage {app}/{stage} has versions already: {what}; rows from elsewhere can only be its first",
        hint="load them under another app name, or remove the app: slackwater app rm " + app,
    )
