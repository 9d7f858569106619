"""Rebasing: the same change, made of a newer head.

A writer loses a version's number when another process commits first. Where that was a compaction, which changes how
rows are stored and no row, nothing the writer read is out of date: its version follows the compaction's instead. As
with the conflicting changes of Iceberg (spec, "Optimistic Concurrency") and of git's rebase, what it changed is taken
off the old base and put on the new one. Pure.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from ..versions.manifest import Manifest
from .plan import Done, apply


def rebase(before: Manifest, manifest: Manifest, onto: Manifest, merges: Sequence[Done] = ()) -> Manifest:
    """The version after `onto` that changes it as `manifest` changed `before`.

    What the batch read, wrote and sent stays as it is, and so does the `_seq` of its rows, which are stored already. It
    is above that of every row in `onto`: a compaction only takes up rows of versions before its own.

    Args:
        before: What `manifest` was built on.
        manifest: The version of a batch.
        onto: Follows from `before` by compactions alone; or, where `before` itself had to be rebased, is that.
        merges: Those that `manifest` has put in the place of their inputs. One whose inputs are gone, or that does not
            fit any more, is left out, and its outputs with it.

    Raises:
        ValueError: `onto` is of another stage or epoch, or not newer.
    """
    same = (before.app, before.stage, before.epoch) == (onto.app, onto.stage, onto.epoch)
    if not same or onto.version < before.version:
        raise ValueError(f"expected a head of {before.stage} with epoch {before.epoch} at v{before.version} or later")
    known = {*before.ssts, *(sst for done in merges for sst in done.outputs)}
    added = (sst for sst in manifest.ssts if sst not in known)
    version = onto.version + 1
    return replace(
        manifest,
        version=version,
        seq=0 if manifest.row_seq == version else manifest.row_seq,
        time_ms=max(manifest.time_ms, onto.time_ms + 1),
        table=onto.table,
        backfills=onto.backfills,
        ssts=apply((*onto.ssts, *added), merges),
        recorded={
            snapshot: version if at == manifest.version else onto.recorded.get(snapshot, at)
            for snapshot, at in manifest.recorded.items()
        },
    )
