"""A batch writes the rows of changed keys to a table, and no tombstones of missing keys."""

import pyarrow as pa
import slackwater as sw
from slackwater.state.step import Step
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.read.cache import SstCache
from slackwater.store.read.multi_get import TableLookUps
from slackwater.store.sst.hashing import hash_keys
from slackwater.store.versions.manifest import Column, Table

from tests.support.state_rows import write_version

ROWS = pa.schema([("k", pa.string()), ("at", pa.int64()), ("gone", pa.bool_())])
TABLE = Table((Column("k", "string"),), (Column("at", "int64"),), 1)


def test_neither_unchanged_rows_nor_tombstones_of_missing_keys_are_written(cache: SstCache) -> None:
    store = MemoryStore()
    there = {("late",): (9,), ("changed",): (1,), ("deleted",): (1,), ("left",): (1,)}
    ssts = write_version(store, cache, TABLE, there, 1)
    batch = [
        {"k": "late", "at": 3, "gone": False},
        {"k": "changed", "at": 4, "gone": False},
        {"k": "deleted", "at": 5, "gone": True},
        {"k": "new", "at": 6, "gone": False},
        {"k": "never there", "at": 7, "gone": True},
    ]
    rows = pa.Table.from_pylist(batch, schema=ROWS)
    rows = rows.append_column("_hash", pa.array(hash_keys(rows, ["k"])))
    bound = sw.upsert(by="at", delete_when="gone").bind([ROWS], ("k",))
    made = Step(TABLE, bound, 2, 0).apply(rows, TableLookUps(store, cache, TABLE, ssts, 0))
    written = {row["k"]: (row["at"], row["_op"], row["_seq"], row["_prev_seq"]) for row in made.new.to_pylist()}
    assert written == {"changed": (4, 0, 2, 1), "deleted": (5, 1, 2, 1), "new": (6, 0, 2, 0)}
    assert {row["k"] for emitted in made.emitted for row in emitted.to_pylist()} == {"changed", "new"}
