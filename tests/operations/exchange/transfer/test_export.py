"""An app exported as a folder: the folder is complete, and readable without slackwater."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from slackwater.errors import Gone, NotFound, Refused
from slackwater.operations.exchange.export import FolderWritten, export_folder
from slackwater.snapshot.cut.kafka_topics import KafkaTopics
from slackwater.snapshot.cut.resolve import resolve
from slackwater.snapshot.cut.stored import SNAPSHOT_REQUESTS, SnapshotRequest
from slackwater.snapshot.query.sql import connect, run_query
from slackwater.snapshot.take.snapshots import pin_cut
from slackwater.store.objects.local import LocalStore
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.objects.protocol import ObjectStore
from slackwater.store.read.cache import SstCache
from slackwater.store.read.duckdb_view import quote_literal
from slackwater.store.sst.arrow_types import from_arrow
from ulid import ULID

from tests.documents.pages.blocks import blocks
from tests.models.profiles import scaled
from tests.operations.repair.rejected.rejecting import reject
from tests.snapshot.cut.test_ttl_moments import Hourly
from tests.support.histories import STAGES, FlightsApp, Kafka, app_of, copied, flights

NOW_MS = 2_000_000_000_000


@pytest.fixture
def app() -> FlightsApp:
    return running(MemoryStore())


def running(store: ObjectStore) -> FlightsApp:
    """Return an app with deleted keys, merged SSTs, and records in flight on both channels."""
    app = copied(app_of(), store)
    app.compact("aircraft")
    app.delete("carriers", "C1")
    app.send(*flights(10))
    app.step("legs")
    app.step("aircraft")
    app.send(*flights(6))
    app.step("legs")
    return app


def leave(
    app: FlightsApp, cache: SstCache, path: Path, ref: str = "flights", reader: KafkaTopics | None = None
) -> FolderWritten:
    cut = resolve(app.store, ref, now_ms=NOW_MS)
    how = {"by": "ada@host", "now_ms": app.clock.now_ms}
    return export_folder(app.store, cache, cut, ref, path, lambda: reader or app.kafka, **how)  # type: ignore[arg-type]


def test_the_files_have_the_rows_of_a_query_and_open_without_slackwater(
    app: FlightsApp, cache: SstCache, tmp_path: Path
) -> None:
    reject(app, "carriers", [3, 4], tmp_path / "rejecting")
    out = tmp_path / "it's out"
    export = leave(app, cache, out).export
    assert sorted(export.tables) == ["aircraft", "carriers", "carriers_rejected"]
    cut = resolve(app.store, "flights", now_ms=NOW_MS)
    with closing(connect(app.store, cache, cut)) as con:
        for name, table in export.tables.items():
            expected = run_query(con, f"FROM {name} ORDER BY ALL")
            found = duckdb.sql(f"FROM {quote_literal(f'{out}/tables/{name}/*.parquet')} ORDER BY ALL")
            assert found.to_arrow_table().to_pylist() == expected.to_pylist()
            schema = pq.read_schema(out / table.files[0].path)
            assert table.columns == {field.name: from_arrow(field.type) for field in schema}
            assert table.rows == expected.num_rows
    assert export.tables["carriers"].key == ("carrier",)
    on_the_way = pq.read_table(out / "in-flight/by-carrier/part-00000.parquet")
    assert on_the_way.column_names == ["tail", "carrier", "delay", "_partition", "_offset", "_row"]


def test_in_flight_records_kept_by_a_snapshot_are_exported_without_kafka(
    app: FlightsApp, cache: SstCache, tmp_path: Path
) -> None:
    leave(app, cache, tmp_path / "before")
    pin_cut(app.store, resolve(app.store, "flights", now_ms=NOW_MS), "good", reader=app.kafka)
    app.run(flights(10))

    class Away:
        def read(self, _state: object) -> Iterator[pa.Table]:
            raise Gone("nobody is to ask")

    leave(app, cache, tmp_path / "out", "flights@good", Away())
    for path in (path.relative_to(tmp_path / "before") for path in (tmp_path / "before").rglob("*.parquet")):
        assert pq.read_table(tmp_path / "out" / path).equals(pq.read_table(tmp_path / "before" / path)), path
    app.send(*flights(5))
    app.step("legs")
    with pytest.raises(Gone, match="nobody is to ask"):
        leave(app, cache, tmp_path / "late", "flights", Away())
    assert not (tmp_path / "late").exists()


def test_a_table_without_rows_is_a_file_without_rows(cache: SstCache, tmp_path: Path) -> None:
    app = FlightsApp(MemoryStore(), Kafka())
    leave(app, cache, tmp_path / "out")
    assert duckdb.sql(
        f"SELECT count(*), count(carrier) FROM '{tmp_path}/out/tables/carriers/*.parquet'"
    ).fetchall() == [(0, 0)]


def test_an_incomplete_snapshot_cannot_be_exported(app: FlightsApp) -> None:
    SNAPSHOT_REQUESTS.put(app.store, SnapshotRequest(str(ULID()), "half", 1, "ada@host"), "flights")
    with pytest.raises(NotFound) as missing:
        resolve(app.store, "flights@half", now_ms=NOW_MS)
    assert "'half' was requested and is not complete yet" in missing.value.hint


def test_an_impossible_export_is_refused_and_leaves_nothing(app: FlightsApp, cache: SstCache, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    for path, words in (
        (tmp_path / "mine", "already exists"),
        (tmp_path / "none" / "out", "no folder"),
    ):
        with pytest.raises(Refused, match=words):
            leave(app, cache, path)
    store = LocalStore(tmp_path / "store")
    local = running(store)
    with pytest.raises(Refused, match="lies inside the store root"):
        leave(local, cache, tmp_path / "store" / "out")
    assert not (tmp_path / "store" / "out").exists()


def test_a_full_disk_is_reported_and_leaves_nothing(
    app: FlightsApp, cache: SstCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written, write_table = 0, pq.write_table

    def full(*args: object, **how: object) -> None:
        nonlocal written
        written += 1
        if written == 3:
            raise OSError(28, "No space left on device")
        write_table(*args, **how)

    monkeypatch.setattr(pq, "write_table", full)
    before = {each.name for each in tmp_path.iterdir()}
    with pytest.raises(Refused, match="out cannot be written: No space left on device"):
        leave(app, cache, tmp_path / "out")
    assert {each.name for each in tmp_path.iterdir()} == before


def total(folder: Path, key: str, *places: str) -> dict[str, tuple[int, int]]:
    """Return flights and delays by key in these parts of a folder, read by DuckDB."""
    files = {each: [*map(str, (folder / each).glob("*.parquet"))] for each in places}
    count = {"tables": "flights", "in-flight": "1"}
    parts = [
        f"SELECT {key} AS key, {count[place.partition('/')[0]]} AS flights, delay FROM read_parquet({some})"
        for place, some in files.items()
        if some
    ]
    sql = f"SELECT key, sum(flights)::BIGINT, sum(delay)::BIGINT FROM ({' UNION ALL BY NAME '.join(parts)}) GROUP BY 1"
    return {name: (flights, delay) for name, flights, delay in duckdb.sql(sql).fetchall()} if parts else {}


def assert_each_record_counts_once(folder: Path, app: FlightsApp) -> None:
    """Check that each record counts once, in a table or in flight, both by aircraft and by carrier."""
    offsets = json.loads((folder / "export.json").read_text())["stages"]["legs"]["inputs"]["flights"]["offsets"]
    aircraft, carriers = dict[str, tuple[int, int]](), dict[str, tuple[int, int]]()
    for messages, end in zip(app.kafka.topics["flights"], offsets, strict=True):
        for flight in (flight for message in messages[:end] for flight in message.flights):
            for key, totals in ((flight.tail, aircraft), (flight.carrier, carriers)):
                flights, delay = totals.get(key, (0, 0))
                totals[key] = flights + 1, delay + flight.delay
    assert total(folder, "tail", "tables/aircraft", "in-flight/by-aircraft") == aircraft
    on_the_way = "in-flight/by-carrier", "in-flight/by-aircraft"
    assert total(folder, "carrier", "tables/carriers", *on_the_way) == carriers


@scaled(40)
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["send", "compact", "rescale", *STAGES]), st.integers(1, 3)), min_size=3, max_size=25
    ),
    data=st.data(),
)
def test_the_folder_of_any_moment_has_each_record_once(
    steps: list[tuple[str, int]], data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    app, folder = FlightsApp(MemoryStore(), Kafka()), tmp_path_factory.mktemp("law")
    for number, (what, count) in enumerate(steps):
        if what == "send":
            app.send(*flights(count, delay=number))
        elif what == "compact":
            app.compact(STAGES[1 + count % 2])
        elif what == "rescale":
            app.rescale(STAGES[1 + number % 2], count)
        else:
            app.step(what, max_versions=count, max_records=count)
    stage = data.draw(st.sampled_from(STAGES))
    version = data.draw(st.integers(1, app.heads[stage].version))
    leave(app, SstCache(folder / "sst", 1 << 20), folder / "out", f"flights/{stage}@v{version}")
    assert_each_record_counts_once(folder / "out", app)


def test_expired_rows_are_not_exported(cache: SstCache, tmp_path: Path) -> None:
    app = Hourly(cache)
    for rows in ({"a": 1, "b": 1}, {"b": 2}, {"c": 3}):
        app.batch(**rows)
    for version, keys in ((2, "ab"), (3, "ab"), (4, "bc")):
        cut = resolve(app.store, f"app/stage@v{version}", now_ms=NOW_MS)
        out = tmp_path / f"v{version}"
        export_folder(app.store, cache, cut, cut.ref, out, Kafka, by="ada@host", now_ms=NOW_MS)
        found = duckdb.sql(f"SELECT k FROM '{out}/tables/stage/*.parquet' ORDER BY k").fetchall()
        assert "".join(key for (key,) in found) == keys


def test_a_folder_has_what_its_document_promises(app: FlightsApp, cache: SstCache, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    leave(app, cache, folder)
    said = json.loads((folder / "export.json").read_text())
    legs = said["stages"]["legs"]["inputs"]["flights"]
    assert (legs["offsets"], legs["topic"]) == ([*app.heads["legs"].inputs["flights"].offsets], "flights")
    assert (said["app"], said["ref"], said["by"]) == ("flights", "flights", "ada@host")
    assert {name: stage["version"] for name, stage in said["stages"].items()} == {
        stage: head.version for stage, head in app.heads.items()
    }
    files = [file for each in (*said["tables"].values(), *said["in_flight"]) for file in each["files"]]
    for file in files:
        data = (folder / file["path"]).read_bytes()
        assert (file["bytes"], file["sha256"]) == (len(data), hashlib.sha256(data).hexdigest())
        assert file["rows"] == pq.read_metadata(folder / file["path"]).num_rows
    listed = {str(each.relative_to(folder)) for each in folder.rglob("*.*")}
    assert listed == {file["path"] for file in files} | {"export.json"}


def test_the_documentations_code_prints_offsets_and_detects_a_changed_file(
    app: FlightsApp, cache: SstCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave(app, cache, tmp_path / "flights-before-move")
    monkeypatch.chdir(tmp_path)
    (code,) = (block.code for block in blocks("python", "docs/leaving.md") if "hashlib" in block.code)
    names: dict[str, object] = {}
    exec(code, names)  # noqa: S102  it is our own text that is tried
    assert names["offsets"] == {"flights": [*app.heads["legs"].inputs["flights"].offsets]}
    changed = bytearray((file := tmp_path / "flights-before-move/tables/carriers/part-00000.parquet").read_bytes())
    changed[len(changed) // 2] ^= 1
    file.write_bytes(changed)
    with pytest.raises(AssertionError):
        exec(code, {})  # noqa: S102
