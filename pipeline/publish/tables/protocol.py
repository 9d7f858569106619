"""Interface to table formats. A commit adds rows, and names the version to which the rows belong."""

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
    """Id of the sink since its last start; a rewind starts the sink again. Versions increase within a period."""
    version: int

    @property
    def properties(self) -> dict[str, str]:
        return {SINK: self.sink, PERIOD: self.period, VERSION: str(self.version)}


class SinkState(NamedTuple):
    """Version and commits of a sink that a table's history has."""

    version: int = 0
    """Newest version of the period in the table; 0 for none."""
    has_commits: bool = False
    """True if the table has commits of the sink, from any period."""


class TableCommit(NamedTuple):
    """A commit in a table's history. `mark` is None for a commit by another writer."""

    snapshot: str
    base: str
    """Snapshot that the commit changed; empty for the first commit."""
    mark: Mark | None
    changes_rows: bool
    """False for a commit that changes only files or properties, such as compaction."""
    operation: str


class LakeTable(Protocol):
    """A table that a sink publishes to.

    Commits build on the table's state as of the last `load` or commit. A commit raises `TransactionFailed` if another
    commit of the same sink came first. All methods raise `TransactionFailed` if the table or its catalog fails.
    """

    def load(self, sink: str, period: str) -> SinkState:
        """Read the table's newest state."""

    def publish(self, mark: Mark, rows: pa.Table) -> None:
        """Commit the rows of a version. Creates a missing table; adds missing columns."""

    def begin(self, mark: Mark, snapshot: str | None) -> None:
        """Commit the start of a period. Later commits of earlier periods then fail.

        The commit restores the rows of `snapshot`. None keeps the newest rows; an empty text removes all rows.
        """

    def log(self) -> Sequence[TableCommit]:
        """Return the table's history, oldest commit first."""

    def compact(self, max_small_files: int) -> None:
        """Merge the small files of each partition that has more than `max_small_files` of them."""


@contextmanager
def table_errors(sink: TableSink, address: str, *conflicts: type[Exception]) -> Iterator[None]:
    """Turn errors of a table's library into `TransactionFailed`. `conflicts` are the errors after a lost race.

    Messages contain no value of the sink's options. The error has no cause, because a cause may contain such values.
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
    """Return the last row of each key, in the order of the rows. Nulls are equal keys."""
    columns = {f"k{number}": rows[name] for number, name in enumerate(key)}
    numbered = pa.table({**columns, "row": pa.array(range(rows.num_rows), pa.int64())})
    last = numbered.group_by(list(columns)).aggregate([("row", "max")])["row_max"]
    return rows.take(last.combine_chunks().sort())


def has_key_of(rows: pa.Table, others: pa.Table, key: Sequence[str]) -> npt.NDArray[np.bool_]:
    """Return a mask of the rows whose key occurs in `others`. Nulls are equal keys."""
    codes = np.zeros(rows.num_rows + others.num_rows, np.int64)
    for name in key:
        values = pa.chunked_array([*rows[name].chunks, *others[name].cast(rows[name].type).chunks], rows[name].type)
        encoded = values.combine_chunks().dictionary_encode("encode")
        numbers = codes * max(1, len(encoded.dictionary)) + encoded.indices.to_numpy()
        codes = np.unique(numbers, return_inverse=True)[1]
    return np.isin(codes[: rows.num_rows], codes[rows.num_rows :])
