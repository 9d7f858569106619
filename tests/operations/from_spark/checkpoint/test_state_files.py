"""The files that make up a version of a state store."""

import io
import json
import zipfile
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from slackwater.errors import Corruption
from slackwater.operations.from_spark.checkpoint.state_files import (
    StateFile,
    StoreFolder,
    complete_versions,
    find_needed_files,
    parse_state_file,
    referenced_files,
)


def _files(*names: str) -> list[StateFile]:
    return [file for file in map(parse_state_file, names) if file is not None]


def _names(found: tuple[Sequence[StateFile], int]) -> list[str]:
    needed, lacking = found
    assert not lacking
    return sorted(each.key for each in needed)


def test_a_named_store_has_its_own_subfolder() -> None:
    assert StoreFolder(1, 3, "default").path == "state/1/3/"
    assert StoreFolder(0, 2, "left-keyToNumValues").path == "state/0/2/left-keyToNumValues/"


@pytest.mark.parametrize("name", ["1.delta.crc", ".1.delta.crc", "1.tmp", "x.delta", "SSTs/000008-1.sst", "schema"])
def test_other_file_names_are_no_versions(name: str) -> None:
    assert parse_state_file(f"state/0/0/{name}") is None


def test_a_version_is_the_newest_snapshot_and_the_changes_after_it() -> None:
    files = _files("1.delta", "2.delta", "2.snapshot", "3.delta", "4.delta", "5.delta")
    assert _names(find_needed_files(4, files, {})) == ["2.snapshot", "3.delta", "4.delta"]
    assert _names(find_needed_files(2, files, {})) == ["2.snapshot"]
    assert _names(find_needed_files(1, files, {})) == ["1.delta"]


def test_a_version_with_a_missing_change_is_incomplete() -> None:
    files = _files("2.delta", "4.changelog", "5.zip", "6.changelog")
    assert find_needed_files(4, files, {})[1] == 3
    assert find_needed_files(2, files, {})[1] == 1
    assert _names(find_needed_files(6, files, {})) == ["5.zip", "6.changelog"]


def test_files_of_failed_task_attempts_are_ignored() -> None:
    files = _files("1_a.changelog", "1_x.changelog", "2_b.zip", "2_b.changelog", "2_x.zip", "3_c.changelog")
    ids = {1: "a", 2: "b", 3: "c"}
    assert _names(find_needed_files(3, files, ids)) == ["2_b.zip", "3_c.changelog"]
    assert _names(find_needed_files(1, files, ids)) == ["1_a.changelog"]
    assert find_needed_files(3, files, {3: "y"})[1] == 3


def test_if_the_successful_attempt_is_unknown_all_files_are_used() -> None:
    files = _files("1_a.zip", "2_b.zip", "2_x.zip", "2_b.changelog", "3_c.changelog")
    assert _names(find_needed_files(3, files, {3: "c"})) == [
        "1_a.zip",
        "2_b.changelog",
        "2_b.zip",
        "2_x.zip",
        "3_c.changelog",
    ]


@given(
    st.lists(
        st.tuples(st.integers(1, 8), st.sampled_from(["", "a", "b"]), st.sampled_from(["delta", "snapshot"])),
        unique=True,
    ),
    st.dictionaries(st.integers(1, 8), st.sampled_from(["", "a", "b"])),
)
def test_complete_versions_are_those_whose_files_all_exist(
    names: list[tuple[int, str, str]], ids: dict[int, str]
) -> None:
    files = _files(*(f"{version}{f'_{each}' if each else ''}.{kind}" for version, each, kind in names))
    there = {version for version in range(9) if not find_needed_files(version, files, ids)[1]}
    assert complete_versions(files, ids) == there


def _snapshot(said: str) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as packed:
        packed.writestr("metadata", said)
    return data.getvalue()


def test_a_rocksdb_snapshot_names_the_files_beside_it() -> None:
    said = {"sstFiles": [{"localFileName": "1.sst", "dfsSstFileName": "1-x.sst"}], "numKeys": 6}
    assert referenced_files(_snapshot("v1\n" + json.dumps(said)), "6.zip") == ("SSTs/1-x.sst",)
    assert referenced_files(_snapshot("v1\n" + json.dumps({"sstFiles": [], "logFiles": None})), "6.zip") == ()


@pytest.mark.parametrize("data", [b"", _snapshot("v1"), _snapshot("v1\n[]"), _snapshot('v1\n{"sstFiles": [{}]}')])
def test_a_damaged_snapshot_is_corrupt(data: bytes) -> None:
    with pytest.raises(
        Corruption,
        match=r"6.zip of the checkpoint is damaged \(not a RocksDB snapshot: .*of batch 5",
    ):
        referenced_files(data, "6.zip")
