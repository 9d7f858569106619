"""Files of a folder as records: each once, in an order that never changes, at the file and line that messages name."""

import bz2
import gzip
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import slackwater as sw
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql.pandas.types import from_arrow_schema
from slackwater.errors import AnotherTopic, Gone, NotFound, Refused, Usage
from slackwater.operations.maintenance.archive_fill import TopicFilled, fill
from slackwater.pipeline.api.topic import Topic
from slackwater.pipeline.kafka.archived import ArchivedKafka
from slackwater.pipeline.kafka.channels import KafkaChannels
from slackwater.pipeline.kafka.columns import SPARK_SOURCE_SCHEMA, MessageColumns
from slackwater.pipeline.kafka.memory import MemoryKafka
from slackwater.pipeline.kafka.protocol import Patience
from slackwater.pipeline.kafka.sources.folder import FolderFinder
from slackwater.pipeline.kafka.sources.rows import FileReader, encode_rows
from slackwater.pipeline.kafka.sources.topics import SourcedKafka
from slackwater.pipeline.source.options import PrivateOptions, SourceOptions
from slackwater.pipeline.source.planner import Pace, TopicPlanner
from slackwater.pipeline.source.readers import TopicSourceReader
from slackwater.pipeline.upkeep.archiver import Archiver
from slackwater.state.records import Position
from slackwater.store.archive import index
from slackwater.store.archive.columns import SCHEMA
from slackwater.store.archive.extents import Extent
from slackwater.store.archive.reading import Archives
from slackwater.store.objects.counting import CountingStore
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.objects.open import open_store
from slackwater.store.versions import apps, commit
from slackwater.store.versions.manifest import AppInfo, Input, Manifest

from tests.pipeline.kafka.sources.reading import OpenSource
from tests.store.archive.small_archives import write

Open = Callable[[Topic], OpenSource]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    return tmp_path / "in"


def write_lines(file: Path, *numbers: int, time_s: int | None = None) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(f'{{"n": {number}}}\n' for number in numbers))
    if time_s is not None:
        os.utime(file, (time_s, time_s))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4), st.booleans()), min_size=1, max_size=12))
def test_each_row_is_read_once_and_stays_at_its_offset(tmp_path: Path, files: list[tuple[int, int, bool]]) -> None:
    """Files come with any times and names, while processes come and go; the oracle is DuckDB over the folder."""
    folder, root, written, stable = tmp_path / uuid4().hex, MemoryStore(), 0, dict[int, bytes]()
    topic = sw.read_files(str(folder), name="in")
    source = OpenSource(topic, root)
    for time_s, rows, is_new_process in files:
        write_lines(folder / f"day={time_s}" / f"{uuid4().hex}.jsonl", *range(written, written + rows), time_s=time_s)
        written += rows
        if is_new_process:
            source = OpenSource(topic, root)
        now = source.values()
        assert {offset: now[offset] for offset in stable} == stable
        stable = now
    if written:
        found = sorted(json.loads(value)["n"] for value in stable.values())
        rows_of_duckdb = duckdb.sql(f"SELECT n FROM read_json('{folder}/**/*.jsonl') ORDER BY n").fetchall()
        assert [(n,) for n in found] == rows_of_duckdb
        middle = written // 2
        assert source.values(middle, written) == {n: stable[n] for n in range(middle, written)}


def test_files_are_read_in_the_order_of_their_times_and_names(folder: Path, opened: Open) -> None:
    write_lines(folder / "z.jsonl", 1, time_s=10)
    write_lines(folder / "b.jsonl", 3, time_s=20)
    write_lines(folder / "sub/a.jsonl", 4, time_s=20)
    write_lines(folder / "a.jsonl", 2, time_s=20)
    source = opened(sw.read_files(str(folder)))
    assert [row["n"] for row in source.rows()] == [1, 2, 3, 4]
    assert source.place(3) == f"file://{folder}/sub/a.jsonl line 1"
    (message,) = source.messages(3, 4)
    assert message.headers() == [("file", f"file://{folder}/sub/a.jsonl".encode()), ("line", b"1")]
    assert message.timestamp() == (1, 20_000)
    assert source.kafka.offsets_for_times(source.topic, [10_001]) == (1,)
    assert source.kafka.offsets_for_times(source.topic, [20_001]) == (-1,)


