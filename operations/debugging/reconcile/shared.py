"""Records of one key that one version read: its row proves that some of them are counted, and not which."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from ....snapshot.cut.lineage import direct_windows, skipped_windows
from ....store.archive.extents import Extent, union
from ....store.objects.protocol import ObjectStore
from ....store.versions import history
from .key_records import KeyFinder
from .reasons import MissingReason

_REPLAY = "a replay (--code FILE) can tell"


def doubt_counted(fates: Sequence[MissingReason], count: Callable[[str, int], int]) -> Iterator[MissingReason]:
    """Yield fates of a key's records; one is not proved to be counted if its version read others of the key.

    `count` returns how many records of the key a version read, of which so many are in `fates`; 0 if it is not known.
    """
    counts = Counter(fate.by for fate in fates if fate.by)
    numbers = {by: count(by, listed) for by, listed in counts.items()}
    for fate in fates:
        number = numbers.get(fate.by, 1)
        if number == 1:
            yield fate
        elif number:
            some = "the other record" if number == 2 else f"{number - 1:,} other records"
            yield fate.unless(f", or {some} of the key that it read did: {_REPLAY}")
        else:
            yield fate.unless(f", if it read no other record of the key: {_REPLAY}")


def count_records(store: ObjectStore, app: str, finder: KeyFinder, number: int, version: str) -> int:
    """Return how many records of the key with this number a version (`STAGE@vN`) read; 0 if it is not known."""
    stage, _, text = version.partition("@v")
    after = history.find(store, app, stage, int(text))
    before = history.previous_version(store, after) if after is not None else None
    if after is None or before is None or any(source.upstream for source in after.inputs.values()):
        return 0
    extents = dict[str, list[Extent]]()
    for window in direct_windows(before, after, skipped_windows(after)):
        extents.setdefault(window.topic, []).append(Extent(window.partition, window.start, window.end))
    found = finder.find({topic: union(some) for topic, some in extents.items()})
    return 0 if found.gaps else len(found.records.get(number, ()))
