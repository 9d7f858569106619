"""Reader of a checkpoint's files: parses logs, finds complete batches, and copies the files that a batch needs.

A query may remove old files of its checkpoint at any time. So files are copied to a folder first, and Spark reads the
copies. Spark fails if a copy is missing, so a read returns the complete state or raises an error.
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
from ....store.objects.many import map_concurrently
from ...attach.protocol import ReadableBatch
from .logs import (
    COMMITS,
    METADATA,
    OFFSETS,
    CommitLog,
    OffsetLog,
    non_kafka_sources,
    offsets_by_source,
    parse_commit_log,
    parse_offset_log,
    query_id,
)
from .operators import METADATA_FOLDERS, SCHEMAS, Operator, derive_metadata, is_metadata, metadata_keys, parse_operator
from .places import ReadableFiles
from .state_files import (
    StateFile,
    StoreFolder,
    check_checksum,
    complete_versions,
    find_needed_files,
    parse_column_families,
    parse_state_file,
    referenced_files,
)

_PROVIDER = "spark.sql.streaming.stateStore.providerClass"
_PARTITIONS = "spark.sql.shuffle.partitions"
_JOIN = "spark.sql.streaming.join.stateFormatVersion"
_JOINS = ("1", "2", "3")
"""Supported formats of a join's state. Format 2 added flags of matched rows; format 3 has a single store."""
_PIECE_BYTES = 16 << 20


