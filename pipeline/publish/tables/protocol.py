"""The seam to table formats: a commit adds rows and names the version that they belong to."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ....common.redact import secrets_of_url, without_secrets
from ....errors import Refused, SlackwaterError
from ...api.table_sink import TableSink
from ...kafka.protocol import ProducerFenced, TransactionFailed

SMALL_FILE_BYTES = 32 << 20
SINK, PERIOD, VERSION = "slackwater.sink", "slackwater.period", "slackwater.version"
"""Properties of a commit, in a table's history."""


class Mark(NamedTuple):
    """Identity of a commit: a version of a stage, published by a sink."""

    sink: str
    """App, stage and name of the sink."""
    period: str
    """Id of the sink since it last started; a rewind starts it again. Versions increase within a period."""
    version: int

    @property
    def properties(self) -> dict[str, str]:
        return {SINK: self.sink, PERIOD: self.period, VERSION: str(self.version)}


class SinkState(NamedTuple):
    """Traces of a sink in a table."""

    version: int = 0
    """Newest version of the period in the table; 0 for none."""
    has_commits: bool = False
    """True if the table has commits of the sink, of any period."""


class TableCommit(NamedTuple):
    """A commit in a table's history. `mark` is None for a commit of somebody else."""

    snapshot: str
    base: str
    """Snapshot that the commit changed; empty for a table without one."""
    mark: Mark | None
    changes_rows: bool
    """False for a commit that changes only files or properties, such as compaction."""
    operation: str


class LakeTable(Protocol):
    """A table that a sink publishes to.

    Commits build on the table's state as of the last `load` or commit. They raise `TransactionFailed` if another commit
    of the same sink came first. All methods raise `TransactionFailed` if the table or its catalog fails.
    """

    def load(self, sink: str, period: str) -> SinkState:
        """Read the table's newest state."""

    def publish(self, mark: Mark, rows: pa.Table) -> None:
        """Commit the rows of a version. Creates a missing table; adds missing columns."""

    def begin(self, mark: Mark, snapshot: str | None) -> None:
        """Commit the begin of a period, which makes later commits of earlier periods fail.

        The commit restores the rows of `snapshot`: those of the newest state for None, no rows if it is empty.
        """

    def log(self) -> Sequence[TableCommit]:
        """Return the table's history, oldest commit first."""

    def compact(self, max_small_files: int) -> None:
        """Merge the small files of the table's partitions that have more than this number of them."""


@contextmanager
def table_errors(sink: TableSink, address: str, *conflicts: type[Exception]) -> Iterator[None]:
    """Turn errors of a table's library into `TransactionFailed`; `conflicts` are those of a commit that lost a race.

    Messages have no value of the sink's options. Causes, which may have some, are cut off.
    """
    try:
        yield
    except (SlackwaterError, ProducerFenced, TransactionFailed):
        raise
    except conflicts:
        raise TransactionFailed(f"{address}: another commit came first") from None
    except Exception as error:
        lines = [*without_secrets(str(error), secrets(sink)).strip().splitlines(), ""]
        refused = Refused(
            f"table {address}: {type(error).__name__}: {lines[0][:500]}",
            hint="check that the table exists as the program writes it, and that it can be reached",
        )
        raise TransactionFailed(refused.message, refused) from None


def secrets(sink: TableSink) -> Iterator[str]:
    """Yield the values of a sink's options, their lines, and the secrets of their URLs."""
    for _, value in sink.options:
        yield from (value, *value.splitlines(), *secrets_of_url(value))


def newest_by_key(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """Return the last row of each key, in the order of rows. Null is a key like any other."""
    columns = {f"k{number}": rows[name] for number, name in enumerate(key)}
    numbered = pa.table({**columns, "row": pa.array(range(rows.num_rows), pa.int64())})
    last = numbered.group_by(list(columns)).aggregate([("row", "max")])["row_max"]
    return rows.take(last.combine_chunks().sort())


def has_key_of(rows: pa.Table, others: pa.Table, key: Sequence[str]) -> npt.NDArray[np.bool_]:
    """Return for each of the rows if another of the `others` has its key. Null is a key like any other."""
    codes = np.zeros(rows.num_rows + others.num_rows, np.int64)
    for name in key:
        values = pa.chunked_array([*rows[name].chunks, *others[name].cast(rows[name].type).chunks], rows[name].type)
        encoded = values.combine_chunks().dictionary_encode("encode")
        numbers = codes * max(1, len(encoded.dictionary)) + encoded.indices.to_numpy()
        codes = np.unique(numbers, return_inverse=True)[1]
    return np.isin(codes[: rows.num_rows], codes[rows.num_rows :])
