"""A cached moment, with the freshness fields of answers about it, and data shared by all answers about a table."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...client.moment import Moment
from ...client.show.shown import encode_json
from ...client.show.values import row_encoder
from ...common import runtime
from ...common.instants import now_ms
from ...common.runtime import Lock
from ...snapshot.cut.graph import Cut
from ...snapshot.query.columns import visible_schema
from ...store.read.open_rows import OpenRows
from ...store.sst.ttl import read_clock_ms
from ...store.versions.manifest import Manifest, Table

Offsets = Mapping[str, tuple[int, ...]]


@dataclass(slots=True)
class TableAnswers:
    """Data for answers about a table at a moment, computed once instead of per request."""

    cut: Cut
    """Cut for which the answers were built. After keys are forgotten, the moment has a new cut."""
    name: str
    manifest: Manifest
    declared: Table
    is_newest: bool
    freshness: dict[str, object]
    """Freshness fields of an answer: app, version, time and offsets."""
    json_prefix: bytes
    """JSON of an answer up to its rows: the freshness fields."""
    columns: tuple[str, ...]
    encode: Callable[[Mapping[str, object] | None], bytes]
    open_rows: OpenRows | None = None
    """Rows of the state partitions whose SSTs are all open in this process. Look-ups in these rows do no I/O."""

    @property
    def etag(self) -> tuple[object, ...]:
        return self.name, f"v{self.manifest.version}", self.manifest.forgotten

    @property
    def may_expire(self) -> bool:
        """True if rows may expire without a write."""
        return self.is_newest and self.declared.ttl is not None

    def clock_ms(self, seen_ms: int) -> int:
        """Return the clock in milliseconds: rows that have expired by this time are hidden.

        For a table with a time to live, this is `seen_ms`, if given. Otherwise it is the current time for the newest
        moment, and the moment's own time for an older moment.
        """
        stage = self.cut.stages.get(self.name)
        if stage is None or self.declared.ttl is None:
            return self.cut.clock_ms(self.name)
        return read_clock_ms(stage, seen_ms or (now_ms() if self.is_newest else self.cut.seen_ms))


@dataclass(frozen=True, slots=True)
class CachedMoment:
    """A moment with cached freshness fields and cached answers by table."""

    moment: Moment
    is_newest: bool = False
    on_read: Callable[[str], None] = lambda _table: None
    """Function called with each table whose rows are requested, to keep the newest moment's tables warm."""
    _cached: dict[tuple[str, ...], Any] = field(default_factory=dict)
    _tables: dict[str, TableAnswers] = field(default_factory=dict)
    _build_lock: Lock = field(default_factory=runtime.lock)

    def has_table(self, table: str) -> bool:
        return table in self._tables or table in self.moment.cut.tables

    def cached_answers(self, table: str) -> TableAnswers | None:
        """Return the cached answers of a table; None if `answers_for` must build them first."""
        answers = self._tables.get(table)
        # After keys were forgotten, the opened SSTs are stale.
        return answers if answers is not None and answers.cut is self.moment.cut else None

    def answers_for(self, table: str) -> TableAnswers:
        """Return the answers of a table, built on first use; may read the store."""
        with self._build_lock:
            answers = self.cached_answers(table)
            if answers is None:
                answers = self._tables[table] = self._build(table)
            return answers

    def _build(self, table: str) -> TableAnswers:
        cut = self.moment.cut
        manifest = cut.tables[table]
        declared = manifest.table
        assert declared is not None  # noqa: S101  all manifests in `Cut.tables` have a table
        fresh, schema = self.freshness(table), visible_schema(declared)
        begin = encode_json(fresh)[:-1] + b',"rows":['
        names, encode = tuple(schema.names), row_encoder(schema)
        return TableAnswers(cut, table, manifest, declared, self.is_newest, fresh, begin, names, encode)

    def open_partitions(self, table: str, partitions: Sequence[int], max_fetch_bytes: int | None = None) -> None:
        answers = self.answers_for(table)
        answers.open_rows = self.moment.open_rows(table, partitions, max_fetch_bytes)

    def is_open(self, table: str, partitions: Iterable[int]) -> bool:
        """Return True if look-ups in these state partitions do no I/O."""
        answers = self.cached_answers(table)
        return (
            answers is not None
            and answers.open_rows is not None
            and answers.open_rows.partitions.issuperset(partitions)
        )

    def has_cached_offsets(self, *tables: str) -> bool:
        return tables in self._cached

    def offsets(self, *tables: str) -> Offsets:
        """Return the next offsets of users' topics that the given tables will read; without arguments, all tables.

        Cached; the first call may read the store.
        """
        if tables not in self._cached:
            self._cached[tables] = self.moment.read_up_to(*tables)
        offsets: Offsets = self._cached[tables]
        return offsets

    def freshness(self, table: str = "") -> dict[str, object]:
        """Return the freshness fields of an answer about one table or all. Cached; may read the store."""
        key = ("freshness", table)
        if key not in self._cached:
            cut = self.moment.cut
            manifest = cut.tables[table] if table else None
            versions = {"table": table, "version": manifest.version} if manifest else {"versions": cut.versions}
            time_ms, offsets = (manifest or cut).time_ms, self.offsets(*filter(None, [table]))
            fields = {"app": cut.app, **versions, "time_ms": time_ms, "offsets": offsets, "thinned_out": cut.thinned}
            self._cached[key] = fields
        result: dict[str, object] = self._cached[key]
        return result
