"""The tables of a cut as Iceberg tables: what each would become, a pin that keeps it, one commit a table.

In this order, so that whoever dies has broken nothing and the same call finishes it: the cut is pinned before anything
points at its SSTs, and a pin is removed when no table names it any more. A table's metadata names, of each snapshot
that it still has, the pin that keeps what that points at. A table in which nothing changed gets no snapshot; it is only
told the newer pin when its own is old, so that it does not keep old versions of all the others.
"""

import zlib
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash
from pyiceberg.manifest import DataFile

from ....common.durations import HOUR_MS
from ....errors import Refused, SlackwaterError
from ....snapshot.cut.graph import Cut
from ....snapshot.cut.moments import having
from ....snapshot.cut.resolve import telling_if_collected
from ....snapshot.cut.stored import SNAPSHOTS
from ....snapshot.take.remove import remove
from ....snapshot.take.snapshots import pin
from ....store.objects.protocol import ObjectStore
from ....store.read.cache import SstCache
from ....store.read.decode import check_shape, read_groups
from ....store.read.fetch import corrupt, file_name
from ....store.sst.evolution import Reading
from ....store.sst.showable import showable
from ....store.versions import apps, keys
from ....store.versions.manifest import Manifest, Sst, Table
from .files import address, data_file, data_schema, iceberg_schema, is_read_alike
from .hidden import Positions, hidden_positions, plan_deletes
from .table import OWN, SWEEP_MS, Head, IcebergTable, Snapshotted

KEEP_MS = HOUR_MS
"""How long a snapshot stays readable that another has replaced."""
_TRIES = 20
"""Commits that others win before this gives up."""


@dataclass(frozen=True, slots=True)
class WrittenTable:
    """What became of one table."""

    name: str
    location: str
    """The Iceberg table's, as readers are given it."""
    version: int
    """The stage's, which it shows."""
    rows: int
    """That it shows."""
    files: int
    """Data files."""
    bytes: int
    """Of these: what it points at."""
    hidden: int
    """Rows of the data files that its position deletes take away."""
    snapshot: int
    """The id of the Iceberg snapshot."""
    moved: bool
    """Whether that is a new one."""
    written_bytes: int
    """That were written for it now."""
    copied: int
    """Data files that are copies: SSTs from before a migration that Iceberg has no words for."""


@dataclass(frozen=True, slots=True)
class _Plan:
    """What a table is to become."""

    table: IcebergTable
    manifest: Manifest
    head: Head | None
    wanted: Snapshotted
    """Its copies have no size yet, unless they are there."""
    copies: Mapping[str, tuple[Sst, Reading | None]]
    """By address: the data files that are rows of an SST written anew, and how that is read."""
    rows: int
    """That it shows."""
    moved: bool
    """Whether the newest snapshot that is there is another one."""

    @property
    def pinned_by(self) -> str:
        """The pin of the newest snapshot that is there; empty for none."""
        if self.head is None or self.head.snapshot is None:
            return ""
        return self.head.pins.get(self.head.snapshot.snapshot_id, "")


