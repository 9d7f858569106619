"""Commits versions by compare-and-swap on their numbers, and fences former writers by epoch.

Version N is committed by creating manifest N by put-if-absent; the creator wins. Numbers have no gaps, because a writer
only tries the number after the newest version that it has seen. A writer takes a stage over by committing a claim: a
version with the next epoch and its own id. The former writer's next commit has the claim's number or an earlier one, so
it fails, and the writer sees the newer epoch. A rescale, a retirement and a migration also fence the former writer, but
do not name a new writer. The choice of a base version, and the retry after a lost race, are in `amend`.
"""

from functools import cache
from typing import Any, TypeVar, get_type_hints

from msgspec import NODEFAULT, Struct
from msgspec.structs import fields, replace

from ...errors import CommitConflict, Fenced, ObjectExists, ObjectNotFound, Refused
from ..objects.protocol import ObjectStore, exists
from . import codec, history, horizon, keys
from .apps import take_back_command
from .kinds import CONTINUE_HINT, KINDS, VersionKind
from .limits import ONE_VERSION
from .manifest import Manifest

_READ_AGAIN = "read the head again and build on it"
_S = TypeVar("_S", bound=Struct)


def successor(
    head: Manifest, *, kind: VersionKind, epoch: int, writer: str, by: str, now_ms: int, duration_ms: int = 0
) -> Manifest:
    """Return an unchanged draft of the version after `head`.

    State, offsets, open snapshots and `totals` are copied from `head`; fields about one version alone are reset.
    `time_ms` is `now_ms`, but at least 1 ms after the time of `head`. Raises `Fenced` if `head` has a newer epoch.
    Raises `Refused` if the stage was renamed, or if it is retired and versions of this `kind` do not reactivate it.
    """
    check_epoch(head, epoch)
    if head.retired and (head.called or not KINDS[kind].follows_retiring):
        raise retired_error(head)
    return replace(
        without_version_fields(head),
        version=head.version + 1,
        epoch=epoch,
        writer=writer,
        by=by,
        time_ms=max(now_ms, head.time_ms + 1),
        kind=kind,
        duration_ms=duration_ms,
    )


def without_version_fields(value: _S) -> _S:
    """Return a manifest, or a part of one, with the fields about one version alone reset (`OneVersion`)."""
    own = _version_field_defaults(type(value))
    parts = {
        name: _value_without_version_fields(getattr(value, name)) for name in value.__struct_fields__ if name not in own
    }
    return replace(value, **own, **parts)


def without_open_snapshots(manifest: Manifest) -> Manifest:
    return replace(manifest, recorded={}, awaited={}, captured={})


def commit(store: ObjectStore, manifest: Manifest) -> None:
    """Create the manifest of a version, durably. Makes one request, unless the number is in use.

    If this process has not seen within the last half minute that the number was free, it also makes a listing and a
    read of one byte: a writer that was suspended could otherwise re-create a number that was used and then collected.

    Raises:
        Fenced: a writer with a newer epoch took the number, even if it was collected since; this writer must stop.
        CommitConflict: another commit took the number; read the head and retry.
        Unavailable: storage did not answer; call again with an equal manifest to find out if it was committed.
        Corruption: the number is taken by an unreadable object.
        ValueError: version or epoch is below 1, or the manifest cannot be decoded again; nothing was put.
    """
    if manifest.version < 1 or manifest.epoch < 1:
        raise ValueError(f"versions and epochs count from 1; found v{manifest.version}, epoch {manifest.epoch}")
    began, existed = horizon.freshness(store).now(), False
    try:
        store.put_if_absent(keys.manifest(manifest.app, manifest.stage, manifest.version), codec.encode(manifest))
    except ObjectExists:
        existed = True
        try:
            existing = history.read_stored(store, manifest.app, manifest.stage, manifest.version)
        except ObjectNotFound:
            raise CommitConflict(
                f"stage {manifest.app}/{manifest.stage}: v{manifest.version} was committed by another writer "
                "and has been deleted since",
                version=manifest.version,
                hint=_READ_AGAIN,
            ) from None
        if existing != manifest:  # otherwise it is this process's own write, whose answer was lost
            check_epoch(existing, manifest.epoch)
            raise conflict_error(existing, manifest.epoch, itself=existing.writer == manifest.writer) from None
    _check_not_collected(store, manifest, existed=existed)
    horizon.freshness(store).record_free(manifest.app, manifest.stage, manifest.version + 1, began)