def test_hidden_and_other_files_are_no_input(folder: Path, opened: Open) -> None:
    for name in ("_tmp/a.jsonl", ".hidden.jsonl", "_SUCCESS", "a.json.crc", "empty.jsonl"):
        write_lines(folder / name)
    write_lines(folder / "_new.jsonl", 7)
    write_lines(folder / "a.jsonl", 1)
    source = opened(sw.read_files(str(folder), path_glob_filter="*.jsonl"))
    assert source.rows() == [{"n": 1}]
    (folder / "_new.jsonl").rename(folder / "new.jsonl")
    assert source.rows() == [{"n": 1}, {"n": 7}]


def test_blank_lines_and_a_header_are_no_records_but_count_as_lines(folder: Path, opened: Open) -> None:
    (folder / "a.csv").write_text('n,text\r\n1,"two\nlines"\r\n\r\n2,x')
    source = opened(sw.read_files(str(folder), format="csv", header=True))
    assert source.values() == {1: b'1,"two\nlines"', 4: b"2,x"}
    assert source.place(4).endswith("a.csv line 5")


@pytest.mark.parametrize("blank", ["", "\n", "\ufeff", "\ufeff\n \r\n"])
def test_the_header_is_the_first_line_that_is_not_blank(blank: str, folder: Path, opened: Open) -> None:
    (folder / "a.csv").write_text(f"{blank}n,text\n1,x\n2,y\n")
    source, lines = opened(sw.read_files(str(folder), format="csv", header=True)), blank.count("\n")
    expected = {lines + 1: b"1,x", lines + 2: b"2,y"}
    assert source.values() == expected
    for first in range(lines + 4):
        assert source.values(first, lines + 3) == {line: text for line, text in expected.items() if line >= first}


@pytest.mark.parametrize("size", [1, 3, 10, 4 << 20])
@pytest.mark.parametrize("padding", [b"", b"\0" * 5])
def test_a_packed_file_is_read_as_its_content(
    size: int, padding: bytes, folder: Path, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slackwater.pipeline.kafka.sources.rows._CHUNK_BYTES", size)
    members = [b'{"n": 0}\n{"n": ', b"", b"1}\n" + b'{"n": 2}\n' * 20]
    (folder / "a.jsonl.gz").write_bytes(b"".join(gzip.compress(member) + padding for member in members))
    source = opened(sw.read_files(str(folder)))
    assert [row["n"] for row in source.rows()] == [0, 1] + [2] * 20
    assert [row["n"] for row in source.rows(1, 3)] == [1, 2]


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-3], lambda data: data + b"x", lambda data: data[:12] + b"\xff" * 9]
)
def test_a_damaged_file_is_named(damage: Callable[[bytes], bytes], folder: Path, opened: Open) -> None:
    (folder / "a.gz").write_bytes(damage(gzip.compress(b'{"n": 1}\n' * 9)))
    with pytest.raises(Refused, match=r"a\.gz is no gzip file, or is damaged"):
        opened(sw.read_files(str(folder)))


def test_a_damaged_page_of_parquet_is_named(folder: Path, opened: Open) -> None:
    file = folder / "a.parquet"
    pq.write_table(pa.table({"n": range(1000)}), file, use_dictionary=False)
    file.write_bytes(b"PAR1" + b"\xff" * 56 + file.read_bytes()[60:])
    with pytest.raises(Refused, match=r"a\.parquet is damaged"):
        opened(sw.read_files(str(folder), format="parquet")).rows()


def test_a_file_is_checked_without_a_listing_of_its_folder(folder: Path, tmp_path: Path) -> None:
    for number in range(50):
        write_lines(folder / f"{number:03}.jsonl", number)
    store = CountingStore(open_store(str(tmp_path / "store")))
    source = OpenSource(sw.read_files(str(folder)), store)
    store.reset()
    assert len(source.messages(0, 50)) == 50
    assert "list" not in store.counts


