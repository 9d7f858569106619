"""The files of a checkpoint: what is in its logs, which batches can be read, and copies of what one needs for that.

A query removes old files of its checkpoint at any time. So files are copied into a folder first, under their names, and
Spark reads them there: what was copied stays, and without a file that it needs Spark fails. What is read is right, or
nothing is read.
"""

import json
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from ....errors import Gone, NotFound, ObjectNotFound, Refused
from ....store.objects.many import many
from .before_4 import metadata_before_4
from .damage import check_sum
from .logs import COMMITS, METADATA, OFFSETS, Commit, Offsets, commit, offsets, offsets_of, others_of, query_id
from .operators import FOLDERS, SCHEMAS, Operator, is_metadata, metadata_of, operator_in
from .places import Readable
from .protocol import ReadableBatch
from .state_files import StateFile, StoreFolder, families_in, lacking, named_in, state_file, whole_of, whole_versions

_PROVIDER = "spark.sql.streaming.stateStore.providerClass"
_PARTITIONS = "spark.sql.shuffle.partitions"
_JOIN = "spark.sql.streaming.join.stateFormatVersion"
_JOINS = ("1", "2", "3")
"""Formats of a join's state: since 2 it says which rows have met one, and in 3 all is in one store."""
_PIECE_BYTES = 16 << 20


