"""Names of the state files in a Spark checkpoint, and checks for missing and damaged files.

Version v of a store is its state at the end of batch v - 1. The HDFS provider writes `v.delta` for each version and
sometimes `v.snapshot`, the whole state. RocksDB writes `v.changelog` (if enabled) and `v.zip`, which lists the SSTs of
the whole state. In checkpoint format 2, the file name has an id after the version, because a retried task writes a
second file.
"""

import io
import json
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from ....errors import Corruption

_T = TypeVar("_T")
_NAME = re.compile(r"(?P<version>\d+)(?:_(?P<id>[0-9a-zA-Z-]+))?\.(?P<kind>delta|changelog|snapshot|zip)")
_WHOLES = ("snapshot", "zip")
DEFAULT_STORE = "default"
"""Name of a store whose files are in the folder of the state partition itself."""


class StoreFolder(NamedTuple):
    """Folder in a checkpoint with the state files of one store in one state partition."""

    operator: int
    partition: int
    store: str

    @property
    def path(self) -> str:
        below = "" if self.store == DEFAULT_STORE else f"{self.store}/"
        return f"state/{self.operator}/{self.partition}/{below}"


class StateFile(NamedTuple):
    """State file with the changes of a version, or with the whole state."""

    key: str
    version: int
    id: str
    is_whole: bool


def parse_state_file(key: str) -> StateFile | None:
    name = _NAME.fullmatch(key.rpartition("/")[2])
    return name and StateFile(key, int(name["version"]), name["id"] or "", name["kind"] in _WHOLES)


def damaged_file_error(key: str, why: str) -> Corruption:
    """Return the error for a damaged file, which names the batch that wrote the file."""
    file = parse_state_file(key)
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


def find_needed_files(
    version: int, files: Iterable[StateFile], ids: Mapping[int, str]
) -> tuple[Sequence[StateFile], int]:
    """Return the files from which a version of a store is read, and 0 if they are complete.

    If the files of an earlier version are missing, the list is incomplete, and the second value is that version's
    number. `ids` has, by version, the id in the names of valid files, if known. For versions without a known id, the
    files of all tasks are returned: each file names its predecessor, and Spark follows these names.
    """
    by_version = _by_version(files, ids)
    needed: list[StateFile] = []
    while version > 0:
        files_of_version = by_version.get(version, ())
        if whole := _whole_state(files_of_version):
            return [*needed, *whole], 0
        if all(file.is_whole for file in files_of_version):
            break
        needed += files_of_version
        version -= 1
    return needed, version


def complete_versions(files: Iterable[StateFile], ids: Mapping[int, str]) -> frozenset[int]:
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
    return [file for file in files if file.is_whole] if len({file.id for file in files}) == 1 else []


def referenced_files(data: bytes, key: str) -> tuple[str, ...]:
    """Return the files that a RocksDB snapshot refers to, as paths relative to the store's folder."""

    def names(metadata: Any) -> tuple[str, ...]:
        ssts = [f"SSTs/{sst['dfsSstFileName']}" for sst in metadata.get("sstFiles") or ()]
        return (*ssts, *(f"logs/{log['dfsLogFileName']}" for log in metadata.get("logFiles") or ()))

    return _read_metadata(data, key, names)


def parse_column_families(data: bytes, key: str) -> dict[str, int]:
    """Return the number of each column family in a RocksDB snapshot, by name. Keys begin with these numbers."""
    return _read_metadata(
        data, key, lambda metadata: {str(a): int(b) for a, b in (metadata.get("columnFamilyMapping") or {}).items()}
    )


def _read_metadata(data: bytes, key: str, read: Callable[[Any], _T]) -> _T:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as packed:
            return read(json.loads(packed.read("metadata").decode().partition("\n")[2]))
    except (zipfile.BadZipFile, ValueError, KeyError, TypeError, AttributeError) as error:
        raise damaged_file_error(key, f"not a RocksDB snapshot: {error}") from error


_MAGIC = b"crc\0"


def check_checksum(copy: Path, source: Path, key: str) -> None:
    """Raise `Corruption` if a copy does not match the checksums in the file `.NAME.crc` beside `source`.

    That file has a CRC-32 of each block. If it does not exist, nothing is checked.
    """
    try:
        sums = source.with_name(f".{source.name}.crc").read_bytes()
    except FileNotFoundError:
        return
    (block_bytes,) = struct.unpack(">I", sums[4:8].rjust(4, b"\0"))
    if sums[:4] != _MAGIC or not block_bytes:
        return
    with copy.open("rb") as file:
        checksums = [zlib.crc32(block).to_bytes(4, "big") for block in iter(lambda: file.read(block_bytes), b"")]
    if b"".join(checksums) != sums[8:]:
        raise damaged_file_error(key, "its checksum differs")


def check_state_files(folder: Path, unpack: Callable[[Path, int], object]) -> None:
    """Raise `Corruption` for the first state file in a folder that cannot be decompressed.

    `unpack` is called with each file and its batch; any error of `unpack` means that the file is damaged.
    """
    files = (
        (file, path) for path in folder.glob("state/**/*") if (file := parse_state_file(str(path.relative_to(folder))))
    )
    for file, path in sorted(files, key=lambda entry: (entry[0].version, entry[0].key)):
        try:
            if path.suffix == ".zip":
                with zipfile.ZipFile(path) as packed:
                    if (name := packed.testzip()) is not None:
                        raise ValueError(f"{name} in it has another checksum")
            else:
                unpack(path, file.version - 1)
        except Exception as error:  # any error of a codec means that the file is damaged
            raise damaged_file_error(file.key, root_cause(error)) from error


def root_cause(error: BaseException) -> str:
    """Return the message of the root cause of a Python or Java error, in one line."""
    while error.__cause__ is not None:
        error = error.__cause__
    java = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    if java is None:
        return str(error).strip().partition("\n")[0] or type(error).__name__
    while (cause := java.getCause()) is not None:
        java = cause
    message = str(java.getMessage() or "").strip().partition("\n")[0]
    return message or str(java.getClass().getSimpleName())
