"""Readable batches of a checkpoint, and copies of their files, while the query cleans up."""

import json
import zipfile
import zlib
from collections.abc import Callable
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from slackwater.errors import Corruption, Gone, NotFound, Refused
from slackwater.operations.from_spark.checkpoint.files import CheckpointFiles
from slackwater.operations.from_spark.checkpoint.state_files import (
    StateFile,
    find_needed_files,
    parse_state_file,
)
from slackwater.store.objects.local import LocalStore
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.objects.protocol import ObjectStore
from slackwater.store.objects.wrapper import StoreWrapper, T

from tests.operations.from_spark.checkpoint.queries import RECORDED

RECORDINGS = ("aggregate-hdfs", "aggregate-rocksdb", "join-hdfs", "join-changelog", "join-format2")


class CleanedUp(StoreWrapper):
    """A checkpoint that loses all files of old batches at a given request."""

    def __init__(self, inner: ObjectStore, at: int, up_to: int) -> None:
        super().__init__(inner)
        self._at = at
        self._up_to = up_to
        self._numbers = count(1)
        self._lock = Lock()
        self.requests = 0

    def _forward(self, method: str, key: str, request: Callable[[], T], sent: bytes = b"") -> T:
        with self._lock:
            self.requests = next(self._numbers)
            if self.requests == self._at:
                clean_up(self._inner, self._up_to)
        return request()


def clean_up(store: ObjectStore, up_to: int) -> None:
    """Remove the logs and state files of all batches before this one."""
    for info in [*store.list("")]:
        folder, _, name = info.key.rpartition("/")
        file = parse_state_file(info.key)
        log = int(name) if folder in ("offsets", "commits") else None
        if (file and file.version <= up_to) or (log is not None and log < up_to):
            store.delete(info.key)


def in_memory(name: str) -> MemoryStore:
    store = MemoryStore()
    with zipfile.ZipFile(RECORDED / f"{name}.zip") as packed:
        for each in packed.namelist():
            store.put(each, packed.read(each))
    return store


def _copies(store: ObjectStore, bring: Callable[[CheckpointFiles, Path], object]) -> dict[str, bytes]:
    with TemporaryDirectory() as folder:
        files = CheckpointFiles(store)
        bring(files, Path(folder))
        found = (each for each in Path(folder).rglob("*") if each.is_file())
        return {str(each.relative_to(folder)): each.read_bytes() for each in found}


def _whole(files: CheckpointFiles, folder: Path) -> None:
    batch = 3
    with files.missing_files_as_gone(batch):
        files.copy_whole_state(files.stores(), batch, folder)


def _changes(files: CheckpointFiles, folder: Path) -> None:
    batch = 3
    with files.missing_files_as_gone(batch):
        files.copy_changes(files.stores(), batch, folder)


CASES = [(each, _whole) for each in RECORDINGS] + [(each, _changes) for each in RECORDINGS if "rocksdb" not in each]


@pytest.mark.parametrize(("recording", "bring"), CASES)
def test_files_cleaned_up_during_a_copy_are_gone_and_never_half_copied(
    recording: str, bring: Callable[[CheckpointFiles, Path], None]
) -> None:
    counted = CleanedUp(in_memory(recording), 0, 0)
    undisturbed = _copies(counted, bring)
    whole, gone = [], []

    @given(st.integers(1, counted.requests), st.integers(0, 9))
    @example(1, 0)
    @example(1, 9)
    def law(at: int, up_to: int) -> None:
        try:
            assert _copies(CleanedUp(in_memory(recording), at, up_to), bring) == undisturbed
            whole.append((at, up_to))
        except (Gone, NotFound):
            gone.append((at, up_to))

    law()
    assert whole
    assert gone


@pytest.mark.parametrize("recording", RECORDINGS)
def test_the_oldest_readable_batch_is_the_first_with_all_its_files(recording: str) -> None:
    store = in_memory(recording)
    files = CheckpointFiles(store)
    newest = files.committed_batches()[-1]
    assert files.readable_batches() == range(newest + 1)
    for info in [*store.list(files.stores()[-1].path + "3")]:
        store.delete(info.key)
    assert files.readable_batches() == (
        range(3, newest + 1) if "rocksdb" in recording else range(newest + 1, newest + 1)
    )


