"""Search for the versions that read a record of a user's topic, or the rows that a version of a sender sent."""

from collections.abc import Callable, Iterator
from functools import partial

from ...errors import NotFound
from ...store.objects.protocol import ObjectStore
from ...store.versions import history
from ...store.versions.manifest import Manifest
from .lineage import direct_windows, skipped_windows


def versions_that_read(store: ObjectStore, head: Manifest, topic: str, partition: int, offset: int) -> tuple[int, ...]:
    """Return the versions up to `head` that read the record at an offset, ascending; several after a reset.

    Versions that a rewind undid are left out. The search is binary unless offsets were reset or rewound. Raises
    `NotFound` if the versions were collected.
    """
    names = [name for name, source in head.inputs.items() if source.topic == topic]

    def has_passed(manifest: Manifest) -> bool:
        return any(
            len(source.offsets) > partition and source.offsets[partition] > offset
            for name in names
            if (source := manifest.inputs.get(name)) is not None
        )

    def reads(previous: Manifest, manifest: Manifest) -> bool:
        return any(
            (window.topic, window.partition) == (topic, partition) and window.start <= offset < window.end
            for window in direct_windows(previous, manifest, skipped_windows(manifest))
        )

    is_reset = any(head.inputs[name].resets for name in names)
    return tuple(_reading(store, head, has_passed, reads, is_monotone=not is_reset))


def version_that_consumed(store: ObjectStore, head: Manifest, channel: str, sent: int) -> int | None:
    """Return the version up to `head` that read the rows which version `sent` of a channel's sender sent.

    None if no version has read them, or if they were lost. Raises `NotFound` if the versions were collected.
    """

    def has_passed(manifest: Manifest) -> bool:
        return channel in manifest.inputs and manifest.inputs[channel].version >= sent

    def reads(previous: Manifest, manifest: Manifest) -> bool:
        lost = manifest.lost.get(channel)
        is_lost = lost is not None and lost.after < sent <= lost.up_to
        return has_passed(manifest) and not has_passed(previous) and not is_lost

    return next(_reading(store, head, has_passed, reads, is_monotone=True), None)


def _reading(
    store: ObjectStore,
    head: Manifest,
    has_passed: Callable[[Manifest], bool],
    reads: Callable[[Manifest, Manifest], bool],
    *,
    is_monotone: bool,
) -> Iterator[int]:
    candidates: Iterator[Manifest]
    if is_monotone and not head.rewinds:
        if not has_passed(head):
            return
        read, first = partial(history.find, store, head.app), partial(history.first_version, store, head.app)
        candidates = iter(
            [history.read(store, head.app, head.stage, history.first_where(read, first, head, has_passed))]
        )
    else:
        candidates = history.iter_base_versions(store, head, history.first_version(store, head.app, head.stage) - 1)
    for manifest in candidates:
        if (previous := history.previous_version(store, manifest)) is not None:
            if manifest.traits.reads_records and reads(previous, manifest):
                yield manifest.version
        elif manifest.version > 1 and has_passed(manifest):
            # An earlier version may have read it: gc has removed it, or it is the source's of a clone.
            raise NotFound("version", f"{manifest.stage}@v{manifest.version - 1}")
