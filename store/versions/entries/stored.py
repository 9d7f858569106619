"""Stored form of SSTs: JSON arrays, a third of the size of objects with field names.

An entry has the SST's name, the number of its key's folder in a list of folders, checksums in base64 instead of
hexadecimal digits, and rare fields in an object at the end. `codec` calls `to_stored` and `from_stored` for each
`Ssts`.
"""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from .. import limits
from .ssts import Leaf, Sst, Ssts

_SUFFIX = ".parquet"
_MAX_LEAVES = 1 << 10


class _RareFields(Struct, frozen=True, omit_defaults=True):
    tombstones: limits.Bytes = 0
    expiring: limits.Bytes = 0
    expires_min: limits.AnyTimeMs = 0
    expires_max: limits.AnyTimeMs = 0
    unshowable: bool = False


class _Entry(Struct, frozen=True, array_like=True):
    name: limits.Id
    partition: limits.StatePartition
    level: limits.LevelNumber
    rows: limits.Rows
    bytes: limits.Bytes
    checksum: limits.Base64
    hash_min: limits.Hash
    hash_max: limits.Hash
    seq_min: limits.Version
    seq_max: limits.Version
    footer_bytes: limits.Bytes
    footer_checksum: limits.Base64
    filter_bytes: limits.Bytes
    folder: limits.Count = 0
    rare: _RareFields = _RareFields()


class _Folder(Struct, frozen=True, array_like=True):
    prefix: limits.Key
    root: limits.ShortText = ""


class StoredSsts(Struct, frozen=True, omit_defaults=True):
    """JSON form of `Ssts`."""

    folders: Annotated[tuple[_Folder, ...], limits.AT_MOST_1000] = ()
    inline: Annotated[tuple[_Entry, ...], Meta(max_length=limits.MAX_SSTS)] = ()
    leaves: Annotated[tuple[Leaf, ...], Meta(max_length=_MAX_LEAVES)] = ()


def to_stored(ssts: Ssts) -> dict[str, Any]:
    folders: dict[tuple[str, str], int] = {}
    inline = [_to_entry(sst, folders) for sst in ssts.inline]
    return {"folders": [*folders], "inline": inline, "leaves": ssts.leaves}


def from_stored(stored: Any) -> Ssts:
    """Return the SSTs of a decoded JSON value. Raises `msgspec.ValidationError`."""
    if isinstance(stored, list):
        raise msgspec.ValidationError(
            "Expected entries and leaves: a slackwater from before the first release wrote this; run the app anew"
        )
    value = msgspec.convert(stored, StoredSsts)
    if (last := max((entry.folder for entry in value.inline), default=-1)) >= len(value.folders):
        raise msgspec.ValidationError(f"Expected numbers of folders below {len(value.folders)}, found {last}")
    return Ssts((_from_entry(entry, value.folders) for entry in value.inline), value.leaves)


def _to_entry(sst: Sst, folders: dict[tuple[str, str], int]) -> list[Any]:
    prefix, _, name = sst.object.rpartition("/")
    folder = folders.setdefault((prefix, sst.root), len(folders))
    rare = {field: value for field in _RareFields.__struct_fields__ if (value := getattr(sst, field))}
    entry: list[Any] = [
        name.removesuffix(_SUFFIX),
        sst.partition,
        sst.level,
        sst.rows,
        sst.bytes,
        _to_base64(sst.checksum),
        sst.hash_min,
        sst.hash_max,
        sst.seq_min,
        sst.seq_max,
        sst.footer_bytes,
        _to_base64(sst.footer_checksum),
        sst.filter_bytes,
    ]
    return [*entry, folder, rare] if rare else [*entry, folder] if folder else entry


def _from_entry(entry: _Entry, folders: Sequence[_Folder]) -> Sst:
    folder, rare = folders[entry.folder], entry.rare
    return Sst(
        f"{folder.prefix}/{entry.name}{_SUFFIX}",
        entry.partition,
        entry.level,
        entry.rows,
        entry.bytes,
        _to_hex(entry.checksum),
        entry.hash_min,
        entry.hash_max,
        entry.seq_min,
        entry.seq_max,
        entry.footer_bytes,
        _to_hex(entry.footer_checksum),
        entry.filter_bytes,
        rare.tombstones,
        folder.root,
        rare.expiring,
        rare.expires_min,
        rare.expires_max,
        rare.unshowable,
    )


def _to_base64(digits: str) -> str:
    return urlsafe_b64encode(bytes.fromhex(digits)).decode().rstrip("=")


def _to_hex(text: str) -> str:
    return urlsafe_b64decode(text + "=" * (-len(text) % 4)).hex()
