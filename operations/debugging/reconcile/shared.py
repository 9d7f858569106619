"""Several records of one key that one version read. The key's row does not show which of them it counts."""

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
    """Yield fates of a key's records. `counted` becomes unproved if the version read several records of the key.

    `count` takes a version and its number of records in `fates`. It returns the number of the key's records that the
    version read; 0 if unknown.
    """
    counts = Counter(fate.by for fate in fates if fate.by)
    numbers = {by: count(by, listed) for by, listed in counts.items()}
    for fate in fates:
        number = numbers.get(fate.by, 1)
        if number == 1:
            yield fate
        elif number:
            some = "the other record" if number == 2 else f"{number - 1:,} other records"
            yield fate.unless(f", or wrote it from {some} of the key: {_REPLAY}")
        else:
            yield fate.unless(f", if it read no other record of the key: {_REPLAY}")


def count_records(store: ObjectStore, app: str, finder: KeyFinder, number: int, version: str) -> int:
    """Return the number of records of a key that the version `STAGE@vN` read; 0 if unknown."""
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