def test_a_local_folder_is_read_like_a_store(recorded: Callable[[str], Path], tmp_path: Path) -> None:
    folder = recorded("aggregate-hdfs")
    before = {each: (each.stat().st_mtime_ns, each.stat().st_ctime_ns) for each in folder.rglob("*")}
    assert _copies(LocalStore(folder), _whole) == _copies(in_memory("aggregate-hdfs"), _whole)
    files = CheckpointFiles(LocalStore(folder))
    (folder / "state/0/1/2.delta").unlink()
    with (
        pytest.raises(Gone, match=r"batch 1 of .* is incomplete: state/0/1/2\.delta is missing"),
        files.missing_files_as_gone(1),
    ):
        files.copy_changes(files.stores(), 1, tmp_path / "copy")
    after = {each: (each.stat().st_mtime_ns, each.stat().st_ctime_ns) for each in folder.rglob("*")}
    assert {each for each in before if before[each] != after.get(each)} == {
        folder / "state/0/1",
        folder / "state/0/1/2.delta",
    }
    assert not after.keys() - before.keys()


def test_a_batch_has_each_sources_offsets_and_its_time() -> None:
    files = CheckpointFiles(in_memory("join-hdfs"))
    batch = files.read_batch(3)
    assert batch.offsets == {"source-0": (4,), "source-1": (4,)}
    assert batch.non_kafka == {"source-0", "source-1"}, "files, whose offsets are no records"
    assert batch.committed_ms > (batch.watermark_ms or 0) > 0
    with pytest.raises(Gone, match=r"batch 99 of .* is incomplete: offsets/99 is missing"):
        files.read_batch(99)


def test_a_batch_that_changes_the_number_of_state_partitions_has_no_change_feed(tmp_path: Path) -> None:
    store = in_memory("aggregate-hdfs")
    assert CheckpointFiles(store).has_change_feed(3)
    said = store.get("offsets/3").decode()
    store.put("offsets/3", said.replace('shuffle.partitions":"2"', 'shuffle.partitions":"4"').encode())
    files = CheckpointFiles(store)
    assert [files.has_change_feed(batch) for batch in (2, 3, 4, 5)] == [True, False, False, True]
    with pytest.raises(Refused, match=r"batch 3 of the checkpoint .* has 4 state partitions"):
        files.copy_whole_state(files.stores(), 3, tmp_path)


def test_an_operator_has_as_many_partitions_as_it_has_folders() -> None:
    store = in_memory("aggregate-hdfs")
    for info in [*store.list("state/0/1/")]:
        store.delete(info.key)
    assert len(CheckpointFiles(store).stores()) == 1


def test_a_rolled_back_query_is_not_followed() -> None:
    store = in_memory("aggregate-hdfs")
    files = CheckpointFiles(store)
    newest = files.committed_batches()[-1]
    store.delete(f"commits/{newest}")
    with pytest.raises(Refused, match=f"was rolled back: batch {newest} is gone or was committed again"):
        files.committed_batches()
    store = in_memory("aggregate-hdfs")
    files = CheckpointFiles(store)
    before_ms = files.read_batch(3).committed_ms
    while next(store.list("commits/3")).modified_ms == before_ms:
        store.put("commits/3", store.get("commits/3"))
    with pytest.raises(Refused, match="was rolled back: batch 3 is gone or was committed again"):
        files.committed_batches()


def test_state_variables_are_listed_in_a_fixed_order() -> None:
    (operator,) = CheckpointFiles(in_memory("transform-changelog")).operators
    assert [each.name for each in operator.tables] == [
        *("total", "total_ttl", "by_o", "by_o_ttl", "seen", "seen_ttl", "timers")
    ]
    assert [each.name for each in operator.tables if not each.has_change_feed] == ["seen", "seen_ttl", "timers"]


