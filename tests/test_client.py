"""The Python API, on a store that was written without Spark and Kafka."""

import gc
import html
import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import duckdb
import pytest
import slackwater as sw
from slackwater.client import Client, StoredApp
from slackwater.client.show.document import Block, TableBlock, Title
from slackwater.client.show.shown import Displayable
from slackwater.settings import Settings
from slackwater.snapshot.bisect.verdict import Evaluation
from slackwater.snapshot.take.audit_log import list_operations, record_operation, record_operation_once
from slackwater.snapshot.take.snapshots import delete_snapshot, pin_cut
from slackwater.store.objects.local import LocalStore
from slackwater.store.versions import keys

from .support.histories import START_MS, Clock, Flight, FlightsApp, Kafka, copied, flights

BAD = Flight("N666", "C1", -1_000_000)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> FlightsApp:
    """Return an app that has processed two batches of flights and a batch with a bad flight.

    Afterwards, another flight arrives, which is in flight to `carriers`.
    """
    app = FlightsApp(LocalStore(tmp_path_factory.mktemp("written") / "store"), Kafka(), clock=Clock(START_MS))
    app.run(flights(20))
    app.run([BAD])
    app.send(Flight("N001", "C1", 5))
    app.step("legs")
    app.step("aircraft")
    return app


@pytest.fixture
def history(written: FlightsApp, tmp_path: Path) -> FlightsApp:
    return copied(written, LocalStore(tmp_path / "store"))


def client_of(history: FlightsApp, tmp_path: Path, kafka: Kafka | None = None) -> Client:
    settings = Settings(store=history.store.url, cache=str(tmp_path / "cache"), cache_max_bytes=1 << 20)
    return Client(settings, lambda: kafka)


@pytest.fixture
def client(history: FlightsApp, tmp_path: Path) -> Iterator[Client]:
    with client_of(history, tmp_path, history.kafka) as opened:
        yield opened


@pytest.fixture
def app(client: Client) -> StoredApp:
    return client.app("flights")


def test_open_uses_the_same_settings_as_the_command_line(
    history: FlightsApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SLACKWATER_STORE", raising=False)
    monkeypatch.setenv("SLACKWATER_CACHE", str(tmp_path / "cache"))
    with pytest.raises(sw.errors.Usage, match="no store root is configured"):
        sw.open()
    (tmp_path / "slackwater.toml").write_text('store = "store"\n')
    with sw.open() as found, sw.open(store=str(tmp_path / "store")) as given:
        assert found.root == given.root == history.store.url
        assert found.apps == ("flights",)


@pytest.fixture(scope="module")
def loaded() -> dict[str, set[str]]:
    """Return the modules that a process has loaded after each of these imports, done one after the other."""
    code = (
        "import importlib, json, sys\n"
        "found = {}\n"
        "for name in ('slackwater', 'slackwater.client.status', 'slackwater.client.app'):\n"
        "    importlib.import_module(name)\n"
        "    found[name] = [*sys.modules]\n"
        "print(json.dumps(found))"
    )
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True)
    return {name: set(modules) for name, modules in json.loads(done.stdout).items()}


def test_importing_the_package_loads_no_large_libraries(loaded: dict[str, set[str]]) -> None:
    assert not {"pyarrow", "duckdb", "typer", "boto3"} & loaded["slackwater"]


def test_the_api_loads_no_terminal_libraries(loaded: dict[str, set[str]]) -> None:
    assert not {"pyspark", "typer", "rich"} & loaded["slackwater.client.app"]


def test_opening_a_store_does_not_load_arrow_or_duckdb(tmp_path: Path) -> None:
    code = (
        "import slackwater, sys; slackwater.open(sys.argv[1]); sys.exit(bool({'pyarrow', 'duckdb'} & {*sys.modules}))"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "store")], check=True)


