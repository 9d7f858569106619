"""Rows of Delta and Iceberg tables as records: those that the tables' own readers return, version by version."""

import json
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import slackwater as sw
from deltalake import DeltaTable, write_deltalake
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.types import StringType
from pyiceberg.utils.config import Config
from slackwater.errors import Gone, NotFound, Refused, Unavailable, Usage
from slackwater.pipeline.api.topic import Topic
from slackwater.pipeline.kafka.sources.topics import ListedSource
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.objects.open import open_store
from slackwater.store.objects.wrapper import StoreWrapper

from tests.pipeline.kafka.sources.reading import OpenSource
from tests.store.objects.faulty_store import FaultyStore

Open = Callable[[Topic], OpenSource]
FEED = {"delta.enableChangeDataFeed": "true"}


def rows(*numbers: int, day: str = "x") -> pa.Table:
    return pa.table({"n": pa.array(numbers, pa.int64()), "day": pa.array([day] * len(numbers), pa.string())})


def as_bag(found: Sequence[dict[str, Any]]) -> Counter[tuple[tuple[str, Any], ...]]:
    return Counter(tuple(sorted((name, value) for name, value in row.items() if value is not None)) for row in found)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=5, deadline=None)
@given(st.lists(st.sampled_from(["append", "partition", "compact", "checkpoint", "read", "reopen"]), max_size=10))
def test_rows_of_a_delta_table_are_those_of_its_own_reader(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str]
) -> None:
    folder, count = tmp_path_factory.mktemp("delta"), 2
    write_deltalake(folder / "t", rows(0, 1), partition_by=["day"])
    topic, store = sw.read_delta(str(folder / "t")), folder / "store"
    source, stable = OpenSource(topic, store), dict[int, bytes]()
    for step in steps:
        if step in ("append", "partition"):
            day = f"é {count}" if step == "partition" else "x"
            write_deltalake(folder / "t", rows(count, count + 1, day=day), mode="append")
            count += 2
        elif step == "compact":
            DeltaTable(folder / "t").optimize.compact()
        elif step == "checkpoint":
            DeltaTable(folder / "t").create_checkpoint()
        elif step == "reopen":
            source = OpenSource(topic, store)
        else:
            now = source.values()
            assert {offset: now[offset] for offset in stable} == stable
            stable = now
    assert as_bag(source.rows()) == as_bag(DeltaTable(folder / "t").to_pyarrow_table().to_pylist())


def test_changes_of_a_delta_table_are_those_of_its_change_feed(tmp_path: Path, opened: Open) -> None:
    table = tmp_path / "t"
    write_deltalake(table, rows(1, 2, 3), partition_by=["day"], configuration=FEED)
    source = opened(sw.read_delta(str(table), read_change_feed=True, starting_version=0))
    write_deltalake(table, rows(4, 5, day="y"), mode="append")
    DeltaTable(table).update({"n": "n + 10"}, predicate="n = 2")
    DeltaTable(table).delete("n = 3")
    DeltaTable(table).delete("day = 'y'")
    DeltaTable(table).optimize.compact()
    DeltaTable(table).merge(
        rows(1, 9), "t.n = s.n", source_alias="s", target_alias="t"
    ).when_matched_update_all().when_not_matched_insert_all().execute()
    feed = pa.table(DeltaTable(table).load_cdf(starting_version=0).read_all()).to_pylist()
    expected = [{**row, "_commit_timestamp": None} for row in feed]
    found = [{**row, "_commit_timestamp": None} for row in source.rows()]
    assert as_bag(found) == as_bag(expected)
    assert [row["_commit_version"] for row in found] == sorted(row["_commit_version"] for row in found)


