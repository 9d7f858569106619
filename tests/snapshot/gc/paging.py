"""Random pages of an app's versions.

Some are damaged or belong to another app; a collection must not depend on them.
"""

from typing import Any

from hypothesis import strategies as st
from msgspec.structs import replace
from slackwater.snapshot.gc import census
from slackwater.snapshot.gc.collect import Collected, collect
from slackwater.snapshot.gc.reachable import Retention
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.versions import codec, keys
from slackwater.store.versions.pages.page import BLOCK, VersionPage, build_page
from slackwater.store.versions.pages.stored import list_pages, merge_pages, put_page, read_parts

from tests.support.collecting import AgingStore, fresh, keys_of


def write_page(store: AgingStore, app: str, stage: str, first: int = 1, last: int = BLOCK) -> None:
    """Write a page of those versions of this range that exist."""
    versions = [keys.version_of(key) for key in keys_of(store, keys.manifests(app, stage))]
    inside = [version for version in sorted(versions) if first <= version <= last]
    if inside:
        put_page(store, build_page(read_parts(fresh(store), app, stage, version) for version in inside))


def change_pages(data: st.DataObject, store: AgingStore, app: str, stage: str) -> None:
    """Write, merge, damage, replace or delete a page."""
    refs = list_pages(store, app, stage)
    change = data.draw(st.sampled_from(["write", "write", "merge", "damage", "foreign", "delete"]), "page")
    if change == "merge":
        merge_pages(fresh(store), app, stage, range(1, BLOCK + 1))
    elif change == "write" or not refs:
        ends = sorted(data.draw(st.tuples(*[st.integers(1, 60)] * 2), "versions"))
        write_page(store, app, stage, *ends)
    else:
        key = data.draw(st.sampled_from(refs), "which").key
        stored = MemoryStore.get(store, key)
        if change == "damage":
            store.put(key, stored[:-3])
        elif change == "foreign" and stored.endswith(b"}"):
            replace_by_foreign_page(store, key)
        else:
            store.delete(key)


def replace_by_foreign_page(store: AgingStore, key: str) -> None:
    """Write a page of a removed app with the same name. It has the same versions, but none of its objects exist."""
    page = codec.decode(MemoryStore.get(store, key), VersionPage, key=key)
    others = tuple(replace(shared, writer="of an app that is gone") for shared in page.shared)
    store.put(key, codec.encode(replace(page, shared=others, spans=())))


def collect_with_and_without(store: AgingStore, app: str, retention: Retention, **options: Any) -> Collected:
    """Collect an app, and check on a copy of the store that a collection without pages does the same."""
    plain = store.copied()
    for key in keys_of(plain):
        if census.object_kind_of(key) is census.PAGE or key == keys.snapshot_pack(app):
            plain.delete(key)
    expected = collect(plain, app, retention, by="test", **options)
    actual = collect(fresh(store), app, retention, by="test", **options)
    assert _compared(store, app) == _compared(plain, app)
    assert actual == expected
    return actual


def _compared(store: AgingStore, app: str) -> list[str]:
    left_out = (keys.operations(app), keys.snapshot_pack(app))
    listed = (key for key in keys_of(store, f"{app}/") if census.object_kind_of(key) is not census.PAGE)
    return sorted(key for key in listed if not key.startswith(left_out))
