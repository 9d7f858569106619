"""Structs to bytes and back: JSON with a format version, so that an old program knows what it cannot read.

An object is `{"format": 2, "xxh3_128": "...", ...fields}`. Within a format, fields with defaults may be added: readers
ignore what they do not know. Whatever a reader must not ignore, or must carry on into the next manifest, needs the
next format.

The checksum is of all bytes behind it: everything else is checked by what manifests say, so they are checked
themselves. Objects without one are of the first release, or were mended by hand.
"""

from functools import cache
from typing import Any, TypeVar

import msgspec
import xxhash

from .errors import Corruption

__all__ = ["FORMAT", "decode", "encode"]

FORMAT = 2
"""The newest format this program writes, and reads with all before it. 2 came with records that a claim passed over,
which who overlooks them takes for read, and with versions that retire a stage."""

_PUT_BACK = "put the object back from a backup or an older version of it"

T = TypeVar("T", bound=msgspec.Struct)

# "deterministic" sorts what has no order of its own (dicts): equal values give equal bytes.
_encoder = msgspec.json.Encoder(order="deterministic")


class _Header(msgspec.Struct):
    format: int
    xxh3_128: str = ""


_header_decoder = msgspec.json.Decoder(_Header)


@cache
def _decoder(as_type: type[msgspec.Struct]) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(as_type)


def encode(value: msgspec.Struct) -> bytes:
    """The bytes of a manifest, an app's identity, a snapshot or a request. Equal values give equal bytes.

    Raises:
        ValueError: the value is not what its type says, so these bytes would not be read as it was written, or not at
            all. Stored, they could not be taken back: half a millisecond for 1,000 SSTs is little for that.
    """
    body = _encoder.encode(value)
    try:
        same = _decoder(type(value)).decode(body) == value
    except msgspec.DecodeError as error:
        raise ValueError(f"this {type(value).__name__} could not be read again: {error}") from error
    if not same:
        raise ValueError(f"this {type(value).__name__} would be read as another one than it is")
    rest = body[1:] if body == b"{}" else b"," + body[1:]
    return _prefix(FORMAT, xxhash.xxh3_128_hexdigest(rest)) + rest


def _prefix(number: int, checksum: str) -> bytes:
    return b'{"format":%d,"xxh3_128":"%b"' % (number, checksum.encode())


def decode(data: bytes, as_type: type[T], *, key: str) -> T:
    """The value in an object's bytes; `key` names the object in errors.

    Raises:
        Corruption: the bytes are not those that were written, or not this type's JSON, or have a format this program
            cannot read.
    """
    header = _parse(data, _header_decoder, as_type, key)
    if header.format > FORMAT:
        raise Corruption(
            f"object {key!r} has format {header.format}; this slackwater reads formats up to {FORMAT}",
            object_key=key,
            hint="a newer slackwater wrote it: upgrade this one",
        )
    if header.format < 1:
        raise Corruption(
            f"object {key!r} has format {header.format}; formats are counted from 1",
            object_key=key,
            hint=_PUT_BACK,
        )
    if header.xxh3_128:
        prefix = _prefix(header.format, header.xxh3_128)
        if not data.startswith(prefix) or xxhash.xxh3_128_hexdigest(data[len(prefix) :]) != header.xxh3_128:
            raise Corruption(
                f"object {key!r} ({len(data)} bytes) is not what was written: its checksum is not {header.xxh3_128}",
                object_key=key,
                hint=_PUT_BACK,
            )
    decoder: msgspec.json.Decoder[T] = _decoder(as_type)
    return _parse(data, decoder, as_type, key)


def _parse(data: bytes, decoder: msgspec.json.Decoder[T], as_type: type[msgspec.Struct], key: str) -> T:
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Corruption(
            f"object {key!r} ({len(data)} bytes) is not a readable {as_type.__name__}: {error}",
            object_key=key,
            hint=_PUT_BACK,
        ) from error