@dataclass
class IcebergExport:
    """Writes moments of an app as Iceberg tables under a root; used again, it reads again only what is new."""

    store: ObjectStore
    cache: SstCache
    target: ObjectStore
    """The root: each table has a folder there, by its name."""
    by: str
    """user@host, whom the pins are by."""
    keep_ms: int = KEEP_MS
    """So long a snapshot stays that another has replaced, for who reads it still."""
    _tables: dict[str, IcebergTable] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._prefix = f"iceberg-{zlib.crc32(self.target.url.encode()):08x}-"

    def write(self, cut: Cut, now_ms: int, *, only: Collection[str] = ()) -> tuple[WrittenTable, ...]:
        """Let the tables of a cut, or some, be what Iceberg's readers see; the SSTs stay where they are.

        Raises `NotFound` (there is no such table; or the cut was collected meanwhile), `Refused` (a table cannot be
        said in Iceberg, or its folder is somebody else's), and `Unavailable`: the same call finishes it.
        """
        named = having(self.store, cut, only)
        names = [name for name in named.tables if not only or name in only]
        apps.check_root(self.target)
        pins = _Pins(self, cut, now_ms)
        try:
            with telling_if_collected(self.store, cut):
                plans = [self._plan(named, name) for name in names]
                if any(plan.moved or not pins.has(plan.pinned_by) for plan in plans):
                    pins.new()
                done = tuple(self._carry_out(named, plan, pins) for plan in plans)
        except BaseException:
            with suppress(SlackwaterError):  # the next call finds what is left
                self._release(cut.app, now_ms, pins.made)
            raise
        self._release(cut.app, now_ms)
        return done

    def _plan(self, cut: Cut, name: str) -> _Plan:
        manifest = cut.tables[name]
        declared = manifest.table
        assert declared is not None  # noqa: S101  `Cut.tables` are versions with one
        table = self._tables.setdefault(name, IcebergTable(self.target, name))
        head, schema = table.head(), iceberg_schema(name, declared)
        if head is None and apps.find_app(self.target, name) is not None:
            raise Refused(
                f"{table.location} is the folder of app {name!r}", hint="choose another folder for the tables"
            )
        _check_own(table, head, self._properties(cut.app, name))
        live = table.live(head.snapshot if head is not None else None)
        data: dict[str, DataFile] = {}
        copies: dict[str, tuple[Sst, Reading | None]] = {}
        deletes: dict[str, Positions] = {}
        hidden = hidden_positions(self.store, self.cache, manifest, cut.clock_ms(name))
        for sst, positions in hidden.items():
            at = address(self.store.at(sst.root).url, sst.object)
            if (how := self._reading(sst, declared)) is not None or sst.unshowable:
                at = f"{table.location}/data/{_copy_name(sst, declared)}"
                copies[at] = (sst, how)
            data[at] = live.data[at].data_file if at in live.data else data_file(at, sst.rows, sst.bytes)
            if positions.size:
                deletes[at] = positions
        plan = plan_deletes(deletes, table.delete_files(live))
        shown = {"slackwater.version": str(manifest.version), "slackwater.committed-ms": str(manifest.time_ms)}
        moved = (
            head is None
            or data.keys() != live.data.keys()
            or bool(plan.added)
            or set(plan.kept) != live.deletes.keys()
            or head.metadata.schema().columns != schema.columns
        )
        rows = sum(sst.rows - len(positions) for sst, positions in hidden.items())
        return _Plan(table, manifest, head, Snapshotted(schema, data, plan, shown), copies, rows, moved)

    def _reading(self, sst: Sst, table: Table) -> Reading | None:
        """How an SST is read whose rows have to be written anew; None where it is a data file as it is."""
        if not table.schema:
            return None
        with pq.ParquetFile(self.cache.parquet_path(self.store, sst), memory_map=True) as file:
            how = check_shape(sst, table, file.schema_arrow, sst.rows)
        return None if is_read_alike(how) else how

    def _carry_out(self, cut: Cut, plan: _Plan, pins: "_Pins") -> WrittenTable:
        """Commit what was planned; where another was first, what is to be done then."""
        table, before = plan.table, plan.table.bytes_written
        for _ in range(_TRIES):
            if (head := self._commit(cut, plan, pins)) is not None:
                break
            plan = self._plan(cut, table.name)
        else:
            raise Refused(
                f"{table.location} was changed by others {_TRIES} times meanwhile", hint="let one export at a time run"
            )
        table.tell(head)
        table.sweep(head)
        files, snapshot = plan.wanted.data.values(), head.snapshot
        return WrittenTable(
            name=table.name,
            location=table.location,
            version=plan.manifest.version,
            rows=plan.rows,
            files=len(files),
            bytes=sum(each.file_size_in_bytes for each in files),
            hidden=sum(each.record_count for each in files) - plan.rows,
            snapshot=snapshot.snapshot_id if snapshot is not None else 0,
            moved=plan.moved,
            written_bytes=table.bytes_written - before,
            copied=len(plan.copies),
        )

    def _commit(self, cut: Cut, plan: _Plan, pins: "_Pins") -> Head | None:
        """The table's metadata when it is as planned; None where another was first."""
        table, head, kept, keep_ms = plan.table, plan.head, plan.pinned_by, self.keep_ms
        if plan.moved or not pins.has(kept):
            kept = pins.new()
        elif pins.made and pins.now_ms - _made_ms(kept) > keep_ms:
            kept = pins.made
        elif head is not None and not head.replaced_before(pins.now_ms - keep_ms):
            return head
        wanted = None
        if plan.moved:
            there = table.live(head.snapshot if head is not None else None).data
            made = {at: self._copy(plan, at) for at in plan.copies.keys() - there.keys()}
            wanted = replace(plan.wanted, data={**plan.wanted.data, **made})
        properties = self._properties(cut.app, table.name)
        return table.commit(head, pins.now_ms, snapshot=wanted, pin=kept, properties=properties, keep_ms=keep_ms)

    def _properties(self, app: str, name: str) -> dict[str, str]:
        # Nobody who expires snapshots or drops the table may delete data files: these are SSTs.
        own = {"app": app, "store": self.store.url, "table": name}
        return {f"{OWN}{key}": value for key, value in own.items()} | {"gc.enabled": "false"}

    def _copy(self, plan: _Plan, at: str) -> DataFile:
        """Write the rows of an SST with the columns of today, in their order, and values that any reader has."""
        (sst, how), declared = plan.copies[at], plan.manifest.table
        assert declared is not None  # noqa: S101  as in `_plan`
        schema = data_schema(declared)
        try:
            with pq.ParquetFile(self.cache.parquet_path(self.store, sst), memory_map=True) as file:
                names = how.stored_names(schema.names) if how is not None else schema.names
                stored = read_groups(file, range(file.num_row_groups), names)
        except (pa.ArrowException, OSError) as error:
            raise corrupt(sst, f"it cannot be decoded ({error})") from error
        read = how.read(stored, schema.names) if how is not None else stored
        rows = showable(pa.Table.from_arrays(read.columns, schema=schema))
        sink = pa.BufferOutputStream()
        pq.write_table(rows, sink, compression="zstd", write_page_checksum=True)
        data = bytes(sink.getvalue())
        plan.table.add("data", at.rpartition("/")[2], data)
        return data_file(at, rows.num_rows, len(data))

    def _release(self, app: str, now_ms: int, own: str = "") -> None:
        """Remove the pins that no table names any more: those that are old, as a call may be about to name its own.

        Also `own`, the pin of a call that failed, however old it is.
        """
        old = [name for name in self.pins(app) if name == own or _made_ms(name) <= now_ms - SWEEP_MS]
        named: set[str] = set()
        for folder in self.target.list_folders("") if old else ():
            with suppress(Refused):  # some other table
                head = IcebergTable(self.target, folder).head()
                named |= set(head.pins.values()) if head is not None else set()
        for name in old:
            if name not in named:
                remove(self.store, app, name)

    def pins(self, app: str) -> list[str]:
        """The names of the snapshots that keep what tables under the root point at, or may soon. One listing."""
        start = keys.snapshots(app)
        names = (info.key.removeprefix(start).removesuffix(".json") for info in SNAPSHOTS.listed(self.store, app))
        return [name for name in names if name.startswith(self._prefix) and name[len(self._prefix) :].isdecimal()]

    def pin_name(self, now_ms: int) -> str:
        """What a pin that is made now is called."""
        return f"{self._prefix}{now_ms}"


