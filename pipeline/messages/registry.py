"""Schema registry: a client, Confluent's wire format for whole arrays, and the interface of message readers.

The client uses Confluent's REST interface, limited to what slackwater needs.
"""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import urllib3

from ...common import runtime
from ...common.secret_file import SecretFile
from ...errors import NotFound, Refused, SlackwaterError, Usage
from ..kafka.protocol import Patience

HEADER_BYTES = 5
"""Size in bytes of a message's header: a byte 0, and four bytes with the schema id, big-endian."""
NO_SCHEMA = -1


@dataclass(frozen=True, slots=True)
class Schema:
    """Schema in the registry, with the schemas that it references."""

    kind: str
    text: str
    references: tuple[tuple[str, Schema], ...] = ()
    """Schemas of other subjects that this schema references, each with the name of the reference."""


class BadMessage(SlackwaterError):
    """A message does not match its schema."""


class Reader(ABC):
    """Reads messages into the columns of one schema, the reader's schema."""

    type: pa.DataType
    """Arrow type of the decoded values. A null message is decoded to null."""

    @abstractmethod
    def read(self, writer: Schema, messages: pa.BinaryArray) -> pa.Array:
        """Decode messages of one writer's schema, each to a value of `type`. All messages must have headers.

        Raises `BadMessage` if a message is invalid, and `Refused` if the writer's schema cannot be converted to the
        reader's.
        """

    def may_be_valid(self, writer: Schema, messages: pa.BinaryArray) -> npt.NDArray[np.bool_]:
        """Return False for each message that is certainly bad. This is a quick check after `read` has failed.

        By default, returns True for all messages: some formats have no check that is faster than a read.
        """
        return np.ones(len(messages), bool)


def schema_ids(messages: pa.BinaryArray) -> npt.NDArray[np.int64]:
    """Return the schema id of each message; `NO_SCHEMA` for a null and for bytes without a header."""
    ids = np.full(len(messages), NO_SCHEMA, np.int64)
    heads = pc.binary_slice(messages, 0, HEADER_BYTES)
    headed = np.asarray(pc.fill_null(pc.equal(pc.binary_length(heads), HEADER_BYTES), False))
    if headed.any():
        joined = pc.binary_join(pa.ListArray.from_arrays([0, headed.sum()], heads.filter(pa.array(headed))), b"")
        numbers = np.frombuffer(joined[0].as_py(), np.uint8).reshape(-1, HEADER_BYTES).astype(np.int64)
        weights = 1 << np.arange(24, -1, -8)
        ids[headed] = np.where(numbers[:, 0] == 0, numbers[:, 1:] @ weights, NO_SCHEMA)
    return ids


def drop_prefix(messages: pa.BinaryArray, num_bytes: int) -> pa.BinaryArray:
    # Without an explicit end, Arrow's size estimate of the result overflows.
    return pc.binary_slice(messages, num_bytes, 1 << 31)


def keep_last_of_each_key(maps: pa.MapArray) -> pa.MapArray:
    """Return maps without duplicate keys. The last entry of a key is kept, as in a dict.

    `maps` has no nulls and is no slice. Spark, DuckDB and Arrow reject maps with duplicate keys, but only when such a
    map is used.
    """
    starts = np.asarray(maps.offsets)
    sizes = np.diff(starts)
    if not (sizes > 1).any():
        return maps
    rows = np.repeat(np.arange(len(maps)), sizes)
    codes = np.asarray(maps.keys.dictionary_encode().indices).astype(np.int64)
    entries = rows * (int(codes.max()) + 1) + codes
    _, from_the_end = np.unique(entries[::-1], return_index=True)
    if len(from_the_end) == len(entries):
        return maps
    last_entries = np.sort(len(entries) - 1 - from_the_end)
    offsets = np.concatenate(([0], np.cumsum(np.bincount(rows[last_entries], minlength=len(maps))))).astype(np.int32)
    keys, items = maps.keys.take(pa.array(last_entries)), maps.items.take(pa.array(last_entries))
    return pa.MapArray.from_arrays(pa.array(offsets), keys, items, type=maps.type)


def encode_varint(number: int) -> bytes:
    return bytes(encode_varints(np.array([number]))[0].as_py())


_SIZE_BOUNDS = np.array([1 << 7 * num_sevens for num_sevens in range(1, 10)], np.uint64)