def test_a_change_ends_the_reading_of_new_rows_unless_an_option_passes_over_it(tmp_path: Path, opened: Open) -> None:
    table = tmp_path / "t"
    write_deltalake(table, rows(1, 2))
    plain, deletes, changes = (
        opened(sw.read_delta(str(table), name=name, **options))
        for name, options in (
            ("plain", {}),
            ("deletes", {"ignore_deletes": True}),
            ("changes", {"skip_change_commits": True}),
        )
    )
    DeltaTable(table).delete()
    write_deltalake(table, rows(3), mode="append")
    with pytest.raises(Refused, match=rf"Delta table {table}: version 1 \(DELETE\) removes or changes rows"):
        assert plain.end
    assert [row["n"] for row in deletes.rows()] == [1, 2, 3]
    DeltaTable(table).update({"n": "4"})
    with pytest.raises(Refused, match=r"version 3 \(UPDATE\) removes or changes rows"):
        assert deletes.end
    write_deltalake(table, rows(5), mode="append")
    # Version 3 rewrote the row; like Delta's own option, this one passes over its new value, too.
    DeltaTable(table).vacuum(0, dry_run=False, enforce_retention_duration=False)
    assert changes.end == 4
    with pytest.raises(Gone, match=rf"Delta table {table} version 0: file://{table}/part.* does not exist any more"):
        changes.messages(0, 1)
    assert changes.values(3, 4) == {3: b'{"n":5,"day":"x"}'}
    assert changes.place(3).startswith(f"Delta table {table} version 4, row 1 of part-")


def test_a_version_that_the_log_has_lost_is_named(tmp_path: Path, opened: Open) -> None:
    table = tmp_path / "t"
    write_deltalake(table, rows(1))
    topic = sw.read_delta(str(table))
    assert opened(topic).end == 1
    for number in (2, 3):
        write_deltalake(table, rows(number), mode="append")
    DeltaTable(table).create_checkpoint()
    (table / f"_delta_log/{1:020}.json").unlink()
    (table / f"_delta_log/{0:020}.json").unlink()
    with pytest.raises(Gone, match="its log no longer has version 1, the next to read"):
        opened(topic)
    assert [row["n"] for row in opened(sw.read_delta(str(table), name="anew")).rows()] == [1, 2, 3]


def test_tables_that_cannot_be_read_are_refused(tmp_path: Path, opened: Open) -> None:
    with pytest.raises(NotFound, match="no Delta table named"):
        opened(sw.read_delta(str(tmp_path / "none")))
    table = tmp_path / "t"
    write_deltalake(table, rows(1))
    with pytest.raises(Refused, match="has no change feed"):
        opened(sw.read_delta(str(table), read_change_feed=True))
    log = table / f"_delta_log/{0:020}.json"
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    for action in actions:
        if "add" in action:
            action["add"]["deletionVector"] = {"storageType": "u", "pathOrInlineDv": "x", "sizeInBytes": 1}
    log.write_text("\n".join(map(json.dumps, actions)))
    with pytest.raises(Refused, match="version 0 has a file with a deletion vector"):
        opened(sw.read_delta(str(table), name="vectors"))


def test_partition_values_keep_their_types(tmp_path: Path, opened: Open) -> None:
    table = tmp_path / "t"
    columns = {
        "n": pa.array([1, None], pa.int32()),
        "price": pa.array([1.5, None], pa.float64()),
        "even": pa.array([True, None]),
        "day": pa.array([20_000, None], pa.date32()),
        "text": pa.array(["a b=é/%", None]),
    }
    write_deltalake(table, pa.table({**columns, "v": [1, 2]}), partition_by=list(columns))
    found = sorted(opened(sw.read_delta(str(table))).rows(), key=lambda row: row["v"])
    assert found == [{"n": 1, "price": 1.5, "even": True, "day": "2024-10-04", "text": "a b=é/%", "v": 1}, {"v": 2}]


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Catalog:
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/lake"}
    catalog = load_catalog("lake", **properties)
    monkeypatch.setattr("slackwater.pipeline.kafka.sources.iceberg.load_catalog", lambda name: catalog)
    catalog.create_namespace("n")
    return catalog