class CheckpointFiles:
    """Reads. For one thread.

    Attributes:
        url: Where the checkpoint is.
        id: The query's.
        operators: The stateful operators of the newest batch when this was opened.
    """

    def __init__(self, store: Readable) -> None:
        self._store = store
        self.url = store.url
        self._commits: dict[int, int] = {}
        self._offsets: dict[int, Offsets] = {}
        self._said_commits: dict[int, Commit] = {}
        self._families: dict[StoreFolder, Mapping[str, int]] = {}
        try:
            self.id = query_id(store.get(METADATA))
        except ObjectNotFound:
            raise NotFound(
                "checkpoint of a Spark query",
                self.url,
                found="there is no file 'metadata' in it",
                hint="give the query's checkpointLocation; one that was just started has it after some seconds",
            ) from None
        newest = self.committed()[-1]
        keys = [info.key for info in store.list("state/")]
        metadata = [key for key in keys if is_metadata(key)]
        with self.reading(newest):
            self._metadata = dict(zip(metadata, many(store.get, metadata), strict=True))
            self._partitions = self._said(newest).conf.get(_PARTITIONS)
        if not metadata_of(metadata, newest):
            self._metadata |= (made := metadata_before_4(self._metadata, keys))
            metadata += made
        operators = [operator_in(self._metadata[key], key) for key in metadata_of(metadata, newest)]
        self.operators = tuple(_with_partitions(each, keys) for each in sorted(operators, key=lambda each: each.id))
        joins = [each for each in self.operators if each.kind == "join"]
        if joins and (found := self._said(newest).conf.get(_JOIN, "2")) not in _JOINS:
            raise Refused(
                f"the join's state in the checkpoint {self.url} has format {found}, which cannot be read; "
                f"expected one of {', '.join(_JOINS)}",
                hint=f"{_JOIN} says the format, and only a query that begins anew can take another",
            )
        if not self.operators:
            raise Refused(
                f"the checkpoint {self.url} has no state: its query keeps none, or has not run a batch",
                hint="attach to a query with a stateful operator, such as an aggregation",
            )

    def committed(self) -> range:
        """The batches whose commit is there now, without gaps up to the newest.

        Raises `NotFound` where none is, `Refused` where one was committed anew since this was asked last: what was read
        of it then is not so any more.
        """
        known, self._commits = self._commits, self.listed()
        if not self._commits:
            raise NotFound("committed batch", self.url)
        first = newest = max(self._commits)
        anew = [batch for batch, at_ms in known.items() if batch > newest or self._commits.get(batch, at_ms) != at_ms]
        if anew:
            raise Refused(
                f"the query of the checkpoint {self.url} was set back: batch {min(anew)} is not the one that it was",
                hint="what was read stays; begin anew, under another name",
            )
        while first - 1 in self._commits:
            first -= 1
        self._offsets = {batch: said for batch, said in self._offsets.items() if batch >= first}
        self._said_commits = {batch: said for batch, said in self._said_commits.items() if batch >= first}
        return range(first, newest + 1)

    def listed(self) -> dict[int, int]:
        """The batches whose commit is there now, and when each was written, in milliseconds since 1970 UTC."""
        return {
            int(name): info.modified_ms
            for info in self._store.list(COMMITS)
            if re.fullmatch(r"\d+", name := info.key.removeprefix(COMMITS))
        }

    def available(self, up_to: int | None = None) -> range:
        """The batches whose whole state can be read now, of all stores, without gaps up to the newest, or to one."""
        batches = self.committed()
        if up_to is not None:
            batches = range(batches[0], min(up_to, batches[-1]) + 1)
        files = self._state_files("state/")
        self._read_commits(batches)
        whole = [whole_versions(files.get(each.path, ()), self._ids_of(each, batches)) for each in self.stores()]
        first = batches.stop
        while first - 1 in batches and all(first in versions for versions in whole):
            first -= 1
        return range(first, batches.stop)

    def check_variables(self) -> None:
        """Raise `Refused` where the query went on with other state variables than it had when this was opened."""
        prefixes = [
            f"state/{each.id}/{name}/" for each in self.operators if each.kind == "transform" for name in FOLDERS
        ]
        keys = [info.key for prefix in prefixes for info in self._store.list(prefix) if is_metadata(info.key)]
        new = [key for key in keys if key not in self._metadata]
        found = dict(zip(new, many(self._store.get, new), strict=True))
        tables = {each.id: each.tables for each in self.operators}
        schemas = {data for key, data in self._metadata.items() if SCHEMAS in key}
        for key, data in found.items():
            if SCHEMAS in key:
                same = data in schemas
            else:
                operator = operator_in(data, key)
                same = operator.tables == tables.get(operator.id)
            if not same:
                raise Refused(
                    f"the query of the checkpoint {self.url} went on with other state variables ({key})",
                    hint="begin anew: what is behind the change can be read then",
                )
        self._metadata |= found

    def batch(self, batch: int) -> ReadableBatch:
        """One committed batch. Raises `Gone` where it was cleaned up."""
        if batch not in self._commits:
            self.committed()
        with self.reading(batch):
            said = self._said(batch)
            self._read_commits([batch])
            if batch not in self._commits or (ended := self._said_commits.get(batch)) is None:
                raise ObjectNotFound(f"{COMMITS}{batch}", self.url)
            return ReadableBatch(
                batch,
                offsets_of(said.sources),
                said.watermark_ms,
                ended.next_watermark_ms,
                self._commits[batch],
                others_of(said.sources),
            )

    def format_of(self, batch: int) -> int:
        """The version of the checkpoint's format as of a batch, 1 or 2. Raises `ObjectNotFound`."""
        self._read_commits([batch])
        if batch not in self._said_commits:
            raise ObjectNotFound(f"{COMMITS}{batch}", self.url)
        return 2 if self._said_commits[batch].state_ids else 1

    def has_feed(self, batch: int) -> bool:
        """Whether a batch's changes to the state before it can be read, from names alone.

        Not where a batch lays the state out anew, nor at the first in another format. Raises `ObjectNotFound`.
        """
        now, before = self._said(batch), self._said(batch - 1) if batch - 1 in self._commits else None
        if now.operation or (before and now.conf.get(_PARTITIONS) != before.conf.get(_PARTITIONS)):
            return False
        return before is None or self.format_of(batch) == self.format_of(batch - 1)

    def stores(self, operator: int | None = None, store: str | None = None) -> Sequence[StoreFolder]:
        """All stores of all partitions, or one store of an operator's."""
        return [
            StoreFolder(each.id, partition, name)
            for each in self.operators
            for name in each.stores
            for partition in range(each.partitions)
            if operator in (None, each.id) and store in (None, name)
        ]

    def bring_logs(self, batch: int, folder: Path) -> None:
        """What Spark reads of a batch before its state. Raises `ObjectNotFound`.

        Raises `Refused` for a batch that has another number of state partitions than the newest had.
        """
        if (partitions := self._said(batch).conf.get(_PARTITIONS)) != self._partitions:
            raise Refused(
                f"batch {batch} of the checkpoint {self.url} has its state in {partitions} partitions, and the newest, "
                f"when this was opened, in {self._partitions}",
                hint="begin anew: what is behind the change can be read then",
            )
        self._copy_all([METADATA, f"{OFFSETS}{batch}", f"{COMMITS}{batch}"], folder)
        for key, data in self._metadata.items():
            target = folder / key
            if not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(_moved(data, key, folder))

    def bring_whole(self, stores: Iterable[StoreFolder], batch: int, folder: Path) -> None:
        """What the whole state of stores at the end of a batch is made of. Raises `ObjectNotFound`."""
        self.bring_logs(batch, folder)
        batches = range(min(self._commits, default=batch), batch + 1)
        self._read_commits(each for each in batches if each in self._commits)
        for store in stores:
            files = self._state_files(store.path).get(store.path, ())
            if (needed := whole_of(batch + 1, files, self._ids_of(store, batches))) is None:
                missing = self._changes_of(store, lacking(batch + 1, files, self._ids_of(store, batches)) - 1)
                if files and all(each.is_whole for each in files):
                    missing = f"{missing.rpartition('.')[0]}.zip"
                raise ObjectNotFound(missing, self.url)
            # Also where nothing is needed, Spark looks for the folder.
            (folder / store.path).mkdir(parents=True, exist_ok=True)
            self._copy_all([each.key for each in needed], folder)
            beside = [
                store.path + name
                for each in needed
                if each.key.endswith(".zip")
                for name in named_in((folder / each.key).read_bytes(), each.key)
            ]
            self._copy_all(beside, folder)

    def bring_changes(self, stores: Iterable[StoreFolder], batch: int, folder: Path) -> int:
        """The files with what a batch changed in stores; how many bytes. Raises `ObjectNotFound`."""
        self.bring_logs(batch, folder)
        return self._copy_all([self._changes_of(each, batch) for each in stores], folder)

    def bring_changelogs(self, stores: Sequence[StoreFolder], batches: range, folder: Path) -> Sequence[Sequence[Path]]:
        """The changelogs of some batches, in their order, of each store. Raises `ObjectNotFound`."""
        keys = [[self._changes_of(store, batch) for batch in batches] for store in stores]
        self._copy_all([key for of_store in keys for key in of_store], folder)
        return [[folder / key for key in of_store] for of_store in keys]

    def conf_of(self, batch: int) -> Mapping[str, str]:
        """The settings with which a batch ran. Raises `ObjectNotFound`."""
        return self._said(batch).conf

    def families(self, store: StoreFolder) -> Mapping[str, int]:
        """The column families of a store in RocksDB; empty where no snapshot says them.

        With a new one a query writes a snapshot, and `check_variables` sees that: the others keep their numbers.
        """
        if store not in self._families:
            files = [each for each in self._state_files(store.path).get(store.path, ()) if each.key.endswith(".zip")]
            newest = max(files, key=lambda each: each.version, default=None)
            if newest is None:
                return {}
            self._families[store] = families_in(self._store.get(newest.key), newest.key)
        return self._families[store]

    def _changes_of(self, store: StoreFolder, batch: int) -> str:
        """The file with what a batch changed in a store."""
        self._read_commits([batch])
        kind = "changelog" if "RocksDB" in self._said(batch).conf.get(_PROVIDER, "") else "delta"
        named = self._ids_of(store, [batch]).get(batch + 1)
        return f"{store.path}{batch + 1}{f'_{named}' if named else ''}.{kind}"

    @contextmanager
    def reading(self, batch: int) -> Iterator[None]:
        """What is not there is `Gone`, inside."""
        try:
            yield
        except ObjectNotFound as error:
            raise Gone(
                f"the checkpoint {self.url} has not all of batch {batch}: {error.key} is not there",
                hint="the query removes what is older than spark.sql.streaming.minBatchesToRetain batches",
            ) from error

    def _said(self, batch: int) -> Offsets:
        if batch not in self._offsets:
            key = f"{OFFSETS}{batch}"
            self._offsets[batch] = offsets(self._store.get(key), key)
        return self._offsets[batch]

    def _read_commits(self, batches: Iterable[int]) -> None:
        """Get the commits of these batches, where they are not known; that of one that is gone stays unknown."""
        missing = [batch for batch in batches if batch not in self._said_commits]

        def get(batch: int) -> Commit | None:
            key = f"{COMMITS}{batch}"
            try:
                return commit(self._store.get(key), key)
            except ObjectNotFound:
                return None

        found = zip(missing, many(get, missing), strict=True)
        self._said_commits |= {batch: said for batch, said in found if said is not None}

    def _ids_of(self, store: StoreFolder, batches: Iterable[int]) -> Mapping[int, str]:
        """The ids of a store's versions, as far as they are known."""
        position = next(each.stores.index(store.store) for each in self.operators if each.id == store.operator)
        return {
            batch + 1: ids[store.partition][position]
            for batch in batches
            if (said := self._said_commits.get(batch))
            and (ids := said.state_ids.get(store.operator))
            and store.partition < len(ids)
        }

    def _state_files(self, prefix: str) -> Mapping[str, Sequence[StateFile]]:
        """By folder."""
        found: dict[str, list[StateFile]] = {}
        for info in self._store.list(prefix):
            if (file := state_file(info.key)) is not None:
                found.setdefault(info.key[: info.key.rfind("/") + 1], []).append(file)
        return found

    def _copy_all(self, keys: Iterable[str], folder: Path) -> int:
        missing = [key for key in dict.fromkeys(keys) if not (folder / key).exists()]
        return sum(many(partial(_copy, self._store, folder), missing))


