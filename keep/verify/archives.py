"""Whether input archives hold what their indexes say: objects by their sizes, or record by record; and their gaps."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import pyarrow.compute as pc

from ...errors import SlackwaterError
from ...moments.status.archives import ArchiveStatus, status_of
from ...store.archive import index
from ...store.archive.extents import Extent, minus
from ...store.archive.index import ArchiveIndex, ArchiveObject
from ...store.archive.objects import ArchivedRecords, ArchiveWriter, fetch
from ...store.objects.protocol import ObjectStore
from .report import Verified, as_sentence, noted
from .sst import check_sizes


def check_archives(
    store: ObjectStore, app: str, *, deep: bool, on_progress: Callable[[str], None]
) -> tuple[tuple[ArchiveStatus, ...], tuple[Verified, ...]]:
    """What the archives of an app hold, and what is not as it must be. With `deep`, every record is read.

    Raises only `Unavailable`.
    """
    there: list[ArchiveStatus] = []
    checked: list[Verified] = []
    wrong: list[str] = []
    with noted(wrong):
        for archive in index.all_of(store, app):
            there.append(status_of(archive))
            if deep:
                checked += _reread(store, archive, on_progress)
            else:
                sizes = {each.object: each.bytes for each in archive.objects}
                checked += (replace(each, check="archives") for each in check_sizes(store, sizes))
    if wrong:
        checked.append(Verified("archives", f"{app}/input/", tuple(wrong), 0))
    return tuple(there), tuple(checked)


def _reread(store: ObjectStore, archive: ArchiveIndex, on_progress: Callable[[str], None]) -> Iterator[Verified]:
    for number, one in enumerate(archive.objects, 1):
        on_progress(f"input archive of {archive.topic}: object {number} of {len(archive.objects)}")
        wrong: list[str] = []
        with noted(wrong):
            fetch(store, one)
            wrong += _wrong_rows(store, archive, one)
        yield Verified("archives", one.object, tuple(wrong))


def _wrong_rows(store: ObjectStore, archive: ArchiveIndex, one: ArchiveObject) -> Iterator[str]:
    """What the records say that the index does not."""
    order, outside = ArchiveWriter(), set[Extent]()
    times: list[int] = []
    try:
        for rows in ArchivedRecords(store, one).all():
            order.append(rows)
            times += pc.min_max(rows["timestamp"].cast("int64")).as_py().values()
            if pc.any(pc.not_equal(rows["topic"], archive.topic)).as_py():
                yield f"object {one.object} has records of another topic than {archive.topic}"
            places = rows.group_by("partition", use_threads=False).aggregate([("offset", "min"), ("offset", "max")])
            for each in places.to_pylist():
                whole = Extent(each["partition"], each["offset_min"], each["offset_max"] + 1)
                for hole in minus((whole,), one.extents):
                    inside = pc.and_(pc.equal(rows["partition"], hole.partition), pc.less(rows["offset"], hole.end))
                    if pc.any(pc.and_(inside, pc.greater_equal(rows["offset"], hole.first))).as_py():
                        outside.add(hole)
    except ValueError as error:
        yield f"object {one.object}: {error}"
        return
    except SlackwaterError as error:
        yield as_sentence(error)
        return
    if outside:
        yield f"object {one.object} has records at {min(outside)}, which it does not say"
    if order.num_rows != one.rows:
        yield f"object {one.object} has {order.num_rows} records; expected {one.rows}"
    if (min(times), max(times)) != (one.time_min_ms, one.time_max_ms):
        yield f"object {one.object} has records of other times than its index says"