def test_rows_of_an_iceberg_table_are_those_of_its_own_reader(lake: Catalog, tmp_path: Path, opened: Open) -> None:
    topic = sw.read_iceberg("lake.n.t")
    with pytest.raises(NotFound, match="no Iceberg table named"):
        opened(topic)
    table = lake.create_table("n.t", rows().schema)
    source = opened(topic)
    assert source.end == 0
    for number in range(0, 6, 2):
        table.append(rows(number, number + 1))
    stable = source.values()
    assert as_bag(source.rows()) == as_bag(table.scan().to_arrow().to_pylist())
    with table.update_schema() as update:
        update.union_by_name(pa.schema([("more", pa.string())]))
    table.append(rows(6).append_column("more", pa.array(["é"])))
    again = opened(topic)
    assert as_bag(again.rows()) == as_bag(table.scan().to_arrow().to_pylist())
    assert {offset: again.values()[offset] for offset in stable} == stable
    snapshot = table.refresh().current_snapshot()
    assert snapshot is not None
    assert again.place(6).startswith(f"Iceberg table lake.n.t snapshot {snapshot.snapshot_id}, row 1 of file://")
    (message,) = again.messages(6, 7)
    assert message.timestamp()[1] == snapshot.timestamp_ms


def test_a_change_of_an_iceberg_table_ends_the_reading_unless_an_option_passes_over_it(
    lake: Catalog, opened: Open
) -> None:
    table = lake.create_table("n.t", rows().schema)
    table.append(rows(1, 2))
    plain, deletes = (
        opened(sw.read_iceberg("lake.n.t")),
        opened(sw.read_iceberg("lake.n.t", name="deletes", ignore_deletes=True)),
    )
    table.delete("n < 5")
    table.append(rows(3))
    with pytest.raises(Refused, match=r"snapshot [0-9]+ \(delete\) removes or changes rows"):
        assert plain.end
    assert [row["n"] for row in deletes.rows()] == [1, 2, 3]
    assert [row["n"] for row in opened(sw.read_iceberg("lake.n.t", name="anew")).rows()] == [3]