class CheckpointFiles:
    """Reader of a checkpoint's files. Not thread-safe.

    Attributes:
        url: URL of the checkpoint.
        id: Id of the query.
        operators: Stateful operators of the newest batch when the checkpoint was opened.
    """

    def __init__(self, store: ReadableFiles) -> None:
        self._store = store
        self.url = store.url
        self._commits: dict[int, int] = {}
        self._offsets: dict[int, OffsetLog] = {}
        self._commit_logs: dict[int, CommitLog] = {}
        self._families: dict[StoreFolder, Mapping[str, int]] = {}
        try:
            self.id = query_id(store.get(METADATA))
        except ObjectNotFound:
            raise NotFound(
                "checkpoint of a Spark query",
                self.url,
                found="there is no file 'metadata' in it",
                hint="give the query's checkpointLocation; a new query writes the file after some seconds",
            ) from None
        newest = self.committed_batches()[-1]
        keys = [info.key for info in store.list("state/")]
        metadata = [key for key in keys if is_metadata(key)]
        with self.missing_files_as_gone(newest):
            self._metadata = dict(zip(metadata, map_concurrently(store.get, metadata), strict=True))
            self._partitions = self._offset_log(newest).conf.get(_PARTITIONS)
        if not metadata_keys(metadata, newest):
            self._metadata |= (derived := derive_metadata(self._metadata, keys))
            metadata += derived
        operators = [parse_operator(self._metadata[key], key) for key in metadata_keys(metadata, newest)]
        self.operators = tuple(
            _with_partitions(operator, keys) for operator in sorted(operators, key=lambda operator: operator.id)
        )
        joins = [operator for operator in self.operators if operator.kind == "join"]
        if joins and (join_format := self._offset_log(newest).conf.get(_JOIN, "2")) not in _JOINS:
            raise Refused(
                f"the join's state in the checkpoint {self.url} has format {join_format}, which cannot be read; "
                f"expected one of {', '.join(_JOINS)}",
                hint=f"set {_JOIN}, and restart the query with a new checkpoint",
            )
        if not self.operators:
            raise Refused(
                f"the checkpoint {self.url} has no state: its query is stateless, or has not run a batch",
                hint="attach to a query with a stateful operator, such as an aggregation",
            )

    def committed_batches(self) -> range:
        """Return the committed batches up to the newest. Batches before the last gap are left out.

        Raises `NotFound` without a committed batch. Raises `Refused` if the query was rolled back since the previous
        call, because earlier results are then outdated.
        """
        previous, self._commits = self._commits, self.commit_times()
        if not self._commits:
            raise NotFound("committed batch", self.url)
        first = newest = max(self._commits)
        recommitted = [
            batch for batch, at_ms in previous.items() if batch > newest or self._commits.get(batch, at_ms) != at_ms
        ]
        if recommitted:
            raise Refused(
                f"the query of the checkpoint {self.url} was rolled back: batch {min(recommitted)} is gone or was "
                "committed again",
                hint="start again under another --app or --stage; versions that were read stay",
            )
        while first - 1 in self._commits:
            first -= 1
        self._offsets = {batch: log for batch, log in self._offsets.items() if batch >= first}
        self._commit_logs = {batch: log for batch, log in self._commit_logs.items() if batch >= first}
        return range(first, newest + 1)

    def commit_times(self) -> dict[int, int]:
        """Return the commit time of each batch, in milliseconds since 1970 UTC."""
        return {
            int(name): info.modified_ms
            for info in self._store.list(COMMITS)
            if re.fullmatch(r"\d+", name := info.key.removeprefix(COMMITS))
        }

    def readable_batches(self, up_to: int | None = None) -> range:
        """Return the batches whose whole state is available in all stores, up to `up_to`, by default the newest."""
        batches = self.committed_batches()
        if up_to is not None:
            batches = range(batches[0], min(up_to, batches[-1]) + 1)
        files = self._state_files("state/")
        self._read_commits(batches)
        whole = [complete_versions(files.get(store.path, ()), self._ids_of(store, batches)) for store in self.stores()]
        first = batches.stop
        while first - 1 in batches and all(first in versions for versions in whole):
            first -= 1
        return range(first, batches.stop)

    def check_variables(self) -> None:
        """Raise `Refused` if the query's state variables have changed since the checkpoint was opened."""
        prefixes = [
            f"state/{operator.id}/{name}/"
            for operator in self.operators
            if operator.kind == "transform"
            for name in METADATA_FOLDERS
        ]
        keys = [info.key for prefix in prefixes for info in self._store.list(prefix) if is_metadata(info.key)]
        new = [key for key in keys if key not in self._metadata]
        new_metadata = dict(zip(new, map_concurrently(self._store.get, new), strict=True))
        tables = {operator.id: operator.tables for operator in self.operators}
        schemas = {data for key, data in self._metadata.items() if SCHEMAS in key}
        for key, data in new_metadata.items():
            if SCHEMAS in key:
                same = data in schemas
            else:
                operator = parse_operator(data, key)
                same = operator.tables == tables.get(operator.id)
            if not same:
                raise Refused(
                    f"the query of the checkpoint {self.url} has other state variables now ({key})",
                    hint="start again: batches after the change can be read then",
                )
        self._metadata |= new_metadata

    def read_batch(self, batch: int) -> ReadableBatch:
        """Return a committed batch. Raises `Gone` if Spark has removed its log."""
        if batch not in self._commits:
            self.committed_batches()
        with self.missing_files_as_gone(batch):
            offset_log = self._offset_log(batch)
            self._read_commits([batch])
            if batch not in self._commits or (commit_log := self._commit_logs.get(batch)) is None:
                raise ObjectNotFound(f"{COMMITS}{batch}", self.url)
            return ReadableBatch(
                batch,
                offsets_by_source(offset_log.sources),
                offset_log.watermark_ms,
                commit_log.next_watermark_ms,
                self._commits[batch],
                non_kafka_sources(offset_log.sources),
            )

    def format_of(self, batch: int) -> int:
        """Return the checkpoint format version of a batch, 1 or 2. Raises `ObjectNotFound`."""
        self._read_commits([batch])
        if batch not in self._commit_logs:
            raise ObjectNotFound(f"{COMMITS}{batch}", self.url)
        return 2 if self._commit_logs[batch].state_ids else 1

    def has_change_feed(self, batch: int) -> bool:
        """Return False if a batch's log shows that its changes cannot be read. Raises `ObjectNotFound`.

        Changes cannot be read if the batch repartitions the state, or is the first batch in a new checkpoint format.
        """
        current, previous = self._offset_log(batch), self._offset_log(batch - 1) if batch - 1 in self._commits else None
        if current.operation or (previous and current.conf.get(_PARTITIONS) != previous.conf.get(_PARTITIONS)):
            return False
        return previous is None or self.format_of(batch) == self.format_of(batch - 1)

    def stores(self, operator: int | None = None, store: str | None = None) -> Sequence[StoreFolder]:
        """Return the stores of all state partitions, or only those of an operator, or those with a name."""
        return [
            StoreFolder(operator_with_stores.id, partition, name)
            for operator_with_stores in self.operators
            for name in operator_with_stores.stores
            for partition in range(operator_with_stores.partitions)
            if operator in (None, operator_with_stores.id) and store in (None, name)
        ]

    def copy_logs(self, batch: int, folder: Path) -> None:
        """Copy the logs and metadata that Spark needs to read a batch's state.

        Raises `ObjectNotFound`, and `Refused` if the number of state partitions has changed since the checkpoint was
        opened.
        """
        if (partitions := self._offset_log(batch).conf.get(_PARTITIONS)) != self._partitions:
            raise Refused(
                f"batch {batch} of the checkpoint {self.url} has {partitions} state partitions, but the newest batch "
                f"had {self._partitions} when reading began",
                hint="start again: batches after the change can be read then",
            )
        self._copy_all([METADATA, f"{OFFSETS}{batch}", f"{COMMITS}{batch}"], folder)
        for key, data in self._metadata.items():
            target = folder / key
            if not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(_with_local_schemas(data, key, folder))

    def copy_whole_state(self, stores: Iterable[StoreFolder], batch: int, folder: Path) -> None:
        """Copy the files with the stores' whole state at the end of a batch. Raises `ObjectNotFound`."""
        self.copy_logs(batch, folder)
        batches = range(min(self._commits, default=batch), batch + 1)
        self._read_commits(committed_batch for committed_batch in batches if committed_batch in self._commits)
        for store in stores:
            files = self._state_files(store.path).get(store.path, ())
            needed, lacking = find_needed_files(batch + 1, files, self._ids_of(store, batches))
            if lacking:
                missing = self._changes_of(store, lacking - 1)
                if files and all(file.is_whole for file in files):
                    missing = f"{missing.rpartition('.')[0]}.zip"
                raise ObjectNotFound(missing, self.url)
            # Spark requires the folder even if the state is empty.
            (folder / store.path).mkdir(parents=True, exist_ok=True)
            self._copy_all([file.key for file in needed], folder)
            referenced = [
                store.path + name
                for file in needed
                if file.key.endswith(".zip")
                for name in referenced_files((folder / file.key).read_bytes(), file.key)
            ]
            self._copy_all(referenced, folder)

    def copy_changes(self, stores: Iterable[StoreFolder], batch: int, folder: Path) -> int:
        """Copy the files with a batch's changes. Returns their total size in bytes. Raises `ObjectNotFound`."""
        self.copy_logs(batch, folder)
        return self._copy_all([self._changes_of(store, batch) for store in stores], folder)

    def copy_changelogs(self, stores: Sequence[StoreFolder], batches: range, folder: Path) -> Sequence[Sequence[Path]]:
        """Copy the changelogs of batches. Returns their paths by store. Raises `ObjectNotFound`."""
        keys = [[self._changes_of(store, batch) for batch in batches] for store in stores]
        self._copy_all([key for of_store in keys for key in of_store], folder)
        return [[folder / key for key in of_store] for of_store in keys]

    def conf_of(self, batch: int) -> Mapping[str, str]:
        return self._offset_log(batch).conf

    def column_families(self, store: StoreFolder) -> Mapping[str, int]:
        """Return the number of each column family of a RocksDB store, by name; empty without a snapshot.

        The numbers are cached, because a query does not renumber its families. `check_variables` detects new families.
        """
        if store not in self._families:
            files = [file for file in self._state_files(store.path).get(store.path, ()) if file.key.endswith(".zip")]
            newest = max(files, key=lambda file: file.version, default=None)
            if newest is None:
                return {}
            self._families[store] = parse_column_families(self._store.get(newest.key), newest.key)
        return self._families[store]

    def _changes_of(self, store: StoreFolder, batch: int) -> str:
        self._read_commits([batch])
        kind = "changelog" if "RocksDB" in self._offset_log(batch).conf.get(_PROVIDER, "") else "delta"
        named = self._ids_of(store, [batch]).get(batch + 1)
        return f"{store.path}{batch + 1}{f'_{named}' if named else ''}.{kind}"

    @contextmanager
    def missing_files_as_gone(self, batch: int) -> Iterator[None]:
        try:
            yield
        except ObjectNotFound as error:
            raise Gone(
                f"batch {batch} of the checkpoint {self.url} is incomplete: {error.key} is missing",
                hint="the query removes files that are older than spark.sql.streaming.minBatchesToRetain batches",
            ) from error

    def _offset_log(self, batch: int) -> OffsetLog:
        if batch not in self._offsets:
            key = f"{OFFSETS}{batch}"
            self._offsets[batch] = parse_offset_log(self._store.get(key), key)
        return self._offsets[batch]

    def _read_commits(self, batches: Iterable[int]) -> None:
        missing = [batch for batch in batches if batch not in self._commit_logs]

        def get(batch: int) -> CommitLog | None:
            key = f"{COMMITS}{batch}"
            try:
                return parse_commit_log(self._store.get(key), key)
            except ObjectNotFound:
                return None

        logs_by_batch = zip(missing, map_concurrently(get, missing), strict=True)
        self._commit_logs |= {batch: log for batch, log in logs_by_batch if log is not None}

    def _ids_of(self, store: StoreFolder, batches: Iterable[int]) -> Mapping[int, str]:
        position = next(
            operator.stores.index(store.store) for operator in self.operators if operator.id == store.operator
        )
        return {
            batch + 1: ids[store.partition][position]
            for batch in batches
            if (log := self._commit_logs.get(batch))
            and (ids := log.state_ids.get(store.operator))
            and store.partition < len(ids)
        }

    def _state_files(self, prefix: str) -> Mapping[str, Sequence[StateFile]]:
        files: dict[str, list[StateFile]] = {}
        for info in self._store.list(prefix):
            if (file := parse_state_file(info.key)) is not None:
                files.setdefault(info.key[: info.key.rfind("/") + 1], []).append(file)
        return files

    def _copy_all(self, keys: Iterable[str], folder: Path) -> int:
        missing = [key for key in dict.fromkeys(keys) if not (folder / key).exists()]
        return sum(map_concurrently(partial(_copy, self._store, folder), missing))


