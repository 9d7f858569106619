"""Reading an archive: the records of a range of offsets, out of whichever objects have them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from ..objects.protocol import ObjectStore
from .extents import Extent, Extents, common
from .index import ArchiveObject, Index
from .objects import SCHEMA, ArchivedRecords


@dataclass(slots=True)
class Archive:
    """One archive as an index has it. Reads the index's objects, and no other index: what it covers stays covered."""

    store: ObjectStore
    index: Index
    _open: ArchivedRecords | None = field(default=None, init=False, repr=False)
    """The object that was read last."""
    _of: str = field(default="", init=False, repr=False)

    def lacks(self, partition: int, first: int, end: int) -> Extents:
        """Of a range of offsets, what cannot be read here."""
        return self.index.lacks(partition, first, end)

    def rows(self, partition: int, first: int, end: int, columns: Sequence[str] = SCHEMA.names) -> Iterator[pa.Table]:
        """The records of a range of offsets that are here, ascending, in tables of these columns of `objects.SCHEMA`.

        Raises `Corruption` where an object is missing or damaged, `Unavailable` where the store did not answer.
        """
        wanted = (Extent(partition, first, end),)
        for part, one in sorted(self._parts(wanted), key=lambda each: each[0]):
            yield from self._opened(one).rows(part.partition, part.first, part.end, columns)

    def _parts(self, wanted: Extents) -> Iterator[tuple[Extent, ArchiveObject]]:
        for one in self.index.objects:
            for part in common(wanted, one.extents):
                yield part, one

    def _opened(self, one: ArchiveObject) -> ArchivedRecords:
        if self._open is None or self._of != one.object:
            self._open, self._of = ArchivedRecords(self.store, one), one.object
        return self._open
