"""Apps and moments over HTTP: the methods of `AppHistory` and `Moment` that a server offers, with the same results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pyarrow as pa

from ... import instants
from ...errors import TooMuch, Usage
from ...learned import learned
from ...moments.cut.graph import Cut, Thinned
from ...moments.cut.lineage import Lineage, Window
from ...moments.cut.stored import Snapshot
from ...moments.diff.key_changes import KeyChanges
from ...moments.diff.key_history import RowChange, RowHistory
from ...moments.diff.moments import ColumnMatch, TableDiff
from ...moments.query.answers import as_relation
from ...moments.query.columns import TableColumn, value_of
from ...moments.query.log import LogEntry
from ...results.document import Block, TableBlock, Title
from ...results.rows import columns_table
from ...results.shown import Shown
from ...store.objects.stats import Reads
from ...store.sst.arrow_types import python_rows, to_arrow
from ..moment import Tables
from ..results import Difference, KeyHistory, Log
from .http import Http

if TYPE_CHECKING:
    import duckdb

_NULL = r"\N"
_MOST = 10_000
"""Rows or commits of one answer."""


class Server(Shown):
    """A server of a store, and its apps. Threads may share it. `close` it, or use it in a `with`.

    Whatever asks it raises `Unavailable` when it does not answer, and `Forbidden` for what the token does not allow.
    """

    def __init__(self, url: str, token: str = "", timeout_s: float = 60) -> None:
        self.http = Http(url, token, timeout_s)

    @property
    def root(self) -> str:
        """Its address."""
        return self.http.url

    @property
    def me(self) -> dict[str, Any]:
        """What the token may: its `name`, `verbs`, `apps` and `tables`."""
        found: dict[str, Any] = self.http.json(("me",))
        return found

    @property
    def apps(self) -> tuple[str, ...]:
        """Names of the apps that may be read, sorted."""
        return tuple(self.http.json(("apps",))["apps"])

    def app(self, name: str) -> ServedApp:
        """An app. Raises `NotFound` for one that is not there."""
        self.http.json(("apps", name))
        return ServedApp(self, name)

    def moment(self, ref: str, done: str = "") -> ServedMoment:
        """The moment of a whole ref: `app`, `app@-5m`, `app/stage@v42`."""
        where, _, when = ref.partition("@")
        app, _, stage = where.partition("/")
        return ServedApp(self, app).at(when or "now", stage=stage)

    def close(self) -> None:
        """Close its connections."""
        self.http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _blocks(self) -> tuple[Block, ...]:
        return (Title(f"slackwater server {self.root}"),)


class ServedApp(Shown):
    """An app, as `AppHistory`."""

    def __init__(self, server: Server, name: str) -> None:
        self.name = name
        self._server, self._http = server, server.http

    @property
    def snapshots(self) -> tuple[Snapshot, ...]:
        """Its snapshots, oldest first."""
        found = self._http.json(("apps", self.name, "snapshots"), dict[str, Any])["snapshots"]
        taken: tuple[Snapshot, ...] = _values(found, tuple[Snapshot, ...])
        return taken

    def at(
        self,
        moment: str | datetime = "now",
        *,
        stage: str = "",
        min_offsets: Sequence[str] = (),
        wait_ms: int = 5_000,
    ) -> ServedMoment:
        """A moment, as `AppHistory.at`; of `now` one that has read some records, `"topic:partition:offset"` each.

        Raises `Refused` where it has not within `wait_ms`; the error's `offsets` says how far it has.
        """
        when = moment.isoformat() if isinstance(moment, datetime) else moment
        asked = {"stage": stage, "min_offsets": list(min_offsets), "wait_ms": wait_ms}
        found = self._http.json(("apps", self.name, "at", when), **asked)
        return ServedMoment(self._server, self.name, when, stage, found)

    def log(self, limit: int = 20, *, stage: str = "") -> Log:
        """The newest `limit` commits, as `AppHistory.log`; 10,000 at most."""
        asked = {"limit": limit or _MOST, "stage": stage}
        return Log(self._http.json(("apps", self.name, "log"), tuple[LogEntry, ...], **asked))

    def bisect(
        self,
        *,
        where: str = "",
        check: str = "",
        table: str = "",
        good: str = "",
        bad: str = "",
        edge: str = "",
        on_step: Callable[[dict[str, Any]], None] = lambda _probe: None,
    ) -> dict[str, Any]:
        """What `slackwater bisect --json` gives, searched by the server; `on_step` is told of each moment looked at.

        The arguments are those of `AppHistory.bisect`, with the same errors.
        """
        asked = {"where": where, "check": check, "table": table, "good": good, "bad": bad, "edge": edge}
        found: dict[str, Any] = {}
        for name, data in self._http.events(("apps", self.name, "bisect"), **asked):
            if name == "probe":
                on_step(data)
            else:
                found = data
        return found

    def ask_snapshot(self, name: str = "", message: str = "") -> dict[str, Any]:
        """Ask the app for a snapshot, by default called as the time is; `snapshots` shows it when it is complete."""
        asked: dict[str, Any] = self._http.post(("apps", self.name, "snapshots"), name=name, message=message)
        return asked

    def lineage(self, stage: str, version: int = 0, *, after: int = 0) -> Lineage:
        """The input behind versions of a stage, as `AppHistory.lineage`."""
        asked = {"stage": stage, "version": version, "after": after}
        found: Lineage = self._http.json(("apps", self.name, "lineage"), Lineage, **asked)
        return found

    def diff(self, before: str | datetime, after: str | datetime = "now", *, table: str = "") -> Difference:
        """The rows that differ between two moments, as `AppHistory.diff`."""
        ends = [each.isoformat() if isinstance(each, datetime) else each for each in (before, after)]
        asked = {"before": ends[0], "after": ends[1], "table": table}
        found = self._http.json(("apps", self.name, "diff"), **asked)
        tables = {**self.at(ends[0]).tables, **self.at(ends[1]).tables}
        cuts = Cut(self.name, {}), Cut(self.name, {})
        differing = [_table_diff(each, tables[each["table"]]) for each in found["tables"]]
        return Difference((found["a"]["ref"], found["b"]["ref"]), cuts, differing)

    def history(self, table: str, key: object, *, limit: int = 20) -> KeyHistory:
        """The newest `limit` changes of the row of one key, as `AppHistory.history`; 10,000 at most."""
        asked = {"key": _text(key), "limit": limit or _MOST}
        found = self._http.json(("apps", self.name, "tables", table, "history"), **asked)
        columns = self.at().tables.get(table) or ()
        kinds = {each.name: to_arrow(each.type) for each in columns}
        changes = tuple(
            RowChange(
                **{name: each[name] for name in ("stage", "version", "after_version", "time_ms", "expired")},
                kind=each["change"],
                inherited=each["inherited"] or "",
                formerly=each["formerly"] or "",
                windows=_values(each["windows"], tuple[Window, ...]),
                before=_typed(each["before"], kinds),
                after=_typed(each["after"], kinds),
            )
            for each in found["changes"]
        )
        keys = _rows([found["key"]], {each.name: kinds[each.name] for each in columns if each.key})
        whole_from, read = found["whole_from"] or 0, Reads(**found["read"])
        return KeyHistory(RowHistory(found["app"], table, keys, changes, whole_from, read))

    def _blocks(self) -> tuple[Block, ...]:
        return (Title(f"app {self.name} of {self._server.root}"),)


class ServedMoment(Shown):
    """A moment, as `Moment`: always the same versions, also where it was `now` when it was asked for."""

    def __init__(self, server: Server, app: str, when: str, stage: str, found: dict[str, Any]) -> None:
        self.ref = f"{app}{'/' if stage else ''}{stage}@{when}"
        self.versions: dict[str, int] = found["versions"]
        """The version of each stage, upstream first."""
        self.offsets: dict[str, list[int]] = found["offsets"]
        """How far users' topics have been read by all tables, by topic: the next offset of each partition."""
        self.thinned_out: Thinned | None = _values(found["thinned_out"], Thinned | None)
        self._http, self._app, self._found = server.http, app, found
        self._path = ("apps", app, "at", when)
        self._stage = stage
        self._is_now = when == "now"

    @property
    def time(self) -> datetime:
        """When the newest of these versions was committed, in UTC."""
        return datetime.fromtimestamp(self._found["time_ms"] / 1_000, UTC)

    @property
    def tables(self) -> Tables:
        """The tables and their columns."""
        each = {one["table"]: _values(one["columns"], tuple[TableColumn, ...]) for one in self._found["tables"]}
        return Tables(self.ref, each)

    def query(self, sql: str) -> duckdb.DuckDBPyRelation:
        """What a query returns, as `Moment.query`. Raises `TooMuch` beyond what the server gives at once, too."""
        rows, about = self.answer(sql, _MOST)
        if about["cut_off"]:
            raise TooMuch(f"there are more than {rows.num_rows:,} rows", hint="aggregate, or add a LIMIT")
        return as_relation(rows)

    def answer(self, sql: str, limit: int) -> tuple[pa.Table, dict[str, Any]]:
        """At most so many rows, and what is said beside them."""
        return self._http.arrow((*self._path, "query"), sql=sql, limit=limit, stage=self._stage)

    def get(self, table: str, key: object) -> dict[str, object] | None:
        """The row of one key, as `Moment.get`."""
        return self.get_many(table, [key])[0]

    def get_many(
        self, table: str, keys: Sequence[object], columns: Sequence[str] = ()
    ) -> list[dict[str, object] | None]:
        """The rows of many keys, as `Moment.get_many`."""
        # The very version: "now" is another one by and by.
        path = ("apps", self._app, "at", f"v{self._version(table)}") if self._is_now else self._path
        stage = self._stage_of(table) if self._is_now else self._stage
        found: list[dict[str, object] | None] = []
        for start in range(0, len(keys), 200):
            some = [_text(each) for each in keys[start : start + 200]]
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


