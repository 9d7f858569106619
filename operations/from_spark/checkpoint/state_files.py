"""Which files hold a store's state: their names in a checkpoint, and which of them one needs for a version.

Version v of a store is its state at the end of batch v - 1. The HDFS provider writes `v.delta` for each, and now and
then `v.snapshot`, the whole; RocksDB `v.changelog`, where that is switched on, and `v.zip`, which names the SSTs that
make the whole. In checkpoint format 2 an id follows the version's number, since a task that is tried twice leaves two.
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
"""The name of an operator's store that has no folder of its own."""


class StoreFolder(NamedTuple):
    """One store of one state partition."""

    operator: int
    partition: int
    store: str

    @property
    def path(self) -> str:
        """Where it lies, below the checkpoint; ends with a slash."""
        below = "" if self.store == DEFAULT else f"{self.store}/"
        return f"state/{self.operator}/{self.partition}/{below}"


class StateFile(NamedTuple):
    """A file with the changes that made a version, or with the whole of it."""

    key: str
    version: int
    id: str
    """Empty in checkpoint format 1."""
    is_whole: bool


def state_file(key: str) -> StateFile | None:
    """What a key of a listing names; None for what is no version's."""
    name = _NAME.fullmatch(key.rpartition("/")[2])
    return name and StateFile(key, int(name["version"]), name["id"] or "", name["kind"] in _WHOLES)


def damaged(key: str, why: str) -> Corruption:
    """The error for a file, with the batch that wrote it."""
    file = state_file(key)
    what = ""
    if file is not None:
        batch = file.version - 1
        what = (
            f": it has the state at the end of batch {batch}"
            if file.is_whole
            else f": it has what batch {batch} changed"
        )
    return Corruption(
        f"{key} of the checkpoint is damaged ({why}){what}",
        object_key=key,
        hint="restore the file; or let the query run on until it has written a whole state behind it, and try again",
    )


def whole_of(version: int, files: Iterable[StateFile], ids: Mapping[int, str]) -> Sequence[StateFile] | None:
    """The files that make a version; None where they are not all there.

    `ids` are those that count, of versions for which it is known. Of other versions the files of all tasks are taken:
    each says which one it goes on from, and Spark follows that.
    """
    by_version = _by_version(files, ids)
    needed: list[StateFile] = []
    while version > 0:
        here = by_version.get(version, ())
        if whole := _decisive(here):
            return [*needed, *whole]
        if not any(not each.is_whole for each in here):
            return None
        needed += here
        version -= 1
    return needed


def lacking(version: int, files: Iterable[StateFile], ids: Mapping[int, str]) -> int:
    """The version without whose file `whole_of` finds none for this one; 0 where it finds them."""
    by_version = _by_version(files, ids)
    while version > 0 and not _decisive(here := by_version.get(version, ())):
        if all(each.is_whole for each in here):
            return version
        version -= 1
    return 0


def whole_versions(files: Iterable[StateFile], ids: Mapping[int, str]) -> frozenset[int]:
    """All versions for which `whole_of` finds the files."""
    found = {0}
    for version, here in sorted(_by_version(files, ids).items()):
        if _decisive(here) or (version - 1 in found and any(not each.is_whole for each in here)):
            found.add(version)
    return frozenset(found)


def _by_version(files: Iterable[StateFile], ids: Mapping[int, str]) -> dict[int, list[StateFile]]:
    found: dict[int, list[StateFile]] = {}
    for file in files:
        if file.id == ids.get(file.version, file.id):
            found.setdefault(file.version, []).append(file)
    return found


def _decisive(here: Iterable[StateFile]) -> Sequence[StateFile]:
    """The whole state among a version's files, where they are one task's; else none."""
    return [each for each in here if each.is_whole] if len({each.id for each in here}) == 1 else []


def named_in(data: bytes, key: str) -> tuple[str, ...]:
    """The names of the files beside a RocksDB snapshot of which it is made, below its store's folder."""

    def names(said: Any) -> tuple[str, ...]:
        ssts = [f"SSTs/{each['dfsSstFileName']}" for each in said.get("sstFiles") or ()]
        return (*ssts, *(f"logs/{each['dfsLogFileName']}" for each in said.get("logFiles") or ()))

    return _said(data, key, names)


def families_in(data: bytes, key: str) -> dict[str, int]:
    """The column families of a RocksDB snapshot by name, with the numbers that keys begin with."""
    return _said(data, key, lambda said: {str(a): int(b) for a, b in (said.get("columnFamilyMapping") or {}).items()})


def _said(data: bytes, key: str, read: Callable[[Any], _T]) -> _T:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as packed:
            return read(json.loads(packed.read("metadata").decode().partition("\n")[2]))
    except (zipfile.BadZipFile, ValueError, KeyError, TypeError, AttributeError) as error:
        raise damaged(key, f"no snapshot of RocksDB's: {error}") from error
