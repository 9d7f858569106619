"""What leaves an app: a topic that others read, or a function that is called with each version's rows."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import pyarrow as pa

from ...common.argument_types import checked
from ...errors import Usage
from ...store.versions.keys import check_name, check_topic

VersionFunction = Callable[[str, str, int, pa.Table], None]


@dataclass(frozen=True, slots=True)
class Encoding:
    """How rows become records of a topic. Crosses to workers by pickle, inside Spark."""

    key: tuple[str, ...]
    """Columns; none for records without a key."""
    value: str
    """`json`, `avro`, or the column that is the value."""
    headers: tuple[tuple[str, str], ...]
    """Names, and the column of each."""
    all_headers: str = ""
    """The column that has all headers of a record; empty where `headers` names them."""
    registry: str = ""
    """The URL of the schema registry, for Avro."""
    subject: str = ""
    """Under which the schema of the values is registered."""


@dataclass(frozen=True, slots=True)
class TopicSink:
    """A topic that others read. `name` is the topic; a clone that publishes at all publishes to another."""

    name: str
    encoding: Encoding
    on_error: Literal["stop", "reject"] = "stop"
    """What becomes of a record that is larger than the topic takes."""
    kind: ClassVar[Literal["topic", "function"]] = "topic"


@dataclass(frozen=True, slots=True)
class FunctionSink:
    """A function that gets the rows of each version."""

    name: str
    function: VersionFunction
    kind: ClassVar[Literal["topic", "function"]] = "function"
    encoding: ClassVar[None] = None
    on_error: ClassVar[Literal["stop", "reject"]] = "stop"


Sink = TopicSink | FunctionSink


@checked
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
    """Publish a stage's rows to a Kafka topic that others read, each record exactly once for a `read_committed` reader.

    The rows of committed versions alone are published, version after version, in Kafka transactions.

    Args:
        topic: The topic, which must be there.
        key: The column, or columns, that make the records' key: of one column of strings or bytes these, of anything
            else JSON. Records of one key keep their order. Default: no key.
        value: `"json"` for an object with all columns but those of headers, as Spark's `to_json` writes it; `"avro"`
            for the same columns in Confluent's wire format, whose schema is registered; else the name of a column of
            bytes or strings, in which null is a tombstone.
        headers: Columns of bytes or strings by the names of headers; a null is left out. Or the name of one column that
            has all of them, of the type of `headers` in Spark's Kafka source: so a record's own are carried on.
        registry: For Avro, the URL of the schema registry. SLACKWATER_REGISTRY_USER_INFO has `user:password` where it
            takes them.
        subject: For Avro, default the topic with `-value`.
        on_error: What becomes of a record that is larger than the topic takes (`max.message.bytes`, and 8 MB at most):
            `"stop"` ends the stage before the batch is committed, and names the record; `"reject"` puts it into the
            table of the stage's rejected records, and the batch is committed and published without it.

    Raises `Usage` where an argument is none that can be meant.
    """
    if check_topic(topic) in (".", ".."):
        raise Usage(f"topic name {topic!r} is not usable: Kafka has no such topic")
    if on_error not in ("stop", "reject"):
        raise Usage(f'sink {topic!r}: on_error is {on_error!r}; expected "stop" or "reject"')
    columns = (key,) if isinstance(key, str) else tuple(key or ())
    if len(set(columns)) != len(columns):
        raise Usage(f"sink {topic!r}: key is {columns!r}; expected different column names")
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


@checked
def foreach_version(function: VersionFunction, *, name: str = "") -> FunctionSink:
    """Call a function with the rows of each committed version, in the runner, in order and at least once.

    `function(app, stage, version, rows)` gets an Arrow table with what the version's batch wrote. When it returns, the
    version is done; when it raises, or the runner is killed, it is called with the same rows again. Versions of a stage
    only grow, and a version's rows are always the same: whoever writes rows and the version in one transaction, and
    passes over a version that is not larger than the one that is there, has each row exactly once.

    Versions without rows are passed over. Its place is kept by the `name`, which therefore must not change; default the
    function's name. Raises `Usage` where that is not usable.
    """
    if not callable(function):
        raise Usage(f"foreach_version(): function is {function!r}; expected a function")
    found = name or getattr(function, "__name__", "").strip("<>").replace("_", "-").lower()
    return FunctionSink(check_name("foreach_version", found), function)
