"""Decoded content of a store root: objects that contain a text, and the rows of each version of each table."""

import io
import re
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from slackwater.store.archive import index
from slackwater.store.archive.extents import Extent
from slackwater.store.objects.protocol import ObjectStore
from slackwater.store.versions import history

from tests.store.archive.small_archives import BY, TOPIC, records, write
from tests.support.histories import rows_of


def occurrences(store: ObjectStore, text: str) -> list[tuple[str, int]]:
    """Return the objects that contain `text` as a value or as a word in JSON, with the number of occurrences.

    Only whole words count in JSON, since an id or a checksum (base 32, base 64) may contain `text` by chance.
    """
    found = []
    word = re.compile(rf"(?<![\w-]){re.escape(text)}(?![\w-])")
    for info in type(store).list(store, ""):
        data = store.get(info.key)
        if info.key.endswith(".parquet"):
            count = repr(pq.read_table(io.BytesIO(data)).to_pylist()).count(text)
        elif info.key.endswith(".arrow"):
            with pa.ipc.open_stream(data) as stream:
                count = repr(stream.read_all().to_pylist()).count(text)
        else:
            count = len(word.findall(data.decode()))
        if count:
            found.append((info.key, count))
    return found


def tables_of_all_versions(store: ObjectStore, app: str) -> dict[tuple[str, int], dict[str, Any]]:
    """Return the rows of each existing version, by stage and version, merged by code independent of the product."""
    return {
        (stage, version): rows_of(store, history.read(store, app, stage, version))
        for stage in history.list_stages(store, app)
        for version in history.list_versions(store, app, stage)
    }


def archive_of(store: ObjectStore, app: str, extent: Extent, values: dict[int, bytes]) -> None:
    """Write an input archive with a record at each of these offsets; `values` replaces some of their values."""
    rows = records(extent.partition, range(extent.first, extent.end))
    had = rows["value"].to_pylist()
    made = [values.get(offset, value) for offset, value in zip(rows["offset"].to_pylist(), had, strict=True)]
    rows = rows.set_column(rows.schema.get_field_index("value"), "value", pa.array(made, pa.binary()))
    archive = index.newest(store, app, TOPIC) or index.empty_index(app, TOPIC)
    one = write(store, archive, [rows], (extent,), 1)
    index.change(store, archive, index.append_update((one,), (extent,)), by=BY, now_ms=1)