def test_status_does_not_load_arrow_or_duckdb_and_the_app_not_pandas(loaded: dict[str, set[str]]) -> None:
    assert not {"pyarrow", "duckdb", "numpy"} & loaded["slackwater.client.status"]
    assert "pandas" not in loaded["slackwater.client.app"]


def test_the_error_for_an_unknown_app_suggests_the_nearest(client: Client) -> None:
    with pytest.raises(sw.errors.NotFound, match="the nearest: flights"):
        client.app("flihgts")


def test_at_accepts_what_may_follow_the_at_sign_of_a_ref(app: StoredApp, history: FlightsApp) -> None:
    pin_cut(history.store, app.at().cut, "before-deploy", by="ada@host")
    newest = app.at()
    assert newest.versions == app.at("now").versions == app.at("before-deploy").versions == app.at("-5m").versions
    earlier = datetime.fromtimestamp(history.version("carriers", 2).time_ms / 1_000, UTC)
    for same in (app.at(earlier), app.at(earlier.isoformat()), app.at("v2", stage="carriers")):
        assert same.versions["carriers"] == 2
        assert same.time == earlier
    assert app.at("flights/carriers@v2").ref == "flights/carriers@v2"
    assert app.at("~0").ref == "flights@~0"


@pytest.mark.parametrize("text", ["other@now", "other/carriers@v2", "2999-01-01", "v7", "no such thing"])
def test_a_text_that_is_no_moment_of_the_app_is_refused(app: StoredApp, text: str) -> None:
    with pytest.raises(sw.errors.Usage):
        app.at(text)


def test_a_complete_ref_together_with_a_stage_is_refused(app: StoredApp) -> None:
    with pytest.raises(sw.errors.Usage, match="omit one of them"):
        app.at("flights/carriers@v2", stage="aircraft")


def test_a_snapshot_replaced_by_another_of_the_same_name_is_not_verified(app: StoredApp, history: FlightsApp) -> None:
    pin_cut(history.store, app.at().cut, "again", by="ada@host")
    then = app.at("again")
    delete_snapshot(history.store, "flights", "again")
    history.run(flights(10))
    pin_cut(history.store, app.at().cut, "again", by="ada@host")
    with pytest.raises(sw.errors.NotFound, match="taken again at another moment"):
        then.verify()
    assert app.at("again").verify().consistent


def test_a_query_may_name_other_moments_and_many_versions(app: StoredApp) -> None:
    then = app.at("v2", stage="carriers").query("SELECT sum(flights) FROM carriers").fetchall()
    assert app.at().query("SELECT sum(flights) FROM carriers AT 'v2'").fetchall() == then
    versions = app.at().query("SELECT DISTINCT _version FROM versions('carriers', '', 'v3') ORDER BY 1").fetchall()
    assert versions == [(2,), (3,)]


def test_a_moment_is_exported_to_a_file(app: StoredApp, tmp_path: Path) -> None:
    written = app.at("~1").export(tmp_path / "out.duckdb")
    with duckdb.connect(str(written), read_only=True) as file:
        rows = file.sql("FROM carriers ORDER BY ALL").fetchall()
        assert file.sql("SELECT DISTINCT ref FROM _slackwater").fetchall() == [("flights@~1",)]
    assert rows == app.at("~1").query("FROM carriers ORDER BY ALL").fetchall()
    with pytest.raises(sw.errors.Refused, match="already exists"):
        app.at().export(str(written))
    assert app.at().export(str(written), force=True) == written


def test_a_relation_cannot_be_used_to_write_a_file(app: StoredApp, tmp_path: Path) -> None:
    relation = app.at().query("FROM carriers")
    with pytest.raises(duckdb.Error):
        relation.query("rows", f"COPY rows TO '{tmp_path / 'rows.csv'}'")
    assert not (tmp_path / "rows.csv").exists()


def test_clients_that_share_a_cache_are_closed_together(client: Client, tmp_path: Path) -> None:
    other = client.at_root(str(tmp_path / "other"))
    client.close()
    with pytest.raises(sw.errors.Usage, match="closed"):
        _ = other.apps


