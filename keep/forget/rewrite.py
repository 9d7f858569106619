"""Objects that hold a key, once more without it: put under new names, which nothing knows yet."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from io import BytesIO

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash
from msgspec.structs import replace
from ulid import ULID

from ...moments.take.capture import count_by_partition
from ...store.compaction.rewrite import without
from ...store.versions import keys
from ...store.versions.forgotten.index import ForgottenIndex, RecordsLeft
from ...store.versions.manifest import Sst
from .held import NamedSst, Search


@dataclass
class Rewriting:
    """What became of objects so far, for all apps that have them."""

    made: dict[str, Sst | None] = field(default_factory=dict)
    """By the object of an SST, the one that has the rest of it, with the URL of its root; None for none."""
    read_bytes: int = 0
    """Of the objects that held a key."""
    written_bytes: int = 0
    rows: int = 0
    """That were taken out, each stored one."""

    def count(self, read_bytes: int, written_bytes: int, rows: int) -> None:
        """Count an object that held a key, the one in its place, and what was taken out."""
        self.read_bytes += read_bytes
        self.written_bytes += written_bytes
        self.rows += rows

    def learn(self, search: Search, index: ForgottenIndex) -> None:
        """Take from an app's index what was made for it: others that have the same SSTs get the same ones."""
        for name, sst in index.ssts.items():
            self.made[name] = None if sst is None else replace(sst, root=search.member.store.at(sst.root).url)

    def change(self, search: Search, one: NamedSst) -> Iterator[tuple[str, Sst | None]]:
        """What an app is to call its SST from now on, if that is another than now; puts what has to be made for it."""
        store = search.member.store
        root = store.at(one.sst.root).url
        now = self.made.get(one.sst.object, one.sst)
        if now is not None:
            here = replace(now, root="" if root == store.url else root)
            now = self._without(search, NamedSst(here, one.stage, one.side, one.table))
        if now is None or now.object != one.sst.object:
            self.made[one.sst.object] = None if now is None else replace(now, root=root)
            yield one.sst.object, None if now is None else replace(now, root=one.sst.root)

    def _without(self, search: Search, one: NamedSst) -> Sst | None:
        sst, store = one.sst, search.member.store.at(one.sst.root)
        if (chosen := search.chosen(one)) is None:
            return sst
        writer, rows = without(search.member.store, sst, one.table, chosen)
        if not writer.num_rows:
            self.count(sst.bytes, 0, rows)
            return None
        # In the folder of the app that has it: it is collected there.
        app, _, stage, *_ = sst.object.split("/")
        made, data = writer.finish(app=app, stage=stage, partition=sst.partition, level=sst.level)
        store.put(made.object, data)
        self.count(sst.bytes, made.bytes, rows)
        return made

    def records(self, search: Search) -> Iterator[tuple[str, RecordsLeft]]:
        """What becomes of the app's records in flight that hold a key; puts what has the rest of them."""
        for key, _, rows, mine in search.captured():
            kept = rows.filter(pa.array(~mine))
            places = rows["_partition"].to_numpy()
            gone = count_by_partition(rows.filter(pa.array(mine)), int(places.max()) + 1)
            made = self._records(search, key, kept, tuple(gone.tolist()))
            self.count(len(search.member.store.get(key)), made.bytes, int(mine.sum()))
            yield key, made

    def _records(self, search: Search, key: str, kept: pa.Table, gone: tuple[int, ...]) -> RecordsLeft:
        if not kept.num_rows:
            return RecordsLeft(None, gone=gone)
        sink = BytesIO()
        pq.write_table(kept, sink, compression="lz4", write_page_checksum=True)
        data = sink.getvalue()
        name = key.split("/")[2]
        made = keys.captured(search.member.app, name, str(ULID()))
        search.member.store.put(made, data)
        return RecordsLeft(made, kept.num_rows, len(data), xxhash.xxh3_128_hexdigest(data), gone)
