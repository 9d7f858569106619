"""Parser of the metadata that a Spark checkpoint has of the query's stateful operators.

Spark before 4.0 writes no such metadata, but Spark's state reader requires it. It is derived from the stores' schemas
and the folder names.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any

from ....errors import Corruption, Refused
from .state_files import DEFAULT_STORE

SCHEMAS = "_stateSchema"
METADATA_FOLDERS = ("_metadata", SCHEMAS)
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
_ROWS_OF_A_SIDE = "-keyWithIndexToValue"
"""Suffix of the store with the rows of one side of a join. Other stores of the side count rows."""
_LIST = "ListState"
_VARIABLE_KINDS = ("ValueState", "MapState", _LIST, "TimerState")
_TIMERS = ("$procTimers_keyToTimestamp", "$eventTimers_keyToTimestamp")


@dataclass(frozen=True, slots=True)
class OperatorTable:
    """Table of an operator's state, with the options by which Spark's state reader reads the table."""

    name: str
    store: str
    options: tuple[tuple[str, str], ...] = ()
    has_change_feed: bool = True
    """False for a list, because its changes have only the appended elements."""


@dataclass(frozen=True, slots=True)
class Operator:
    """One stateful operator of a query.

    Attributes:
        id: Spark's number.
        name: Spark's short name.
        kind: Slackwater's name for the kind of operator.
        stores: Names of the operator's stores, in Spark's order.
        partitions: Number of state partitions according to the metadata.
        tables: Tables of the operator's state.
    """

    id: int
    name: str
    kind: str
    stores: tuple[str, ...]
    partitions: int
    tables: tuple[OperatorTable, ...]


def is_metadata(key: str) -> bool:
    """Return True if a file of a checkpoint has metadata of the state, such as schemas."""
    return key.startswith("state/") and any(f"/{folder}/" in key for folder in METADATA_FOLDERS) and "/." not in key


def metadata_keys(keys: Iterable[str], batch: int) -> Sequence[str]:
    """Return the keys of the metadata files that apply to a batch, one for each operator."""
    newest: dict[str, tuple[int, str]] = {}
    for key in keys:
        operator, folder, name = key.split("/", 2)[1], *key.rpartition("/")[::2]
        if key == f"state/{operator}/_metadata/metadata":
            newest.setdefault(operator, (-1, key))
        elif folder == f"state/{operator}/_metadata/v2" and name.isdecimal() and int(name) <= batch:
            newest[operator] = max(newest.get(operator, (-1, "")), (int(name), key))
    return [key for _, key in newest.values()]


def parse_operator(data: bytes, key: str) -> Operator:
    """Parse a metadata file. Raises `Corruption`, or `Refused` for an unknown operator."""
    try:
        document = json.loads(data.decode().partition("\n")[2])
        operator_info, stores = document["operatorInfo"], document["stateStoreInfo"]
        number, name = int(operator_info["operatorId"]), str(operator_info["operatorName"])
        names = tuple(str(store["storeName"]) for store in stores)
        partitions = int(stores[0]["numPartitions"])
        properties = json.loads(document.get("operatorPropertiesJson") or "{}")
        variables = [
            (str(variable["stateName"]), str(variable["stateVariableType"]))
            for variable in properties.get("stateVariables", ())
        ]
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise Corruption(f"{key} of the checkpoint is malformed: {error}", object_key=key) from error
    if name not in _KINDS:
        raise Refused(f"the query has the stateful operator {name!r}, whose state cannot be read")
    for variable, kind in variables:
        if kind not in _VARIABLE_KINDS:
            raise Refused(f"the query has the state variable {variable!r} of kind {kind}, which cannot be read")
    return Operator(number, name, _KINDS[name], names, partitions, tuple(_tables(name, names, variables)))


def _tables(name: str, stores: Sequence[str], variables: Sequence[tuple[str, str]]) -> Iterable[OperatorTable]:
    if name in _TRANSFORM:
        # Spark keeps the variables unordered. Single values of a key come first, timers last.
        for variable, kind in sorted(variables, key=lambda entry: (_VARIABLE_KINDS.index(entry[1]), entry[0])):
            if variable in _TIMERS:
                yield OperatorTable("timers", stores[0], (("readRegisteredTimers", "true"),), has_change_feed=False)
            elif not variable.startswith("$"):
                options = (("stateVarName", variable), ("flattenCollectionTypes", str(kind != _LIST).lower()))
                yield OperatorTable(variable, stores[0], options, has_change_feed=kind != _LIST)
    elif name == "symmetricHashJoin":
        for side in ("left", "right"):
            rows = f"{side}{_ROWS_OF_A_SIDE}"
            # Since format 3 all tables are column families of one store; each has the name of the former store.
            yield (
                OperatorTable(side, rows) if rows in stores else OperatorTable(side, stores[0], (("storeName", rows),))
            )
    else:
        yield OperatorTable("", stores[0])


_SCHEMA = "/_metadata/schema"
_OPERATOR_BY_VALUE_FIELD = {
    "__dummy__": "dedupe",
    "expiresAtMicros": "dedupeWithinWatermark",
    # The schema does not show if the function was in Python or in Java.
    "groupState": "flatMapGroupsWithState",
}
"""Spark's short names of operators, by the first field of the values that they store."""
_SESSION = "sessionStartTime"


