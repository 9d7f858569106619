"""The app in which a backfill is computed: whether it can go, and removing it.

It is an app like others, named after what it computes, so that `status` shows how far it is; nobody reads from it but
the swap. After that only a batch may need it that was computed before and is committed later.
"""

from collections.abc import Iterator

from ...store.objects.protocol import ObjectStore, exists
from ...store.versions import history, keys
from ...store.versions.manifest import Backfill, Manifest
from ..gc.inventory import do_all
from ..status.roster import beats, runner_of


def is_needed(store: ObjectStore, head: Manifest, backfill: Backfill, now_ms: int) -> bool:
    """Whether a batch may be under way that was computed without this backfill, which `head` has, and needs its values.

    Not when a runner has claimed the stage since, or a batch has been built on a version with it: batches are built one
    on the other. Nor when no runner gives signs of life.
    """
    swapped = history.find(store, head.app, head.stage, backfill.version)
    if swapped is None or head.epoch > swapped.epoch:
        return False
    # A batch that was computed before has another number in its rows than it was committed under.
    if any(each.kind == "batch" and not each.seq for each in _between(store, head, backfill.version)):
        return False
    return bool(runner_of(head, beats(store, head.app, now_ms)))


def discard(store: ObjectStore, name: str) -> None:
    """Remove the app of a backfill. Killed amidst, the same call goes on."""
    # First its identity: what is left then is no app.
    store.delete(keys.app_info(name))
    do_all(lambda info: store.delete(info.key), list(store.list(f"{name}/")))


def sweep(store: ObjectStore, head: Manifest, now_ms: int) -> Iterator[str]:
    """Remove the apps of backfills that a stage has, unless one may be needed; those that still may."""
    for each in head.backfills:
        if not (exists(store, keys.app_info(each.app)) or any(True for _ in store.list_folders(keys.stages(each.app)))):
            continue
        if is_needed(store, head, each, now_ms):
            yield each.app
        else:
            discard(store, each.app)


def _between(store: ObjectStore, head: Manifest, after: int) -> Iterator[Manifest]:
    """The newest first: as a rule the first of them tells."""
    for version in range(head.version, after, -1):
        if (found := history.find(store, head.app, head.stage, version)) is not None:
            yield found
