"""The stateful operators of a query, as Spark's own metadata in its checkpoint says them."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ....errors import Corruption, Refused

SCHEMAS = "_stateSchema"
FOLDERS = ("_metadata", SCHEMAS)
"""Folders of a checkpoint in which stands of which state it is."""
_TRANSFORM = ("transformWithStateExec", "transformWithStateInPandasExec", "transformWithStateInPySparkExec")
_KINDS = {
    "stateStoreSave": "aggregate",
    "sessionWindowStateStoreSaveExec": "session",
    "dedupe": "distinct",
    "dedupeWithinWatermark": "distinct-within-watermark",
    "symmetricHashJoin": "join",
    "applyInPandasWithState": "pandas",
    "flatMapGroupsWithState": "map-groups",
    "globalLimit": "limit",
    **dict.fromkeys(_TRANSFORM, "transform"),
}
"""Of operators by Spark's short names what they are here."""
_ROWS_OF_A_SIDE = "-keyWithIndexToValue"
"""How the name of a join's store ends that holds the rows of one side; others count them."""
_LIST = "ListState"
_VARIABLE_KINDS = ("ValueState", "MapState", _LIST, "TimerState")
_TIMERS = ("$procTimers_keyToTimestamp", "$eventTimers_keyToTimestamp")


@dataclass(frozen=True, slots=True)
class Kept:
    """One table that an operator keeps, and how Spark reads it."""

    name: str
    """What tells it from the operator's others; empty where there is one."""
    store: str
    options: tuple[tuple[str, str], ...] = ()
    has_feed: bool = True
    """Whether its rows' changes can be read. A list's are its new elements, which tell nothing without the old."""


@dataclass(frozen=True, slots=True)
class Operator:
    """One stateful operator of a query.

    Attributes:
        id: Spark's number.
        name: Spark's short name.
        kind: What it is.
        stores: The names of its stores, in Spark's order.
        partitions: The number of state partitions that its metadata says.
        tables: What it keeps.
    """

    id: int
    name: str
    kind: str
    stores: tuple[str, ...]
    partitions: int
    tables: tuple[Kept, ...]


def is_metadata(key: str) -> bool:
    """Whether a file of a checkpoint says of which state it is, not what the state is."""
    return key.startswith("state/") and any(f"/{each}/" in key for each in FOLDERS) and "/." not in key


def metadata_of(keys: Iterable[str], batch: int) -> Sequence[str]:
    """Among the keys of metadata those that say the operators of a batch, one of each operator."""
    newest: dict[str, tuple[int, str]] = {}
    for key in keys:
        operator, folder, name = key.split("/", 2)[1], *key.rpartition("/")[::2]
        if key == f"state/{operator}/_metadata/metadata":
            newest.setdefault(operator, (-1, key))
        elif folder == f"state/{operator}/_metadata/v2" and name.isdecimal() and int(name) <= batch:
            newest[operator] = max(newest.get(operator, (-1, "")), (int(name), key))
    return [key for _, key in newest.values()]


def operator_in(data: bytes, key: str) -> Operator:
    """The operator of a file of metadata. Raises `Corruption`, or `Refused` for one that is not known."""
    try:
        said = json.loads(data.decode().partition("\n")[2])
        about, stores = said["operatorInfo"], said["stateStoreInfo"]
        number, name = int(about["operatorId"]), str(about["operatorName"])
        names = tuple(str(each["storeName"]) for each in stores)
        partitions = int(stores[0]["numPartitions"])
        properties = json.loads(said.get("operatorPropertiesJson") or "{}")
        variables = [
            (str(each["stateName"]), str(each["stateVariableType"])) for each in properties.get("stateVariables", ())
        ]
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise Corruption(f"{key} of the checkpoint is not as Spark writes it: {error}", object_key=key) from error
    if name not in _KINDS:
        raise Refused(f"the query has the stateful operator {name!r}, whose state cannot be read")
    for variable, kind in variables:
        if kind not in _VARIABLE_KINDS:
            raise Refused(f"the query has the state variable {variable!r} of kind {kind}, which cannot be read")
    return Operator(number, name, _KINDS[name], names, partitions, tuple(_tables(name, names, variables)))


def _tables(name: str, stores: Sequence[str], variables: Sequence[tuple[str, str]]) -> Iterable[Kept]:
    if name in _TRANSFORM:
        # Spark keeps them in no order. Those that are one value of a key come first, timers last.
        for variable, kind in sorted(variables, key=lambda each: (_VARIABLE_KINDS.index(each[1]), each[0])):
            if variable in _TIMERS:
                yield Kept("timers", stores[0], (("readRegisteredTimers", "true"),), has_feed=False)
            elif not variable.startswith("$"):
                options = (("stateVarName", variable), ("flattenCollectionTypes", str(kind != _LIST).lower()))
                yield Kept(variable, stores[0], options, has_feed=kind != _LIST)
    elif name == "symmetricHashJoin":
        for side in ("left", "right"):
            rows = f"{side}{_ROWS_OF_A_SIDE}"
            # Since format 3 all is in one store, whose column families are called as the stores were before.
            yield Kept(side, rows) if rows in stores else Kept(side, stores[0], (("storeName", rows),))
    else:
        yield Kept("", stores[0])