def test_a_snapshot_that_expired_and_a_file_that_is_gone_are_named(lake: Catalog, tmp_path: Path, opened: Open) -> None:
    table = lake.create_table("n.t", rows().schema)
    table.append(rows(1))
    source = opened(sw.read_iceberg("lake.n.t"))
    table.append(rows(2))
    table.append(rows(3))
    first = table.metadata.snapshots[0].snapshot_id
    table.maintenance.expire_snapshots().by_id(first).commit()
    with table.manage_snapshots() as manage:
        manage.rollback_to_snapshot(table.refresh().metadata.snapshots[-1].snapshot_id)
    table.maintenance.expire_snapshots().by_id(table.refresh().metadata.snapshots[0].snapshot_id).commit()
    with pytest.raises(Gone, match=f"snapshot {first}, the newest that was read, has expired or was rolled back"):
        assert source.end
    shutil.rmtree(tmp_path / "lake/n/t/data")
    with pytest.raises(Gone, match=rf"Iceberg table lake.n.t snapshot {first}: file://.*parquet does not exist any"):
        source.messages(0, 1)


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_no_row_is_lost_or_read_twice_if_requests_fail_and_processes_end(
    kind: str, lake: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files are added to the list one by one if they may be: those of a version still come together."""
    monkeypatch.setattr("slackwater.pipeline.kafka.sources.topics._FILES_AT_ONCE", 1)
    inner, table = MemoryStore(), tmp_path / "t"
    days = pa.concat_tables([rows(n, day=f"d{n}") for n in range(3)])
    if kind == "delta":
        write_deltalake(table, days, partition_by=["day"])
        topic = sw.read_delta(str(table))
    else:
        iceberg = lake.create_table("n.t", days.schema)
        with iceberg.update_spec() as spec:
            spec.add_identity("day")
        iceberg.append(days)
        topic = sw.read_iceberg("lake.n.t")
    for round_number in range(6):
        store = FaultyStore(inner, round_number, refused=0.3, lost=0.2)
        with suppress(Unavailable):
            assert OpenSource(topic, store).end
        if kind == "delta":
            write_deltalake(table, days, mode="append", partition_by=["day"])
        else:
            iceberg.append(days)
    source = OpenSource(topic, inner)
    expected = DeltaTable(table).to_pyarrow_table() if kind == "delta" else iceberg.scan().to_arrow()
    assert as_bag(source.rows()) == as_bag(expected.to_pylist())


@pytest.mark.parametrize("kind", ["files", "delta", "iceberg"])
def test_stages_of_one_process_read_each_row_once(kind: str, lake: Catalog, tmp_path: Path) -> None:
    """Their planners are threads, and share the list of the files."""
    store, count, folder = MemoryStore(), 0, tmp_path / "t"
    if kind == "iceberg":
        lake.create_table("n.t", rows().schema)

    def add(number: int) -> None:
        if kind == "files":
            folder.mkdir(exist_ok=True)
            (folder / f".{number}").write_text(f'{{"n": {number}}}\n')
            (folder / f".{number}").rename(folder / f"{number}.jsonl")
        elif kind == "delta":
            write_deltalake(folder, rows(number), mode="append")
        else:
            lake.load_table("n.t").append(rows(number))

    add(count)
    topic = {
        "files": lambda: sw.read_files(str(folder)),
        "delta": lambda: sw.read_delta(str(folder)),
        "iceberg": lambda: sw.read_iceberg("lake.n.t"),
    }[kind]()
    planners = [ListedSource(store, OpenSource(topic, store).kafka._source(topic.name).source) for _ in range(3)]
    with ThreadPoolExecutor(len(planners)) as threads:
        for at_once in (False, True, True, False, True):
            count += 1
            add(count)
            done = threads.map(lambda planner: planner.find_new(None), planners)
            if not at_once:
                done = iter([planner.find_new(None) for planner in planners])
            list(done)
    assert sorted(row["n"] for row in OpenSource(topic, store).rows()) == list(range(count + 1))


@pytest.mark.parametrize("is_written", [False, True])
def test_a_version_stays_new_until_it_is_in_the_list(is_written: bool, tmp_path: Path) -> None:
    class SilentOnce(StoreWrapper):
        """A store that does not answer one write."""

        is_silent = False

        def put_if_absent(self, key: str, data: bytes) -> None:
            if not self.is_silent:
                super().put_if_absent(key, data)
                return
            self.is_silent = False
            if is_written:
                super().put_if_absent(key, data)
            raise Unavailable("no answer")

    write_deltalake(tmp_path / "t", rows(0))
    store = SilentOnce(MemoryStore())
    source = OpenSource(sw.read_delta(str(tmp_path / "t")), store)
    for number in (1, 2):
        write_deltalake(tmp_path / "t", rows(number), mode="append")
        store.is_silent = number == 1
        with suppress(Unavailable):
            assert source.end
    assert [row["n"] for row in source.rows()] == [0, 1, 2]


def test_versions_before_a_change_are_read_before_it_ends_the_run(tmp_path: Path, opened: Open) -> None:
    table = tmp_path / "t"
    write_deltalake(table, rows(1))
    source = opened(sw.read_delta(str(table)))
    write_deltalake(table, rows(2), mode="append")
    DeltaTable(table).update({"n": "7"})
    for _ in range(2):
        with pytest.raises(Refused, match=r"version 2 \(UPDATE\)"):
            assert source.end
    assert source.kafka.topic_state(source.topic).ends == (2,)
    for option in ("ignore_deletes", "skip_change_commits"):
        with pytest.raises(Refused, match=f"has {option}=True in the program, but was read with {option}=False"):
            opened(sw.read_delta(str(table), **{option: True}))
    passing = opened(sw.read_delta(str(table), name="passing", starting_version=2, skip_change_commits=True))
    write_deltalake(table, rows(3), mode="append")
    assert passing.values() == {0: b'{"n":3,"day":"x"}'}


@pytest.mark.parametrize("prefix", ["", "file:", "file://"])
def test_files_of_a_table_at_any_address_are_read(prefix: str, tmp_path: Path, opened: Open) -> None:
    """A shallow clone has the files of another table. Their addresses are encoded once, as the names are once more."""
    table, log = tmp_path / "a b", tmp_path / f"a b/_delta_log/{0:020}.json"
    write_deltalake(table, rows(1, day="x y%/#?é"), partition_by=["day"])
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    for action in actions:
        if "add" in action:
            action["add"]["path"] = f"{prefix}{quote(str(table))}/{action['add']['path']}"
    log.write_text("\n".join(map(json.dumps, actions)))
    source = opened(sw.read_delta(str(table), name="t"))
    assert source.rows() == [{"n": 1, "day": "x y%/#?é"}]
    assert f" of {prefix}{table}/day=" in source.place(0)


def test_a_table_that_was_created_again_is_another(tmp_path: Path, opened: Open) -> None:
    table = tmp_path / "t"
    topic = sw.read_delta(str(table))
    write_deltalake(table, rows(0))
    running = opened(topic)
    write_deltalake(table, rows(1), mode="append")
    assert running.end == 2
    shutil.rmtree(table)
    for number in range(100, 103):
        write_deltalake(table, rows(number), mode="append")
        with pytest.raises(Gone, match="was removed and created again"):
            opened(topic)
    with pytest.raises(Gone, match="was removed and created again"):
        assert running.end


def test_logs_with_odd_files_are_read_or_refused(tmp_path: Path, opened: Open) -> None:
    table, log = tmp_path / "t", tmp_path / "t/_delta_log"
    for number in range(4):
        write_deltalake(table, rows(number), mode="append")
    commit = log / f"{1:020}.json"
    commit.write_text(f"\n{commit.read_text()}\n\n")
    assert [row["n"] for row in opened(sw.read_delta(str(table), name="blank")).rows()] == [0, 1, 2, 3]
    kept = (log / f"{2:020}.json").rename(tmp_path / "kept")
    with pytest.raises(Refused, match="its log lacks version 2, and has no later checkpoint"):
        opened(sw.read_delta(str(table), name="gap"))
    kept.rename(log / f"{2:020}.json")
    DeltaTable(table).create_checkpoint()
    whole = log / f"{3:020}.checkpoint.parquet"
    shutil.copy(whole, log / f"{3:020}.checkpoint.0000000001.0000000001.parquet")
    shutil.rmtree(log / "_sidecars", ignore_errors=True)
    assert [row["n"] for row in opened(sw.read_delta(str(table), name="both")).rows()] == [0, 1, 2, 3]
    (log / f"{3:020}.checkpoint.0000000001.0000000001.parquet").unlink()
    actions = pq.read_table(whole)
    sidecar = {"path": "x.parquet", "sizeInBytes": 1, "modificationTime": 0}
    more = [*actions.to_pylist(), {"sidecar": sidecar}]
    pq.write_table(pa.Table.from_pylist(more, actions.schema), whole)
    with pytest.raises(Refused, match="its checkpoint has sidecar files"):
        opened(sw.read_delta(str(table), name="sidecars"))


def test_columns_of_an_iceberg_table_are_known_by_their_ids(lake: Catalog, opened: Open) -> None:
    """The oracle is the table's own reader, for each snapshot as of its time."""
    table = lake.create_table("n.t", pa.schema([("n", pa.int64()), ("old", pa.string()), ("x", pa.string())]))
    table.append(pa.table({"n": [1], "old": ["a"], "x": ["removed"]}))
    followed = opened(sw.read_iceberg("lake.n.t", name="followed"))
    first = table.scan().to_arrow().to_pylist()
    with table.update_schema() as update:
        update.rename_column("old", "new").delete_column("x")
    with table.update_schema() as update:
        update.add_column("x", StringType())
    table.append(pa.table({"n": [2], "new": ["b"], "x": ["added"]}))
    found = opened(sw.read_iceberg("lake.n.t")).rows()
    assert as_bag(found) == as_bag(table.scan().to_arrow().to_pylist())
    assert as_bag(followed.rows()) == as_bag([*first, {"n": 2, "new": "b", "x": "added"}])


def test_fields_of_a_struct_that_were_renamed_are_refused(lake: Catalog, opened: Open) -> None:
    table = lake.create_table("n.t", pa.schema([("s", pa.struct([("a", pa.int64())]))]))
    table.append(pa.table({"s": [{"a": 1}]}))
    assert opened(sw.read_iceberg("lake.n.t")).rows() == [{"s": {"a": 1}}]
    with table.update_schema() as update:
        update.rename_column("s.a", "b")
    table.append(pa.table({"s": [{"b": 1}]}))
    with pytest.raises(Refused, match="fields of a struct were renamed"):
        opened(sw.read_iceberg("lake.n.t"))


def test_columns_of_partitions_that_imported_files_lack_come_from_the_metadata(lake: Catalog, opened: Open) -> None:
    moment = datetime(2026, 1, 2, 3, 4, 5, 678901)  # noqa: DTZ001  a time without zone
    columns = {
        "i": pa.array([5], pa.int32()),
        "day": [moment.date()],
        "at": pa.array([moment], pa.timestamp("us", "UTC")),
        "local": pa.array([moment], pa.timestamp("us")),
        "price": pa.array([Decimal("1.50")], pa.decimal128(9, 2)),
        "even": [True],
        "half": [1.5],
        "text": ["a b%/é"],
        "none": pa.array([None], pa.string()),
    }
    table = lake.create_table("n.t", pa.table({**columns, "n": [1]}).schema)
    with table.update_spec() as spec:
        for name in columns:
            spec.add_identity(name)
    table.append(pa.table({**columns, "n": [1]}))
    (whole,) = opened(sw.read_iceberg("lake.n.t", name="whole")).rows()
    file = next(iter(table.scan().plan_files())).file.file_path.removeprefix("file://")
    pq.write_table(pq.ParquetFile(file).read().select(["n"]), file)
    assert opened(sw.read_iceberg("lake.n.t")).rows() == [whole | {"price": "1.50"}]


def test_errors_of_a_catalog_show_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opened: Open) -> None:
    monkeypatch.setenv("PYICEBERG_CATALOG__X__URI", "mysql://u:sEcret@h/db")
    monkeypatch.setenv("PYICEBERG_CATALOG__Z__URI", "http://u:sEcret@127.0.0.1:1/x?token=sEcret")
    monkeypatch.setenv("PYICEBERG_CATALOG__Z__TYPE", "rest")
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())
    with pytest.raises(Usage, match=r"catalog x of Iceberg table x\.n\.t") as error:
        opened(sw.read_iceberg("x.n.t"))
    assert "sEcret" not in str(error.value)
    with pytest.raises(Unavailable) as silent:
        opened(sw.read_iceberg("z.n.t", name="z"))
    assert "sEcret" not in str(silent.value)