def test_a_query_that_continues_with_other_variables_is_not_followed() -> None:
    store = in_memory("transform-changelog")
    files = CheckpointFiles(store)
    said = store.get("state/0/_metadata/v2/0")
    store.put("state/0/_metadata/v2/4", said)
    (schema,) = store.list("state/0/_stateSchema/")
    store.put(f"{schema.key}-again", store.get(schema.key))
    files.check_variables()
    store.put("state/0/_metadata/v2/5", said.replace(b"total_ttl", b"total_of"))
    with pytest.raises(Refused, match=r"has other state variables now \(state/0/_metadata/v2/5\)"):
        files.check_variables()
    store.delete("state/0/_metadata/v2/5")
    store.put(f"{schema.key}-other", b"schema")
    with pytest.raises(Refused, match="has other state variables now"):
        files.check_variables()


def test_all_operators_of_a_query_are_listed() -> None:
    kinds = [each.kind for each in CheckpointFiles(in_memory("two-hdfs")).operators]
    assert kinds == ["aggregate", "distinct"]


def test_schema_paths_in_metadata_are_resolved_to_the_copies(tmp_path: Path) -> None:
    store = in_memory("aggregate-changelog")
    operator = {"operatorInfo": {"operatorId": 0, "operatorName": "stateStoreSave"}}
    schema = "s3a://bucket/jobs/state/x/state/0/_stateSchema/default/0_a"
    stores = [{"storeName": "default", "numPartitions": 2, "stateSchemaFilePaths": [schema]}]
    store.delete("state/0/_metadata/metadata")
    for batch in (0, 4, 90):
        said = operator | {"stateStoreInfo": stores, "operatorPropertiesJson": "{}"}
        store.put(f"state/0/_metadata/v2/{batch}", b"v2\n" + json.dumps(said).encode())
    store.put("state/0/_stateSchema/default/0_a", b"schema")
    CheckpointFiles(store).copy_logs(3, tmp_path)
    moved = json.loads((tmp_path / "state/0/_metadata/v2/4").read_text().partition("\n")[2])
    (path,) = moved["stateStoreInfo"][0]["stateSchemaFilePaths"]
    assert path == f"file:{tmp_path}/state/0/_stateSchema/default/0_a"
    assert Path(path.removeprefix("file:")).read_bytes() == b"schema"


def test_a_folder_without_a_checkpoint_is_not_found() -> None:
    with pytest.raises(NotFound, match=r"no checkpoint of a Spark query named .*; there is no file 'metadata' in it"):
        CheckpointFiles(MemoryStore())


def test_a_query_without_state_is_refused() -> None:
    store = in_memory("aggregate-hdfs")
    for info in [*store.list("state/")]:
        store.delete(info.key)
    with pytest.raises(Refused, match="has no state: its query is stateless"):
        CheckpointFiles(store)


@pytest.mark.parametrize(
    "recording",
    [
        *("aggregate-hdfs", "total-format2", "window-format2", "session-changelog", "distinct-hdfs", "join-hdfs"),
        *("distinct-in-time-changelog", "limit-hdfs", "map-groups-bean", "pandas-changelog", "two-hdfs"),
    ],
)
def test_operators_of_spark_before_4_are_recognised_by_their_schemas(recording: str) -> None:
    store = in_memory(recording)
    said = CheckpointFiles(store).operators
    for operator in said:
        store.delete(f"state/{operator.id}/_metadata/metadata")
    files = CheckpointFiles(store)
    # Two operators that store the same cannot be told apart by their files.
    same = {"applyInPandasWithState": ("flatMapGroupsWithState", "map-groups")}
    expected = [(each.id, *same.get(each.name, (each.name, each.kind)), {*each.stores}, each.tables) for each in said]
    assert [(each.id, each.name, each.kind, {*each.stores}, each.tables) for each in files.operators] == expected
    assert [each.partitions for each in files.operators] == [each.partitions for each in said]


