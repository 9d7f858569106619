"""New files of a Delta table, version by version, from the table's log.

The log is read as the Delta protocol defines it: JSON actions of each version, and checkpoints of all actions so far.
delta-rs shows neither the actions of one version nor a fixed order of its rows.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from ....common.instants import format_iso
from ....errors import Gone, NotFound, ObjectNotFound, Refused
from ....store.read.decode import read_whole
from .file_list import SourceFile
from .rows import READ_ANEW, FileReader

_LOG = "_delta_log/"
_COMMIT = re.compile(r"_delta_log/([0-9]{20})\.json")
_CHECKPOINT = re.compile(r"_delta_log/([0-9]{20})\.checkpoint\.(?:[0-9]{10}\.([0-9]{10})\.)?parquet")
_FEATURES = {"deletionVectors", "timestampNtz", "vacuumProtocolCheck", "columnMapping", "v2Checkpoint"}
"""Features of tables that can be read; files with deletion vectors and mapped columns are refused one by one."""
_PLAIN = {"boolean", "byte", "short", "integer", "long", "float", "double"}
"""Types of partition columns whose texts are JSON values."""
_TABLE_ID = "table id"
"""Key of the table's id, in the constants of marks."""
_Action = Mapping[str, Any]


@dataclass(slots=True)
class _Table:
    """Metadata of a table as of a version, and the files that it has."""

    id: str = ""
    ids: set[str] = field(default_factory=set)
    """Id of the table, and those before versions that replaced it."""
    types: dict[str, str] = field(default_factory=dict)
    """Type of each column, by name."""
    settings: Mapping[str, str] = field(default_factory=dict)
    files: dict[str, _Action] = field(default_factory=dict)


