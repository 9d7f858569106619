"""`ServedMoment`: a moment that a server reads, with the methods of `Moment` that the server offers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

import msgspec
import pyarrow as pa

from ...common import instants
from ...common.arguments import check_method_arguments
from ...errors import Refused, TooMuch
from ...snapshot.cut.graph import Cut, Thinned
from ...snapshot.query.answers import as_relation
from ...snapshot.query.columns import TableColumn
from ...snapshot.verify.verify import Report
from ...store.sst.arrow_types import python_rows
from ...store.versions.codec import register_type
from ..declared.questions import DiffOptions, VerifyOptions
from ..moment import Moment, Tables
from ..results import Difference, Verification
from ..show.document import Block, TableBlock, Title
from ..show.rows import columns_table
from ..show.shown import Displayable
from .http import Http
from .values import key_to_text, parse_table_diff

if TYPE_CHECKING:
    import duckdb

T = TypeVar("T")
MAX_ROWS = 10_000
_ALTERNATIVES = {"snapshot": "use ask_snapshot", "take_snapshot": "use ask_snapshot", "search": "use bisect"}


class ServedObject(Displayable):
    """Base of objects that a server offers; methods that need the store itself raise `Refused`."""

    @property
    def unavailable_methods(self) -> frozenset[str]:
        """Names of the methods that this class lacks because they need the store."""
        return frozenset(
            name for name in dir(self._local_class()) if not name.startswith("_") and name not in dir(self)
        )

    def _local_class(self) -> type:
        raise NotImplementedError

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            if name not in self.unavailable_methods:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
            raise Refused(
                f"{name} needs the store itself, and this is a client of a server",
                hint=_ALTERNATIVES.get(name, "open the store instead of the server's address: sw.open(STORE)"),
            )


@check_method_arguments
class ServedMoment(ServedObject):
    """A moment on a server, used like `Moment`. Its versions never change, even if it was requested as `now`."""

    def __init__(self, http: Http, app: str, when: str, stage: str, document: dict[str, Any]) -> None:
        self.ref = f"{app}{'/' if stage else ''}{stage}@{when}"
        self.versions: dict[str, int] = document["versions"]
        self.offsets: dict[str, list[int]] = document["offsets"]
        """Next offset of each partition, by users' topic, up to which all tables include the input."""
        self.thinned_out: Thinned | None = msgspec.convert(document["thinned_out"], register_type(Thinned | None))
        self.when, self.stage = when, stage
        """Moment and stage that the ref names."""
        self._http, self._app, self._document = http, app, document

    def _local_class(self) -> type:
        return Moment

    @property
    def _path(self) -> tuple[str, ...]:
        return "apps", self._app, "at", self.when

    def _ask_unchanged(self, ask: Callable[[], T], versions_of: Callable[[T], dict[str, int]]) -> T:
        """Return the answer of the function `ask`, if it is about the versions of this moment.

        If the server's `now` has advanced, calls `ask` again with the time of this moment. Raises `Refused` if the
        second answer is about different versions, too.
        """
        answer = ask()
        if self.when == "now" and versions_of(answer) != self.versions:
            self.when = instants.format_iso(self._document["time_ms"], "milliseconds")
            answer = ask()
        if versions_of(answer) != self.versions:
            raise Refused(
                f"{self.ref} cannot be read again: other stages have committed at its time",
                hint="call at() for a newer moment",
            )
        return answer

    @property
    def time(self) -> datetime:
        """Commit time of the moment's newest version, in UTC."""
        return datetime.fromtimestamp(self._document["time_ms"] / 1_000, UTC)

    @property
    def tables(self) -> Tables:
        """Tables with their columns."""
        columns_by_table = {
            table["table"]: msgspec.convert(table["columns"], register_type(tuple[TableColumn, ...]))
            for table in self._document["tables"]
        }
        return Tables(self.ref, columns_by_table)

    def query(self, sql: str) -> duckdb.DuckDBPyRelation:
        """Query the tables with DuckDB SQL (see `Moment.query`). Raises `TooMuch` for more than `MAX_ROWS` rows."""
        rows, about = self.query_rows(sql, MAX_ROWS)
        if about["cut_off"]:
            raise TooMuch(f"there are more than {rows.num_rows:,} rows", hint="aggregate, or add a LIMIT")
        return as_relation(rows)

    def query_rows(self, sql: str, limit: int) -> tuple[pa.Table, dict[str, Any]]:
        """Return at most `limit` rows of a query, and the answer's metadata."""
        answer: tuple[pa.Table, dict[str, Any]] = self._ask_unchanged(
            lambda: self._http.arrow((*self._path, "query"), sql=sql, limit=limit, stage=self.stage),
            lambda reply: reply[1]["versions"],
        )
        return answer

    def verify(self, **options: Unpack[VerifyOptions]) -> Verification:
        """Verify on the server that the moment is consistent, complete and undamaged. See `Moment.verify`."""

        def ask() -> Report:
            report: Report = self._http.json((*self._path, "verify"), Report, stage=self.stage, **options)
            return report

        return Verification(self._ask_unchanged(ask, lambda report: report.versions))

    def diff(self, other: ServedMoment, **options: Unpack[DiffOptions]) -> Difference:
        """Compare with a second moment of the app, table by table. See `Moment.diff`."""
        sides = {"before": self.when, "before_stage": self.stage, "after": other.when, "after_stage": other.stage}
        document = self._http.json(("apps", self._app, "diff"), **sides, **options)
        tables = {**self.tables, **other.tables}
        cuts = Cut(self._app, {}), Cut(self._app, {})
        differing = [parse_table_diff(table, tables[table["table"]]) for table in document["tables"]]
        return Difference((document["a"]["ref"], document["b"]["ref"]), cuts, differing)

    def get(self, table: str, key: object) -> dict[str, object] | None:
        """Return the row of one key as a dict by column, or None. See `Moment.get`."""
        return self.get_many(table, [key])[0]

    def get_many(
        self, table: str, keys: Sequence[object], columns: Sequence[str] = ()
    ) -> list[dict[str, object] | None]:
        """Return a row per key in the order of `keys`, None for a missing key. See `Moment.get_many`."""
        # Request the version, because "now" moves on.
        is_now = self.when == "now"
        path = ("apps", self._app, "at", f"v{self._version(table)}") if is_now else self._path
        stage = self._stage_of(table) if is_now else self.stage
        result: list[dict[str, object] | None] = []
        for start in range(0, len(keys), 200):
            batch_keys = [key_to_text(batch_rows) for batch_rows in keys[start : start + 200]]
            rows, _ = self._http.arrow((*path, "tables", table), key=batch_keys, column=list(columns), stage=stage)
            present = rows["_found"].to_pylist()
            batch_rows = python_rows(rows.drop_columns(["_found"]))
            result += [row if is_there else None for row, is_there in zip(batch_rows, present, strict=True)]
        return result

    def _stage_of(self, table: str) -> str:
        return table if table in self.versions else table.rpartition("_")[0]

    def _version(self, table: str) -> int:
        stage = self._stage_of(table)
        if stage not in self.versions:
            self._http.json((*self._path, "tables", table), key="")  # raises, with the known tables
        return self.versions[stage]

    def _blocks(self) -> Iterator[Block]:
        yield Title(f"{self.ref}, committed {instants.format_iso(self._document['time_ms'])}")
        yield TableBlock.from_rows(
            ("stage", "version"), ((stage, f"v{version}") for stage, version in self.versions.items())
        )
        yield columns_table(self.tables)
