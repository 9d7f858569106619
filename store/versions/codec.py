"""Encodes structs as JSON with a checksum and a format version, and stores folders of small JSON objects.

An object is `{"format": 1, "xxh3_128": "...", ...fields}`. Within a format, fields with defaults may be added, and
readers ignore unknown fields. A new field requires the next format number if readers must not ignore the field, or must
copy it into the next manifest. An old program rejects a format that it cannot read. The checksum covers all bytes after
it.

A valid checksum does not prove that the content is valid: a faulty program, or a person with access to the bucket, may
have written it. So each field is checked against its limits (`limits`) and against other fields (`checks`) before use,
and an object above the size limit is not read into memory.

A `JsonFolder` has small objects beside an app's history: snapshots, requests, the log of operations, heartbeats,
migrations and boundaries each have a folder. The content of an object determines its key; an object under any other key
is reported as corrupt.
"""

import json
import re
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Generic, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec
import xxhash
from msgspec import Struct

from ...common import runtime
from ...errors import Corruption, ObjectExists, ObjectNotFound, Unstorable
from ..objects.many import map_concurrently
from ..objects.protocol import ObjectInfo, ObjectStore, list_json
from . import checks, keys
from .entries import stored
from .entries.ssts import Ssts
from .limits import MAX_OBJECT_BYTES, MAX_OBJECT_VALUES

FORMAT = 1

T = TypeVar("T", bound=msgspec.Struct)
Kind = TypeVar("Kind")
_registration_lock = runtime.lock()
_registered: set[object] = set()

# "deterministic" sorts dicts, so equal values give equal bytes.
_encoder = msgspec.json.Encoder(order="deterministic", enc_hook=lambda ssts: stored.to_stored(ssts))

_START = re.compile(rb'\{"format":([0-9]{1,9}),"xxh3_128":"([0-9a-f]{32})"')
_SIZE_LIMITS = f"{MAX_OBJECT_BYTES >> 20} MiB and {MAX_OBJECT_VALUES:,} values"
_MAX_HEADER_BYTES = 100
_MAX_SHOWN_CHARACTERS = 60
_READS_AT_ONCE = 32

_DECODE_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class _Header(msgspec.Struct):
    format: int


def _decode_custom(kind: type, value: Any) -> Any:
    # The only stored type that msgspec does not know.
    return stored.from_stored(value)


def register_type(kind: Kind) -> Kind:
    """Register the type and its nested types with msgspec, one at a time, and return the type.

    msgspec 0.22 crashes if two threads register types concurrently.
    """
    if kind not in _registered:
        with _registration_lock:
            msgspec.json.Decoder(kind, dec_hook=_decode_custom)
        _registered.add(kind)
    return kind


register_type(stored.StoredSsts)  # what `_decode_custom` converts to


@cache
def _decoder(kind: type[T]) -> "msgspec.json.Decoder[T]":
    return msgspec.json.Decoder(register_type(kind), dec_hook=_decode_custom)


def encode(value: msgspec.Struct) -> bytes:
    """Return a struct's bytes. Equal values give equal bytes.

    Raises `Unstorable` if decoding the bytes does not give an equal value. The check takes about a millisecond for
    1,000 SSTs.
    """
    name, failure = f"this {type(value).__name__}", "could not be read again"
    body = _encoder.encode(value)
    if len(body) > MAX_OBJECT_BYTES - _MAX_HEADER_BYTES or _count_values(body) > MAX_OBJECT_VALUES:
        raise Unstorable(
            f"{name} {failure}: it has {len(body):,} bytes; expected at most {_SIZE_LIMITS}",
            hint="a table of fewer state partitions (`slackwater rescale`) or fewer SSTs (`slackwater compact`) has "
            "smaller manifests",
        )
    try:
        same = _decoder(type(value)).decode(body) == value
    except msgspec.DecodeError as error:
        raise Unstorable(f"{name} {failure}: {_explain(body, type(value), error)}") from error
    if not same:
        raise Unstorable(f"{name} would not be read back as the same value")
    for wrong in checks.find_violations(value):
        raise Unstorable(f"{name} {failure}: {_describe(wrong)}")
    fields = body[1:] if body == b"{}" else b"," + body[1:]
    return b'{"format":%d,"xxh3_128":"%b"' % (FORMAT, xxhash.xxh3_128_hexdigest(fields).encode()) + fields


def read(store: ObjectStore, key: str, as_type: type[T], *, key_of: Callable[[T], str] | None = None) -> T:
    """Read the value stored under a key. `key_of` computes the expected key of a value, for verification.

    Raises:
        ObjectNotFound: there is no such object.
        Corruption: see `decode`; or the object is too large, or belongs at another key.
        Unavailable: storage did not answer.
    """
    return read_sized(store, key, as_type, key_of=key_of)[0]


