"""Fetching a whole SST, checked against its manifest."""

import pyarrow as pa
import xxhash

from ...errors import Corruption, ObjectNotFound
from ..objects.protocol import ObjectStore
from ..versions.manifest import Sst


def file_name(sst: Sst) -> str:
    """Return the name of local copies: the object's own, and the checksum in case two roots have the same name."""
    # Without pathlib, because each look-up calls this for each SST.
    return f"{sst.object.rpartition('/')[2].removesuffix('.parquet')}-{sst.checksum}"


def fetch(store: ObjectStore, sst: Sst) -> bytes:
    """Return the whole object's bytes. Raises `Corruption` if it is missing or differs from its manifest entry."""
    try:
        data = store.at(sst.root).get(sst.object)
    except ObjectNotFound as error:
        raise corrupt(sst, "the object is missing") from error
    check_bytes(data, sst)
    return data


def check_bytes(data: bytes | pa.Buffer, sst: Sst) -> None:
    """Raise `Corruption` unless the length and the checksum are those of the manifest entry."""
    if len(data) != sst.bytes:
        raise corrupt(sst, f"expected {sst.bytes} bytes, found {len(data)}")
    actual = xxhash.xxh3_128_hexdigest(data)
    if actual != sst.checksum:
        raise corrupt(sst, f"expected checksum {sst.checksum}, found {actual}")


def corrupt(sst: Sst, reason: str) -> Corruption:
    return Corruption(
        f"SST {sst.object} is damaged: {reason}",
        object_key=sst.object,
        hint="restore the object from a backup or an older object version, or rewind to a version that does not use it",
    )
