"""A moment that is answered from: how fresh it is, and by table what all answers about its rows have in common."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from ...client.moment import Moment
from ...client.show.shown import encoded
from ...client.show.values import row_as_json
from ...common.instants import now_ms
from ...snapshot.cut.graph import Cut
from ...snapshot.query.columns import visible_schema
from ...store.read.open_rows import OpenRows
from ...store.sst.ttl import seen_clock_ms
from ...store.versions.manifest import Manifest, Table

Offsets = Mapping[str, tuple[int, ...]]


@dataclass(slots=True)
class TableAnswers:
    """A table at a moment: made once, and not with each request."""

    cut: Cut
    """The moment's, as long as nothing more of it is forgotten."""
    name: str
    manifest: Manifest
    declared: Table
    is_newest: bool
    fresh: dict[str, object]
    """What an answer says of the moment."""
    begin: bytes
    """That as JSON, up to where the rows come."""
    columns: tuple[str, ...]
    """Those that users see."""
    encode: Callable[[Mapping[str, object] | None], bytes]
    """Makes JSON of a row."""
    opened: OpenRows | None = None
    """The state partitions of which all SSTs are open in this process: a look-up there waits for nothing."""

    @property
    def etag(self) -> tuple[object, ...]:
        """What is the same as long as its rows are."""
        return self.name, f"v{self.manifest.version}", self.manifest.forgotten

    @property
    def changes_by_itself(self) -> bool:
        """Whether rows expire while nothing is written."""
        return self.is_newest and self.declared.ttl is not None

    def clock_ms(self, seen_ms: int) -> int:
        """The clock by which rows are expired for whoever looks then; 0 for now, or the moment's own time."""
        stage = self.cut.stages.get(self.name)
        if stage is None or self.declared.ttl is None:
            return self.cut.clock_ms(self.name)
        return seen_clock_ms(stage, seen_ms or (now_ms() if self.is_newest else self.cut.seen_ms))


@dataclass(frozen=True, slots=True)
class FreshMoment:
    """A moment, and what an answer says of how fresh it is."""

    moment: Moment
    is_newest: bool = False
    asked_for: Callable[[str], None] = lambda _table: None
    """Told of each table of which rows were asked for: the newest moment's are kept warm."""
    _known: dict[tuple[str, ...], Any] = field(default_factory=dict)
    _tables: dict[str, TableAnswers] = field(default_factory=dict)
    _making: Lock = field(default_factory=Lock)

    def has(self, table: str) -> bool:
        """Whether the moment has a table of this very name."""
        return table in self._tables or table in self.moment.cut.tables

    def known(self, table: str) -> TableAnswers | None:
        """What is known of a table of the moment; None where it has to be made (`about`)."""
        found = self._tables.get(table)
        # Since something was forgotten, what was opened is not what the table has.
        return found if found is not None and found.cut is self.moment.cut else None

    def about(self, table: str) -> TableAnswers:
        """What answers about a table's rows have in common. May ask the store, once, and wait for who does."""
        with self._making:
            found = self.known(table)
            if found is None:
                found = self._tables[table] = self._made(table)
            return found

    def _made(self, table: str) -> TableAnswers:
        cut = self.moment.cut
        manifest = cut.tables[table]
        declared = manifest.table
        assert declared is not None  # noqa: S101  `Cut.tables` are versions with one
        fresh, schema = self.freshness(table), visible_schema(declared)
        begin = encoded(fresh)[:-1] + b',"rows":['
        names, encode = tuple(schema.names), row_as_json(schema)
        return TableAnswers(cut, table, manifest, declared, self.is_newest, fresh, begin, names, encode)

    def open(self, table: str, partitions: Sequence[int], most_bytes: int | None = None) -> None:
        """Fetch and open all SSTs of some state partitions, if that can be. Raises as `Moment.opened`."""
        about = self.about(table)
        about.opened = self.moment.opened(table, partitions, most_bytes)

    def is_open(self, table: str, partitions: Iterable[int]) -> bool:
        """Whether a look-up in these state partitions of a table waits for nothing."""
        about = self.known(table)
        return about is not None and about.opened is not None and about.opened.partitions.issuperset(partitions)

    def knows_offsets(self, *tables: str) -> bool:
        """Whether `offsets` of these tables asks nobody."""
        return tables in self._known

    def offsets(self, *tables: str) -> Offsets:
        """How far users' topics have been read by these tables, or by all. May ask the store, once."""
        if tables not in self._known:
            self._known[tables] = self.moment.read_up_to(*tables)
        found: Offsets = self._known[tables]
        return found

    def freshness(self, table: str = "") -> dict[str, object]:
        """What an answer says of the moment, of one table or of all. May ask the store, once."""
        key = ("freshness", table)
        if key not in self._known:
            cut = self.moment.cut
            of = cut.tables[table] if table else None
            which = {"table": table, "version": of.version} if of else {"versions": cut.versions}
            time_ms, offsets = (of or cut).time_ms, self.offsets(*filter(None, [table]))
            known = {"app": cut.app, **which, "time_ms": time_ms, "offsets": offsets, "thinned_out": cut.thinned}
            self._known[key] = known
        found: dict[str, object] = self._known[key]
        return found