def derive_metadata(metadata: Mapping[str, bytes], keys: Iterable[str]) -> dict[str, bytes]:
    """Return the metadata files that Spark 4 would have written for an older checkpoint, by key.

    One file for each operator. `metadata` has the schema files by key; `keys` are all keys of `state/`.
    """
    stores: dict[int, dict[str, bytes]] = {}
    for key in sorted(name for name in metadata if name.endswith(_SCHEMA)):
        _, operator, _partition, *store = key.removesuffix(_SCHEMA).split("/")
        stores.setdefault(int(operator), {}).setdefault("/".join(store) or DEFAULT_STORE, metadata[key])
    partitions: dict[int, set[str]] = {}
    for _, operator, partition, *_ in (key.split("/") for key in keys if key.count("/") > 2):
        if operator.isdecimal() and partition.isdecimal():
            partitions.setdefault(int(operator), set()).add(partition)
    return {
        f"state/{operator}/_metadata/metadata": _metadata(operator, schemas, len(partitions[operator]))
        for operator, schemas in stores.items()
    }


def _metadata(operator: int, stores: Mapping[str, bytes], partitions: int) -> bytes:
    name, prefix = "symmetricHashJoin", 0
    if DEFAULT_STORE in stores:
        key, value = _schemas(stores[DEFAULT_STORE], f"state/{operator}/0{_SCHEMA}")
        first = value[0] if value else ""
        name = _OPERATOR_BY_VALUE_FIELD.get(first, "stateStoreSave")
        if _SESSION in key[-1:]:
            name, prefix = "sessionWindowStateStoreSaveExec", len(key) - 1
        elif (key, value) == (["key"], ["value"]):
            name = "globalLimit"
    store_infos = [{"storeName": store, "numColsPrefixKey": prefix, "numPartitions": partitions} for store in stores]
    text = json.dumps({"operatorInfo": {"operatorId": operator, "operatorName": name}, "stateStoreInfo": store_infos})
    return f"v1\n{text}".encode()


def _schemas(data: bytes, key: str) -> tuple[list[str], list[str]]:
    file = BytesIO(data)

    def number(length: int) -> int:
        return int.from_bytes(file.read(length), "big")

    def text() -> str:
        return file.read(number(2)).decode()

    def names(version: str) -> list[str]:
        json_text = ""
        # From version 2 on the text is split into pieces, because one Java write has a maximum size.
        length = number(4) if version != "v1" else 0
        while len(json_text) < max(length, 1):
            if not (piece := text()):
                raise ValueError("it ends too early")
            json_text += piece
        schema: Any = json.loads(json_text)
        return [str(column["name"]) for column in schema["fields"]]

    try:
        version = text()
        return names(version), names(version)
    except (ValueError, KeyError, TypeError) as error:
        raise Corruption(f"{key} of the checkpoint is malformed: {error}", object_key=key) from error