def check_epoch(head: Manifest, epoch: int) -> None:
    """Raise `Fenced` if `head` has a newer epoch than the writer, because another writer took over the stage."""
    if head.epoch <= epoch:
        return
    done, hint = head.traits.fate, head.traits.next_step
    if head.promotion is not None:
        hint = hint.format(name=head.promotion.name, back=take_back_command(head.promotion.name, head.app))
    if head.called:
        done, hint = f"renamed to {head.called}", "start the program that has that name: this one is outdated"
    raise Fenced(
        f"stage {head.app}/{head.stage} was {done}: v{head.version} has epoch {head.epoch}, "
        f"written by {_author(head)}; this writer has epoch {epoch} and must stop",
        version=head.version,
        hint=f"nothing committed is lost; {hint}",
    )


def conflict_error(first: Manifest, epoch: int, *, itself: bool = False) -> CommitConflict:
    return CommitConflict(
        f"stage {first.app}/{first.stage}: v{first.version} was committed first by "
        f"{'this writer itself, with other content,' if itself else _author(first)} "
        f"with epoch {first.epoch}; this commit has epoch {epoch}",
        version=first.version,
        hint=_READ_AGAIN,
    )


def retired_error(head: Manifest) -> Refused:
    if head.called:
        return Refused(
            f"stage {head.app}/{head.stage} was renamed at v{head.version}: its name is {head.called} now",
            hint=f"use that name in the program, or a name that the app never had; the state before the "
            f"rename is {head.app}/{head.stage}@v{head.version - 1}",
        )
    return Refused(
        f"stage {head.app}/{head.stage} is retired since v{head.version}: it cannot be changed",
        hint="to bring it back, run a program that has the stage: slackwater run FILE",
    )


def check_version_exists(store: ObjectStore, manifest: Manifest, version: int) -> None:
    """Raise `Fenced` if the version that a writer builds on was collected or removed. Costs one request."""
    if not exists(store, keys.manifest(manifest.app, manifest.stage, version)):
        raise Fenced(
            f"stage {manifest.app}/{manifest.stage} was removed, or taken over long ago: its v{version} is gone; "
            "this writer must stop",
            version=version,
            hint=f"`slackwater status {manifest.app}` shows if the app still exists",
        )


def _check_not_collected(store: ObjectStore, manifest: Manifest, *, existed: bool) -> None:
    """Undo a commit, and raise `Fenced`, if its number had been used and collected before.

    `existed` is True if an earlier attempt created the version. A concurrent collection may have deleted all versions
    before it.
    """
    if horizon.freshness(store).is_fresh(manifest.app, manifest.stage, manifest.version):
        return
    limit = horizon.newest(store, manifest.app)
    try:
        if not limit.allows(manifest.stage, manifest.version):
            raise Fenced(
                f"stage {manifest.app}/{manifest.stage} was taken over: its history now begins at "
                f"v{limit.first[manifest.stage]}; this writer is still at v{manifest.version} and must stop",
                version=manifest.version,
                hint=f"nothing committed is lost; {CONTINUE_HINT}",
            )
        previous = limit.previous_version(manifest.stage, manifest.version) if existed else manifest.version - 1
        if previous and not manifest.starts_history:
            check_version_exists(store, manifest, previous)
    except Fenced:
        store.delete(keys.manifest(manifest.app, manifest.stage, manifest.version))
        raise


def _author(manifest: Manifest) -> str:
    return manifest.by or f"writer {manifest.writer}"


def _value_without_version_fields(part: Any) -> Any:
    if isinstance(part, dict):
        new: Any = {name: _value_without_version_fields(value) for name, value in part.items()}
    else:
        new = without_version_fields(part) if isinstance(part, Struct) else part
    # Equal values stay the same objects, because caches of values derived from tables rely on identity.
    return part if new == part else new


@cache
def _version_field_defaults(kind: type[Struct]) -> dict[str, Any]:
    hints = get_type_hints(kind, include_extras=True)
    return {
        field.name: field.default if field.default is not NODEFAULT else field.default_factory()
        for field in fields(kind)
        if ONE_VERSION in getattr(hints[field.name], "__metadata__", ())
    }
