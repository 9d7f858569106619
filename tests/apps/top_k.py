"""A test app with a custom kind of state, written as CONTRIBUTING describes: the largest amounts of each account.

tops    reads the topic, JSON
  | topped
counts  (aggregate) of the rows that the kind emits
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import slackwater as sw
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from slackwater.state.kinds.kind import (
    BoundState,
    Groups,
    Kind,
    MergeResult,
    check_value_names,
    field_of,
    single_schema,
)

app = sw.App("top-k")


class TopK(Kind, frozen=True, tag="top_k"):
    """Keep the `k` largest values of a column as a list, and the newest time of a row."""

    by: str
    k: int
    at: str

    def bind(self, rows: Sequence[pa.Schema], key: tuple[str, ...]) -> BoundState:
        schema = single_schema(rows, "TopK(...)")
        check_value_names(["top", "newest"], key)
        top = pa.field("top", pa.list_(field_of(schema, self.by).type))
        values = pa.schema([top, field_of(schema, self.at).with_name("newest")])
        emits = pa.schema([*(field_of(schema, column) for column in key), top])
        return BoundTopK(self.by, self.k, self.at, values, (self.by, self.at), (emits,))

    def is_compatible_with(self, now: Kind) -> bool:
        return isinstance(now, TopK) and (now.by, now.at, now.k <= self.k) == (self.by, self.at, True)


@dataclass(frozen=True, slots=True)
class BoundTopK(BoundState):
    by: str
    k: int
    at: str
    values: pa.Schema
    needed_columns: tuple[str, ...]
    emitted_schemas: tuple[pa.Schema, ...]

    def merge(self, rows: pa.Table, groups: Groups, keys: pa.Table, old: pa.Table) -> MergeResult:
        if rows[self.by].null_count:
            raise ValueError("a record has no amount")
        before = old["top"].combine_chunks()
        counts = pc.fill_null(pc.list_value_length(before), 0).to_numpy()
        ids = np.concatenate([np.repeat(np.arange(groups.num), counts), groups.ids])
        values = np.concatenate([pc.list_flatten(before).to_numpy(), rows[self.by].to_numpy()])
        order = np.lexsort((-values, ids))
        ids, values = ids[order], values[order]
        kept = np.arange(len(ids)) - np.searchsorted(ids, ids) < self.k
        offsets = np.searchsorted(ids[kept], np.arange(groups.num + 1)).astype(np.int32)
        made = pa.array(values[kept], before.type.value_type)
        top = pa.ListArray.from_arrays(pa.array(offsets), made)
        emitted = pa.table([*keys.columns, top], schema=self.emitted_schemas[0])
        times = np.maximum.reduceat(rows[self.at].cast(pa.int64()).to_numpy(), groups.starts)
        newest = pc.max_element_wise(times, old["newest"].cast(pa.int64())).cast(self.values.field("newest").type)
        return MergeResult(pa.table([top, newest], schema=self.values), emitted=(emitted,))


@app.stage(
    reads=sw.topic(os.environ.get("LEDGER_TOPIC", "ledger")),
    writes=sw.repartition("topped", key="account", partitions=2),
    key="account",
    state=TopK("amount", 2 if os.environ.get("LEDGER_VARIANT") == "fewer" else 3, "timestamp"),
    table=sw.table(partitions=2, ttl="30 days", ttl_by="newest"),
    on_error="reject",
)
def tops(raw: DataFrame) -> DataFrame:
    entry = F.from_json(F.col("value").cast("string"), "account string, amount long")
    return raw.select(entry.alias("e"), "timestamp").select("e.*", "timestamp").where("account is not null")


@app.stage(reads="topped", state=sw.aggregate(n=sw.count()), table=sw.table(partitions=2))
def counts(rows: DataFrame) -> DataFrame:
    return rows.select("account")
