"""What goes once all readers know better: the objects that were replaced, what nothing names, texts that had a key."""

import sys

from msgspec.structs import replace

from ...moments.take.audit_log import OPERATIONS
from ...store.objects.protocol import ObjectStore
from ...store.read.cache import SstCache
from ...store.versions import codec, history, keys
from ...store.versions.forgotten import index as forgotten
from ..gc.inventory import do_all
from . import archive
from .held import Held
from .taking_out import Work

_BLOTTED = "(forgotten)"
"""In the place of a text that had a key."""


def sweep(work: Work, cache: SstCache) -> tuple[int, tuple[Held, ...]]:
    """Delete what was replaced, here and in this machine's cache, and what nothing names and holds a key."""
    deleted, left = 0, list[Held]()
    for search in work.searches:
        store, app = search.member.store, search.member.app
        index = forgotten.known(store, app)
        cache.drop(index.ssts)
        there = {info.key for stage in search.member.heads for info in store.list(keys.ssts(app, stage))}
        there |= {info.key for info in store.list(keys.snapshots(app))}
        old = [name for name in index.replaced if name in there]
        for found, was_named in archive.unnamed(search):
            if was_named:
                old.append(found.object)
            else:
                left.append(found)
        do_all(store.delete, old)
        deleted += len(old)
        for found, written_ms in search.unnamed(index.ssts):
            # A batch that was computed before the stage's newest version of this kind is not committed any more.
            if written_ms < _since_ms(store, app, found.table):
                store.delete(found.object)
                deleted += 1
            else:
                left.append(found)
    return deleted, tuple(left)


def _since_ms(store: ObjectStore, app: str, stage: str) -> int:
    """When, by storage's clock, a stage got its newest version of kind `forget`; 0 for never."""
    head = history.head(store, app, stage)
    if head is not None and head.retired:
        return sys.maxsize  # nobody is to name anything
    while head is not None and head.kind != "forget":
        head = history.before(store, head)
    if head is None:
        return 0
    key = keys.manifest(app, stage, head.version)
    return next((info.modified_ms for info in store.list(key) if info.key == key), 0)


def blot(work: Work) -> None:
    """Take the keys out of what people wrote of edits."""
    for search in work.searches:
        store, app = search.member.store, search.member.app
        for done in OPERATIONS.all(store, app):
            detail, message = (_BLOTTED if search.in_text(text) else text for text in (done.detail, done.message))
            if (detail, message) != (done.detail, done.message):
                OPERATIONS.put(store, replace(done, detail=detail, message=message), app)
        for manifest in search.edited():
            edit = manifest.edited
            assert edit is not None  # noqa: S101  what `edited` gives
            what, message = (_BLOTTED if search.in_text(text) else text for text in (edit.what, edit.message))
            made = replace(manifest, edited=replace(edit, what=what, message=message))
            store.put(keys.manifest(app, manifest.stage, manifest.version), codec.encode(made))
        history.forget(store, app)
