"""The hash function XXH64 over whole arrays, in numpy.

The algorithm is Yann Collet's (xxHash, `doc/xxhash_spec.md`, section XXH64). Each step is one numpy operation on all
values of a column that need the step. All arithmetic is modulo 2**64, as in numpy's uint64.
"""

from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import xxhash

U64: TypeAlias = npt.NDArray[np.uint64]

_P1 = np.uint64(0x9E3779B185EBCA87)
_P2 = np.uint64(0xC2B2AE3D27D4EB4F)
_P3 = np.uint64(0x165667B19E3779F9)
_P4 = np.uint64(0x85EBCA77C2B2AE63)
_P5 = np.uint64(0x27D4EB2F165667C5)
_P1_PLUS_P2 = np.uint64((int(_P1) + int(_P2)) % 2**64)
_MINUS_P1 = np.uint64(2**64 - int(_P1))

_BLOCK_ROWS = 16_384
"""Number of values hashed at once. The intermediate arrays (128 KiB each) then fit into a core's own cache."""
_SMALL_COUNT = 16
_LONG_BYTES = 512
"""Length above which a value is hashed by the xxhash package, whose call then costs less than numpy's steps."""


def hash_u64(values: U64, seeds: U64) -> U64:
    """Return the XXH64 of each value's eight little-endian bytes. `seeds` has a seed for each value."""
    return _avalanche(_add_word(seeds + (_P5 + np.uint64(8)), values))


def hash_u32(values: npt.NDArray[np.uint32], seeds: U64) -> U64:
    """Return the XXH64 of each value's four little-endian bytes. `seeds` has a seed for each value."""
    return _avalanche(_add_half_word(seeds + (_P5 + np.uint64(4)), values.astype(np.uint64)))


def hash_bytes(data: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64], seeds: U64) -> U64:
    """Return the XXH64 of byte strings in Arrow's layout. `seeds` has a seed for each string.

    String i is `data[offsets[i]:offsets[i + 1]]`: so n strings have n + 1 offsets.
    """
    if len(seeds) <= _SMALL_COUNT:
        ends, numbered, digest = offsets.tolist(), enumerate(seeds.tolist()), xxhash.xxh64_intdigest
        return np.array([digest(data[ends[at] : ends[at + 1]].data, seed) for at, seed in numbered], np.uint64)
    out = np.empty(len(seeds), np.uint64)
    for begin in range(0, len(seeds), _BLOCK_ROWS):
        end = min(begin + _BLOCK_ROWS, len(seeds))
        first, last = offsets[begin], offsets[end]
        # Eight extra bytes, so that a whole word can be read at the last byte of the last string.
        padded = np.zeros(last - first + 8, np.uint8)
        padded[:-8] = data[first:last]
        starts = offsets[begin:end] - first
        lengths = offsets[begin + 1 : end + 1] - offsets[begin:end]
        out[begin:end] = _hash_block(padded, starts, lengths, seeds[begin:end])
    return out


def _hash_block(
    padded: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64], seeds: U64
) -> U64:
    # The 64-bit word that starts at each byte: a view of overlapping words, never copied whole.
    windows = np.ndarray((len(padded) - 7,), np.dtype("<u8"), padded.data, strides=(1,))
    out = seeds + _P5
    long = np.flatnonzero(lengths >= 32)
    if long.size:
        out[long] = _hash_stripes(windows, starts[long], lengths[long], seeds[long])
    out += lengths.astype(np.uint64)

    at = starts + (lengths & ~31)
    remaining = lengths & 31
    for _ in range(3):
        rows = np.flatnonzero(remaining >= 8)
        if not rows.size:
            break
        if rows.size == len(out):
            out = _add_word(out, windows[at])
            at += 8
            remaining -= 8
        else:
            out[rows] = _add_word(out[rows], windows[at[rows]])
            at[rows] += 8
            remaining[rows] -= 8
    rows = np.flatnonzero(remaining & 4)
    if rows.size:
        out[rows] = _add_half_word(out[rows], windows[at[rows]] & np.uint64(0xFFFFFFFF))
        at[rows] += 4
    remaining &= 3
    for i in range(3):
        rows = np.flatnonzero(remaining > i)
        if not rows.size:
            break
        byte = windows[at[rows] + i] & np.uint64(0xFF)
        out[rows] = _rotl(out[rows] ^ (byte * _P5), 11) * _P1
    out = _avalanche(out)

    for row in np.flatnonzero(lengths > _LONG_BYTES).tolist():
        start = int(starts[row])
        out[row] = xxhash.xxh64_intdigest(padded[start : start + int(lengths[row])].data, int(seeds[row]))
    return out


def _hash_stripes(windows: U64, starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64], seeds: U64) -> U64:
    stripes = np.where(lengths > _LONG_BYTES, 0, lengths >> 5)
    # Longest first, so that the unfinished strings are always a prefix.
    order = np.argsort(-stripes, kind="stable")
    stripes, starts, seeds = stripes[order], starts[order], seeds[order]
    lanes = [seeds + _P1_PLUS_P2, seeds + _P2, seeds.copy(), seeds + _MINUS_P1]
    for stripe in range(int(stripes[0])):
        live = int(np.searchsorted(-stripes, -stripe, side="left"))
        for i, lane in enumerate(lanes):
            lane[:live] = _round(lane[:live], windows[starts[:live] + (32 * stripe + 8 * i)])
    merged = _rotl(lanes[0], 1) + _rotl(lanes[1], 7) + _rotl(lanes[2], 12) + _rotl(lanes[3], 18)
    for lane in lanes:
        merged = (merged ^ _round(np.zeros_like(lane), lane)) * _P1 + _P4
    out = np.empty_like(merged)
    out[order] = merged
    return out


def _rotl(x: U64, bits: int) -> U64:
    return (x << np.uint64(bits)) | (x >> np.uint64(64 - bits))


def _round(accumulator: U64, word: U64) -> U64:
    return _rotl(accumulator + word * _P2, 31) * _P1


def _add_word(x: U64, word: U64) -> U64:
    return _rotl(x ^ (_rotl(word * _P2, 31) * _P1), 27) * _P1 + _P4


def _add_half_word(x: U64, half: U64) -> U64:
    return _rotl(x ^ (half * _P1), 23) * _P2 + _P3


def _avalanche(x: U64) -> U64:
    x = (x ^ (x >> np.uint64(33))) * _P2
    x = (x ^ (x >> np.uint64(29))) * _P3
    return x ^ (x >> np.uint64(32))
