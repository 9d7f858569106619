"""Making a version durable: compare-and-swap on its number, and fencing by epoch.

Version N is committed by creating manifest N where there is none. Whoever creates it has won; numbers have no
gaps because a writer only tries the one after the newest it has seen. A writer takes a stage over by
committing a claim: a version of its own with the next epoch. Whatever the former writer tries next has that
number or an earlier one, so it fails and finds the newer epoch there. A rescale, retiring a stage, or a migration, is a
claim by nobody who goes on.
"""

from collections.abc import Callable
from itertools import count
from operator import attrgetter
from typing import Literal

from msgspec.structs import replace

from ...errors import CommitConflict, Fenced, ObjectExists, ObjectNotFound, Refused
from ..objects.protocol import ObjectStore, exists
from . import codec, history, horizon, keys
from .manifest import Kind, Manifest

_identity = attrgetter("app", "stage", "version", "epoch", "writer", "time_ms", "kind", "by")

_CLAIM_ATTEMPTS = 100
"""Lost races, to writers that commit or claim at the same moment, before a claim gives up."""


def successor(
    head: Manifest, *, kind: Kind, epoch: int, writer: str, by: str, now_ms: int, duration_ms: int = 0
) -> Manifest:
    """The version after `head` with nothing changed yet: a writer replaces what it changes.

    State, offsets, open snapshots and `totals` are carried on. What `head` itself read, wrote and took is not: inputs
    and tables aside have rows=0, outputs keep their `ends` and schema and sinks their `end` with attempts=(), rows=0
    and no markers, `lost` is empty, `stats` None, and the counts of `event_time` 0. `time_ms` is `now_ms`, or one more
    than `head`'s when that is later.

    Raises:
        Fenced: `head` has a newer epoch than `epoch`.
        Refused: the stage is retired, and `kind` does not bring it back; or it has another name since.
    """
    if head.epoch > epoch:
        raise _fenced(head, epoch)
    if head.retired and (kind != "claim" or head.called):
        raise is_retired(head)
    return replace(
        head,
        version=head.version + 1,
        epoch=epoch,
        writer=writer,
        by=by,
        time_ms=max(now_ms, head.time_ms + 1),
        kind=kind,
        inputs={name: replace(channel, rows=0) for name, channel in head.inputs.items()},
        outputs={name: replace(channel, attempts=(), rows=0, markers={}) for name, channel in head.outputs.items()},
        sinks={name: replace(sink, attempts=(), rows=0) for name, sink in head.sinks.items()},
        lost={},
        aside={name: replace(table, rows=0) for name, table in head.aside.items()},
        duration_ms=duration_ms,
        seq=0,
        stats=None,
        event_time=None if head.event_time is None else replace(head.event_time, ahead=0, late=0, bound_ms=None),
    )


def commit(store: ObjectStore, manifest: Manifest) -> None:
    """Make a manifest its stage's version, durably. One request, unless the number is taken.

    Two more, a listing and a byte, where this process has not seen the number free within the last half minute: a
    writer that was away could re-create one that others have used and that is gone with its app, or collected.

    After `Unavailable` the outcome is not known: calling this again with the very same manifest settles it.

    Raises:
        Fenced: the number is taken by a writer with a newer epoch, or was and is collected; this writer must stop.
        CommitConflict: the number is taken by another commit; read the head and see.
        Unavailable: storage did not answer.
        Corruption: the number is taken by something that cannot be read.
        ValueError: version or epoch is not at least 1, or the manifest is none that could be read again; nothing was
            put.
    """
    if manifest.version < 1 or manifest.epoch < 1:
        raise ValueError(f"versions and epochs count from 1; found v{manifest.version}, epoch {manifest.epoch}")
    began = horizon.freshness(store).now()
    try:
        store.put_if_absent(keys.manifest(manifest.app, manifest.stage, manifest.version), codec.encode(manifest))
    except ObjectExists:
        existing = _taken_by(store, manifest)
    else:
        existing = manifest
    if existing == manifest:  # created, or our own write, whose answer was lost
        _check_not_collected(store, manifest)
        horizon.freshness(store).saw_free(manifest.app, manifest.stage, manifest.version + 1, began)
        return
    if existing.epoch > manifest.epoch:
        raise _fenced(existing, manifest.epoch)
    whom = "this writer itself, with other content," if existing.writer == manifest.writer else _author(existing)
    raise CommitConflict(
        f"stage {manifest.app}/{manifest.stage}: v{manifest.version} was committed first by {whom} "
        f"with epoch {existing.epoch}; this commit has epoch {manifest.epoch}",
        version=manifest.version,
        hint="read the head again and build on it",
    )


