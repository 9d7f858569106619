"""Which operators keep a state that a Spark before 4.0 wrote: that says only the schemas of its stores.

Spark's reader of state wants the metadata that 4.0 and later write. It is made here, of the schemas and of what the
folders are called.
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
    # As which one of the two it was, of Python or of Java, nothing says.
    "groupState": "flatMapGroupsWithState",
}
"""Spark's short names of operators, by the first field of what they keep."""
_SESSION = "sessionStartTime"


def metadata_before_4(metadata: Mapping[str, bytes], keys: Iterable[str]) -> dict[str, bytes]:
    """For each operator a file as Spark 4 writes it. `metadata` has the schemas, `keys` are all of `state/`."""
    stores: dict[int, dict[str, bytes]] = {}
    for key in sorted(each for each in metadata if each.endswith(_SCHEMA)):
        _, operator, _partition, *store = key.removesuffix(_SCHEMA).split("/")
        stores.setdefault(int(operator), {}).setdefault("/".join(store) or DEFAULT, metadata[key])
    partitions: dict[int, set[str]] = {}
    for _, operator, partition, *_ in (each.split("/") for each in keys if each.count("/") > 2):
        if operator.isdecimal() and partition.isdecimal():
            partitions.setdefault(int(operator), set()).add(partition)
    return {
        f"state/{operator}/_metadata/metadata": _metadata(operator, found, len(partitions[operator]))
        for operator, found in stores.items()
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
    said = [{"storeName": each, "numColsPrefixKey": prefix, "numPartitions": partitions} for each in stores]
    text = json.dumps({"operatorInfo": {"operatorId": operator, "operatorName": name}, "stateStoreInfo": said})
    return f"v1\n{text}".encode()


def _schemas(data: bytes, key: str) -> tuple[list[str], list[str]]:
    """The names of the columns of a store's keys and values. Raises `Corruption`."""
    file = BytesIO(data)

    def number(length: int) -> int:
        return int.from_bytes(file.read(length), "big")

    def text() -> str:
        return file.read(number(2)).decode()

    def names(version: str) -> list[str]:
        json_text = ""
        # From version 2 on it may be longer than Java writes at once.
        length = number(4) if version != "v1" else 0
        while len(json_text) < max(length, 1):
            if not (piece := text()):
                raise ValueError("it ends too early")
            json_text += piece
        said: Any = json.loads(json_text)
        return [str(each["name"]) for each in said["fields"]]

    try:
        version = text()
        return names(version), names(version)
    except (ValueError, KeyError, TypeError) as error:
        raise Corruption(f"{key} of the checkpoint is not as Spark writes it: {error}", object_key=key) from error
