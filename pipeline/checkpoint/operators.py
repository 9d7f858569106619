"""The stateful operators of a query, as Spark's own metadata in its checkpoint says them."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql.types import StructType

from ...errors import Corruption, Refused

_KINDS = {
    "stateStoreSave": "aggregate",
    "sessionWindowStateStoreSaveExec": "session",
    "dedupe": "distinct",
    "dedupeWithinWatermark": "distinct-within-watermark",
    "symmetricHashJoin": "join",
    "applyInPandasWithState": "pandas",
    "flatMapGroupsWithState": "map-groups",
    "globalLimit": "limit",
}
"""Of operators by Spark's short names what they are here."""
_WINDOW = ("window", ("start", "end"))


@dataclass(frozen=True, slots=True)
class Operator:
    """One stateful operator of a query.

    Attributes:
        id: Spark's number.
        name: Spark's short name.
        stores: The names of its stores, in Spark's order.
        partitions: The number of state partitions.
    """

    id: int
    name: str
    stores: tuple[str, ...]
    partitions: int

    def tables(self) -> Sequence[tuple[str, str]]:
        """Of each table it keeps, what tells it from others, and its store."""
        if self.name == "symmetricHashJoin":
            # The other two only count the rows of a key.
            return [(store.partition("-")[0], store) for store in self.stores if store.endswith("keyWithIndexToValue")]
        return [("", store) for store in self.stores]

    def kind_of(self, key: StructType) -> str:
        """What it is, where its first table has this key."""
        for each in key.fields:
            if (each.name, tuple(getattr(each.dataType, "names", ()))) == _WINDOW:
                return "window"
        return _KINDS[self.name]


def operators_in(state: Path) -> tuple[Operator, ...]:
    """Those of which the folder `state` of a checkpoint has metadata.

    Raises `Refused` where there is none, or for an operator that is not known.
    """
    found = [_operator(path) for path in state.glob("*/_metadata/metadata")]
    if not found:
        raise Refused(
            "the checkpoint has state, and nothing in it says of which operators: Spark has said so since 4.0",
            hint="let the query run one batch with Spark 4.0 or later",
        )
    for each in found:
        if each.name not in _KINDS:
            raise Refused(f"the query has the stateful operator {each.name!r}, whose state cannot be read")
    return tuple(sorted(found, key=lambda each: each.id))


def _operator(path: Path) -> Operator:
    try:
        said = json.loads(path.read_text().partition("\n")[2])
        about, stores = said["operatorInfo"], said["stateStoreInfo"]
        names = tuple(str(each["storeName"]) for each in stores)
        return Operator(int(about["operatorId"]), str(about["operatorName"]), names, int(stores[0]["numPartitions"]))
    except (ValueError, KeyError, TypeError, IndexError) as error:
        key = "/".join(path.parts[-4:])
        raise Corruption(f"{key} of the checkpoint is not as Spark writes it: {error}", object_key=key) from error
