"""`decode`: messages of a schema registry as a column of structs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Literal

import pyarrow as pa

from ...errors import BadRecord, Refused, Usage
from ..source.worker import ERROR_MARK
from .batches import Bad, open_reader, read_batch
from .registry import Registry
from .schema import Reader, Schema

if TYPE_CHECKING:
    from pyspark.sql import Column

_NEEDED = ("datafusion", "ptars", "grpc_tools")
_SIDES = ("key", "value")
_ADDRESS = ("topic", "partition", "offset")

_topics: ContextVar[tuple[str, ...]] = ContextVar("topics", default=())


@contextmanager
def reading(topics: Sequence[str]) -> Iterator[None]:
    """While a stage's function runs: the user's topics that it reads, after which subjects are named."""
    token = _topics.set(tuple(topics))
    try:
        yield
    finally:
        _topics.reset(token)


def decode(
    column: str | Column,
    *,
    registry: str,
    subject: str = "",
    version: int | None = None,
    message: str = "",
    mode: Literal["FAILFAST", "PERMISSIVE"] = "FAILFAST",
    patience_s: float = 60.0,
) -> Column:
    """Messages in Confluent's wire format as structs: Avro, Protobuf or JSON Schema, whole batches at a time.

    The struct is that of the subject's newest schema when the app starts, or of `version`. Messages of other versions
    are brought to it, also of those that are registered while the app runs.

    Args:
        column: `"value"` or `"key"` of a topic, so that errors name the message's offset; or any binary column.
        registry: The registry's URL. SLACKWATER_REGISTRY_USER_INFO has `user:password` where it takes them.
        subject: Whose schema; the name of the stage's only topic with `-value` or `-key` when empty.
        version: Of the subject; None for the newest at the start.
        message: Of Protobuf, the full name of the message type; the schema's first when empty.
        mode: What is no such message stops the stage (`FAILFAST`; nothing is lost), or is null (`PERMISSIVE`).
        patience_s: How long a registry may be away before the stage stops.

    Returns:
        A struct, null where the message is null.

    Raises:
        NotFound: The registry has no such subject or version, or its schema no such message type.
        Refused: What is needed is not installed, no columns can be made of the schema, or the registry forbids it.
        Unavailable: The registry has not answered for so long.
        Usage: An argument is none that can be meant.
    """
    from pyspark.sql import functions as F
    from pyspark.sql.pandas.types import from_arrow_type

    if missing := [name for name in _NEEDED if find_spec(name) is None]:
        raise Refused(f"decode needs {', '.join(missing)}", hint="pip install 'slackwater[registry]'")
    if mode not in ("FAILFAST", "PERMISSIVE"):
        raise Usage(f"mode={mode!r} of decode is neither FAILFAST nor PERMISSIVE")
    known = Registry.of(registry, patience_s)
    schema = known.latest(subject or _subject(column), version)
    kind = from_arrow_type(open_reader(schema, message).type)
    addressed = isinstance(column, str) and column in _SIDES
    parts = [F.col(column) if isinstance(column, str) else column, *map(F.col, _ADDRESS if addressed else ())]
    # What runs in workers takes these with it; the reader is made there.
    mark, fails = ERROR_MARK, mode == "FAILFAST"

    def decoded(messages: pa.Array, *address: pa.Array) -> pa.Array:
        with mark.own():
            reader = _reader(schema, message)
            values, bad = read_batch(messages, reader, schema.kind, known.by_id, every=not fails)
            if bad and fails:
                raise BadRecord(_sentence(bad[0], address, len(messages)))
            return values

    made: Column = F.arrow_udf(decoded, kind)(*parts)  # type: ignore[attr-defined]  # not in pyspark's stubs
    return made


def _subject(column: str | Column) -> str:
    topics = _topics.get()
    if not isinstance(column, str) or column not in _SIDES or len(topics) != 1:
        why = f"the stage reads {len(topics)} topics" if isinstance(column, str) and column in _SIDES else "any column"
        raise Usage(
            f"nothing says which subject to decode ({why})",
            hint='as decode("value", registry=…, subject="orders-value")',
        )
    return f"{topics[0]}-{column}"


@lru_cache(maxsize=64)
def _reader(schema: Schema, message: str) -> Reader:
    return open_reader(schema, message)


def _sentence(bad: Bad, address: Sequence[pa.Array], count: int) -> str:
    """What is wrong with a message; `address` has topic, partition and offset, or nothing."""
    where = f"row {bad.row} of a batch of {count}"
    if address:
        topic, partition, offset = (part[bad.row].as_py() for part in address)
        where = f"topic {topic!r}, partition {partition}, offset {offset}"
    return f"the message at {where} cannot be decoded: {bad.why}"
