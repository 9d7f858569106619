"""Edits equal SQL on the table despite concurrent commits; each is applied once and logged."""

from datetime import UTC, datetime
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from slackwater.errors import NotFound, Refused, SlackwaterError, Usage
from slackwater.snapshot.change.edit import EditDone, edit
from slackwater.snapshot.cut.resolve import resolve
from slackwater.snapshot.diff.key_history import key_history
from slackwater.snapshot.diff.stored_rows import TableSide
from slackwater.snapshot.query.row_source import RowSource
from slackwater.snapshot.take.audit_log import because, list_operations
from slackwater.snapshot.under_way.runners import EDITS, HEARTBEATS, Heartbeat
from slackwater.snapshot.verify.verify import verify
from slackwater.state.kinds.aggregate import aggregate, mean
from slackwater.state.kinds.aggregate import max as largest
from slackwater.state.kinds.kind import Kind
from slackwater.state.kinds.update import Update, UpdateCode
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.objects.protocol import ObjectStore
from slackwater.store.read.cache import SstCache
from slackwater.store.sst.arrow_types import from_arrow
from slackwater.store.versions import apps, history
from slackwater.store.versions.commit import commit, successor
from slackwater.store.versions.manifest import AppInfo, Column, EventTime, Manifest, Table
from ulid import ULID

from tests.models.profiles import scaled
from tests.support.collecting import AgingStore, aging_app
from tests.support.histories import FlightsApp, Kafka, Totals, flights, rows_of
from tests.support.state_rows import Key, Values, write_version

LATER_MS = 2_000_000_000_000
MORE = "UPDATE carriers SET flights = flights + 1, _squares = 7 WHERE delay > 10"


def edited(app: FlightsApp, cache: SstCache, sql: str = "", stage: str = "carriers", **more: Any) -> EditDone:
    return edit(app.store, cache, app.name, stage, sql or "rows", sql=sql, by="ada@host", **more)


def rows(app: FlightsApp, stage: str = "carriers") -> dict[str, Totals]:
    return rows_of(app.store, head(app, stage))


def head(app: FlightsApp, stage: str = "carriers") -> Manifest:
    found = history.head(app.store, app.name, stage)
    assert found is not None
    return found


def by_duckdb(before: dict[str, Totals], sql: str) -> dict[str, Totals]:
    """Return the rows that DuckDB's statement leaves of a table with these rows."""
    with duckdb.connect() as con:
        con.execute("CREATE TABLE carriers (carrier VARCHAR, flights BIGINT, delay BIGINT, _squares BIGINT)")
        for key, values in before.items():
            con.execute("INSERT INTO carriers VALUES (?, ?, ?, ?)", [key, *values])
        con.execute(sql)
        return {key: tuple(values) for key, *values in con.execute("FROM carriers").fetchall()}  # type: ignore[misc]


def assert_whole(app: FlightsApp) -> None:
    report = verify(app.store, resolve(app.store, app.name, now_ms=LATER_MS), deep=True)
    assert report.consistent, [each.message for each in report.differences]


names = st.sampled_from(["C0", "C1", "C2", "XX"])
statements = st.one_of(
    st.builds("UPDATE carriers SET delay = delay + {} WHERE carrier >= '{}'".format, st.integers(-9, 9), names),
    st.builds("UPDATE carriers SET carrier = carrier || 'x' WHERE carrier = '{}'".format, names),
    st.builds("DELETE FROM carriers WHERE carrier <= '{}'".format, names),
    st.builds("DELETE FROM carriers WHERE flights % {} = 0".format, st.integers(1, 3)),
    st.builds("INSERT INTO carriers VALUES ('new{}', 1, NULL, {})".format, st.integers(0, 10**6), st.integers(0, 9)),
    st.just("MERGE INTO carriers c USING (VALUES ('C1'), ('new')) v(k) ON c.carrier = v.k "
            "WHEN MATCHED THEN UPDATE SET delay = 0 WHEN NOT MATCHED THEN INSERT VALUES (v.k, 1, 2, 3)"),
    st.just("UPDATE carriers SET flights = (SELECT count(*) FROM aircraft)"),
    st.just("/* c */ UPDATE carriers SET delay = 1 WHERE flights > 2; -- c"),
)  # fmt: skip


@scaled(14, in_ci=30)
@given(some=st.lists(st.one_of(statements, st.none()), min_size=1, max_size=6))
def test_edits_between_compactions_have_the_same_effect_as_sql_in_duckdb(
    some: list[str | None], cache: SstCache
) -> None:
    app = FlightsApp(MemoryStore(), Kafka())
    app.run(flights(20))
    aircraft = len(rows(app, "aircraft"))
    for sql in some:
        if sql is None:
            app.compact("carriers")
            continue
        before, was = rows(app), head(app)
        expected = by_duckdb(before, sql.replace("(SELECT count(*) FROM aircraft)", str(aircraft)))
        done = edited(app, cache, sql, again=True)
        assert rows(app) == expected
        assert (done.version != 0) == (before != expected)
        if done.version:
            now = head(app)
            draft = successor(was, kind="edit", epoch=was.epoch, writer=now.writer, by=now.by, now_ms=now.time_ms)
            assert replace(now, ssts=draft.ssts, edited=None, stats=None, totals=draft.totals) == draft, (
                "all else stays"
            )
        app.heads["carriers"] = head(app)
    assert_whole(app)
    assert not EDITS.all(app.store, app.name)