class _Pins:
    """The snapshots that keep what a root's tables point at, while a cut is exported."""

    def __init__(self, export: IcebergExport, cut: Cut, now_ms: int) -> None:
        self.now_ms = now_ms
        self.made = ""
        """The one for the cut, once there is one."""
        self._export, self._cut = export, cut
        self._known = set(export.pins(cut.app))

    def has(self, name: str) -> bool:
        """Whether there is one of this name."""
        return name in self._known

    def new(self) -> str:
        """The name of one that keeps the cut."""
        if not self.made:
            export, names = self._export, map(self._export.pin_name, count(self.now_ms))
            name = next(each for each in names if each not in self._known)
            pin(export.store, self._cut, name, by=f"{export.by}, export --iceberg {export.target.url}")
            self._known.add(name)
            self.made = name
        return self.made


def _made_ms(name: str) -> int:
    return int(name.rpartition("-")[2])


def _check_own(table: IcebergTable, head: Head | None, expected: Mapping[str, str]) -> None:
    found = head.metadata.properties if head is not None else expected
    if any(found.get(name) != value for name, value in expected.items() if name.startswith(OWN)):
        own = [found.get(f"{OWN}{each}") for each in ("app", "table", "store")]
        what = "{}, table {}, under {}".format(*own) if all(own) else "somebody else's"
        raise Refused(
            f"{table.location} is another Iceberg table already: {what}", hint="choose another folder for this app's"
        )


def _copy_name(sst: Sst, table: Table) -> str:
    columns = xxhash.xxh3_64_hexdigest(msgspec.json.encode(table.columns))
    return f"{file_name(sst)}-{columns}.parquet"
