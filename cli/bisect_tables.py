"""What bisect shows of keys that changed, and of the record behind a bad commit."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from .. import instants
from ..results import formats
from ..results.document import Block, Name, Table, Title
from ..results.values import stream, word

if TYPE_CHECKING:
    from ..snapshot.bisect.record import Guilty, Message
    from ..snapshot.diff.key_changes import KeyChange, KeyChanges

_MAX_TEXT = 2_000
"""Characters of a record's value that are printed for people."""


def changes(keys: "KeyChanges", before: str = "before", after: str = "after") -> Table:
    """The first keys, with a line for each value that changed; `before` and `after` are what both sides are called."""
    headings: tuple[str | Name, ...] = (
        *(Name(name) for name in keys.keys.column_names),
        "column",
        f">{before}",
        f">{after}",
    )
    return Table.of(headings, (line for key in keys.head(formats.MOST_SHOWN) for line in _lines(key)))


def record_parts(guilty: "Guilty") -> Iterator[Block]:
    """The record, the way to it, and what it did; or why there is none."""
    if guilty.message is not None:
        yield ""
        yield Title(f"{guilty.message.address} is the record behind it")
        yield Table.of(("", ""), _message(guilty.message))
    if guilty.hops:
        yield ""
        yield Table.of(
            ("stage", "version", "turned bad with", ">of", ">replays"),
            (
                (hop.stage, f"v{hop.version}", str(hop.record), formats.count(hop.records), formats.count(hop.replays))
                for hop in guilty.hops
            ),
        )
    if guilty.hops and not guilty.hops[0].alone:
        needs = guilty.hops[0].needs
        more = formats.plural(needs, "record") if needs else "records"
        yield f"by itself it does not make it bad: it does so with {more} before it"
    if guilty.others:
        more = formats.plural(guilty.others, "more record")
        yield f"{more} that {guilty.hops[0].stage} v{guilty.hops[0].version} read would make it bad by themselves"
    if guilty.keys:
        yield ""
        yield "what it did:"
        yield changes(guilty.keys)
    if guilty.reason:
        yield ""
        yield f"the record behind it cannot be told: {guilty.reason}"


def record_data(guilty: "Guilty") -> dict[str, Any]:
    """The same for machines; bytes are hexadecimal."""
    message = guilty.message
    return {
        "address": str(message.address) if message else None,
        "topic": message.address.topic if message else None,
        "partition": message.address.partition if message else None,
        "offset": message.address.offset if message else None,
        "time_ms": message.time_ms if message else None,
        "key": _hexadecimal(message.key) if message else None,
        "value": _hexadecimal(message.value) if message else None,
        "headers": [{"name": name, "value": _hexadecimal(value)} for name, value in message.headers] if message else [],
        "hops": [
            {
                "stage": hop.stage,
                "version": hop.version,
                "record": str(hop.record),
                "records": hop.records,
                "candidates": hop.candidates,
                "replays": hop.replays,
                "alone": hop.alone,
                "needs": hop.needs,
            }
            for hop in guilty.hops
        ],
        "keys": stream({"key": key.key, "before": key.before, "after": key.after} for key in guilty.keys or ()),
        "windows": guilty.windows,
        "others": guilty.others,
        "reason": guilty.reason or None,
    }


def _message(message: "Message") -> Iterator[tuple[str, str]]:
    yield "sent", instants.when(message.time_ms)
    if message.key is not None:
        yield "key", _text(message.key)
    for name, value in message.headers:
        yield f"header {name}", "NULL" if value is None else _text(value)
    yield "value", "NULL" if message.value is None else _text(message.value)


def _text(data: bytes) -> str:
    """Bytes as the text that they are, else hexadecimal; not all of what is long."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = data.hex()
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}… ({formats.count(len(data))} bytes)"


def _hexadecimal(data: bytes | None) -> str | None:
    return None if data is None else data.hex()


def _lines(change: "KeyChange") -> Iterator[tuple[str, ...]]:
    """A line for each value that changed; for a key that did not change, one for each value."""
    for name in change.after or change.before or {}:
        before, after = _value(change.before, name), _value(change.after, name)
        if before != after or change.before == change.after:
            yield (*map(word, change.key.values()), name, before, after)


def _value(row: Mapping[str, object] | None, name: str) -> str:
    return "(no row)" if row is None else word(row.get(name))