def test_a_damaged_older_entry_of_the_log_does_not_stop_a_verb(app: StoredApp, history: FlightsApp) -> None:
    old = record_operation(history.store, "flights", "clone", "x", "ada@host")
    history.store.put(keys.json_object(keys.operations("flights"), old.id), b"{")
    record_operation_once(history.store, "flights", "snapshot rm", "y", "ada@host", since_ms=old.time_ms + 1)
    with pytest.raises(sw.errors.Corruption):
        list_operations(history.store, "flights")


def test_a_moment_stays_the_same_while_the_app_commits(app: StoredApp, history: FlightsApp) -> None:
    then = app.at()
    before = then.query("SELECT sum(flights) AS n FROM carriers").fetchall()
    history.run(flights(10))
    assert then.query("SELECT sum(flights) AS n FROM carriers").fetchall() == before
    assert app.at().versions != then.versions


def test_the_tables_of_a_moment_list_the_visible_columns(app: StoredApp) -> None:
    tables = app.at().tables
    assert list(tables) == ["aircraft", "carriers"]
    assert [(each.name, each.type, each.key) for each in tables["carriers"]] == [
        ("carrier", "string", True),
        ("flights", "int64", False),
        ("delay", "int64", False),
    ]
    assert "carriers" in repr(tables)


def test_a_query_returns_a_relation_with_all_of_duckdbs_methods(app: StoredApp) -> None:
    found = app.at().query("SELECT carrier, flights FROM carriers ORDER BY carrier")
    rows = found.fetchall()
    assert rows
    assert list(found.df().itertuples(index=False, name=None)) == rows
    assert found.arrow().read_all().column("carrier").to_pylist() == [carrier for carrier, _ in rows]
    assert found.filter("flights > 1000000").fetchall() == []


def test_a_relation_is_usable_after_its_moment_and_client_are_gone(app: StoredApp, client: Client) -> None:
    found = app.at().query("FROM carriers").order("carrier").limit(1)
    client.close()
    gc.collect()
    assert found.fetchall()[0][0] == "C0"


@pytest.mark.parametrize(
    "sql",
    ["DROP TABLE carriers", "CREATE TABLE t AS FROM carriers", "COPY carriers TO 'out.csv'", "SELECT 1; SELECT 2"],
)
def test_a_query_can_only_read(app: StoredApp, sql: str) -> None:
    with pytest.raises(sw.errors.Usage):
        app.at().query(sql)


def test_no_method_of_a_relation_changes_the_store(app: StoredApp, history: FlightsApp) -> None:
    before = {info.key: history.store.get(info.key) for info in history.store.list("")}
    found = app.at().query("FROM carriers")
    found.create("carriers")
    found.to_view("aircraft")
    assert {info.key: history.store.get(info.key) for info in history.store.list("")} == before
    assert app.at().query("FROM carriers").fetchall() == found.fetchall()


def test_the_error_for_a_misspelled_table_suggests_the_nearest(app: StoredApp) -> None:
    with pytest.raises(sw.errors.NotFound, match="the nearest: carriers"):
        app.at().query("FROM carrier")


def test_get_gives_the_row_of_a_key_or_none(app: StoredApp) -> None:
    now = app.at()
    assert now.get("carriers", "C0") == dict(
        zip(("carrier", "flights", "delay"), now.query("FROM carriers WHERE carrier = 'C0'").fetchall()[0], strict=True)
    )
    assert now.get("carriers", ("C0",)) == now.get("carriers", "C0")
    assert now.get("carriers", "nobody") is None
    assert now.get("carriers", None) is None
    with pytest.raises(sw.errors.Usage, match="carrier"):
        now.get("carriers", 17)
    with pytest.raises(sw.errors.Usage, match="found 2 values"):
        now.get("carriers", ("C0", "C1"))
    with pytest.raises(sw.errors.NotFound, match="the nearest: carriers"):
        now.get("carrier", "C0")