def test_an_iceberg_file_is_opened_by_its_literal_path(lake: Catalog, opened: Open) -> None:
    table = lake.create_table("n.t", rows().schema)
    with table.update_spec() as spec:
        spec.add_identity("day")
    table.append(rows(1, day="x y%/#?é"))
    source = opened(sw.read_iceberg("lake.n.t"))
    assert source.rows() == [{"n": 1, "day": "x y%/#?é"}]
    assert "file://file:" not in source.place(0)


@pytest.mark.ci
@pytest.mark.s3
def test_sources_are_read_from_a_bucket(s3_url: str, s3_server: str) -> None:
    """Folders and tables are opened with the access of the store root, which is another prefix of the bucket."""
    access = {"AWS_ENDPOINT_URL": s3_server, "AWS_ALLOW_HTTP": "true", "AWS_REGION": "us-east-1"}
    write_deltalake(f"{s3_url}/t", rows(1, 2, day="x y"), partition_by=["day"], storage_options=access)
    write_deltalake(f"{s3_url}/t", rows(3), mode="append", storage_options=access)
    store = open_store(f"{s3_url}/store")
    for name, text in (("b c/é.jsonl", b'{"n": 2}\n'), ("a.jsonl", b'{"n": 1}\n')):
        store.at(f"{s3_url}/in").put(name, text)
    table = OpenSource(sw.read_delta(f"{s3_url}/t"), store)
    assert sorted(row["n"] for row in table.rows()) == [1, 2, 3]
    folder = OpenSource(sw.read_files(f"{s3_url}/in"), store)
    assert sorted(row["n"] for row in folder.rows()) == [1, 2]
    assert {folder.place(0), folder.place(1)} == {f"{s3_url}/in/{name} line 1" for name in ("a.jsonl", "b c/é.jsonl")}
    store.at(f"{s3_url}/in").put("c.jsonl", b'{"n": 3}\n')
    assert [row["n"] for row in folder.rows(2)] == [3]