def read_sized(
    store: ObjectStore, key: str, as_type: type[T], *, key_of: Callable[[T], str] | None = None
) -> tuple[T, int]:
    """Return the value stored under a key, and its stored size in bytes. Raises the errors of `read`."""
    data = store.get_range(key, 0, MAX_OBJECT_BYTES + 1)
    if len(data) > MAX_OBJECT_BYTES or _count_values(data) > MAX_OBJECT_VALUES:
        raise corruption_error(
            key, f"is not a readable {as_type.__name__}: it is too large; expected at most {_SIZE_LIMITS}"
        )
    value = decode(data, as_type, key=key)
    if key_of is not None and (its_own := key_of(value)) != key:
        raise corruption_error(key, f"has the content of another object, {its_own!r}")
    return value, len(data)


def corruption_error(key: str, reason: str) -> Corruption:
    """Return the error for a damaged object. `reason` continues a sentence that starts with the key."""
    return Corruption(
        f"object {key!r} {reason}", object_key=key, hint="restore the object from a backup or an older object version"
    )


def _count_values(data: bytes) -> int:
    return data.count(b",") if len(data) > MAX_OBJECT_VALUES else 0


def decode(data: bytes, as_type: type[T], *, key: str) -> T:
    """Decode an object's bytes. `key` names the object in errors.

    Raises `Corruption` if the bytes were changed, are not JSON of this type, or have a newer format.
    """
    # Decoding the whole object to get one field would take a third of the time of decoding all fields.
    start = _START.match(data)
    number = int(start[1]) if start else _parse(data, _Header, as_type, key).format
    if number > FORMAT:
        raise Corruption(
            f"object {key!r} has format {number}; this slackwater reads formats up to {FORMAT}",
            object_key=key,
            hint="a newer slackwater wrote it: upgrade this one",
        )
    if number < 1:
        raise corruption_error(key, f"has format {number}; formats are counted from 1")
    if start is None:
        raise corruption_error(key, f"({len(data)} bytes) was changed: it does not begin with a checksum")
    if xxhash.xxh3_128_hexdigest(data[start.end() :]) != (checksum := start[2].decode()):
        _parse(data, _Header, as_type, key)  # reports text that is not JSON
        raise corruption_error(key, f"({len(data)} bytes) was changed: it does not match its checksum {checksum}")
    value = _parse(data, as_type, as_type, key)
    for wrong in checks.find_violations(value):
        raise corruption_error(key, f"is not a readable {as_type.__name__}: {_describe(wrong)}")
    return value


def _parse(data: bytes, part: type[T], as_type: type[msgspec.Struct], key: str) -> T:
    failure = f"is not a readable {as_type.__name__}"
    try:
        value: T = _decoder(part).decode(data)
    except msgspec.ValidationError as error:
        raise corruption_error(key, f"{failure}: {_explain(data, as_type, error)}") from error
    except _DECODE_ERRORS as error:
        raise corruption_error(key, f"({len(data)} bytes) {failure}: {error}") from error
    return value


def _explain(data: bytes, as_type: type[msgspec.Struct], error: Exception) -> str:
    with suppress(*_DECODE_ERRORS):
        return _find_invalid_value(msgspec.json.decode(data), as_type, "") or str(error)
    return str(error)


def _describe(wrong: checks.Violation) -> str:
    return f"{wrong.field} is {_shorten(wrong.actual)}; expected {wrong.expected}"


def _shorten(value: object) -> str:
    if isinstance(value, str):
        return ascii(value[:_MAX_SHOWN_CHARACTERS]) + ("…" if len(value) > _MAX_SHOWN_CHARACTERS else "")
    return _truncate(ascii(value[:_MAX_SHOWN_CHARACTERS]) if isinstance(value, tuple | list) else ascii(value))