def varint_sizes(numbers: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
    return np.asarray(np.searchsorted(_SIZE_BOUNDS, _zigzag(numbers), side="right") + 1, np.int64)


def _zigzag(numbers: npt.NDArray[np.integer]) -> npt.NDArray[np.uint64]:
    signed = numbers.astype(np.int64)
    return (signed << 1 ^ signed >> 63).view(np.uint64)


def encode_varints(numbers: npt.NDArray[np.integer]) -> pa.Array:
    """Encode numbers as zigzag varints: seven bits per byte, lowest first. The eighth bit is 0 in the last byte."""
    zigzag, sizes = _zigzag(numbers), varint_sizes(numbers)
    offsets = np.concatenate(([0], np.cumsum(sizes, dtype=np.int32))).astype(np.int32)
    out = np.empty(int(offsets[-1]), np.uint8)
    for at in range(int(sizes.max(initial=0))):
        has_byte = sizes > at
        bits = (zigzag[has_byte] >> np.uint64(7 * at)).astype(np.uint8) & 0x7F
        out[offsets[:-1][has_byte] + at] = bits | np.where(sizes[has_byte] > at + 1, 0x80, 0).astype(np.uint8)
    return pa.Array.from_buffers(pa.binary(), len(zigzag), [None, pa.py_buffer(offsets), pa.py_buffer(out)])


USER_INFO_VARIABLE = "SLACKWATER_REGISTRY_USER_INFO"
USER_INFO_FILE_VARIABLE = f"{USER_INFO_VARIABLE}_FILE"

_TIMEOUT_S = 10.0
_RETRY_PAUSE_S = 0.5
_MAX_DEPTH = 32
_NOT_FOUND_STATUS = 404
_NOT_FOUND_CODES = (40401, 40402, 40403)
"""Registry error codes for a missing subject, version or schema. A proxy's own 404 answer has none of these codes."""
_RETRIED_STATUSES = (408, 429)
_FORBIDDEN_STATUSES = (401, 403)
_INCOMPATIBLE_STATUSES = (409, 422)


@dataclass(frozen=True, slots=True)
class Registry:
    """Address and credentials of a schema registry. Sent to Spark's workers by pickle."""

    url: str
    user_info: str = field(default="", repr=False)
    patience_s: float = 60.0
    user_info_file: str = field(default="", repr=False)
    """File with `user_info`, which may change while the app runs; empty for none."""

    @staticmethod
    def at_url(url: str, patience_s: float) -> Registry:
        """Return the registry at a URL, with the environment's credentials. Raises `Usage` for an invalid URL."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise Usage(
                f"{parts.hostname or 'that'!r} is not the URL of a registry",
                hint='for example registry="http://localhost:8081"',
            )
        if "@" in parts.netloc:
            raise Usage(
                f"the URL of the registry at {parts.hostname} contains credentials, which messages would show",
                hint=f"set {USER_INFO_VARIABLE}=user:password instead",
            )
        user_info, file = (os.environ.get(name, "") for name in (USER_INFO_VARIABLE, USER_INFO_FILE_VARIABLE))
        if user_info and file:
            raise Usage(f"{USER_INFO_VARIABLE} and {USER_INFO_FILE_VARIABLE} are both set", hint="unset one of them")
        return Registry(url.rstrip("/"), user_info, patience_s, str(Path(file).absolute()) if file else "")

    @lru_cache(maxsize=256)  # noqa: B019  a process has few registries
    def latest(self, subject: str, version: int | None) -> Schema:
        """Return a subject's schema of a version; the newest schema for None. Cached until the next start.

        Raises `NotFound`, `Refused` if access is denied or the answer is not a schema, and `Unavailable` after
        `patience_s`.
        """
        name = f"{subject}, version {version}" if version else subject
        return self._parse_schema(self._request(_subject_path(subject, version or "latest"), "subject", name))

    @lru_cache(maxsize=4096)  # noqa: B019
    def by_id(self, number: int) -> Schema:
        """Return the schema with an id; it never changes. Raises `NotFound`, `Refused` or `Unavailable`."""
        return self._parse_schema(self._request(f"/schemas/ids/{number}", "schema id", str(number)))

    def register(self, subject: str, text: str) -> int:
        """Register an Avro schema under a subject and return its id. A schema that exists already keeps its id.

        Raises `Refused` if the schema is incompatible with earlier ones or access is denied, and `Unavailable` after
        `patience_s`.
        """
        answer = self._request(_subject_path(subject), "subject", subject, {"schema": text, "schemaType": "AVRO"})
        if not isinstance(answer, Mapping) or not isinstance(answer.get("id"), int):
            raise Refused(f"the registry at {self.url} returned no id for the schema of {subject!r}")
        return int(answer["id"])

    def _request(self, path: str, kind: str, name: str, sent: Mapping[str, str] | None = None) -> Any:
        headers = {"accept": "application/vnd.schemaregistry.v1+json, application/json"}
        if user_info := _user_info_of(self.user_info_file).read() if self.user_info_file else self.user_info:
            headers |= urllib3.make_headers(basic_auth=user_info)
        if sent is not None:
            headers["content-type"] = "application/vnd.schemaregistry.v1+json"
        body, method = (None, "GET") if sent is None else (json.dumps(sent).encode(), "POST")
        patience = Patience(f"the schema registry at {self.url}", self.patience_s, "registry= in the program")
        while True:
            try:
                answer = _pool(os.getpid()).request(method, f"{self.url}{path}", body=body, headers=headers)
            except urllib3.exceptions.HTTPError as error:
                patience.record_silence(type(error).__name__)
            else:
                status, content = answer.status, _parse_json(answer.data)
                is_registry_404 = isinstance(content, Mapping) and content.get("error_code") in _NOT_FOUND_CODES
                if is_registry_404 if status == _NOT_FOUND_STATUS else status < 500 and status not in _RETRIED_STATUSES:
                    return self._check_answer(status, content, kind, name)
                patience.record_silence(f"status {status}")
            runtime.sleep(min(_RETRY_PAUSE_S, self.patience_s))

    @property
    def _login_setting(self) -> str:
        if not self.user_info_file:
            return f"{USER_INFO_VARIABLE}=user:password"
        return f"{USER_INFO_FILE_VARIABLE}=FILE, with user:password in the file"

    def _check_answer(self, status: int, content: Any, kind: str, name: str) -> Any:
        if status == _NOT_FOUND_STATUS:
            raise NotFound(kind, name, found=f"the schema registry at {self.url} does not know it")
        if status in _FORBIDDEN_STATUSES:
            raise Refused(
                f"the schema registry at {self.url} denies this user access (status {status})",
                hint=f"set {self._login_setting}; it must be allowed to read subjects, and to write those of sinks",
            )
        if status in _INCOMPATIBLE_STATUSES:
            has_message = isinstance(content, Mapping) and "message" in content
            explanation = " ".join(str(content["message"]).split())[:300] if has_message else "no reason given"
            raise Refused(
                f"the schema registry at {self.url} rejects the columns of {kind} {name!r}: {explanation}",
                hint="keep the columns compatible, or give the sink another subject=",
            )
        if status != 200 or content is None:
            raise Refused(
                f"{self.url} is not a schema registry: it answered status {status} for {kind} {name!r}",
                hint="use the URL that /subjects is under, such as http://localhost:8081",
            )
        return content

    def _parse_schema(self, answer: Any, depth: int = 0) -> Schema:
        if not isinstance(answer, Mapping) or not isinstance(answer.get("schema"), str) or depth > _MAX_DEPTH:
            raise Refused(f"the schema registry at {self.url} returned no valid schema")
        references = []
        for reference in answer.get("references") or ():
            referenced = self._request(
                _subject_path(reference["subject"], reference["version"]), "subject", reference["subject"]
            )
            references.append((reference["name"], self._parse_schema(referenced, depth + 1)))
        return Schema(answer.get("schemaType") or "AVRO", answer["schema"], tuple(references))


def _subject_path(subject: str, *version: str | int) -> str:
    return "/".join(("/subjects", quote(subject, safe=""), "versions", *map(str, version)))


def _parse_json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError:
        return None


@lru_cache(maxsize=16)
def _user_info_of(file: str) -> SecretFile:
    return SecretFile(file, "the user and password of the schema registry", USER_INFO_FILE_VARIABLE)


def clear_latest_schemas() -> None:
    Registry.latest.cache_clear()


@lru_cache(maxsize=1)
def _pool(_pid: int) -> urllib3.PoolManager:
    return urllib3.PoolManager(timeout=_TIMEOUT_S, retries=False)
