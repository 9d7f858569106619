"""Export of a cut's tables as Iceberg tables: one plan per table, a pin of the cut, one commit per table.

The order makes the export resumable: the cut is pinned before metadata names its SSTs, and a pin is removed when no
table names the pin any more. A table's metadata names the pin of each Iceberg snapshot. An unchanged table gets no new
Iceberg snapshot. An old pin of a table's newest snapshot is replaced by a newer pin, so that old versions can be
collected.
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
from ....snapshot.cut.moments import require_tables
from ....snapshot.cut.resolve import report_if_collected
from ....snapshot.cut.stored import SNAPSHOTS
from ....snapshot.take.snapshots import delete_snapshot, pin_cut
from ....store.objects.protocol import ObjectStore
from ....store.read.cache import SstCache
from ....store.read.decode import check_columns, read_groups
from ....store.read.fetch import corruption_error, file_name
from ....store.sst.arrow_types import make_sql_safe
from ....store.sst.schema import ColumnConversion
from ....store.versions import apps, keys
from ....store.versions.entries.ssts import Sst
from ....store.versions.keys import hot_sst_app
from ....store.versions.manifest import Manifest, Table
from .catalog import CatalogNamespace
from .files import address, data_file, data_schema, iceberg_schema, is_readable_by_iceberg
from .hidden import Positions, hidden_positions, plan_deletes
from .table import OWNER_PREFIX, SWEEP_MS, Head, IcebergTable, NewSnapshot

KEEP_MS = HOUR_MS
"""Time in milliseconds for which a replaced Iceberg snapshot stays readable."""
_TRIES = 20
"""Maximum number of attempts to commit while other processes write the table."""


@dataclass(frozen=True, slots=True)
class WrittenTable:
    """Result of the export of one table."""

    name: str
    location: str
    version: int
    rows: int
    files: int
    bytes: int
    hidden: int
    """Number of rows in the data files that position deletes hide."""
    snapshot: int
    moved: bool
    """True if the export gave the table a new snapshot."""
    written_bytes: int
    copied: int
    """Number of SSTs that were copied, because Iceberg cannot read their columns after a migration, or their place."""
    registered: str = ""
    """Full name of the table's entry in a catalog; empty if the export does not register tables."""


@dataclass(frozen=True, slots=True)
class _Plan:
    table: IcebergTable
    manifest: Manifest
    head: Head | None
    snapshot: NewSnapshot
    copies: Mapping[str, tuple[Sst, ColumnConversion | None]]
    """SSTs to copy, by the address of the copy, with the conversion of each SST's columns."""
    rows: int
    needs_snapshot: bool

    @property
    def pin_name(self) -> str:
        if self.head is None or self.head.snapshot is None:
            return ""
        return self.head.pins.get(self.head.snapshot.snapshot_id, "")