class DeltaFinder:
    """Finds the files that the versions of a table added, or with a change feed, those of its changes."""

    def __init__(self, reader: FileReader) -> None:
        self._reader, self._source = reader, reader.source
        self._store = reader.store.at(self._source.address)
        self._table = _Table()
        self._version: int | None = None
        """Newest version that was read; None before the table was."""
        self._last_commit: tuple[int, bytes] | None = None

    def find(self, known: list[SourceFile], _time_limit_s: float | None) -> Iterator[SourceFile]:
        """Yield the files of versions after the newest in `known`.

        Raises `Gone` if the table's log no longer has a version, and `Refused` for changes that are no new rows.
        """
        if self._version is not None and known:
            self._version = known[-1].version  # other threads add files to the list too
        if self._version is None:
            newest = self._read_table()
            self._check_table()
            read = next((file.constants.get(_TABLE_ID) for file in reversed(known) if not file.path), None)
            if known and (newest < known[-1].version or (read is not None and read not in self._table.ids)):
                raise self._recreated_error()
            first = known[-1].version + 1 if known else self._source.starting_version
            if first is None:
                self._version = newest
                yield from tuple(self._rows_of_table(newest))
                return
            if first <= newest and self._commit(first) is None:
                raise Gone(
                    f"{self._source.label}: its log no longer has version {first}, the next to read",
                    hint=f"{READ_ANEW}; delta.logRetentionDuration is how long a stopped app may wait",
                )
            self._version = first - 1
            if not known:
                yield self._mark(self._version)
        at_first = begun = self._version
        while (data := self._commit(self._version + 1)) is not None:
            if self._version == at_first:
                self._check_last_commit()
            self._version, before = self._version + 1, self._table.id
            self._last_commit = self._version, data
            new = tuple(self._rows_of_version(self._version, _parse(data)))
            yield from new
            if sum(file.rows for file in new) and self._table.id == before:
                begun = self._version
        if self._version > begun:
            # Marks versions without rows, so that the log may forget them.
            yield self._mark(self._version)

    def _mark(self, version: int) -> SourceFile:
        return SourceFile("", 0, 0, 0, version, {_TABLE_ID: self._table.id})

    def _check_last_commit(self) -> None:
        """Raise `Gone` if the version that was read last is now another: commits do not name their table."""
        if self._last_commit is not None:
            version, data = self._last_commit
            if self._commit(version) not in (None, data):
                raise self._recreated_error()

    def _recreated_error(self) -> Gone:
        return Gone(
            f"{self._source.label} was removed and created again, or replaced by another table",
            hint=READ_ANEW,
        )

    def _commit(self, version: int) -> bytes | None:
        with suppress(ObjectNotFound):
            return self._store.get(f"{_LOG}{version:020}.json")
        return None

    def _read_table(self) -> int:
        """Read the newest version of the table and return its number."""
        keys = [info.key for info in self._store.list(_LOG)]
        commits = sorted(int(match[1]) for key in keys if (match := _COMMIT.fullmatch(key)))
        checkpoints = defaultdict[tuple[int, int], list[str]](list)
        for key in keys:
            if match := _CHECKPOINT.fullmatch(key):
                # A checkpoint of one file, and one of one part, have the same content.
                checkpoints[int(match[1]), int(match[2] or 0)].append(key)
        complete = [place for place, files in checkpoints.items() if len(files) == max(1, place[1])]
        at, _ = newest = max(complete, default=(-1, 0))
        if not commits and not complete:
            raise NotFound("Delta table", self._source.address, hint="check the address, and that a writer created it")
        for key in checkpoints[newest]:
            for row in read_whole(self._store.get(key)).to_pylist():
                self._apply({name: action for name, action in row.items() if action is not None})
        later = [version for version in commits if version > at]
        lacks = next((expected for expected, version in enumerate(later, at + 1) if version != expected), None)
        if lacks is not None:
            raise Refused(
                f"{self._source.label}: its log lacks version {lacks}, and has no later checkpoint that can be read",
                hint="write a classic checkpoint of the table (delta.checkpointPolicy=classic)",
            )
        for version in later:
            for action in _parse(self._commit(version) or b""):
                self._apply(action)
        return max((at, *later))

    def _apply(self, action: _Action) -> None:
        if (metadata := action.get("metaData")) is not None:
            self._table.id = metadata["id"]
            self._table.ids.add(self._table.id)
            columns = json.loads(metadata["schemaString"])["fields"]
            self._table.types = {column["name"]: str(column["type"]) for column in columns}
            self._table.settings = dict(metadata.get("configuration") or {})
        elif (added := action.get("add")) is not None:
            self._table.files[added["path"]] = added
        elif (removed := action.get("remove")) is not None:
            self._table.files.pop(removed["path"], None)
        elif (protocol := action.get("protocol")) is not None:
            unknown = sorted({*(protocol.get("readerFeatures") or ())} - _FEATURES)
            if unknown:
                raise Refused(f"{self._source.label} has features that are not supported: {', '.join(unknown)}")
        elif (action.get("sidecar") or {}).get("path"):
            raise Refused(
                f"{self._source.label}: its checkpoint has sidecar files, which are not supported",
                hint="write a classic checkpoint of the table (delta.checkpointPolicy=classic)",
            )

    def _check_table(self) -> None:
        label, settings = self._source.label, self._table.settings
        if settings.get("delta.columnMapping.mode", "none") != "none":
            raise Refused(f"{label} maps columns to other names in its files (delta.columnMapping.mode)")
        if self._source.read_change_feed and settings.get("delta.enableChangeDataFeed") != "true":
            raise Refused(
                f"{label} has no change feed",
                hint="ALTER TABLE … SET TBLPROPERTIES (delta.enableChangeDataFeed = true), or read_change_feed=False",
            )

    def _rows_of_table(self, version: int) -> Iterator[SourceFile]:
        files = sorted(self._table.files.values(), key=lambda file: (file["modificationTime"], file["path"]))
        for file in files:
            yield self._part(version, int(file["modificationTime"]), file, "insert")
        self._table.files = {}
        yield self._mark(version)

    def _rows_of_version(self, version: int, actions: Sequence[_Action]) -> Iterator[SourceFile]:
        for action in actions:
            if "metaData" in action or "protocol" in action:
                self._apply(action)
                self._check_table()
        commit: _Action = next((action["commitInfo"] for action in actions if "commitInfo" in action), {})
        added, removed = (
            [action[kind] for action in actions if kind in action and action[kind].get("dataChange", True)]
            for kind in ("add", "remove")
        )
        changed = [action["cdc"] for action in actions if "cdc" in action]
        time_ms = int(
            commit.get("inCommitTimestamp")
            or commit.get("timestamp")
            or max((file["modificationTime"] for file in added), default=0)
        )
        if not self._source.read_change_feed:
            if removed and self._source.skip_change_commits:
                return
            if removed and not (self._source.ignore_deletes and not added):
                self._refuse_change(version, str(commit.get("operation", "")), only_deletes=not added)
            changes = [(file, "insert") for file in added]
        elif changed:
            # These files have a column with the kind of change.
            changes = [(file, "") for file in changed]
        else:
            changes = [(file, "delete") for file in removed] + [(file, "insert") for file in added]
        for file, change in changes:
            yield self._part(version, time_ms, file, change)

    def _refuse_change(self, version: int, operation: str, *, only_deletes: bool) -> None:
        options = "ignore_deletes=True or skip_change_commits=True" if only_deletes else "skip_change_commits=True"
        raise Refused(
            f"{self._source.label}: version {version} ({operation or 'no operation named'}) removes or changes rows, "
            "and only new rows can be read",
            hint=f"give the source another name (name=..., starting_version={version}), and read its changes "
            f"(read_change_feed=True) or pass over such versions: {options}",
        )

    def _part(self, version: int, time_ms: int, file: _Action, change: str) -> SourceFile:
        if (file.get("deletionVector") or {}).get("storageType"):
            raise Refused(
                f"{self._source.label}: version {version} has a file with a deletion vector, which is not supported",
                hint="REORG TABLE … APPLY (PURGE), and set delta.enableDeletionVectors = false",
            )
        path, size = unquote(file["path"]), int(file.get("size") or 0)
        statistics = json.loads(file.get("stats") or "{}")
        rows = statistics.get("numRecords")
        if rows is None:
            try:
                rows, _ = self._reader.count_rows(path, size)
            except ObjectNotFound:
                raise Gone(
                    f"{self._source.label} version {version}: {path} does not exist any more, so its rows cannot be "
                    "counted",
                    hint=f"{READ_ANEW}; let VACUUM keep files for longer",
                ) from None
        constants = {
            name: _partition_value(text, self._table.types.get(name, "string"))
            for name, text in dict(file.get("partitionValues") or {}).items()
        }
        if self._source.read_change_feed:
            constants |= {"_change_type": change} if change else {}
            constants |= {"_commit_version": version, "_commit_timestamp": format_iso(time_ms, "milliseconds")}
        return SourceFile(path, int(rows), size, max(0, time_ms), version, constants)


def _parse(commit: bytes) -> list[_Action]:
    return [json.loads(line) for line in commit.splitlines() if line.strip()]


def _partition_value(text: str | None, kind: str) -> Any:
    if text is None or text == "":
        return None
    if kind in _PLAIN:
        with suppress(ValueError):
            return json.loads(text)
    if kind.startswith("timestamp"):
        return text.replace(" ", "T", 1).removesuffix("Z") + ("" if kind == "timestamp_ntz" else "Z")
    return text