def test_history_and_log_show_the_edit_with_its_reason(app: FlightsApp, cache: SstCache) -> None:
    carrier = min(rows(app))
    with because("ticket 4711"):
        done = edited(app, cache, f"UPDATE carriers SET delay = -5 WHERE carrier = '{carrier}'")

    change = key_history(app.store, cache, app.name, "carriers", [carrier], now_ms=LATER_MS).changes[0]
    assert change.version == done.version
    assert (change.after or {})["delay"] == -5
    made = head(app).edited
    assert made is not None
    assert (made.by, made.message) == ("ada@host", "ticket 4711")
    (operation,) = list_operations(app.store, app.name)
    assert (operation.verb, operation.by, operation.message) == ("edit", "ada@host", "ticket 4711")
    assert (operation.before, operation.after) == ({"carriers": done.version - 1}, {"carriers": done.version})
    assert done.changes is not None
    assert [each.kind for each in done.changes] == ["changed"]
    # The app goes on from it.
    app.heads["carriers"], app.state["carriers"] = head(app), rows(app)
    app.run(flights(20))
    assert_whole(app)


def test_a_dry_run_writes_nothing(app: FlightsApp, cache: SstCache) -> None:
    before = sorted(info.key for info in app.store.list(""))
    done = edited(app, cache, "DELETE FROM carriers", dry_run=True)
    assert done.changes is not None
    assert len(done.changes) == len(rows(app))
    assert sorted(info.key for info in app.store.list("")) == before


@pytest.mark.parametrize(
    ("sql", "kind", "said"),
    [
        ("SELECT 1", Usage, "this is a SELECT statement; an edit is an UPDATE, DELETE, INSERT or MERGE"),
        ("DELETE FROM carriers; DELETE FROM carriers", Usage, "expected one SQL statement, found 2"),
        *(
            (
                sql,
                Usage,
                "an edit of flights/carriers may change only the table carriers; this statement",
            )
            for sql in (
                "DELETE FROM aircraft",
                "UPDATE aircraft SET delay = 1",
                "INSERT INTO aircraft SELECT * FROM aircraft",
                "MERGE INTO aircraft a USING carriers c ON a.delay = c.delay WHEN MATCHED THEN DELETE",
            )
        ),
        ("DELETE FROM carrier", NotFound, "no table named 'carrier'"),
        ("UPDATE carriers SET dely = 1", NotFound, "no column named 'dely'"),
        ("INSERT INTO carriers SELECT * FROM carriers", Refused, "several rows with the same key, such as (carrier="),
        ("UPDATE carriers SET carrier = 'UA'", Refused, "several rows with the same key, such as (carrier='UA')"),
        (
            "INSERT INTO carriers VALUES (NULL, 1, 2, 4)",
            Refused,
            "new rows with null in the key, such as (carrier=None)",
        ),
        ("UPDATE carriers SET carrier = NULL WHERE carrier = 'C1'", Refused, "new rows with null in the key"),
        ("INSERT INTO carriers SELECT * FROM '/etc/passwd'", NotFound, "no table named '/etc/passwd'"),
        ("", Usage, "an edit needs either an SQL statement or rows"),
    ],
)
def test_an_invalid_edit_is_refused_and_leaves_nothing(
    app: FlightsApp, cache: SstCache, sql: str, kind: type[SlackwaterError], said: str
) -> None:
    before = sorted(info.key for info in app.store.list(""))
    with pytest.raises(kind) as refused:
        edited(app, cache, sql)
    assert said in refused.value.message
    assert sorted(info.key for info in app.store.list("")) == before


def test_rows_of_a_file_can_be_inserted(app: FlightsApp, cache: SstCache, tmp_path: Any) -> None:
    before, file = rows(app), tmp_path / "rows.parquet"
    mended = {"UA": (1, 2, 4), "new": (5, 6, 7)}
    names = ("carrier", "flights", "delay", "_squares")
    pq.write_table(
        pa.table(dict(zip(names, zip(*((k, *v) for k, v in mended.items()), strict=True), strict=True))), file
    )

    done = edited(app, cache, source=RowSource(file=str(file)))

    assert rows(app) == before | mended
    assert done.version == head(app).version
    assert edited(app, cache, source=RowSource(file=str(file))).version == 0, "they are there"
    assert not list(app.store.list(f"{app.name}/edits/"))
    pq.write_table(pa.table({"carrier": ["UA"], "flights": ["many"]}), file)
    with pytest.raises(Refused, match="it has no column 'delay'") as refused:
        edited(app, cache, source=RowSource(file=str(file), only_files=True))
    assert "--sql" not in refused.value.hint
    assert f"COPY (SELECT … FROM '{file}') TO" in refused.value.hint


