"""Names of a store's state files in a checkpoint, and the files that a version of the store needs.

Version v of a store is its state at the end of batch v - 1. The HDFS provider writes `v.delta` for each version and
sometimes `v.snapshot`, the whole state. RocksDB writes `v.changelog` (if enabled) and `v.zip`, which lists the SSTs of
the whole state. In checkpoint format 2 an id follows the version, because a retried task writes a second file.
"""

import io
import json
import re
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from ....errors import Corruption

_T = TypeVar("_T")
_NAME = re.compile(r"(?P<version>\d+)(?:_(?P<id>[0-9a-zA-Z-]+))?\.(?P<kind>delta|changelog|snapshot|zip)")
_WHOLES = ("snapshot", "zip")
DEFAULT = "default"
"""Name of an operator's store without a folder of its own."""


class StoreFolder(NamedTuple):
    """One store of one state partition."""

    operator: int
    partition: int
    store: str

    @property
    def path(self) -> str:
        """Path of the store below the checkpoint; ends with a slash."""
        below = "" if self.store == DEFAULT else f"{self.store}/"
        return f"state/{self.operator}/{self.partition}/{below}"


class StateFile(NamedTuple):
    """A state file with the changes of a version, or with the whole state."""

    key: str
    version: int
    id: str
    """Empty in checkpoint format 1."""
    is_whole: bool


def state_file(key: str) -> StateFile | None:
    """Parse the key of a state file; None for other files."""
    name = _NAME.fullmatch(key.rpartition("/")[2])
    return name and StateFile(key, int(name["version"]), name["id"] or "", name["kind"] in _WHOLES)


def damaged(key: str, why: str) -> Corruption:
    """Return the error for a damaged file; names the batch that wrote it."""
    file = state_file(key)
    content = ""
    if file is not None:
        batch = file.version - 1
        content = (
            f": it has the state at the end of batch {batch}"
            if file.is_whole
            else f": it has the changes of batch {batch}"
        )
    return Corruption(
        f"{key} of the checkpoint is damaged ({why}){content}",
        object_key=key,
        hint="restore the file, or wait until the query has written a newer whole state, and try again",
    )


def whole_of(version: int, files: Iterable[StateFile], ids: Mapping[int, str]) -> Sequence[StateFile] | None:
    """Return the files that make up a version; None if some are missing.

    `ids` has the valid id of each version for which it is known. For other versions the files of all tasks are
    returned: each names its predecessor, and Spark follows these.
    """
    by_version = _by_version(files, ids)
    needed: list[StateFile] = []
    while version > 0:
        files_of_version = by_version.get(version, ())
        if whole := _whole_state(files_of_version):
            return [*needed, *whole]
        if not any(not file.is_whole for file in files_of_version):
            return None
        needed += files_of_version
        version -= 1
    return needed


def lacking(version: int, files: Iterable[StateFile], ids: Mapping[int, str]) -> int:
    """Return the version whose missing file makes `whole_of` fail; 0 if no file is missing."""
    by_version = _by_version(files, ids)
    while version > 0 and not _whole_state(files_of_version := by_version.get(version, ())):
        if all(file.is_whole for file in files_of_version):
            return version
        version -= 1
    return 0


def whole_versions(files: Iterable[StateFile], ids: Mapping[int, str]) -> frozenset[int]:
    """Return all versions for which `whole_of` finds the files."""
    complete = {0}
    for version, files_of_version in sorted(_by_version(files, ids).items()):
        if _whole_state(files_of_version) or (
            version - 1 in complete and any(not file.is_whole for file in files_of_version)
        ):
            complete.add(version)
    return frozenset(complete)


def _by_version(files: Iterable[StateFile], ids: Mapping[int, str]) -> dict[int, list[StateFile]]:
    by_version: dict[int, list[StateFile]] = {}
    for file in files:
        if file.id == ids.get(file.version, file.id):
            by_version.setdefault(file.version, []).append(file)
    return by_version


def _whole_state(files: Iterable[StateFile]) -> Sequence[StateFile]:
    """Return the whole state among a version's files, if all are from one task; else none."""
    return [file for file in files if file.is_whole] if len({file.id for file in files}) == 1 else []


def named_in(data: bytes, key: str) -> tuple[str, ...]:
    """Return the names of the files that a RocksDB snapshot refers to, below its store's folder."""

    def names(metadata: Any) -> tuple[str, ...]:
        ssts = [f"SSTs/{sst['dfsSstFileName']}" for sst in metadata.get("sstFiles") or ()]
        return (*ssts, *(f"logs/{log['dfsLogFileName']}" for log in metadata.get("logFiles") or ()))

    return _read_metadata(data, key, names)


def families_in(data: bytes, key: str) -> dict[str, int]:
    """Return the number of each column family in a RocksDB snapshot; keys begin with these numbers."""
    return _read_metadata(
        data, key, lambda metadata: {str(a): int(b) for a, b in (metadata.get("columnFamilyMapping") or {}).items()}
    )


def _read_metadata(data: bytes, key: str, read: Callable[[Any], _T]) -> _T:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as packed:
            return read(json.loads(packed.read("metadata").decode().partition("\n")[2]))
    except (zipfile.BadZipFile, ValueError, KeyError, TypeError, AttributeError) as error:
        raise damaged(key, f"not a RocksDB snapshot: {error}") from error
