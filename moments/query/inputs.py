"""`input('orders')`: what an app had read of a topic at a moment, as far as its input archive has it, as a view.

DuckDB reads the archive's objects themselves, and of them what a statement asks for: columns, and row groups by
partition, offset and time.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING

import duckdb

from ...errors import Corruption, NotFound, SlackwaterError
from ...store.archive.columns import SCHEMA
from ...store.archive.extents import Extent, Extents, common, minus, union
from ...store.archive.objects import opened
from ...store.archive.reading import Archive, Archives
from ...store.objects.protocol import ObjectStore
from ...store.read.duckdb_view import quoted
from ...store.versions import keys
from ...store.versions.manifest import Input
from ..cut.graph import Cut
from .clauses import InputOf

if TYPE_CHECKING:
    import pyarrow.dataset as ds

_STREAM = "reading the stream registered as '@input "


def register_input(
    con: duckdb.DuckDBPyConnection,
    store: ObjectStore,
    cut: Cut,
    clause: InputOf,
    failed: Callable[[Exception], None],
) -> None:
    """Make the view of a clause: the columns of `archive.columns.SCHEMA`, of records before the cut's offsets.

    `failed` is told of an object that turns out to be missing or damaged as the view is read. Raises `NotFound` where
    the app reads no such topic, or has no archive of it, `Corruption` and `Unavailable`.
    """
    schema, name = clause.view
    con.execute(f"CREATE SCHEMA IF NOT EXISTS {quoted(schema)}")
    read = _read(cut, clause.topic)
    topics = {each.topic for each in read}
    found = [(topic, Archives(lambda: store, cut.app, at_ms=cut.time_ms).of(topic).archives) for topic in topics]
    if not any(archives for _, archives in found):
        raise NotFound(
            "input archive",
            clause.topic,
            found=f"app {cut.app!r} has none of this topic",
            hint='input = "30d" under [retention] in slackwater.toml keeps one, from then on; '
            f"`slackwater archive {cut.app} --from beginning` fills it with what Kafka still has",
        )
    selects: list[str] = []
    for topic, archives in found:
        wanted = _before([each.offsets for each in read if each.topic == topic])
        for archive in archives:
            there = common(wanted, archive.index.covered)
            wanted = minus(wanted, there)
            if (rows := _dataset(archive, there, failed)) is not None:
                view = f"{schema} {len(selects)}"
                con.register(view, rows)
                selects.append(f"SELECT * FROM {quoted(view)} WHERE {' OR '.join(_conditions(there))}")
    if not selects:
        con.register(f"{schema} none", SCHEMA.empty_table())
        selects = [f"SELECT * FROM {quoted(f'{schema} none')}"]
    con.execute(f"CREATE VIEW {quoted(schema)}.{quoted(name)} AS {' UNION ALL '.join(selects)}")


def reading_failed(error: SlackwaterError) -> bool:
    """Whether a statement failed because an object could not be read, as Arrow says it through DuckDB."""
    return _STREAM in error.message


def in_archive(app: str, error: SlackwaterError) -> Corruption:
    """The error for an object that cannot be decoded."""
    found = error.message.partition(_STREAM)[2].partition("' failed: ")[2].partition("\n")[0]
    return Corruption(
        f"an input archive of {app!r} is damaged: {found}",
        object_key=keys.archives(app),
        hint=f"`slackwater verify {app} --deep` names the object",
    )


def _read(cut: Cut, topic: str) -> list[Input]:
    """Where the stages stood on a topic, by its name in Kafka or as declared. Raises `NotFound`."""
    inputs = [(name, at) for stage in cut.stages.values() for name, at in stage.inputs.items()]
    found = [at for name, at in inputs if topic in (name, at.topic)]
    if not found:
        raise NotFound("input", topic, {name for name, _ in inputs})
    return found


def _before(offsets: Sequence[tuple[int, ...]]) -> Extents:
    """All that is before the furthest of some places."""
    ends = map(max, zip_longest(*offsets, fillvalue=0))
    return union(Extent(partition, 0, end) for partition, end in enumerate(ends) if end)


def _dataset(archive: Archive, wanted: Extents, failed: Callable[[Exception], None]) -> "ds.Dataset | None":
    """The objects that have some of these offsets; None where none has."""
    # It brings pandas along.
    import pyarrow.dataset as ds

    kind = ds.ParquetFileFormat(
        default_fragment_scan_options=ds.ParquetFragmentScanOptions(page_checksum_verification=True)
    )
    objects = (one for one in archive.index.objects if common(wanted, one.extents))
    fragments = [kind.make_fragment(opened(archive.store, one, failed)) for one in objects]
    return ds.FileSystemDataset(fragments, SCHEMA, kind) if fragments else None


def _conditions(extents: Extents) -> Iterator[str]:
    for each in extents:
        yield f'(partition = {each.partition} AND "offset" >= {each.first} AND "offset" < {each.end})'