def test_values_of_parquet_are_those_that_duckdb_reads(folder: Path, opened: Open) -> None:
    file = folder / "a.parquet"
    duckdb.sql(
        "COPY (SELECT range AS n, range * 0.5 AS half, 'é' || range AS text, range % 2 = 0 AS even, "
        "timestamptz '2026-01-02 03:04:05.678901+00' + to_microseconds(range) AS seen, date '2026-01-01' AS day, "
        "[range, NULL] AS list, {'a': range, 'b': NULL} AS part, (range * 1.5)::decimal(9, 2) AS price "
        f"FROM range(3000)) TO '{file}' (FORMAT parquet, ROW_GROUP_SIZE 2048)"
    )
    source = opened(sw.read_files(str(folder), format="parquet"))
    rows = source.rows(2_040, 2_060)
    assert source.place(2_059) == f"file://{file} row 2060"
    (folder / "rows.json").write_text("\n".join(map(json.dumps, rows)))
    columns = (
        "n::bigint AS n, half::double AS half, text, even, seen::timestamptz AS seen, day::date AS day, "
        "price::decimal(9, 2) AS price"
    )
    expected = duckdb.sql(f"SELECT {columns} FROM '{file}' WHERE n BETWEEN 2040 AND 2059 ORDER BY n").fetchall()
    read = duckdb.sql(
        f"SELECT {columns} FROM read_json('{folder}/rows.json', columns = {{n: 'bigint', half: 'double', "
        "text: 'varchar', even: 'boolean', seen: 'varchar', day: 'varchar', price: 'double'}) ORDER BY n"
    )
    assert read.fetchall() == expected
    assert [(row["list"], row["part"]) for row in rows] == [([n, None], {"a": n}) for n in range(2_040, 2_060)]


def test_a_column_of_each_type_of_arrow_has_a_json_form() -> None:
    columns = pa.table(
        {
            "large": pa.array(["a"], pa.large_string()),
            "dictionary": pa.array(["b"]).dictionary_encode(),
            "nanoseconds": pa.array([1_700_000_000_123_456_789], pa.timestamp("ns")),
            "bytes": pa.array([b"\x00\xff"]),
            "time": pa.array([1], pa.time64("us")),
            "none": pa.nulls(1),
        }
    )
    (text,) = encode_rows(columns, {"more": 1, "nothing": None}).to_pylist()
    assert json.loads(text) == {
        "large": "a",
        "dictionary": "b",
        "nanoseconds": "2023-11-14T22:13:20.123456",
        "bytes": "AP8=",
        "time": "00:00:00.000001",
        "more": 1,
    }


def test_a_file_that_vanished_or_changed_is_named(folder: Path, opened: Open) -> None:
    for name in ("a", "b", "c"):
        write_lines(folder / f"{name}.jsonl", 1, 2, time_s=ord(name))
    source = opened(sw.read_files(str(folder)))
    assert source.end == 6
    (folder / "a.jsonl").unlink()
    write_lines(folder / "b.jsonl", 1, 2, 3, time_s=ord("b"))
    with pytest.raises(Gone, match=rf"file://{folder}/a.jsonl does not exist any more") as gone:
        source.messages(0, 6)
    assert "reset" not in gone.value.hint
    assert (gone.value.lost_from, gone.value.resume_at) == (0, 4)
    with pytest.raises(Gone, match=rf"{folder}/b.jsonl has changed since it was read: it had 18 bytes and now has 27"):
        source.messages(2, 6)
    errors: list[Gone] = []
    chunks = source.kafka.read(source.topic, 0, 0, 6, patience_s=1, deletion_errors=errors)
    assert [message.offset() for chunk in chunks for message in chunk] == [4, 5]
    assert [(error.lost_from, error.resume_at) for error in errors] == [(0, 2), (2, 4)]