def test_records_in_flight_are_rows(app: StoredApp) -> None:
    now = app.at()
    assert now.inflight("by-carrier").select("tail", "_receiver").fetchall() == [("N001", "carriers")]
    assert now.query("SELECT tail FROM inflight('by-carrier')").fetchall() == [("N001",)]
    assert now.inflight("by-aircraft").fetchall() == []
    with pytest.raises(sw.errors.NotFound, match="the nearest: by-carrier"):
        now.inflight("by-carriers")


def test_records_in_flight_that_only_kafka_has_require_its_address(history: FlightsApp, tmp_path: Path) -> None:
    with (
        client_of(history, tmp_path) as client,
        pytest.raises(sw.errors.Usage, match="no Kafka is configured"),
    ):
        client.app("flights").at().inflight("by-carrier")


def test_a_moment_is_verified_unchanged_and_damage_is_found(app: StoredApp, history: FlightsApp) -> None:
    now = app.at()
    history.run(flights(10))
    found = now.verify()
    assert found.consistent
    assert found.report.versions == now.versions
    assert "is consistent" in repr(found)
    sst = history.version("carriers", now.versions["carriers"]).ssts[0]
    history.store.delete(sst.object)
    damaged = now.verify()
    assert not damaged.consistent
    assert [each.subject for each in damaged.differences] == [sst.object]
    assert sst.object in damaged._repr_html_()


def test_a_snapshot_is_verified_with_its_kept_records(app: StoredApp) -> None:
    kept = app.snapshot("kept", instant=True)
    found = kept.verify(deep=True)
    assert found.consistent
    assert found.report.snapshot == "kept"


def test_the_log_lists_commits_newest_first(app: StoredApp) -> None:
    log = app.log(5)
    assert len(log) == 5
    assert [each.time_ms for each in log] == sorted((each.time_ms for each in log), reverse=True)
    assert {each.stage for each in app.log(stage="legs")} == {"legs"}
    assert log[0].stage in repr(log)


def test_a_snapshot_is_taken_once_and_recorded_in_the_apps_log(app: StoredApp, history: FlightsApp) -> None:
    taken = app.snapshot("before-deploy", instant=True)
    assert taken.ref == "flights@before-deploy"
    assert app.snapshot("before-deploy", instant=True).versions == taken.versions
    assert [each.name for each in app.snapshots] == ["before-deploy"]
    assert [(each.verb, each.detail) for each in list_operations(history.store, "flights")] == [
        ("snapshot take", "before-deploy")
    ]


def test_a_snapshot_waits_for_a_running_app(app: StoredApp, history: FlightsApp) -> None:
    done = threading.Event()

    def run() -> None:
        while not done.wait(0.01):
            history.step_all()

    running = threading.Thread(target=run)
    running.start()
    try:
        taken = app.snapshot("while-running", timeout_s=60)
    finally:
        done.set()
        running.join()
    assert taken.versions.keys() == {"legs", "aircraft", "carriers"}
    assert [each.kind for each in app.snapshots] == ["markers"]


def test_the_error_for_an_app_that_does_not_answer_names_it_and_the_request_is_withdrawn(app: StoredApp) -> None:
    last_commit = r"legs \(last commit 20\S+Z \(\d+ \w+ ago\)\)"
    with pytest.raises(sw.errors.Unavailable, match=f"no answer from .*{last_commit}"):
        app.snapshot("in-vain", timeout_s=0.2)
    assert app.snapshots == ()


def test_bisect_gives_the_moments_on_both_sides_of_the_bad_commit(app: StoredApp) -> None:
    where = "SELECT carrier FROM carriers WHERE delay < 0"
    told: list[Evaluation] = []
    found = app.bisect(where=where, on_step=told.append)
    assert found.stage == "carriers"
    assert found.good is not None
    assert found.good.query(where).fetchall() == []
    assert found.bad.query(where).fetchall() == found.rows.fetchall() == [("C1",)]
    assert found.keys is not None
    assert found.keys.select("carrier", "change").fetchall() == [("C1", "changed")]
    assert [str(window) for window in found.windows] == ["flights[0] 8..9"]
    assert tuple(told) == found.verdict.steps
    assert "is the first bad commit of flights" in repr(found)
    assert "C1" in found._repr_html_()


