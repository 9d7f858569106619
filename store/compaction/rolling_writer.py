"""One sorted run written as several SSTs, side by side in their hashes."""

from collections.abc import Callable

import pyarrow as pa

from ..sst.writer import ROW_GROUP_BYTES, ROW_GROUP_ROWS, SstWriter
from ..versions.manifest import Sst, Table


class RollingWriter:
    """Writes rows that come in the order of an SST in SSTs of about `target_file_bytes`.

    Its caller says where slots end. Then an SST holds whole slots, or a part of one, and never a part and others.
    """

    def __init__(
        self, table: Table, finish: Callable[[SstWriter], Sst], *, target_file_bytes: int, row_bytes: float
    ) -> None:
        """Writes nothing yet. `finish` puts what was written as an SST where it belongs.

        An encoded row takes about `row_bytes`.
        """
        self._table, self._finish = table, finish
        self._target_file_bytes = target_file_bytes
        self._row_bytes = row_bytes
        self._done: list[Sst] = []
        # Of the SST that is being written:
        self._writer: SstWriter | None = None
        self._waiting: list[pa.Table] = []
        self._num_waiting = self._waiting_bytes = 0
        self._slots = 0
        self._before_slot = 0.0
        self._began_inside = False

    def append(self, rows: pa.Table) -> None:
        """Add rows. No two calls have rows of one hash."""
        self._waiting.append(rows)
        self._num_waiting += rows.num_rows
        self._waiting_bytes += rows.nbytes
        # Rows are written in whole row groups, however few come at a time.
        if self._num_waiting >= ROW_GROUP_ROWS or self._waiting_bytes >= ROW_GROUP_BYTES:
            self._write(self._num_waiting // ROW_GROUP_ROWS * ROW_GROUP_ROWS or self._num_waiting)

    def may_cut(self) -> None:
        """Here, within a slot, an SST may end: if it is large enough, and has no whole slot."""
        if self._num_bytes >= self._target_file_bytes and not self._slots:
            self._cut(inside_a_slot=True)

    def end_slot(self, *, guard: bool) -> None:
        """Here a slot ends; `guard`: and so does the SST. Else it may have the next one, too, if that will fit."""
        size = self._num_bytes
        if guard or self._began_inside or size + (size - self._before_slot) > self._target_file_bytes:
            self._cut(inside_a_slot=False)
        else:
            self._slots, self._before_slot = self._slots + 1, size

    def finish(self) -> tuple[Sst, ...]:
        """The SSTs that were written, in their order; none when there were no rows."""
        self._cut(inside_a_slot=False)
        return tuple(self._done)

    @property
    def _num_bytes(self) -> float:
        """About how large the SST would be if it ended here."""
        return (self._writer.num_bytes if self._writer else 0) + self._num_waiting * self._row_bytes

    def _write(self, num_rows: int) -> None:
        waiting = pa.concat_tables(self._waiting)
        self._writer = self._writer or SstWriter(self._table)
        self._writer.append(waiting.slice(0, num_rows))
        self._num_waiting -= num_rows
        self._waiting = [waiting.slice(num_rows)] if self._num_waiting else []
        self._waiting_bytes = sum(rows.nbytes for rows in self._waiting)

    def _cut(self, *, inside_a_slot: bool) -> None:
        if self._num_waiting:
            self._write(self._num_waiting)
        if self._writer:
            self._done.append(self._finish(self._writer))
        self._writer = None
        self._slots, self._before_slot, self._began_inside = 0, 0.0, inside_a_slot