def test_the_runner_names_the_reset_that_passes_over_all_files_that_are_gone(folder: Path, tmp_path: Path) -> None:
    """A replay, which ends at given offsets, has no such way."""
    for n in range(5):
        write_lines(folder / f"{n}.jsonl", n, time_s=n)
    kafka = MemoryKafka.named(f"memory://{uuid4().hex}")
    root = str(tmp_path / "store")
    OpenSource(sw.read_files(str(folder)), tmp_path / "store")
    for n in (1, 2, 3):
        (folder / f"{n}.jsonl").unlink()
    hints = []
    for ends in (None, (5,)):
        options = SourceOptions(input="in", topic="files:in", app="shop", store=root, end_offsets=ends)
        reader = TopicSourceReader(options, from_arrow_schema(SPARK_SOURCE_SCHEMA), PrivateOptions(kafka.properties))
        (part,) = reader.partitions(Position("in", (0,)).to_json(), Position("in", (5,)).to_json())
        with pytest.raises(Gone, match=r"1\.jsonl does not exist") as gone:
            list(reader.read(part))
        hints.append(gone.value.hint)
    assert hints[0].endswith("slackwater reset shop --topic files:in --to-offset 4")
    assert "reset" not in hints[1]


def test_an_archive_is_filled_with_the_files_that_are_left(folder: Path, opened: Open) -> None:
    for n in range(5):
        write_lines(folder / f"{n}.jsonl", 2 * n, 2 * n + 1, time_s=n)
    source, app = opened(sw.read_files(str(folder))), "shop"
    for n in (1, 3):
        (folder / f"{n}.jsonl").unlink()
    store, topic_id = source.store, source.kafka.topic_id(source.topic)
    apps.ensure_app(store, AppInfo(app, 1))
    for version, end in ((1, 0), (2, 9)):
        at = Input(source.topic, (end,), rows=end, topic_id=topic_id)
        commit.commit(store, Manifest(app, "s", version, 1, "w", 1, "batch" if end else "claim", {"in": at}))
    (filled,) = fill(store, app, KafkaChannels(source.kafka), None, by="test")
    assert filled == TopicFilled(source.topic, 5, 5, ("[0]@2..4", "[0]@6..8"))
    head = index.newest(store, app, source.topic)
    assert head is not None
    assert head.covered == (Extent(0, 0, 2), Extent(0, 4, 6), Extent(0, 8, 9))


def test_the_archiver_of_a_run_does_not_count_a_file_that_is_gone_as_archived(folder: Path, opened: Open) -> None:
    for n in range(3):
        write_lines(folder / f"{n}.jsonl", n, time_s=n)
    source = opened(sw.read_files(str(folder)))
    (folder / "1.jsonl").unlink()
    apps.ensure_app(source.store, AppInfo("shop", 1))
    archiver = Archiver(
        source.store, "shop", source.kafka, {source.topic: 86_400_000}.get, spool=None, by="test", patience_s=1
    )
    for version, end in ((1, 0), (2, 3)):
        at = Input(source.topic, (end,), rows=end, topic_id=source.kafka.topic_id(source.topic))
        archiver.on_version(Manifest("shop", "s", version, 1, "w", 1, "batch" if end else "claim", {"in": at}))
    archiver.archive_pending()
    head = index.newest(source.store, "shop", source.topic)
    assert head is not None
    assert head.covered == (Extent(0, 0, 1), Extent(0, 2, 3))


def test_a_folder_that_contains_itself_by_links_is_refused(folder: Path, opened: Open) -> None:
    write_lines(folder / "a/1.jsonl", 1)
    write_lines(folder / "b/2.jsonl", 2)
    (folder / "a/x").symlink_to(folder / "b")
    source = opened(sw.read_files(str(folder)))
    assert sorted(row["n"] for row in source.rows()) == [1, 2, 2]
    (folder / "b/y").symlink_to(folder / "a")
    with pytest.raises(Refused, match=r"a/x/y is a link to .*/a, which contains it"):
        opened(sw.read_files(str(folder), name="again"))