@dataclass
class IcebergExport:
    """Exports moments of an app as Iceberg tables under a root.

    Later calls of `write` reuse data that earlier calls have read.
    """

    store: ObjectStore
    cache: SstCache
    target: ObjectStore
    by: str
    keep_ms: int = KEEP_MS
    catalog: CatalogNamespace | None = None
    """Namespace in which each export registers its tables."""
    _tables: dict[str, IcebergTable] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._prefix = f"iceberg-{zlib.crc32(self.target.url.encode()):08x}-"

    def write(self, cut: Cut, now_ms: int, *, only: Collection[str] = ()) -> tuple[WrittenTable, ...]:
        """Export the tables of a cut, or only the tables in `only`, for Iceberg readers.

        SSTs are neither moved nor copied, except that SSTs are copied if Iceberg cannot read their columns. Raises
        `NotFound` (no such table, or the cut was garbage collected meanwhile), `Refused` (Iceberg cannot express a
        table, its folder belongs to another app, or the catalog's entry belongs to another table) and `Unavailable`. A
        repeated call completes the export.
        """
        named = require_tables(self.store, cut, only)
        names = [name for name in named.tables if not only or name in only]
        apps.check_root(self.target)
        pins = _Pins(self, cut, now_ms)
        try:
            with report_if_collected(self.store, cut):
                plans = [self._plan(named, name) for name in names]
                if any(plan.needs_snapshot or not pins.exists(plan.pin_name) for plan in plans):
                    pins.pin_cut()
                committed = [(plan.table, *self._commit_with_retries(named, plan, pins)) for plan in plans]
        except BaseException:
            with suppress(SlackwaterError):  # the next call removes remaining pins
                self._remove_old_pins(cut.app, now_ms, pins.new_name)
            raise
        # A catalog's entry names metadata. It and its pins are removed only once the entry names newer metadata.
        done, refusals = [], list[Refused]()
        for table, head, written in committed:
            try:
                done.append((table, *self._register(cut.app, table, head, written)))
            except Refused as refused:
                refusals.append(refused)
        if refusals:
            raise refusals[0]
        self._remove_old_pins(cut.app, now_ms)
        for table, head, _ in done:
            table.delete_orphans(head)
        return tuple(written for _, _, written in done)

    def _register(self, app: str, table: IcebergTable, head: Head, written: WrittenTable) -> tuple[Head, WrittenTable]:
        """Register a table.

        Returns the newest metadata, because another export may have registered the table meanwhile.
        """
        if self.catalog is None:
            return head, written
        while True:
            entry = self.catalog.register(app, table.name, table.metadata_location(head), head.metadata)
            newest = table.head()
            if newest is None or newest.number <= head.number:
                return head, replace(written, registered=entry)
            head = newest

    def _plan(self, cut: Cut, name: str) -> _Plan:
        manifest = cut.tables[name]
        declared = manifest.table
        assert declared is not None  # noqa: S101  `Cut.tables` are versions with one
        table = self._tables.setdefault(name, IcebergTable(self.target, name))
        head, schema = table.head(), iceberg_schema(name, declared)
        if head is None and apps.find_app(self.target, name) is not None:
            raise Refused(f"{table.location} is the folder of app {name!r}", hint="export to another folder")
        _check_is_ours(table, head, self._properties(cut.app, name))
        live = table.snapshot_files(head.snapshot if head is not None else None)
        data: dict[str, DataFile] = {}
        copies: dict[str, tuple[Sst, ColumnConversion | None]] = {}
        deletes: dict[str, Positions] = {}
        hidden = hidden_positions(self.store, self.cache, manifest, cut.clock_ms(name))
        for sst, positions in hidden.items():
            at = address(self.store.at(sst.root).url, sst.object)
            if (
                (reading := self._reading_for_copy(sst, declared)) is not None
                or sst.unshowable
                or hot_sst_app(sst.object)
            ):
                at = f"{table.location}/data/{_copy_name(sst, declared)}"
                copies[at] = (sst, reading)
            data[at] = live.data[at].data_file if at in live.data else data_file(at, sst.rows, sst.bytes)
            if positions.size:
                deletes[at] = positions
        plan = plan_deletes(deletes, table.delete_files(live))
        shown = {"slackwater.version": str(manifest.version), "slackwater.committed-ms": str(manifest.time_ms)}
        moved = (
            head is None
            or data.keys() != live.data.keys()
            or bool(plan.added)
            or set(plan.remaining) != live.deletes.keys()
            or head.metadata.schema().columns != schema.columns
        )
        rows = sum(sst.rows - len(positions) for sst, positions in hidden.items())
        return _Plan(table, manifest, head, NewSnapshot(schema, data, plan, shown), copies, rows, moved)

    def _reading_for_copy(self, sst: Sst, table: Table) -> ColumnConversion | None:
        if not table.schema:
            return None
        with pq.ParquetFile(self.cache.parquet_path(self.store, sst), memory_map=True) as file:
            reading = check_columns(sst, table, file.schema_arrow, sst.rows)
        return None if is_readable_by_iceberg(reading) else reading

    def _commit_with_retries(self, cut: Cut, plan: _Plan, pins: "_Pins") -> tuple[Head, WrittenTable]:
        table, bytes_before = plan.table, plan.table.bytes_written
        for _ in range(_TRIES):
            if (head := self._commit(cut, plan, pins)) is not None:
                break
            plan = self._plan(cut, table.name)
        else:
            raise Refused(
                f"cannot commit to {table.location}: other writers committed first, {_TRIES} times",
                hint="run one export at a time",
            )
        table.update_version_hint(head)
        files, snapshot = plan.snapshot.data.values(), head.snapshot
        return head, WrittenTable(
            name=table.name,
            location=table.location,
            version=plan.manifest.version,
            rows=plan.rows,
            files=len(files),
            bytes=sum(file.file_size_in_bytes for file in files),
            hidden=sum(file.record_count for file in files) - plan.rows,
            snapshot=snapshot.snapshot_id if snapshot is not None else 0,
            moved=plan.needs_snapshot,
            written_bytes=table.bytes_written - bytes_before,
            copied=len(plan.copies),
        )

    def _commit(self, cut: Cut, plan: _Plan, pins: "_Pins") -> Head | None:
        table, head, pin_name, keep_ms = plan.table, plan.head, plan.pin_name, self.keep_ms
        if plan.needs_snapshot or not pins.exists(pin_name):
            pin_name = pins.pin_cut()
        elif pins.new_name and pins.now_ms - _pinned_at_ms(pin_name) > keep_ms:
            pin_name = pins.new_name
        elif head is not None and not head.replaced_before(pins.now_ms - keep_ms):
            return head
        snapshot = None
        if plan.needs_snapshot:
            existing = table.snapshot_files(head.snapshot if head is not None else None).data
            written_copies = {path: self._write_copy(plan, path) for path in plan.copies.keys() - existing.keys()}
            snapshot = replace(plan.snapshot, data={**plan.snapshot.data, **written_copies})
        properties = self._properties(cut.app, table.name)
        return table.commit(head, pins.now_ms, snapshot=snapshot, pin=pin_name, properties=properties, keep_ms=keep_ms)

    def _properties(self, app: str, name: str) -> dict[str, str]:
        # The data files are SSTs: expiring snapshots or dropping the table must not delete them.
        own = {"app": app, "store": self.store.url, "table": name}
        return {f"{OWNER_PREFIX}{key}": value for key, value in own.items()} | {"gc.enabled": "false"}

    def _write_copy(self, plan: _Plan, path: str) -> DataFile:
        (sst, reading), declared = plan.copies[path], plan.manifest.table
        assert declared is not None  # noqa: S101  as in `_plan`
        schema = data_schema(declared)
        try:
            with pq.ParquetFile(self.cache.parquet_path(self.store, sst), memory_map=True) as file:
                names = reading.stored_names(schema.names) if reading is not None else schema.names
                stored = read_groups(file, range(file.num_row_groups), names)
        except (pa.ArrowException, OSError) as error:
            raise corruption_error(sst, f"it cannot be decoded ({error})") from error
        read = reading.convert(stored, schema.names) if reading is not None else stored
        rows = make_sql_safe(pa.Table.from_arrays(read.columns, schema=schema))
        sink = pa.BufferOutputStream()
        pq.write_table(rows, sink, compression="zstd", write_page_checksum=True)
        data = bytes(sink.getvalue())
        plan.table.add("data", path.rpartition("/")[2], data)
        return data_file(path, rows.num_rows, len(data))

    def _remove_old_pins(self, app: str, now_ms: int, own_pin: str = "") -> None:
        old = [name for name in self.pins(app) if name == own_pin or _pinned_at_ms(name) <= now_ms - SWEEP_MS]
        named: set[str] = set()
        for folder in self.target.list_folders("") if old else ():
            with suppress(Refused):  # another program's table
                head = IcebergTable(self.target, folder).head()
                named |= set(head.pins.values()) if head is not None else set()
        for name in old:
            if name not in named:
                delete_snapshot(self.store, app, name)

    def pins(self, app: str) -> list[str]:
        """Return the names of snapshots that pin an app's SSTs for tables under the root. Makes one listing."""
        start = keys.snapshots(app)
        names = (info.key.removeprefix(start).removesuffix(".json") for info in SNAPSHOTS.listed(self.store, app))
        return [name for name in names if name.startswith(self._prefix) and name[len(self._prefix) :].isdecimal()]

    def pin_name(self, now_ms: int) -> str:
        return f"{self._prefix}{now_ms}"


