"""Files on the runner's machine in which readers keep fetched records of users' topics for the archiver.

A file has one complete range of offsets of one partition, as uncompressed Arrow. It gets its final name once the range
has been read. These files are not required: the archiver reads missing ranges from Kafka again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import pyarrow as pa

from ...common import runtime
from ...store.archive.columns import SCHEMA
from ...store.archive.extents import Extent
from ..kafka.columns import MessageColumns

_log = logging.getLogger("slackwater")

_MAX_BYTES = 4 << 30
"""Maximum bytes of a topic's files. The archiver reads records beyond this limit from Kafka again."""
_BUFFER_BYTES = 64 << 10
"""Bytes of a file after which they are written to disk."""
_CONSTANT_COLUMNS = ("topic", "partition")
_STORED = pa.schema([field for field in SCHEMA if field.name not in _CONSTANT_COLUMNS])


@dataclass(frozen=True, slots=True)
class SpooledFile:
    """A file with the records of an offset range."""

    topic: str
    extent: Extent
    path: Path

    def read_records(self, part: Extent) -> Iterator[pa.Table]:
        """Yield the records of `part`, a part of the range, with the columns of the archive's `SCHEMA`.

        Raises `OSError` if the file cannot be read.
        """
        try:
            with pa.memory_map(str(self.path)) as file, pa.ipc.open_stream(file) as reader:
                for batch in reader:
                    offsets = batch["offset"].to_numpy()
                    first, end = offsets.searchsorted((part.first, part.end))
                    if first < end:
                        yield self._add_constant_columns(batch.slice(first, end - first))
        except pa.ArrowException as error:
            raise OSError(f"{self.path} is damaged: {error}") from error

    def _add_constant_columns(self, batch: pa.RecordBatch) -> pa.Table:
        values = {"topic": self.topic, "partition": self.extent.partition}
        columns = {
            name: pa.repeat(pa.scalar(value, SCHEMA.field(name).type), batch.num_rows) for name, value in values.items()
        }
        for name in _STORED.names:
            columns[name] = batch[name]
        return pa.table([columns[name] for name in SCHEMA.names], schema=SCHEMA)


@dataclass(frozen=True, slots=True)
class InputSpool:
    """A folder of files, shared by readers and the archiver. All file names are unique."""

    folder: Path

    @contextmanager
    def open_writer(self, topic: str, extent: Extent) -> Iterator[SpoolWriter | None]:
        """Yield a writer for the records of a range of offsets; None if too many records wait for the archiver.

        The file appears after the block, unless the block fails.
        """
        folder = self.folder / topic
        if self._full(topic).exists():
            yield None
            return
        name = f"{extent.partition}-{extent.first}-{extent.end}-{runtime.random_hex()}.arrow"
        keeper = SpoolWriter(folder / f".{name}")
        try:
            yield keeper
            keeper.finish(folder / name)
        finally:
            keeper.discard()

    def list_files(self, topic: str) -> list[SpooledFile]:
        """Return a topic's files, sorted by partition and offset.

        If the files are too large in total, makes readers stop spooling.
        """
        files, num_bytes = list[SpooledFile](), 0
        for path in (self.folder / topic).glob("[0-9]*.arrow"):
            partition, first, end, _ = path.name.split("-")
            files.append(SpooledFile(topic, Extent(int(partition), int(first), int(end)), path))
            num_bytes += path.stat().st_size
        if num_bytes > _MAX_BYTES:
            self._full(topic).touch()
        elif num_bytes < _MAX_BYTES // 2:
            self._full(topic).unlink(missing_ok=True)
        return sorted(files, key=lambda file: file.extent)

    def _full(self, topic: str) -> Path:
        return self.folder / topic / "full"


class SpoolWriter:
    """Writes one spool file. If the disk is full, the batch does not fail, and there is no file.

    Keeps no file open, since a task may write as many files as it reads partitions.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._buffer = BytesIO()
        self._writer: pa.ipc.RecordBatchStreamWriter | None = None
        self._failed = False

    def add(self, columns: MessageColumns) -> None:
        if self._failed:
            return
        if self._writer is None:
            self._writer = pa.ipc.new_stream(pa.PythonFile(self._buffer, "w"), _STORED)
        self._writer.write_batch(columns.to_batch(_STORED))
        if self._buffer.tell() >= _BUFFER_BYTES:
            self._append()

    def finish(self, path: Path) -> None:
        if self._writer is None or self._failed:
            return
        self._writer.close()
        self._append()
        if not self._failed:
            self._path.rename(path)

    def discard(self) -> None:
        self._path.unlink(missing_ok=True)

    def _append(self) -> None:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("ab") as file:
                file.write(self._buffer.getbuffer())
        except OSError as error:
            self._failed = True
            _log.debug("%s cannot be kept for the archive: %s", self._path, error)
        self._buffer.seek(0)
        self._buffer.truncate()
