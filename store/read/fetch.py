"""The bytes of a whole SST, checked: as the manifest promises them, or an error that says what is there instead."""

import pyarrow as pa
import xxhash

from ...errors import Corruption, ObjectNotFound
from ..objects.protocol import ObjectStore
from ..versions.manifest import Sst


def file_name(sst: Sst) -> str:
    """A name for local copies: the object's own, and the checksum in case two roots have one of that name."""
    # Without pathlib: each look-up asks this of each SST.
    return f"{sst.object.rpartition('/')[2].removesuffix('.parquet')}-{sst.checksum}"


def fetch(store: ObjectStore, sst: Sst) -> bytes:
    """The whole object, checked against the manifest's checksum."""
    try:
        data = store.at(sst.root).get(sst.object)
    except ObjectNotFound as error:
        raise corrupt(sst, "the object is missing") from error
    check_bytes(data, sst)
    return data


def check_bytes(data: bytes | pa.Buffer, sst: Sst) -> None:
    """Raise `Corruption` unless these are the bytes that the manifest promises."""
    if len(data) != sst.bytes:
        raise corrupt(sst, f"expected {sst.bytes} bytes, found {len(data)}")
    found = xxhash.xxh3_128_hexdigest(data)
    if found != sst.checksum:
        raise corrupt(sst, f"expected checksum {sst.checksum}, found {found}")


def corrupt(sst: Sst, what: str) -> Corruption:
    """The error for an SST that is not what the manifest promises."""
    return Corruption(
        f"SST {sst.object} is damaged: {what}",
        object_key=sst.object,
        hint="put the object back from a backup or an older object version, or go back to a version "
        "that does not use it",
    )