def _text(key: object) -> str:
    """A key, as a server takes it."""
    if isinstance(key, tuple) and len(key) != 1:
        from ...results.shown import encoded

        return encoded([each.hex() if isinstance(each, bytes) else each for each in key]).decode()
    (one,) = key if isinstance(key, tuple) else (key,)
    match one:
        case None:
            return _NULL
        case bytes():
            return one.hex()
        case bool():
            return str(one).lower()
        case dict() | list():
            raise Usage("a key that is a struct is given as JSON text")
        case _:
            return str(one)


def _values(found: object, kind: Any) -> Any:
    import msgspec

    return msgspec.convert(found, learned(kind))


def _typed(row: dict[str, Any] | None, kinds: dict[str, pa.DataType]) -> dict[str, object] | None:
    """The values of a row, of their columns' types: JSON has no bytes and no dates."""
    if row is None:
        return None
    return {name: value_of(value, kinds[name]) if name in kinds else value for name, value in row.items()}


def _rows(rows: Sequence[dict[str, Any] | None], kinds: dict[str, pa.DataType]) -> pa.Table:
    """A table of rows, nulls for those that are None."""
    typed = [_typed(row, kinds) or dict.fromkeys(kinds) for row in rows]
    return pa.table({name: pa.array([row.get(name) for row in typed], kind) for name, kind in kinds.items()})


def _table_diff(found: dict[str, Any], columns: Sequence[TableColumn]) -> TableDiff:
    matches = _values(found["columns"], tuple[ColumnMatch, ...])
    kinds = {each.name: to_arrow(each.type) for each in columns}
    keys = {each.name: kinds[each.name] for each in columns if each.key}
    values = {each.column: kinds[each.column] for each in matches if each.column in kinds}
    rows = found["rows"]
    was, is_there = (np.array([row[side] is not None for row in rows], np.bool_) for side in ("before", "after"))
    before, after = (_rows([row[side] for row in rows], values) for side in ("before", "after"))
    changes = KeyChanges.between(_rows([row["key"] for row in rows], keys), before, after, was, is_there)
    names = ("table", "added", "removed", "changed", "rows_in_both", "about")
    more = {name: found[name] for name in names}
    return TableDiff(changes=changes, columns=matches, unlike=tuple(found["unlike"]), **more)