def _truncate(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN_CHARACTERS else text[:_MAX_SHOWN_CHARACTERS] + "…"


def _find_invalid_value(value: Any, kind: Any, path: str) -> str | None:
    """Return a message about the first invalid value, with its path: `inputs['by-aircraft'].offsets[0]`.

    Returns "" if the object itself is invalid, and None if all values are valid.
    """
    try:
        msgspec.convert(value, kind, dec_hook=_decode_custom)
    except msgspec.ValidationError as error:
        for below, field, inside in _children(value, kind, path):
            if (message := _find_invalid_value(below, inside, field)) is not None:
                return message
        # The description of the field's own type, or msgspec's message.
        descriptions = [getattr(meta, "description", None) for meta in getattr(kind, "__metadata__", ())]
        expected = next(filter(None, descriptions), str(error).removeprefix("Expected "))
        # ASCII, because a terminal would interpret some other characters.
        return path and f"{path} is {_truncate(json.dumps(value, separators=(',', ':')))}; expected {expected}"
    return None


def _children(value: Any, kind: Any, path: str) -> Iterator[tuple[Any, str, Any]]:
    """Yield a value's nested values, with paths and types; nothing if the value's structure differs from the type."""
    kind = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    kind = stored.StoredSsts if kind is Ssts else kind
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        for argument in arguments:
            yield from _children(value, argument, path)
    elif isinstance(value, list) and origin is tuple:
        yield from ((item, f"{path}[{number}]", arguments[0]) for number, item in enumerate(value))
    elif isinstance(value, dict) and origin is dict:
        for name, item in value.items():
            yield name, f"a name in {path}", arguments[0]
            yield item, f"{path}[{_shorten(name)}]", arguments[1]
    elif isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        if isinstance(value, list) and kind.__struct_config__.array_like:
            value = dict(zip(kind.__struct_fields__, value, strict=False))
        if not isinstance(value, dict):
            return
        hints = get_type_hints(kind, include_extras=True)
        for name in filter(hints.__contains__, value):
            yield value[name], f"{path}.{name}" if path else name, hints[name]


def find(store: ObjectStore, key: str, kind: type[T], *, key_of: Callable[[T], str] | None = None) -> T | None:
    try:
        return read(store, key, kind, key_of=key_of)
    except ObjectNotFound:
        return None


def put(store: ObjectStore, key: str, note: Struct) -> None:
    store.put(key, encode(note))


def add(store: ObjectStore, key: str, note: T, *, key_of: Callable[[T], str] | None = None) -> T:
    """Create an object unless one exists, and return the stored object. Raises `Corruption`."""
    data = encode(note)
    while True:
        try:
            store.put_if_absent(key, data)
        except ObjectExists:
            if (existing := find(store, key, type(note), key_of=key_of)) is not None:
                return existing
        else:
            return note


@dataclass(frozen=True, slots=True)
class JsonFolder(Generic[T]):
    """A folder of small JSON objects of one type. Methods pass their arguments `of` to the function `prefix_of`."""

    kind: type[T]
    prefix_of: Callable[..., str]
    """Function that returns the prefix of the folder's keys for an app, or for a stage's sink."""
    name_of: Callable[[T], str | int]
    """Function that returns an object's name in the folder. Integer names sort numerically."""
    owner_of: Callable[[T], str] | None = None

    def key(self, note: T, *of: str) -> str:
        return keys.json_object(
            self.prefix_of(*((self.owner_of(note),) if self.owner_of is not None else of)), self.name_of(note)
        )

    def put(self, store: ObjectStore, note: T, *of: str) -> None:
        put(store, self.key(note, *of), note)

    def add(self, store: ObjectStore, note: T, *of: str) -> T:
        """Create an object unless one of its name exists. Returns the stored object. Makes one or two requests."""
        return add(store, self.key(note, *of), note, key_of=lambda existing: self.key(existing, *of))

    def remove(self, store: ObjectStore, name: str | int, *of: str) -> None:
        store.delete(keys.json_object(self.prefix_of(*of), name))

    def find(self, store: ObjectStore, name: str | int, *of: str) -> T | None:
        """Return the object of that name, or None. Costs one request. Raises `Corruption`."""
        return find(
            store, keys.json_object(self.prefix_of(*of), name), self.kind, key_of=lambda note: self.key(note, *of)
        )

    def listed(self, store: ObjectStore, *of: str, after: str | int = "") -> tuple[ObjectInfo, ...]:
        """Return the listing of the objects, sorted by name; with `after`, only of names that sort after `after`."""
        folder = self.prefix_of(*of)
        return tuple(list_json(store, folder, keys.json_object(folder, after) if after else ""))

    def read(self, store: ObjectStore, listed: Iterable[ObjectInfo], *of: str) -> Iterator[T]:
        """Yield the listed objects in order; skips objects deleted since the listing. Costs one request for each.

        Raises `Corruption` if an object cannot be read, or belongs at another key.
        """
        return filter(None, map(self._find_listed(store, *of), listed))

    def all(self, store: ObjectStore, *of: str, since_ms: int = 0) -> tuple[T, ...]:
        """Return all objects written at `since_ms` or later, by storage's clock.

        Costs a listing, and one request for each object; requests run concurrently.
        """
        listed = [info for info in self.listed(store, *of) if info.modified_ms >= since_ms]
        return tuple(filter(None, self.read_concurrently(store, listed, *of)))

    def read_concurrently(self, store: ObjectStore, listed: Sequence[ObjectInfo], *of: str) -> Iterator[T | None]:
        """Yield the listed objects in order; None for objects deleted since the listing. Many requests at a time."""
        read = self._find_listed(store, *of)
        return map(read, listed) if len(listed) <= 1 else map_concurrently(read, listed, _READS_AT_ONCE)

    def _find_listed(self, store: ObjectStore, *of: str) -> Callable[[ObjectInfo], T | None]:
        return lambda info: find(store, info.key, self.kind, key_of=lambda note: self.key(note, *of))

    def newest(self, store: ObjectStore, *of: str, after: str | int = "") -> T | None:
        """Return the object whose name sorts last, if it sorts after `after`; else None.

        Costs a listing and at most one read.
        """
        while listed := self.listed(store, *of, after=after):
            for note in self.read(store, listed[-1:], *of):
                return note
            # Since the listing, a newer object has replaced it: list again.
        return None

    def sweep(self, store: ObjectStore, listed: Iterable[ObjectInfo], is_old: Callable[[ObjectInfo], bool]) -> None:
        """Delete the listed objects for which `is_old` returns True. Costs one request for each."""
        for info in filter(is_old, listed):
            store.delete(info.key)