@pytest.mark.parametrize(
    "data",
    [b"\x28\xb5\x2f\xfd", bz2.compress(b"{}"), gzip.compress(b"{}"), b"PAR1\x15"],
    ids=["zst", "bz2", "gz", "parquet"],
)
def test_packed_files_and_parquet_are_no_lines(folder: Path, opened: Open, data: bytes) -> None:
    (folder / "a.jsonl").write_bytes(data)
    with pytest.raises(Refused, match=r"a\.jsonl is a packed or Parquet file; expected json lines") as refused:
        opened(sw.read_files(str(folder)))
    assert "path_glob_filter" in refused.value.hint
    (folder / "a.jsonl").write_bytes(b"PAR1\nBZh9\n")
    assert opened(sw.read_files(str(folder))).end == 2


def test_a_missing_folder_is_named(tmp_path: Path, opened: Open, caplog: pytest.LogCaptureFixture) -> None:
    opened(sw.read_files(str(tmp_path / "none")))
    assert f"folder {tmp_path}/none does not exist yet" in caplog.text


def test_a_path_is_a_folder_and_no_file_or_pattern(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_lines(folder / "a.jsonl", 1)
    for path, name in ((folder / "a.jsonl", "a.jsonl"), (folder / "*.jsonl", "*.jsonl"), ("s3://b/in/*", "*")):
        with pytest.raises(Usage, match="expected a folder, not a") as refused:
            sw.read_files(str(path))
        assert f"path_glob_filter={name!r}" in refused.value.hint
    (folder / "[a]").mkdir()
    assert sw.read_files(str(folder / "[a]"), name="a").source
    monkeypatch.setenv("HOME", str(folder.parent))
    source = sw.read_files("~/in").source
    assert source is not None
    assert source.address == str(folder)


def test_new_files_are_listed_on_request(folder: Path, opened: Open) -> None:
    """As a reset of a stopped app to the latest offset does."""
    write_lines(folder / "a.jsonl", 1)
    source = opened(sw.read_files(str(folder)))
    write_lines(folder / "b.jsonl", 2, 3)
    channels = KafkaChannels(source.kafka)
    assert channels.ends(source.topic) == (1,)
    channels.list_new_files(source.store, source.topic)
    assert channels.ends(source.topic) == (3,)


def test_a_declaration_that_never_had_a_file_is_replaced(folder: Path, tmp_path: Path, opened: Open) -> None:
    write_lines(folder / "a.jsonl", 1)
    opened(sw.read_files(str(tmp_path / "mistyped"), name="in"))
    with pytest.raises(Refused, match="is no Parquet file"):
        opened(sw.read_files(str(folder), name="in", format="parquet"))
    assert opened(sw.read_files(str(folder), name="in")).rows() == [{"n": 1}]


def test_an_archive_has_the_rows_of_a_file_that_is_gone(folder: Path, opened: Open) -> None:
    for name in ("a", "b", "c"):
        write_lines(folder / f"{name}.jsonl", ord(name), time_s=ord(name))
    source, where = opened(sw.read_files(str(folder))), (Extent(0, 0, 2),)
    batches = [
        MessageColumns(chunk).to_archive_batch() for chunk in source.kafka.read(source.topic, 0, 0, 2, patience_s=1)
    ]
    archive = index.empty_index("app", source.topic, topic_id=source.kafka.topic_id(source.topic))
    kept = write(source.store, archive, [pa.Table.from_batches(batches, SCHEMA)], where, 1)
    index.change(source.store, archive, index.append_update((kept,), where), by="test", now_ms=1)
    for name in ("a", "b"):
        (folder / f"{name}.jsonl").unlink()
    for archive_first in (True, False):
        kafka = ArchivedKafka(source.kafka, Archives(lambda: source.store, "app"), archive_first=archive_first)
        chunks = kafka.read(source.topic, 0, 0, 3, patience_s=1)
        found = [(message.offset(), message.value()) for chunk in chunks for message in chunk]
        assert found == [(0, b'{"n": 97}'), (1, b'{"n": 98}'), (2, b'{"n": 99}')]
    (folder / "c.jsonl").unlink()
    errors: list[Gone] = []
    chunks = kafka.read(source.topic, 0, 0, 3, patience_s=1, deletion_errors=errors)
    assert [message.offset() for chunk in chunks for message in chunk] == [0, 1]
    assert len(errors) == 1


def test_files_that_are_no_parquet_and_no_gzip_are_named(folder: Path, opened: Open) -> None:
    write_lines(folder / "a.parquet", 1)
    with pytest.raises(Refused, match=r"a\.parquet is no Parquet file"):
        opened(sw.read_files(str(folder), format="parquet"))
    write_lines(folder / "a.gz", 1)
    with pytest.raises(Refused, match=r"a\.gz is no gzip file"):
        opened(sw.read_files(str(folder), name="packed", path_glob_filter="*.gz"))


def test_a_name_stands_for_one_list_of_rows(folder: Path, tmp_path: Path, opened: Open) -> None:
    write_lines(folder / "a.jsonl", 1)
    opened(sw.read_files(str(folder), name="in"))
    source = opened(sw.read_files(str(folder), name="in", max_files_per_trigger=3))
    assert source.rows() == [{"n": 1}]
    with pytest.raises(Refused, match=r"has path='.*/other' in the program, but was read with path='.*/in'"):
        opened(sw.read_files(str(tmp_path / "other"), name="in"))
    with pytest.raises(Refused, match=r"has path_glob_filter='\*.csv' in the program, but was read with path_glob"):
        opened(sw.read_files(str(folder), name="in", path_glob_filter="*.csv"))


def test_a_source_whose_list_was_removed_is_another_topic(folder: Path, opened: Open) -> None:
    write_lines(folder / "a.jsonl", 1)
    first = opened(sw.read_files(str(folder)))
    topic_id = first.kafka.topic_id(first.topic)
    for info in first.store.list("_sources/"):
        first.store.delete(info.key)
    second = opened(sw.read_files(str(folder)))
    with pytest.raises(AnotherTopic, match="deleted and created again"):
        list(second.kafka.read(second.topic, 0, 0, 1, patience_s=1, topic_id=topic_id))


def test_a_source_that_no_program_declared_does_not_exist(tmp_path: Path) -> None:
    kafka = SourcedKafka(MemoryKafka("memory://none"), lambda: open_store(str(tmp_path)))
    with pytest.raises(NotFound, match="no source named 'files:x'"):
        kafka.topic_state("files:x")
    assert kafka.topic_ids(["files:x"]) == {}


def test_a_search_for_new_files_costs_what_is_new(tmp_path: Path) -> None:
    """A thousand names are listed once; then a listing begins after the last name."""
    store = CountingStore(open_store(str(tmp_path / "store")))
    (tmp_path / "in").mkdir()
    for n in range(2_500):
        (tmp_path / "in" / f"{n:05}.jsonl").write_text("1\n")
    source = sw.read_files(str(tmp_path / "in")).source
    assert source is not None
    finder = FolderFinder(FileReader(source, store))
    known = list(finder.find([], None))
    assert len(known) == 2_500
    store.reset()
    (tmp_path / "in" / "03000.jsonl").write_text("2\n")
    new = list(finder.find(known, 1))
    assert [part.path for part in new] == ["03000.jsonl"]
    assert store.counts == {"list": 1, "get_range": 2}
    (tmp_path / "in" / "00000-before.jsonl").write_text("3\n")
    deadline = time.monotonic() + 60
    while not (before := list(finder.find([*known, *new], 1))):
        assert time.monotonic() < deadline
    assert [part.path for part in before] == ["00000-before.jsonl"]


def test_a_batch_has_at_most_its_number_of_files(folder: Path, opened: Open) -> None:
    for n in range(5):
        write_lines(folder / f"{n}.jsonl", 1, 2, 3, time_s=n)
    source = opened(sw.read_files(str(folder), max_files_per_trigger=2))
    planner = TopicPlanner(
        source.kafka, source.topic, Pace(0), None, Patience("in", 1), requests=tuple, handled_snapshots=set()
    )
    ends, at = [], Position("in", (0,))
    for _ in range(3):
        at = planner.plan_end(at)
        ends.append(at.offsets)
    assert ends == [(6,), (12,), (15,)]