def test_bisect_takes_conditions_functions_and_commands(app: StoredApp, tmp_path: Path) -> None:
    def holds(con: duckdb.DuckDBPyConnection) -> bool:
        return not con.sql("FROM carriers WHERE delay < 0").fetchall()

    found = app.bisect(where="FROM carriers WHERE delay < 0")
    for again in (
        app.bisect(check="delay >= 0", table="carriers"),
        app.bisect(python=holds),
        app.bisect(run=f"case $SLACKWATER_REF in '{found.bad.ref}') exit 1;; *) exit 0;; esac", bad=found.bad.ref),
    ):
        assert (again.stage, again.version) == (found.stage, found.version)
    assert found.verdict.flips is not None
    assert [flip.ref for flip in found.verdict.flips.flips] == [found.bad.ref]
    for wrong in ({}, {"where": "FROM carriers", "python": holds}):
        with pytest.raises(sw.errors.Usage, match="give exactly one of"):
            app.bisect(**wrong)


def test_bisect_accepts_moments_like_at(app: StoredApp) -> None:
    with pytest.raises(sw.errors.Refused, match="returns rows already at flights@now"):
        app.bisect(where="FROM carriers", good="now")


def test_diff_has_the_differing_rows_of_each_table(app: StoredApp) -> None:
    before = app.bisect(where="SELECT carrier FROM carriers WHERE delay < 0").good
    assert before is not None
    found = app.diff(before.ref)
    assert list(found) == ["aircraft", "carriers"]
    assert not found.equal
    (row,) = found["carriers"].rows.filter("carrier = 'C1'").fetchall()
    assert row[1] == "changed"
    assert found["carriers"].full_diff.changed == 1
    assert app.diff("now").equal
    assert before.diff(before).equal


def test_diff_compares_an_app_with_its_clone(app: StoredApp, tmp_path: Path) -> None:
    for staging in (app.clone("staging"), app.clone("far", store=str(tmp_path / "other"))):
        assert app.diff("now", staging.at()).equal
        assert app.diff("~1", staging.at(), table="carriers").equal == app.diff("~1", table="carriers").equal
    with pytest.raises(sw.errors.NotFound, match="carriers"):
        app.diff("~1", table="carrier")


def test_history_has_the_changes_of_a_key(app: StoredApp) -> None:
    found = app.history("carriers", "C1")
    assert [each.before for each in found[:-1]] == [each.after for each in found[1:]]
    assert (found[-1].kind, found[-1].before) == ("added", None)
    assert found[0].after == {
        name: each for name, each in (app.at().get("carriers", "C1") or {}).items() if name != "carrier"
    }
    assert len(app.history("carriers", "C1", limit=1)) == 1
    assert len(app.history("carriers", "XX")) == 0
    with pytest.raises(sw.errors.NotFound):
        app.history("carrier", "C1")


def test_a_clone_is_an_independent_app(app: StoredApp, client: Client, history: FlightsApp) -> None:
    staging = app.clone("flights-staging", topics={"flights": "flights"})
    assert client.apps == ("flights", "flights-staging")
    sql = "FROM carriers ORDER BY carrier"
    assert staging.at().query(sql).fetchall() == app.at().query(sql).fetchall()
    assert [each.verb for each in list_operations(history.store, "flights-staging")] == ["clone"]
    assert [each.kind for each in app.snapshots] == ["clone"]


def test_a_clone_may_be_in_another_store(app: StoredApp, client: Client, tmp_path: Path) -> None:
    there = app.clone("staging", store=str(tmp_path / "elsewhere"))
    assert client.apps == ("flights",)
    assert there.at().query("FROM carriers").fetchall()


