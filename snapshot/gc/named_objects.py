"""Objects that kept versions name, read from stored pages, and from new pages of versions without a stored page.

A collection stores the new pages, except in a dry run, so that the next collection reads few manifests.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence

from ...errors import ObjectNotFound
from ...store.versions import forgotten
from ...store.versions.pages.page import VersionPage, VersionParts
from ...store.versions.pages.stored import (
    MAX_PAGE_BYTES,
    PAGE_SIZES,
    PageRef,
    StagePages,
    add_pages,
    block_of,
    delete_pages,
    read_parts,
    replace_pages,
)
from .inventory import Inventory, missing_versions

_MIN_UNPAGED = 16
"""Number of versions without a stored page at which a collection stores them in a page."""


def named_objects(
    inventory: Inventory, stage: str, versions: Sequence[int], *, store_pages: bool = False
) -> Iterator[tuple[str, range]]:
    """Yield each SST or leaf by key under the app's root, with a range of positions in `versions` that name it.

    `versions` are ascending. The same object may be yielded several times. With `store_pages`, new pages are stored.

    Raises `Corruption` (a manifest without a page, or a leaf, is missing or unreadable).
    """
    index, own = forgotten.newest(inventory.store, inventory.app), ("", inventory.store.url)
    for page in _pages_of(inventory, stage, versions, store_pages):
        ends = [bisect_right(versions, number) for number in page.numbers]
        begin = bisect_left(versions, page.first)
        for root, key, first, last in page.objects():
            positions = range(ends[first - 1] if first else begin, ends[last])
            if positions and root in own:
                yield from ((current, positions) for current in index.current_keys((key,)))


def delete_unneeded_pages(inventory: Inventory, stage: str, versions: Sequence[int]) -> None:
    """Delete the pages that contain none of `versions` (ascending), and pages that lie within another page's range."""
    pages = StagePages(inventory.store, inventory.app, stage)
    covering = {ref.key for ref in pages.refs if _within(versions, ref.first, ref.last)}
    # Pages of versions that were committed since the inventory are not deleted.
    old = (ref for ref in pages.listed if ref.last <= max(inventory.manifests.get(stage, (0,))))
    delete_pages(inventory.store, (ref for ref in old if ref.key not in covering))


def _pages_of(inventory: Inventory, stage: str, versions: Sequence[int], store_pages: bool) -> Iterator[VersionPage]:
    """Yield pages of a stage, in order, that together have all of these versions."""
    newest, refs = max(inventory.manifests.get(stage, (0,))), inventory.pages[stage].refs
    at = 0
    while at < len(versions):
        target = _target_of(versions[at], newest)
        wanted = _within(versions, target.start, target.stop - 1)
        begin = bisect_left(refs, target.start, key=lambda ref: ref.first)
        inside = [ref for ref in refs[begin : begin + len(target)] if ref.last < target.stop]
        yield from _pages_of_target(inventory, stage, wanted, inside, store_pages and target.stop <= newest + 1)
        at += len(wanted)


def _target_of(version: int, newest: int) -> range:
    blocks = (block_of(version, size) for size in reversed(PAGE_SIZES))
    return next((block for block in blocks if block.stop <= newest + 1), block_of(version, PAGE_SIZES[0]))


def _pages_of_target(
    inventory: Inventory, stage: str, numbers: Sequence[int], refs: Sequence[PageRef], store_pages: bool
) -> Iterator[VersionPage]:
    stored: list[VersionPage] = []
    covered: set[int] = set()
    for ref in refs:
        needed = _within(numbers, ref.first, ref.last)
        page = inventory.pages[stage].load(ref) if needed else None
        if page is not None and not set(needed).difference(page.numbers):
            stored.append(page)
            covered.update(needed)
    uncovered = [version for version in numbers if version not in covered]

    def read(version: int) -> VersionParts:
        try:
            return read_parts(inventory.store, inventory.app, stage, version)
        except ObjectNotFound:
            raise missing_versions(inventory.app, stage, (version,)) from None

    pages = add_pages(stored, uncovered, read)
    yield from pages
    is_small = sum(ref.bytes for ref in refs) <= MAX_PAGE_BYTES
    if store_pages and is_small and (len(uncovered) >= _MIN_UNPAGED or len(stored) > 1):
        replace_pages(inventory.store, refs, pages)


def _within(versions: Sequence[int], first: int, last: int) -> Sequence[int]:
    return versions[bisect_left(versions, first) : bisect_right(versions, last)]