def _with_partitions(operator: Operator, keys: Iterable[str]) -> Operator:
    folder = f"state/{operator.id}/"
    names = {key.removeprefix(folder).partition("/")[0] for key in keys if key.startswith(folder)}
    return replace(operator, partitions=min(operator.partitions, sum(name.isdecimal() for name in names)))


def _copy(store: ReadableFiles, folder: Path, key: str) -> int:
    target = folder / key
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"{target.name}.part")
    if (source := store.local_path(key)) is not None:
        try:
            shutil.copyfile(source, part)
        except FileNotFoundError:
            raise ObjectNotFound(key, store.url) from None
        check_checksum(part, source, key)
    else:
        with part.open("wb") as file:
            while len(piece := store.get_range(key, file.tell(), _PIECE_BYTES)) == _PIECE_BYTES:
                file.write(piece)
            file.write(piece)
    # Atomic: the copy is complete or missing.
    part.replace(target)
    return target.stat().st_size


def _with_local_schemas(data: bytes, key: str, folder: Path) -> bytes:
    if "/_metadata/v2/" not in key:
        return data
    version, _, text = data.decode().partition("\n")
    document = json.loads(text)
    for store_info in document.get("stateStoreInfo", ()):
        if "stateSchemaFilePaths" in store_info:
            store_info["stateSchemaFilePaths"] = [
                f"file:{folder}/state/{path.rpartition('/state/')[2]}" for path in store_info["stateSchemaFilePaths"]
            ]
    return f"{version}\n{json.dumps(document)}".encode()