def test_a_clone_has_an_owner_a_reason_and_an_expiry_time(app: StoredApp, client: Client, tmp_path: Path) -> None:
    app.clone("staging", owner="ada", reason="a try", ttl="3d")
    app.clone("copy", store=str(tmp_path / "elsewhere"), deep=True)
    (found,) = client.clones("flights").data["clones"]
    assert (found["name"], found["owner"], found["reason"]) == ("staging", "ada", "a try")
    assert found["expires_ms"] - found["created_ms"] == 3 * 24 * 3_600_000
    assert "staging" in repr(client.clones())
    assert client.remove_expired().data == {"removed": [], "left": {}, "promoted": {}, "dry_run": False}
    with pytest.raises(sw.errors.Usage, match="ttl 'soon' is not a span of time"):
        app.clone("other", ttl="soon")
    assert "would recreate staging" in repr(client.app("staging").refresh(dry_run=True, fence=True))
    assert "would remove staging" in repr(client.app("staging").remove_clone(dry_run=True, fence=True))
    with pytest.raises(sw.errors.Refused, match="'flights' is not a clone"):
        app.remove_clone()


def test_a_clone_requires_the_address_of_kafka(history: FlightsApp, tmp_path: Path) -> None:
    with (
        client_of(history, tmp_path) as client,
        pytest.raises(sw.errors.Usage, match="no Kafka configured"),
    ):
        client.app("flights").clone("staging")


def test_a_closed_client_raises_an_error_that_says_so(client: Client, app: StoredApp) -> None:
    now = app.at()
    client.close()
    client.close()
    for ask in (lambda: client.apps, app.at, lambda: now.query("FROM carriers")):
        with pytest.raises(sw.errors.Usage, match="this client is closed"):
            ask()


def test_threads_may_share_a_client(app: StoredApp) -> None:
    now = app.at()
    expected = now.query("FROM carriers ORDER BY carrier").fetchall()
    found: list[object] = []

    def ask() -> None:
        for _ in range(2):
            found.append(now.query("FROM carriers ORDER BY carrier").fetchall())
            found.append(app.at().query("FROM carriers ORDER BY carrier").fetchall())

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 12


class Hostile(Displayable):
    """A value with the given text in all its parts."""

    def __init__(self, text: str) -> None:
        self.text = text

    def _blocks(self) -> tuple[Block, ...]:
        return Title(self.text), TableBlock.from_rows((self.text,), ((self.text,),)), self.text


@pytest.mark.parametrize("text", ["<script>alert(1)</script>", '"><img src=x onerror=a>', "a\x1b[2Jb", "a\u202eb"])
def test_any_text_in_a_value_is_escaped(text: str) -> None:
    value = Hostile(text)
    assert not re.findall(r"<script|<img|[\x1b\u202e]", value._repr_html_())
    assert not re.findall(r"[\x1b\u202e]", repr(value))


def test_hostile_values_of_an_app_are_escaped_in_a_notebook(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>"
    history = FlightsApp(LocalStore(tmp_path / "store"), Kafka(), clock=Clock(START_MS))
    history.run(flights(5))
    history.run([Flight("N666", evil, -1_000_000)])
    with client_of(history, tmp_path) as client:
        app = client.app("flights")
        found = app.bisect(where="SELECT carrier FROM carriers WHERE delay < 0")
        assert evil not in found._repr_html_()
        assert "&lt;script&gt;" in found._repr_html_()


def test_every_value_has_a_readable_form_as_text_and_in_a_notebook(client: Client, app: StoredApp) -> None:
    now = app.at()
    changed, key = app.diff("~2"), app.history("carriers", "C1")
    for value in (client, app, now, now.tables, now.verify(), app.log(), changed, changed["carriers"], key):
        title = repr(value).splitlines()[0]
        assert "object at 0x" not in title
        assert value._repr_html_().startswith(f"<div><b>{html.escape(title)}</b>")
