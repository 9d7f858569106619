"""A moment over HTTP: the methods of `Moment` that a server offers, with the same results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

import msgspec
import pyarrow as pa

from ...common import instants
from ...common.argument_types import checked_methods
from ...common.learned import learned
from ...errors import Refused, TooMuch
from ...snapshot.cut.graph import Cut, Thinned
from ...snapshot.query.answers import as_relation
from ...snapshot.query.columns import TableColumn
from ...snapshot.verify.verify import Report
from ...store.sst.arrow_types import python_rows
from ..declared.questions import DiffOptions, VerifyOptions
from ..moment import Moment, Tables
from ..results import Difference, Verification
from ..show.document import Block, TableBlock, Title
from ..show.rows import columns_table
from ..show.shown import Shown
from .http import Http
from .values import table_diff, text

if TYPE_CHECKING:
    import duckdb

T = TypeVar("T")
MOST = 10_000
"""Rows or commits of one answer."""
_INSTEAD = {"snapshot": "ask_snapshot asks for one", "take": "ask_snapshot asks for one", "search": "bisect searches"}


class Served(Shown):
    """What a server has of an object of the store: what only the store has says so."""

    @property
    def absent(self) -> frozenset[str]:
        """Methods that the object of the store has besides."""
        return frozenset(name for name in dir(self._local()) if not name.startswith("_") and name not in dir(self))

    def _local(self) -> type:
        """The class of the same object of a store."""
        raise NotImplementedError

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            if name not in self.absent:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
            raise Refused(
                f"{name} works on the store itself, and this is asked over HTTP",
                hint=_INSTEAD.get(name, "whoever reaches the store has it: sw.open(STORE) instead of the address"),
            )


@checked_methods
class ServedMoment(Served):
    """A moment, as `Moment`: always the same versions, also where it was `now` when it was asked for."""

    def __init__(self, http: Http, app: str, when: str, stage: str, found: dict[str, Any]) -> None:
        self.ref = f"{app}{'/' if stage else ''}{stage}@{when}"
        self.versions: dict[str, int] = found["versions"]
        """The version of each stage, upstream first."""
        self.offsets: dict[str, list[int]] = found["offsets"]
        """How far users' topics have been read by all tables, by topic: the next offset of each partition."""
        self.thinned_out: Thinned | None = msgspec.convert(found["thinned_out"], learned(Thinned | None))
        self.when, self.stage = when, stage
        """What stands behind the `@` of its ref, and before it."""
        self._http, self._app, self._found = http, app, found

    def _local(self) -> type:
        return Moment

    @property
    def _path(self) -> tuple[str, ...]:
        return "apps", self._app, "at", self.when

    def _same(self, ask: Callable[[], T], versions_of: Callable[[T], dict[str, int]]) -> T:
        """What is answered of these very versions: "now" is another moment by and by, and then found by its time."""
        found = ask()
        if self.when == "now" and versions_of(found) != self.versions:
            self.when = instants.iso(self._found["time_ms"], "milliseconds")
            found = ask()
        if versions_of(found) != self.versions:
            raise Refused(f"{self.ref} cannot be asked for again: other stages have committed at its time", hint="at()")
        return found

    @property
    def time(self) -> datetime:
        """When the newest of these versions was committed, in UTC."""
        return datetime.fromtimestamp(self._found["time_ms"] / 1_000, UTC)

    @property
    def tables(self) -> Tables:
        """The tables and their columns."""
        each = {
            one["table"]: msgspec.convert(one["columns"], learned(tuple[TableColumn, ...]))
            for one in self._found["tables"]
        }
        return Tables(self.ref, each)

    def query(self, sql: str) -> duckdb.DuckDBPyRelation:
        """What a query returns, as `Moment.query`. Raises `TooMuch` beyond what the server gives at once, too."""
        rows, about = self.answer(sql, MOST)
        if about["cut_off"]:
            raise TooMuch(f"there are more than {rows.num_rows:,} rows", hint="aggregate, or add a LIMIT")
        return as_relation(rows)

    def answer(self, sql: str, limit: int) -> tuple[pa.Table, dict[str, Any]]:
        """At most so many rows, and what is said beside them."""
        found: tuple[pa.Table, dict[str, Any]] = self._same(
            lambda: self._http.arrow((*self._path, "query"), sql=sql, limit=limit, stage=self.stage),
            lambda found: found[1]["versions"],
        )
        return found

    def verify(self, **options: Unpack[VerifyOptions]) -> Verification:
        """Prove the moment, as `Moment.verify`, where the store lies."""

        def ask() -> Report:
            found: Report = self._http.json((*self._path, "verify"), Report, stage=self.stage, **options)
            return found

        return Verification(self._same(ask, lambda found: found.versions))

    def diff(self, other: ServedMoment, **options: Unpack[DiffOptions]) -> Difference:
        """Compare with another moment of the app, as `Moment.diff`."""
        asked = {"before": self.when, "before_stage": self.stage, "after": other.when, "after_stage": other.stage}
        found = self._http.json(("apps", self._app, "diff"), **asked, **options)
        tables = {**self.tables, **other.tables}
        cuts = Cut(self._app, {}), Cut(self._app, {})
        differing = [table_diff(each, tables[each["table"]]) for each in found["tables"]]
        return Difference((found["a"]["ref"], found["b"]["ref"]), cuts, differing)

    def get(self, table: str, key: object) -> dict[str, object] | None:
        """The row of one key, as `Moment.get`."""
        return self.get_many(table, [key])[0]

    def get_many(
        self, table: str, keys: Sequence[object], columns: Sequence[str] = ()
    ) -> list[dict[str, object] | None]:
        """The rows of many keys, as `Moment.get_many`."""
        # The very version: "now" is another one by and by.
        is_now = self.when == "now"
        path = ("apps", self._app, "at", f"v{self._version(table)}") if is_now else self._path
        stage = self._stage_of(table) if is_now else self.stage
        found: list[dict[str, object] | None] = []
        for start in range(0, len(keys), 200):
            some = [text(each) for each in keys[start : start + 200]]
            rows, _ = self._http.arrow((*path, "tables", table), key=some, column=list(columns), stage=stage)
            present = rows["_found"].to_pylist()
            each = python_rows(rows.drop_columns(["_found"]))
            found += [row if is_there else None for row, is_there in zip(each, present, strict=True)]
        return found

    def _stage_of(self, table: str) -> str:
        return table if table in self.versions else table.rpartition("_")[0]

    def _version(self, table: str) -> int:
        stage = self._stage_of(table)
        if stage not in self.versions:
            self._http.json((*self._path, "tables", table), key="")  # says what there is
        return self.versions[stage]

    def _blocks(self) -> Iterator[Block]:
        yield Title(f"{self.ref}, committed {instants.iso(self._found['time_ms'])}")
        yield TableBlock.of(("stage", "version"), ((stage, f"v{version}") for stage, version in self.versions.items()))
        yield columns_table(self.tables)
