"""Sinks of an app: a Kafka topic for other consumers, a function called with each version's rows, or a table."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import pyarrow as pa

from ...common.arguments import check_arguments
from ...errors import Usage
from ...store.versions.keys import check_name, check_topic
from .table_sink import TableSink

VersionFunction = Callable[[str, str, int, pa.Table], None]


@dataclass(frozen=True, slots=True)
class Encoding:
    """Format of a sink's Kafka records: the columns for key, value and headers. Pickled to Spark's workers."""

    key: tuple[str, ...]
    """Key columns; empty for records without a key."""
    value: str
    """`json`, `avro`, or the column with the value."""
    headers: tuple[tuple[str, str], ...]
    """Pairs of a header name and the column that holds the header's values."""
    all_headers: str = ""
    """Column with all headers of a record; empty if `headers` lists them."""
    registry: str = ""
    """URL of the schema registry, for Avro."""
    subject: str = ""


@dataclass(frozen=True, slots=True)
class TopicSink:
    """Sink that publishes to the Kafka topic `name`. A clone of the app must publish to a different topic."""

    name: str
    encoding: Encoding
    on_error: Literal["stop", "reject"] = "stop"
    """Action for a record that exceeds the topic's size limit."""
    kind: ClassVar[Literal["topic", "function"]] = "topic"


@dataclass(frozen=True, slots=True)
class FunctionSink:
    """Sink that calls a function with the rows of each version."""

    name: str
    function: VersionFunction
    kind: ClassVar[Literal["topic", "function"]] = "function"
    encoding: ClassVar[None] = None
    on_error: ClassVar[Literal["stop", "reject"]] = "stop"


Sink = TopicSink | FunctionSink | TableSink


@check_arguments
def sink(
    topic: str,
    *,
    key: Sequence[str] | str | None = None,
    value: str = "json",
    headers: Mapping[str, str] | str | None = None,
    registry: str = "",
    subject: str = "",
    on_error: str = "stop",
) -> TopicSink:
    """Publish a stage's rows to a Kafka topic, exactly once for `read_committed` consumers.

    Only rows of committed versions are published, version by version, in Kafka transactions.

    Args:
        topic: An existing topic.
        key: Key column or columns of the records: a single column of strings or bytes is sent unchanged, all other keys
            as JSON. Records with equal keys keep their order. Default: no key.
        value: `"json"` for an object with all columns except headers, as Spark's `to_json` writes it; `"avro"` for the
            same columns in Confluent's wire format, with a registered schema; or the name of a column of bytes or
            strings; null becomes a Kafka tombstone.
        headers: Columns of bytes or strings, by header name; null values are left out. Or the name of one column with
            all headers, in the type of Spark's Kafka column `headers`, for example to forward the headers of records.
        registry: URL of the schema registry, for Avro. SLACKWATER_REGISTRY_USER_INFO has `user:password` if needed.
        subject: Subject in the registry, for Avro; default the topic with `-value`.
        on_error: Action for a record that exceeds the topic's size limit (`max.message.bytes`, and 8 MB at most):
            `"stop"` stops the stage before the batch is committed, and names the record; `"reject"` stores the record
            in the table of the stage's rejected records, and commits and publishes the batch without it.

    Raises `Usage` for an invalid argument.
    """
    if check_topic(topic) in (".", ".."):
        raise Usage(f"topic name {topic!r} is not usable: Kafka has no such topic")
    if on_error not in ("stop", "reject"):
        raise Usage(f'sink {topic!r}: on_error is {on_error!r}; expected "stop" or "reject"')
    columns = (key,) if isinstance(key, str) else tuple(key or ())
    if len(set(columns)) != len(columns):
        raise Usage(f"sink {topic!r}: key is {columns!r}, which names a column twice; name each column once")
    if (value == "avro") != bool(registry):
        raise Usage(
            f"sink {topic!r}: value={value!r} {'needs' if value == 'avro' else 'has no use for'} registry=",
            hint='as sink("alerts", value="avro", registry="http://localhost:8081")',
        )
    if subject and not registry:
        raise Usage(f"sink {topic!r}: subject= is for value='avro'")
    subject = subject or (f"{topic}-value" if registry else "")
    named, whole = ({}, headers) if isinstance(headers, str) else (headers or {}, "")
    encoding = Encoding(columns, value, tuple(named.items()), whole, registry=registry, subject=subject)
    return TopicSink(topic, encoding, "reject" if on_error == "reject" else "stop")


@check_arguments
def foreach_version(function: VersionFunction, *, name: str = "") -> FunctionSink:
    """Call a function with the rows of each committed version, in the runner, in order and at least once.

    `function(app, stage, version, rows)` gets an Arrow table with the rows that the stage wrote to this sink in that
    version. After the function returns, the version counts as delivered. If the function raises, or the runner is
    killed, the function is called again with the same rows. The version numbers of a stage increase, and a version's
    rows never change. For exactly-once delivery, write the rows and the version in one transaction, and skip versions
    that are not larger than the stored version.

    Versions without rows are skipped. Progress is stored under `name` (default: the function's name), so the name must
    not change. Raises `Usage` for an unusable name.
    """
    if not callable(function):
        raise Usage(f"foreach_version(): function is {function!r}; expected a function")
    sink_name = name or getattr(function, "__name__", "").strip("<>").replace("_", "-").lower()
    return FunctionSink(check_name("foreach_version", sink_name), function)
