"""The difference of two moments, of one app or of two: table by table, key by key."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...errors import NotFound
from ...store.objects.protocol import ObjectStore
from ...store.read.cache import SstCache
from ...store.sst.arrow_types import to_arrow
from ...store.sst.key_share import SHARES, KeyShare
from ...store.sst.types import arrow_schema, shape
from ...store.versions.manifest import Column, Manifest, Table, is_internal
from ...store.versions.side_tables import stage_of
from ..cut.graph import Cut
from ..cut.resolve import again_if_forgotten, as_known, telling_if_collected
from ..query.columns import visible_schema
from .candidates import changes_between
from .key_changes import KeyChanges
from .stored_rows import TableSide
from .versions import Ancestry, ancestry

_COUNTED_BYTES = 1 << 20
"""A table up to this is read to count its rows."""


@dataclass(frozen=True, slots=True)
class ColumnMatch:
    """How far one value column agrees, over the rows that both moments have."""

    column: str
    differing: int
    """Rows in which it differs."""
    rate: float
    """The part of the rows in which it is equal, 0 to 1, of `TableDiff.rows_in_both`."""


@dataclass(frozen=True, slots=True)
class TableDiff:
    """How one table differs between two moments."""

    table: str
    changes: KeyChanges
    """The rows that differ, by key, with the columns that both moments have."""
    added: int
    """Rows that only the second moment has."""
    removed: int
    """Rows that only the first moment has."""
    changed: int
    """Rows of both in which a column differs."""
    columns: tuple[ColumnMatch, ...]
    """The columns that were compared."""
    rows_in_both: int
    """How many rows both moments have."""
    about: bool
    """Whether that is what SSTs hold, where overwritten rows still count: neither a large table is read to be counted,
    nor one in which nothing changed."""
    unlike: tuple[str, ...]
    """In words, what is declared differently, so that it could not be compared."""
    near: Mapping[str, int] = field(default_factory=dict)
    """By column with floats, rows whose values differ only within the tolerance of `equality`: they count as equal.
    Two moments of one app are compared exactly."""
    formerly: str = ""
    """What it is called at the moment at which it has another name; empty where both have the same."""

    @property
    def equal(self) -> bool:
        """Whether no row and no column differs."""
        return not len(self.changes) and not self.unlike

    def only(self, positions: npt.NDArray[np.int64]) -> "TableDiff":
        """The same with the keys at these positions alone; how many rows both moments have stays."""
        changes = self.changes.take(positions)
        kinds = changes.kinds()
        added, removed, changed = (int((kinds == kind).sum()) for kind in ("added", "removed", "changed"))
        columns = tuple(replace(each, differing=int(changes.differing[each.column].sum())) for each in self.columns)
        return replace(self, changes=changes, columns=columns, added=added, removed=removed, changed=changed)


@dataclass(frozen=True, slots=True)
class StoredCut:
    """A cut, and the store that its app lives in."""

    store: ObjectStore
    cut: Cut


def diff(
    cache: SstCache,
    one: StoredCut,
    other: StoredCut,
    *,
    table: str = "",
    tables: Mapping[str, KeyShare | None] | None = None,
    ignore_new: bool = False,
) -> tuple[TableDiff, ...]:
    """How the tables of two moments differ, upstream first; a table that one of them does not have is empty there.

    What only `other` has was added. `table` is the only one to compare, empty for all. `tables` are the only ones of
    those that are there, each with the share of its keys, None for all of them. With `ignore_new`, columns and tables
    of stages that only `other` has count for nothing; else rows from before a migration have in such a column what it
    says. Reads manifests, and of SSTs what was written since the two parted; of two moments that have nothing in
    common, all. Raises `NotFound` (neither moment has such a table, or one was collected meanwhile).
    """

    def found() -> tuple[TableDiff, ...]:
        then, now = (StoredCut(each.store, as_known(each.store, each.cut)) for each in (one, other))
        return _diff(cache, then, now, table, tables, ignore_new=ignore_new)

    def of_one() -> tuple[TableDiff, ...]:
        return again_if_forgotten(one.store, one.cut.app, found)

    return again_if_forgotten(other.store, other.cut.app, of_one)


def _diff(
    cache: SstCache,
    one: StoredCut,
    other: StoredCut,
    table: str,
    tables: Mapping[str, KeyShare | None] | None,
    *,
    ignore_new: bool,
) -> tuple[TableDiff, ...]:
    declared = {
        name: manifest.table
        for moment in (other, one)
        for name, manifest in moment.cut.tables.items()
        if manifest.table is not None
    }
    pairs = _renamed(one.cut, other.cut)
    # In the order of the one that has more: a stage that came later lies behind those that it reads.
    most, least = sorted((other.cut.tables, one.cut.tables), key=len, reverse=True)
    names = tuple(dict.fromkeys(pairs.get(name, name) for name in (*most, *least)))
    if table and table not in (*names, *pairs):
        raise NotFound(f"table at {one.cut.ref} or {other.cut.ref}", table, names)
    former = {new: old for old, new in pairs.items()}
    new = new_tables(one.cut, other.cut)

    def side(moment: StoredCut, name: str) -> TableSide:
        name_then = name if name in moment.cut.tables else former.get(name, name)
        manifest = moment.cut.tables.get(name_then)
        if manifest is None or manifest.table is None:
            return TableSide(moment.store, cache, declared[name], None)
        share = tables[name] if tables is not None else None
        return TableSide(moment.store, cache, manifest.table, manifest, moment.cut.clock_ms(name_then), share)

    with telling_if_collected(one.store, one.cut), telling_if_collected(other.store, other.cut):
        return tuple(
            replace(
                table_diff(name, side(one, name), side(other, name), ignore_new=ignore_new),
                formerly=former.get(name, ""),
            )
            for name in ((pairs.get(table, table),) if table else names)
            if (tables is None or name in tables) and not (ignore_new and name in new)
        )


def new_tables(one: Cut, other: Cut) -> dict[str, Manifest]:
    """The tables of stages that only `other` has, but for those that have another name in `one`."""
    return {name: each for name, each in other.tables.items() if stage_of(each) not in one.stages and not each.formerly}


def _renamed(one: Cut, other: Cut) -> dict[str, str]:
    """The tables that only one moment has, and that the other has under the name that they got: old name to new."""
    found = {}
    for mine, its in ((one, other), (other, one)):
        for new, manifest in its.tables.items():
            names = [former.stage for former in manifest.formerly if former.stage in mine.tables]
            if new not in mine.tables and names and names[-1] not in its.tables:
                found[names[-1]] = new
    return found


def table_diff(name: str, before: TableSide, after: TableSide, *, ignore_new: bool = False) -> TableDiff:
    """How a table of this name differs between two sides. `ignore_new` and errors as of `diff`."""
    # Ids of columns below `known` mean the same on both sides; 0 where none does.
    shared, is_one_app, known = Ancestry(), False, 0
    if before.manifest is not None and after.manifest is not None:
        shared = ancestry((before.store, before.manifest), (after.store, after.manifest))
        is_one_app = before.manifest.app == after.manifest.app and before.store.url == after.store.url
        known = shared.next_id
    tables = before.table, after.table
    if is_one_app:
        known = max(each.next_id or len(each.columns) + 1 for each in tables)
    had, has = (_known(each, known) for each in tables)
    left_out = set[str]()
    if ignore_new:
        left_out = {column.name for number, column in has.items() if number not in had}
        has = {number: column for number, column in has.items() if number in had}
    unlike = tuple(_unlike(had, has, is_migrated=tables[0].schema != tables[1].schema, by_id=bool(known)))
    # Columns of one name that each of the two added by itself: rows that both have may differ in them, unseen.
    new = ({each.name for id_, each in zip(one.ids, one.columns, strict=True) if id_ >= known} for one in tables)
    added_by_each = set.intersection(*new) if shared.seq else set[str]()
    # A clone migrates by itself. Where one of the two has not since, the other's columns are those that became of its.
    schemas = before.table.schema, after.table.schema
    is_parent = bool(shared.seq) and shared.table is not None and shared.table.schema in schemas
    if schemas[0] != schemas[1] and (is_one_app or is_parent):
        # Rows from before a migration have the columns of after it, too: then they are compared.
        newest = max(tables, key=lambda table: table.schema)
        before, after = replace(before, table=newest), replace(after, table=newest)
    if arrow_schema(before.table.key) != arrow_schema(after.table.key):
        was, is_now = (shape(arrow_schema(side.table.key)) for side in (before, after))
        sentence = f"the key is {was} before and {is_now} after: rows cannot be compared"
        nothing = np.zeros(0, np.bool_)
        keys = arrow_schema(before.table.key).empty_table()
        changes = KeyChanges.between(keys, pa.table({}), pa.table({}), nothing, nothing)
        return TableDiff(name, changes, 0, 0, 0, (), 0, True, (sentence, *unlike))
    mine, theirs = visible_schema(before.table), visible_schema(after.table)
    left_out |= {*before.key, *after.key, *added_by_each}
    common = [each.name for each in mine if each in theirs and each.name not in left_out]
    # What one app has stored is the same or not; what two have computed may differ by the order of a sum.
    compared = changes_between(before, after, shared, common, tolerant=not is_one_app)
    near = {column: int(flags.sum()) for column, flags in compared.near.items() if flags.any()}
    changes = compared.changed().in_order()
    kinds = changes.kinds()
    added, removed, changed = (int((kinds == kind).sum()) for kind in ("added", "removed", "changed"))
    about = not changed or sum(sst.bytes for sst in before.ssts) > _COUNTED_BYTES
    most_rows = sum(sst.rows - sst.tombstones for sst in before.ssts)
    if before.share is not None:
        most_rows = most_rows * before.share.parts // SHARES
    num_before = most_rows if about else int((~before.hidden(before.newest(before.ssts, 0))).sum())
    # Never fewer than differ, whatever is stored still.
    in_both = max(num_before - removed, changed)
    columns = tuple(
        ColumnMatch(column, number := int(differs.sum()), 1 - number / in_both if in_both else 1.0)
        for column, differs in changes.differing.items()
    )
    return TableDiff(name, changes, added, removed, changed, columns, in_both, about, unlike, near)


def _unlike(
    had: Mapping[int | str, Column], has: Mapping[int | str, Column], *, is_migrated: bool, by_id: bool
) -> Iterator[str]:
    """What is declared of columns by one side only, in words. A column that was renamed is one by its id.

    Other columns are told apart by their names, or all are, where ids mean nothing (`by_id`).
    """
    for number in dict.fromkeys((*had, *has)):
        was, now = had.get(number), has.get(number)
        if was is None or now is None:
            known = was or now
            assert known is not None  # noqa: S101  it is one of both
            yield f"column {known.name} is there {'before' if was else 'after'} only"
            continue
        if was.name != now.name:
            yield f"column {was.name} is called {now.name} after"
        if was.type != now.type:
            types = f"column {now.name} is {to_arrow(was.type)} before and {to_arrow(now.type)} after"
            yield types if is_migrated else f"{types}: it is not compared"
        elif isinstance(number, str) and by_id:
            yield f"column {number} came to each of the two by a migration of its own: it is not compared"


def _known(table: Table, known: int) -> dict[int | str, Column]:
    """The value columns that users see, by id where that is below `known`, else by name."""
    numbered = zip(table.ids, table.columns, strict=True)
    values = ((number, each) for number, each in numbered if each in table.values and not is_internal(each.name))
    return {number if number < known else each.name: each for number, each in values}