def claim(
    store: ObjectStore,
    app: str,
    stage: str,
    *,
    writer: str,
    by: str,
    now_ms: int,
    kind: Literal["claim", "rescale", "retire", "migration"] = "claim",
    build: Callable[[Manifest], Manifest] | None = None,
    known: int = 0,
) -> Manifest:
    """Take a stage over: commit a version with the next epoch, and return it.

    Args:
        store: where the app lives.
        app: the app's name.
        stage: the stage's name.
        writer: unique id of the claimer; its later commits carry it too.
        by: host:pid, for messages to people.
        now_ms: the wall clock.
        kind: what for.
        build: gets the claim as it would be committed (everything carried on from the head; when there is
            none, `version` 1 without inputs, outputs and table) and returns it with inputs, outputs, table or
            other content replaced. May raise to refuse, and is called again with another head when a race is
            lost.
        known: a version the caller has seen, as for `history.head`.

    Raises:
        CommitConflict: others kept winning the race for the next number.
        Refused: the stage is retired, and this is no claim that brings it back.
        Corruption: the head cannot be read.
        Unavailable: storage did not answer; the claim may have been committed.
        ValueError: `build` changed who or what the claim is, or made it one that could not be read again.
    """
    keys.check_name("app", app)
    keys.check_name("stage", stage)
    for attempt in count(1):
        began = horizon.freshness(store).now()
        head = history.head(store, app, stage, known=known)
        horizon.freshness(store).saw_free(app, stage, head.version + 1 if head else 1, began)
        if head is None:
            draft = Manifest(app, stage, 1, 1, writer, now_ms, kind, by=by)
        else:
            known = head.version
            draft = successor(head, kind=kind, epoch=head.epoch + 1, writer=writer, by=by, now_ms=now_ms)
        claimed = draft if build is None else build(draft)
        if _identity(claimed) != _identity(draft):
            raise ValueError(
                f"build may change a claim's content, not its identity: expected {_identity(draft)}, "
                f"found {_identity(claimed)}"
            )
        try:
            commit(store, claimed)
        except CommitConflict:
            if attempt == _CLAIM_ATTEMPTS:
                raise
        else:
            break
    return claimed


def is_retired(head: Manifest) -> Refused:
    """The error for a change of a stage that has no part in its app any more."""
    if head.called:
        return Refused(
            f"stage {head.app}/{head.stage} was renamed at v{head.version}: it is called {head.called} since",
            hint=f"give the stage that name in the program, or another one that the app never had; what {head.stage} "
            f"was is {head.app}/{head.stage}@v{head.version - 1}",
        )
    return Refused(
        f"stage {head.app}/{head.stage} is retired since v{head.version}: nothing of it is changed any more",
        hint="a program that has the stage brings it back: slackwater run FILE",
    )


def check_there(store: ObjectStore, manifest: Manifest, version: int) -> None:
    """See that a version of this stage is there, on which a writer builds. One request for a byte.

    Raises:
        Fenced: it is gone, and so is its app, or all of the history up to it; the writer must stop.
    """
    if not exists(store, keys.manifest(manifest.app, manifest.stage, version)):
        raise Fenced(
            f"stage {manifest.app}/{manifest.stage} was removed, or taken over long ago: its v{version} is gone; "
            "this writer must stop",
            version=version,
            hint=f"`slackwater status {manifest.app}` shows whether there is such an app",
        )


def _check_not_collected(store: ObjectStore, manifest: Manifest) -> None:
    """Undo a create under a number that was used and collected while this writer was away."""
    if horizon.freshness(store).is_fresh(manifest.app, manifest.stage, manifest.version):
        return
    limit = horizon.newest(store, manifest.app)
    try:
        if not limit.allows(manifest.stage, manifest.version):
            raise Fenced(
                f"stage {manifest.app}/{manifest.stage} was taken over: its history begins at "
                f"v{limit.first[manifest.stage]} by now; this writer is still at v{manifest.version} and must stop",
                version=manifest.version,
                hint="nothing committed is lost; let the newer runner go on, or stop it and start this one again",
            )
        if manifest.version > 1 and not manifest.begins:
            check_there(store, manifest, manifest.version - 1)
    except Fenced:
        store.delete(keys.manifest(manifest.app, manifest.stage, manifest.version))
        raise


def _taken_by(store: ObjectStore, manifest: Manifest) -> Manifest:
    try:
        return history.read_fresh(store, manifest.app, manifest.stage, manifest.version)
    except ObjectNotFound:
        raise CommitConflict(
            f"stage {manifest.app}/{manifest.stage}: v{manifest.version} was committed by another writer "
            "and has been deleted since",
            version=manifest.version,
            hint="read the head again and build on it",
        ) from None


def _author(manifest: Manifest) -> str:
    return manifest.by or f"writer {manifest.writer}"


def _fenced(newer: Manifest, epoch: int) -> Fenced:
    done, hint = "taken over", "let the newer runner go on, or stop it and start this one again"
    if newer.kind == "rescale":
        done, hint = "rescaled", "start this one again: it goes on with the new number of state partitions"
    if newer.kind == "migration":
        done, hint = "migrated to another program", "start that program: this one is of before"
    if newer.called:
        done, hint = (
            f"renamed to {newer.called}",
            "start the program that has it under that name: this one is of before",
        )
    elif newer.kind == "retire":
        done, hint = "retired", "take it out of the program; a program that has it brings it back where it stopped"
    return Fenced(
        f"stage {newer.app}/{newer.stage} was {done}: v{newer.version} has epoch {newer.epoch}, "
        f"written by {_author(newer)}; this writer has epoch {epoch} and must stop",
        version=newer.version,
        hint=f"nothing committed is lost; {hint}",
    )
