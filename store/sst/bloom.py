"""Bloom filters over the key hashes of SSTs, at one byte a row, to skip row groups that cannot have a key.

These are Parquet's own: a split-block Bloom filter over `_hash` for each row group, between the last row group and the
footer, so that any Parquet reader profits, DuckDB too. Arrow writes them; this module probes them, for all keys of a
look-up at once. With eight bits a row, 3 of 100 keys that a row group lacks pass, and all keys that it has.

The format and the constants are those of the Parquet specification (parquet-format, `BloomFilter.md`), after Putze,
Sanders and Singler, "Cache-, Hash- and Space-Efficient Bloom Filters" (2007). Parquet hashes a value with XXH64, so
`_hash` is hashed once more.
"""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from .parquet_pages import ColumnMetaData
from .xxh64 import hash_u64

FALSE_POSITIVES = 0.05
"""Rate requested from Arrow, which rounds the filter up to a power of two bytes: 0.03 for a full row group."""

_SALT = np.array(
    [0x47B6137B, 0x44974D91, 0x8824AD5B, 0xA2B7289D, 0x705495C7, 0x2DF1424B, 0x9EFC4947, 0x5C6BFB31], np.uint32
)
_BLOCK_BYTES = 32
_KINDS = b"\x1c\x1c\x00\x00" * 3 + b"\x00"
"""End of a filter's Thrift header: the only algorithm, hash and compression that the specification has."""
CHUNK_BYTES = 512
"""Smallest part of a filter that is read; a key probes one block of it."""
_CHUNK_BLOCKS = CHUNK_BYTES // _BLOCK_BYTES


def chunks_in(data: bytes) -> dict[int, bytes]:
    """Return all chunks of a filter as stored in Parquet, header and bits, by chunk number.

    Raises `ValueError` if the header is not the only kind that the specification has.
    """
    # The header is shorter than a block; its field 1, a zigzag i32, is the number of bytes of bits.
    start = len(data) % _BLOCK_BYTES
    header, size = bytearray(b"\x15"), (len(data) - start) << 1
    while size > 0x7F:
        header.append(size & 0x7F | 0x80)
        size >>= 7
    header.append(size)
    if data[:start] != header + _KINDS or len(data) == start:
        raise ValueError(f"expected a split-block Bloom filter of XXH64 in {len(data)} bytes; found another header")
    starts = range(start, len(data), CHUNK_BYTES)
    return {number: data[at : at + CHUNK_BYTES] for number, at in enumerate(starts)}


def bits_of(column: ColumnMetaData) -> tuple[int, int]:
    """Return the start and end offset of the bits of a column's filter; equal offsets if it has no filter."""
    start, size = column.bloom_filter_offset or 0, column.bloom_filter_length or 0
    # The header before them is shorter than a block.
    return start + size % _BLOCK_BYTES, start + size


def chunks_of(hashes: npt.NDArray[np.int64], num_bytes: int) -> npt.NDArray[np.int64]:
    """Return the chunk number that each `_hash` probes, in a filter with `num_bytes` of bits."""
    return (_block_of(_hashed(hashes), num_bytes // _BLOCK_BYTES) // np.uint64(_CHUNK_BLOCKS)).astype(np.int64)


def may_have(chunks: Mapping[int, bytes], hashes: npt.NDArray[np.int64], num_bytes: int) -> npt.NDArray[np.bool_]:
    """Return for each `_hash` if it may be in a row group; False is certain.

    `chunks` are the chunks read of the filter, which has `num_bytes` of bits; all chunks in `chunks_of` must be there.
    """
    numbers = np.array(sorted(chunks), np.int64)
    data = b"".join(chunks[number].ljust(CHUNK_BYTES, b"\0") for number in numbers.tolist())
    hashed = _hashed(hashes)
    within = _block_of(hashed, num_bytes // _BLOCK_BYTES).astype(np.int64) % _CHUNK_BLOCKS
    at = np.searchsorted(numbers, chunks_of(hashes, num_bytes)) * _CHUNK_BLOCKS + within
    blocks = np.frombuffer(data, "<u4").reshape(-1, _BLOCK_BYTES // 4)[at]
    bits = np.uint32(1) << ((hashed.astype(np.uint32)[:, np.newaxis] * _SALT) >> np.uint32(27))
    matches: npt.NDArray[np.bool_] = ((blocks & bits) == bits).all(axis=1)
    return matches


def _hashed(hashes: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    return hash_u64(hashes.view(np.uint64), np.zeros(len(hashes), np.uint64))


def _block_of(hashed: npt.NDArray[np.uint64], num_blocks: int) -> npt.NDArray[np.uint64]:
    return ((hashed >> np.uint64(32)) * np.uint64(num_blocks)) >> np.uint64(32)
