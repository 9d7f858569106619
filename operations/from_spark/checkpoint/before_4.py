"""Operator metadata for state that Spark before 4.0 wrote, derived from the schemas of the stores.

Spark's state reader requires the metadata that Spark 4.0 and later write. It is derived here from the schemas and from
the names of the folders.
"""

import json
from collections.abc import Iterable, Mapping
from io import BytesIO
from typing import Any

from ....errors import Corruption
from .state_files import DEFAULT

_SCHEMA = "/_metadata/schema"
_BY_VALUE = {
    "__dummy__": "dedupe",
    "expiresAtMicros": "dedupeWithinWatermark",
    # The schema does not tell if the function was in Python or in Java.
    "groupState": "flatMapGroupsWithState",
}
"""Spark's short names of operators, by the first field of their values."""
_SESSION = "sessionStartTime"


def metadata_before_4(metadata: Mapping[str, bytes], keys: Iterable[str]) -> dict[str, bytes]:
    """Return a metadata file for each operator as Spark 4 writes it, by key.

    `metadata` has the schema files by key; `keys` are all keys of `state/`.
    """
    stores: dict[int, dict[str, bytes]] = {}
    for key in sorted(name for name in metadata if name.endswith(_SCHEMA)):
        _, operator, _partition, *store = key.removesuffix(_SCHEMA).split("/")
        stores.setdefault(int(operator), {}).setdefault("/".join(store) or DEFAULT, metadata[key])
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
    if DEFAULT in stores:
        key, value = _schemas(stores[DEFAULT], f"state/{operator}/0{_SCHEMA}")
        first = value[0] if value else ""
        name = _BY_VALUE.get(first, "stateStoreSave")
        if _SESSION in key[-1:]:
            name, prefix = "sessionWindowStateStoreSaveExec", len(key) - 1
        elif (key, value) == (["key"], ["value"]):
            name = "globalLimit"
    store_infos = [{"storeName": store, "numColsPrefixKey": prefix, "numPartitions": partitions} for store in stores]
    text = json.dumps({"operatorInfo": {"operatorId": operator, "operatorName": name}, "stateStoreInfo": store_infos})
    return f"v1\n{text}".encode()


def _schemas(data: bytes, key: str) -> tuple[list[str], list[str]]:
    """Return the column names of a store's keys and values. Raises `Corruption`."""
    file = BytesIO(data)

    def number(length: int) -> int:
        return int.from_bytes(file.read(length), "big")

    def text() -> str:
        return file.read(number(2)).decode()

    def names(version: str) -> list[str]:
        json_text = ""
        # From version 2 on the text may exceed the maximum of one Java write, so it comes in pieces.
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
