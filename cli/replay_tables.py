"""What a replay shows: what was read, and what came out beside what was committed."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from . import formats, values
from .bisect_tables import MAX_KEYS, changes
from .tables import Grid, Title
from .terminal import Part

if TYPE_CHECKING:
    from ..pipeline.replay.compare import ChannelComparison, Comparison


def comparison_parts(found: "Comparison") -> Iterator[Part]:
    """For people: the first keys and rows that differ."""
    yield Title(f"{found.ref} gives {'what' if found.same else 'something else than'} was committed")
    yield Grid.of(("it read", ">records"), ((topic, formats.count(count)) for topic, count in found.read))
    yield ""
    yield Grid.of(("it wrote", "", ">committed", ">replayed", ">different"), _written(found))
    if found.different:
        yield ""
        yield changes(found.different, "committed", "replayed")
        yield from _more(len(found.different), "key")
    if found.hidden:
        yield ""
        yield (
            f"{formats.plural(found.hidden, 'key')} differ in what is not shown: internal columns, or a row that only "
            "one of both wrote again as it was"
        )
    for channel in found.channels:
        yield from _channel(channel)


def comparison_data(found: "Comparison") -> dict[str, Any]:
    """The same for machines, with all keys and rows that differ; bytes are hexadecimal."""
    return {
        "app": found.app,
        "stage": found.stage,
        "version": found.version,
        "time_ms": found.time_ms,
        "same": found.same,
        "read": [{"topic": topic, "records": count} for topic, count in found.read],
        "keys_committed": found.committed.num_rows if found.committed is not None else None,
        "keys_replayed": found.num_replayed if found.committed is not None else None,
        "different": values.stream(
            {"key": each.key, "committed": each.before, "replayed": each.after} for each in found.different or ()
        ),
        "hidden": found.hidden,
        "channels": [
            {
                "name": each.name,
                "committed": each.committed.rows.num_rows if each.committed.rows is not None else None,
                "unknown": each.committed.unknown or None,
                "replayed": each.replayed.num_rows,
                "missing": values.for_json(each.missing)["rows"],
                "added": values.for_json(each.added)["rows"],
            }
            for each in found.channels
        ],
    }


def _written(found: "Comparison") -> Iterator[tuple[str, ...]]:
    if found.committed is not None:
        different = len(found.different or ()) + found.hidden
        numbers = (found.committed.num_rows, found.num_replayed, different)
        yield found.stage, "keys", *map(formats.count, numbers)
    for each in found.channels:
        if each.committed.rows is None:
            yield each.name, "rows sent", "?", formats.count(each.replayed.num_rows), "?"
        else:
            numbers = (
                each.committed.rows.num_rows,
                each.replayed.num_rows,
                each.missing.num_rows + each.added.num_rows,
            )
            yield each.name, "rows sent", *map(formats.count, numbers)


def _channel(channel: "ChannelComparison") -> Iterator[Part]:
    if channel.committed.rows is None:
        yield ""
        yield f"what was sent on {channel.name} is not compared: {channel.committed.unknown}"
    for rows, what in ((channel.missing, "were sent then, and are not now"), (channel.added, "were not sent then")):
        if rows.num_rows:
            yield ""
            yield f"rows of {channel.name} that {what}:"
            yield values.grid(rows, MAX_KEYS)
            yield from _more(rows.num_rows, "row")


def _more(count: int, noun: str) -> Iterator[Part]:
    if count > MAX_KEYS:
        yield f"and {formats.count(count - MAX_KEYS)} more; --json gives each {noun}"