def test_a_schema_that_is_damaged_is_corrupt() -> None:
    store = in_memory("aggregate-hdfs")
    store.delete("state/0/_metadata/metadata")
    schema = store.get("state/0/0/_metadata/schema")
    for data in (b"", schema[:40], schema.replace(b'"fields"', b'"folds"')):
        store.put("state/0/0/_metadata/schema", data)
        with pytest.raises(Corruption, match="state/0/0/_metadata/schema of the checkpoint is malformed"):
            CheckpointFiles(store)


def test_an_unknown_operator_is_refused_by_name() -> None:
    store = in_memory("aggregate-hdfs")
    said = store.get("state/0/_metadata/metadata").replace(b"stateStoreSave", b"somethingNew")
    store.put("state/0/_metadata/metadata", said)
    with pytest.raises(Refused, match="the query has the stateful operator 'somethingNew'"):
        CheckpointFiles(store)


def test_a_join_state_in_an_unknown_format_is_refused_with_its_number() -> None:
    store = in_memory("join-changelog")
    for info in [*store.list("offsets/")]:
        said = store.get(info.key).replace(b'join.stateFormatVersion":"2"', b'join.stateFormatVersion":"4"')
        store.put(info.key, said)
    with pytest.raises(Refused, match=r"the join's state in the checkpoint memory.* has format 4, which"):
        CheckpointFiles(store)


@pytest.mark.parametrize(
    ("recording", "missing"),
    [
        ("aggregate-hdfs", "state/0/1/3.delta"),
        ("aggregate-changelog", "state/0/1/3.changelog"),
        ("join-format2", "state/0/1/left-keyWithIndexToValue/3_"),
        ("aggregate-rocksdb", "state/0/1/5.zip"),
    ],
)
def test_a_missing_state_file_is_named(recording: str, missing: str, tmp_path: Path) -> None:
    store = in_memory(recording)
    for info in [*store.list(missing)]:
        store.delete(info.key)
    files = CheckpointFiles(store)
    assert 4 not in files.readable_batches()
    with (
        pytest.raises(Gone, match=f"batch 4 of .* is incomplete: {missing}.* is missing") as gone,
        files.missing_files_as_gone(4),
    ):
        files.copy_whole_state(files.stores(), 4, tmp_path)
    assert gone.value.__cause__.key.startswith(missing)  # type: ignore[union-attr]


def test_a_file_whose_hadoop_checksum_does_not_match_is_damaged(
    recorded: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = recorded("aggregate-changelog")
    changelog = folder / "state/0/1/3.changelog"
    data = changelog.read_bytes()
    sums = b"".join(zlib.crc32(data[at : at + 512]).to_bytes(4, "big") for at in range(0, len(data), 512))
    changelog.with_name(".3.changelog.crc").write_bytes(b"crc\0" + (512).to_bytes(4, "big") + sums)
    files = CheckpointFiles(LocalStore(folder))
    files.copy_whole_state(files.stores(), 4, tmp_path / "right")
    changelog.write_bytes(data[:100] + bytes([data[100] ^ 1]) + data[101:])
    said = r"state/0/1/3.changelog of the checkpoint is damaged \(its checksum differs\): it has the changes of batch 2"
    with pytest.raises(Corruption, match=said):
        files.copy_whole_state(files.stores(), 4, tmp_path / "wrong")
    with pytest.raises(Corruption, match=said):
        files.copy_changes(files.stores(), 2, tmp_path / "changes")


@given(st.lists(st.tuples(st.integers(1, 6), st.booleans()), unique=True), st.integers(0, 6))
def test_the_missing_version_named_is_enough_to_complete_the_state(there: list[tuple[int, bool]], version: int) -> None:
    found = [StateFile(f"{n}.{'snapshot' if whole else 'delta'}", n, "", whole) for n, whole in there]
    _, lacks = find_needed_files(version, found, {})
    if lacks:
        below = [StateFile(f"{n}.delta", n, "", is_whole=False) for n in range(1, lacks + 1)]
        assert not find_needed_files(version, [*found, *below], {})[1]