def _with_partitions(operator: Operator, keys: Iterable[str]) -> Operator:
    """The operator with as many state partitions as it has folders: some have one, whatever its metadata says."""
    folder = f"state/{operator.id}/"
    found = {key.removeprefix(folder).partition("/")[0] for key in keys if key.startswith(folder)}
    return replace(operator, partitions=min(operator.partitions, sum(each.isdecimal() for each in found)))


def _copy(store: Readable, folder: Path, key: str) -> int:
    target = folder / key
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"{target.name}.part")
    if (source := store.local_path(key)) is not None:
        try:
            shutil.copyfile(source, part)
        except FileNotFoundError:
            raise ObjectNotFound(key, store.url) from None
        check_sum(part, source, key)
    else:
        with part.open("wb") as file:
            while len(piece := store.get_range(key, file.tell(), _PIECE_BYTES)) == _PIECE_BYTES:
                file.write(piece)
            file.write(piece)
    # Whole, or not there.
    part.replace(target)
    return target.stat().st_size


def _moved(data: bytes, key: str, folder: Path) -> bytes:
    """Metadata with the paths of schemas in it, which are whole, in a folder where they are now."""
    if "/_metadata/v2/" not in key:
        return data
    version, _, rest = data.decode().partition("\n")
    said = json.loads(rest)
    for each in said.get("stateStoreInfo", ()):
        if "stateSchemaFilePaths" in each:
            each["stateSchemaFilePaths"] = [
                f"file:{folder}/state/{path.rpartition('/state/')[2]}" for path in each["stateSchemaFilePaths"]
            ]
    return f"{version}\n{json.dumps(said)}".encode()