def stored(kind: Kind, schema: pa.Schema, values: dict[Key, Values], due_ms: int | None = None) -> ObjectStore:
    """Return an app `app` whose stage `stage` has a table of this kind with these rows."""
    store = MemoryStore()
    bound = kind.bind([schema], ("k",))
    key = (Column("k", from_arrow(schema.field("k").type)),)
    table = Table(key, tuple(Column(f.name, from_arrow(f.type)) for f in bound.values), 2, state=kind.stored)
    apps.ensure_app(store, AppInfo("app", 1))
    times = EventTime(due_ms=due_ms, next_due_ms=None) if due_ms is not None else None
    ssts = write_version(store, None, table, values, 1)
    commit(store, Manifest("app", "stage", 1, 1, "w", 1_000, "claim", table=table, ssts=ssts, event_time=times))
    return store


def shown(store: ObjectStore, cache: SstCache) -> list[dict[str, Any]]:
    found = history.head(store, "app", "stage")
    assert found is not None
    assert found.table is not None
    side = TableSide(store, cache, found.table, found)
    rows = side.read_newest(found.ssts, 0, values=True)
    return [row for row in rows.to_pylist() if not row["_op"]]


def test_a_mean_can_only_be_edited_together_with_its_sum_and_count(cache: SstCache) -> None:
    schema = pa.schema([("k", pa.string()), ("x", pa.int64())])
    store = stored(aggregate(m=mean("x")), schema, {("a",): (2.0, 4, 2), ("b",): (5.0, 5, 1)})

    def change(sql: str) -> EditDone:
        return edit(store, cache, "app", "stage", sql, sql=sql, by="ada@host")

    with pytest.raises(
        Refused, match=r"in 1 rows, such as \(k='a'\), the edit changes m of stage but not _m_sum, from"
    ):
        change("UPDATE stage SET m = 3 WHERE k = 'a'")
    with pytest.raises(Refused, match="but not _m_sum"):
        change("INSERT INTO stage (k, m) VALUES ('c', 1)")
    change("UPDATE stage SET m = 3, _m_sum = 3, _m_count = 1 WHERE k = 'a'")
    change("INSERT INTO stage VALUES ('c', 1, 1, 1)")
    assert {row["k"]: (row["m"], row["_m_sum"], row["_m_count"]) for row in shown(store, cache)} == {
        "a": (3.0, 3, 1),
        "b": (5.0, 5, 1),
        "c": (1.0, 1, 1),
    }


def test_a_row_with_a_null_key_can_be_edited(cache: SstCache) -> None:
    schema = pa.schema([("k", pa.string()), ("x", pa.int64())])
    store = stored(aggregate(n=largest("x")), schema, {("a",): (1,), (None,): (2,)})
    sql = "UPDATE stage SET n = 3 WHERE k IS NULL"
    edit(store, cache, "app", "stage", sql, sql=sql, by="ada@host")
    assert {row["k"]: row["n"] for row in shown(store, cache)} == {"a": 1, None: 3}


def test_edited_rows_fall_due_like_rows_of_the_program(cache: SstCache) -> None:
    at = datetime(2026, 3, 1, 12, tzinfo=UTC)
    code = UpdateCode(
        lambda rows, state: state, lambda: pa.schema([("n", pa.int64()), ("until", pa.timestamp("us", "UTC"))])
    )
    schema, noon = pa.schema([("k", pa.string())]), round(at.timestamp() * 1000)
    store = stored(Update("until", code=code), schema, {("a",): (1, None, None)}, due_ms=noon)

    sql = "UPDATE stage SET until = TIMESTAMPTZ '2026-03-01 13:00:00Z'"
    edit(store, cache, "app", "stage", sql, sql=sql, by="ada@host")

    (row,) = shown(store, cache)
    assert row["_due_at"] == noon + 3_600_000
    found = history.head(store, "app", "stage")
    assert found is not None
    assert found.event_time is not None
    assert found.event_time.next_due_ms == noon + 3_600_000


def test_an_edit_is_applied_after_a_batch_that_commits_first(cache: SstCache) -> None:
    store = AgingStore()
    app = aging_app(store=store)
    app.run(flights(30))

    def batch() -> None:
        app.send(*flights(10, delay=50))
        app.step_all()

    store.once("put_if_absent", "/carriers/manifests/", batch)
    done = edited(app, cache, MORE)

    assert done.version == app.heads["carriers"].version + 1
    assert rows(app) == by_duckdb(rows_of(store, app.heads["carriers"]), MORE), "of the rows that the batch left"


def test_an_edit_that_the_runner_does_not_apply_in_time_is_reported_and_withdrawn(
    app: FlightsApp, cache: SstCache
) -> None:
    beat = Heartbeat(str(ULID()), "host:1", {"carriers": head(app).epoch})
    HEARTBEATS.put(app.store, beat, app.name)
    with pytest.raises(Refused, match="runner host:1 did not apply the edit of flights/carriers within 0 s"):
        edited(app, cache, MORE, timeout_s=0)
    assert not EDITS.all(app.store, app.name)