class _Pins:
    """Snapshots in the app that pin the SSTs of exported tables, for the export of one cut."""

    def __init__(self, export: IcebergExport, cut: Cut, now_ms: int) -> None:
        self.now_ms = now_ms
        self.new_name = ""
        """Name of the cut's pin; empty before it is created."""
        self._export, self._cut = export, cut
        self._known = set(export.pins(cut.app))

    def exists(self, name: str) -> bool:
        return name in self._known

    def pin_cut(self) -> str:
        if not self.new_name:
            export, names = self._export, map(self._export.pin_name, count(self.now_ms))
            name = next(candidate for candidate in names if candidate not in self._known)
            pin_cut(export.store, self._cut, name, by=f"{export.by}, export --iceberg {export.target.url}")
            self._known.add(name)
            self.new_name = name
        return self.new_name


def _pinned_at_ms(name: str) -> int:
    return int(name.rpartition("-")[2])


def _check_is_ours(table: IcebergTable, head: Head | None, expected: Mapping[str, str]) -> None:
    actual = head.metadata.properties if head is not None else expected
    if any(actual.get(name) != value for name, value in expected.items() if name.startswith(OWNER_PREFIX)):
        own = [actual.get(f"{OWNER_PREFIX}{key}") for key in ("app", "table", "store")]
        owner = "app {}, table {}, in {}".format(*own) if all(own) else "not slackwater's"
        raise Refused(f"{table.location} is already another Iceberg table ({owner})", hint="export to another folder")


def _copy_name(sst: Sst, table: Table) -> str:
    columns = xxhash.xxh3_64_hexdigest(msgspec.json.encode(table.columns))
    return f"{file_name(sst)}-{columns}.parquet"
