"""A moment of an app: one version of each stage, which can be queried, and which never changes."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from os import PathLike
from pathlib import Path

import duckdb
import pyarrow as pa

from .. import instants
from ..errors import NotFound
from ..keep.verify.verify import verify
from ..moments.cut.graph import Cut, Thinned, channels
from ..moments.cut.moments import later_stages
from ..moments.cut.resolve import telling_if_collected
from ..moments.diff.moments import StoredCut, diff
from ..moments.query.answers import answer, as_relation, channel_tables, names_channels
from ..moments.query.columns import TableColumn, columns, get
from ..moments.query.export import export
from ..results.document import Block, Table, Time, Title
from ..results.rows import columns_table
from ..results.shown import Shown
from ..store.sst.arrow_types import python_rows
from ..store.versions.manifest import Manifest
from .connection import Connection
from .results import Difference, Verification


def rows_of(
    client: Connection,
    cut: Cut,
    sql: str,
    later: Mapping[str, Manifest],
    on_moment: Callable[[str, Cut], None] = lambda _ref, _cut: None,
) -> pa.Table:
    """What a query returns at a cut. Relative times count from now, and Kafka is asked for records in flight alone.

    `later` are later versions of stages; `on_moment` gets each other moment that is named. Raises as `Moment.query`.
    """
    reader, now_ms = client.channels() if names_channels(sql) else None, instants.now_ms()
    return answer(client.store, client.cache, cut, sql, later=later, reader=reader, now_ms=now_ms, on_moment=on_moment)


class Tables(Shown, Mapping[str, tuple[TableColumn, ...]]):
    """The columns of each table, by its name."""

    def __init__(self, ref: str, found: Mapping[str, tuple[TableColumn, ...]]) -> None:
        self._ref = ref
        self._found = found

    def __getitem__(self, name: str) -> tuple[TableColumn, ...]:
        return self._found[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    def _blocks(self) -> Iterator[Block]:
        yield Title(f"tables at {self._ref}")
        yield columns_table(self)


class Moment(Shown):
    """What all stages of an app had committed at one moment. It changes nothing, and nothing changes it."""

    def __init__(self, client: Connection, ref: str, cut: Cut) -> None:
        self._client = client
        self._ref = ref
        self._cut = cut

    @property
    def ref(self) -> str:
        """As it was asked for, in the words of the command line."""
        return self._ref

    @property
    def versions(self) -> dict[str, int]:
        """The version of each stage, upstream first. Stages that had none are left out."""
        return self._cut.versions

    @property
    def time(self) -> datetime:
        """When the newest of these versions was committed, in UTC."""
        return datetime.fromtimestamp(self._cut.time_ms / 1_000, UTC)

    @property
    def thinned_out(self) -> Thinned | None:
        """Set when garbage collection has left another moment than the one that was asked for, which this is."""
        return self._cut.thinned

    @property
    def tables(self) -> Tables:
        """The tables and their columns."""
        return Tables(self._ref, {name: columns(each) for name, each in self._cut.tables.items()})

    def query(self, sql: str) -> duckdb.DuckDBPyRelation:
        """What a query over the tables returns, as a DuckDB relation: `.df()`, `.arrow()`, `.pl()`, `.filter(…)`.

        The rows are computed here and now, and held in memory by a connection of their own. So the relation lives for
        as long as anybody has it, and whatever is done to it, neither the store nor this moment is touched. Records in
        flight are `FROM inflight('CHANNEL')`, a table at another moment `FROM carriers AT '-1h'`, and one at many of
        its versions `FROM versions('carriers', '-1h')`; relative times count from now.

        Raises:
            Usage: the SQL is wrong, or does not only read; or asks for records in flight, and nothing says where Kafka
                is; or for more versions than one query reads.
            NotFound: it names a table, column or moment that there is not; or a moment was collected meanwhile.
            Corruption: an SST is not what its manifest promises.
            Unavailable: the store or Kafka did not answer.
        """
        return as_relation(rows_of(self._client, self._cut, sql, later_stages(self._client.store, self._cut)))

    def export(self, path: str | PathLike[str], *, force: bool = False) -> Path:
        """Write the tables to a DuckDB file that any DuckDB client opens, and give its path.

        The table `_slackwater` beside them says which moment they are, and the version of each stage. The file appears
        whole or not at all.

        Args:
            path: the file.
            force: overwrite what is there.

        Raises:
            Refused: there is such a file already, or it cannot be written.
            NotFound: the moment was collected meanwhile.
            Corruption: an SST is not what its manifest promises.
            Unavailable: the store did not answer.
        """
        client = self._client
        return export(client.store, client.cache, self._cut, self._ref, Path(path), force=force).path

    def get(self, table: str, key: object) -> dict[str, object] | None:
        """The row of one key, by column; None when it is not there. Reads only the parts that can hold it.

        Args:
            table: the table's name.
            key: the key's value; a tuple of them where the key has several columns. None is a null. Text is understood
                as the command line understands it: `"17"` will do for a number.

        Raises:
            NotFound: there is no such table.
            Usage: there are not as many values as key columns, or one is not of its column's type.
            Corruption: an SST is not what its manifest promises.
            Unavailable: the store did not answer.
        """
        values: Sequence[object] = key if isinstance(key, tuple) else (key,)
        store = self._client.store
        with telling_if_collected(store, self._cut):
            found = python_rows(get(store, self._cut, table, values))
        return found[0] if found else None

    def diff(self, other: "Moment", *, table: str = "") -> Difference:
        """What another moment has that this one has not, and the other way round: of this app or of another one.

        What both have is not read: the cost follows what was written since the two parted.

        Args:
            other: the second moment; what only it has was added.
            table: only this table; empty for all.

        Raises:
            NotFound: neither moment has such a table, or one was collected meanwhile.
            Corruption: an SST or manifest is not what it should be.
            Unavailable: a store did not answer.
        """
        sides = (StoredCut(each._client.store, each._cut) for each in (self, other))
        return Difference(self._ref, other._ref, diff(self._client.cache, *sides, table=table))

    def inflight(self, channel: str) -> duckdb.DuckDBPyRelation:
        """The records in flight on a channel, as a DuckDB relation: sent by one stage and not yet read by the next.

        Raises:
            NotFound: no stage writes such a channel; tells the nearest.
            Usage: no snapshot keeps the records, and nothing says where Kafka is.
            Refused: the records are gone from Kafka.
            Corruption: the records are not those that were written.
            Unavailable: the store or Kafka did not answer.
        """
        store = self._client.store
        names = {each.name for each in channels(self._cut)}
        if channel not in names:
            raise NotFound(f"channel at {self._ref}", channel, names)
        with telling_if_collected(store, self._cut):
            return as_relation(channel_tables(store, self._cut, channel, self._client.channels())[channel])

    def verify(self, *, deep: bool = False) -> Verification:
        """Prove that the moment is consistent, complete and undamaged, from what is stored.

        Args:
            deep: read every byte, the whole history, and what Kafka still has; not only manifests and sizes.

        Raises:
            NotFound: the moment's snapshot is gone.
            Unavailable: the store did not answer.
        """
        reader = self._client.channels() if deep else None
        return Verification(verify(self._client.store, self._cut, deep=deep, reader=reader))

    def _blocks(self) -> Iterator[Block]:
        yield Title(f"{self._ref}, committed {instants.iso(self._cut.time_ms)}")
        stages = [(self._cut.stages[stage], stage in self._cut.tables) for stage in self.versions]
        rows = ((at.stage, f"v{at.version}", Time(at.time_ms), at.stage if keeps else "-") for at, keeps in stages)
        yield Table.of(("stage", "version", "committed", "table"), rows)
        if self.thinned_out:
            yield "the history was thinned out by gc: this is the nearest moment that is left"
