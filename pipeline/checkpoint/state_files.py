"""Which files hold a store's state: their names in a checkpoint, and which of them one needs for a version.

Version v of a store is its state at the end of batch v - 1. The HDFS provider writes `v.delta` for each, and now and
then `v.snapshot`, the whole; RocksDB `v.changelog`, where that is switched on, and `v.zip`, which names the SSTs that
make the whole. In checkpoint format 2 an id of the version's follows its number, since a task that is tried twice may
leave two.
"""

import io
import json
import re
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ...errors import Corruption

_NAME = re.compile(r"(?:(?P<folder>.+)/)?(?P<version>\d+)(?:_(?P<id>[0-9a-zA-Z-]+))?\.(?P<kind>\w+)")
CHANGES = ("delta", "changelog")
WHOLES = ("snapshot", "zip")
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
    """A file with changes to a state, or a whole one."""

    key: str
    version: int
    id: str
    """Empty in checkpoint format 1."""
    kind: str
    """The end of its name."""


def state_files(folder: str, keys: Iterable[str]) -> tuple[StateFile, ...]:
    """Those among a listing's keys that lie in a store's folder itself and are of a version."""
    found = ((key, _NAME.fullmatch(key.removeprefix(folder))) for key in keys if key.startswith(folder))
    return tuple(
        StateFile(key, int(name["version"]), name["id"] or "", name["kind"])
        for key, name in found
        if name is not None and name["folder"] is None and name["kind"] in CHANGES + WHOLES
    )


def whole_of(version: int, files: Iterable[StateFile], ids: Mapping[int, str]) -> Sequence[StateFile] | None:
    """The files that make a version, the whole one first; None where they are not all there.

    `ids` are those of versions in checkpoint format 2; others' files were left by tasks that did not count.
    """
    by_version: dict[int, dict[str, StateFile]] = {}
    for file in files:
        if file.id == ids.get(file.version, ""):
            by_version.setdefault(file.version, {})[file.kind] = file
    needed: list[StateFile] = []
    while version > 0:
        here = by_version.get(version, {})
        if whole := here.get("snapshot") or here.get("zip"):
            return [whole, *reversed(needed)]
        if (change := here.get("delta") or here.get("changelog")) is None:
            return None
        needed.append(change)
        version -= 1
    return needed[::-1]


def named_in(data: bytes, key: str) -> tuple[str, ...]:
    """The names of the files beside a RocksDB snapshot of which it is made, below its store's folder."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as packed:
            said = json.loads(packed.read("metadata").decode().partition("\n")[2])
        ssts = [f"SSTs/{each['dfsSstFileName']}" for each in said.get("sstFiles", ())]
        return (*ssts, *(f"logs/{each['dfsLogFileName']}" for each in said.get("logFiles") or ()))
    except (zipfile.BadZipFile, ValueError, KeyError, TypeError) as error:
        raise Corruption(f"{key} of the checkpoint is no snapshot of RocksDB's: {error}", object_key=key) from error
