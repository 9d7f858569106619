"""Output of `why` and `impact`: the records that made a row, and the rows that a record reached."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from ...common import instants
from ...snapshot.bisect.explained import Impact, MinimalRecords, ReachedOutput, RowExplanation, RowVersion
from ...snapshot.bisect.verdict import SourceRecord
from ...store.sst.arrow_types import bytes_to_hex
from ..show import formats
from ..show.document import Block, Name, NextCommand, TableBlock, Title
from ..show.shown import Result, attributes
from ..show.values import format_bytes, format_key_value, format_value, value_lines

_MAX_RECORDS = 50


def explanation_result(explained: RowExplanation, *, payloads: bool = False) -> Result:
    return Result(explanation_data(explained), *explanation_blocks(explained, payloads=payloads))


def explanation_blocks(explained: RowExplanation, *, payloads: bool = False) -> Iterator[Block]:
    name = f"{explained.app}/{explained.table}, {_key(explained.key)}, at v{explained.version}"
    if not explained.versions:
        yield f"{name}: the key has no row, here or in any kept version"
        return
    count = formats.plural(len(explained.sources), "record")
    what = "wrote its row" if explained.row is not None else "wrote and removed its row"
    yield Title(f"{name}: {count} {what}{'' if explained.is_whole else ', as far as known'}")
    yield TableBlock.from_rows(
        ("committed", "version", "", "column", ">before", ">after", "records"),
        (line for version in explained.versions for line in _version_lines(version)),
    )
    yield ""
    yield _sources_table(explained.sources, payloads=payloads)
    if (more := len(explained.sources) - _MAX_RECORDS) > 0:
        yield f"and {formats.plural(more, 'more record')}; --json gives all"
    if explained.minimal is not None:
        yield ""
        yield from _minimal_lines(explained.minimal)
    elif explained.unknown:
        yield f"no smallest set is known: {explained.unknown}"
    yield from (f"note: {version.name}: {version.unknown}" for version in explained.versions if version.unknown)


def _version_lines(version: RowVersion) -> Iterator[Sequence[Any]]:
    shown = [str(record.location) for record in version.records[: formats.MAX_SHOWN]]
    if (more := len(version.records) - len(shown)) > 0:
        shown.append(f"and {more:,} more")
    records = ", ".join(shown) or ("-" if version.unknown else "none: the row's due time passed")
    about = instants.format_with_age(version.time_ms), Name(version.name)
    if version.key is None:
        yield (*about, "sent", "", "", "", records)
        return
    kind = "added" if version.before is None else "removed" if version.after is None else "changed"
    first, *rest = value_lines(version.before, version.after)
    yield (*about, f"{kind} {_key(version.key)}", *first, records)
    yield from (("", "", "", *line, "") for line in rest)


def _sources_table(sources: Sequence[SourceRecord], *, payloads: bool) -> TableBlock:
    has_places = any(record.location.place for record in sources)
    headings = ("record", *(("in",) if has_places else ()), "sent", *(("key", "value") if payloads else ()))

    def text(data: bytes | None) -> str:
        return "-" if data is None else format_bytes(data)

    rows = (
        (
            Name(str(record.location)),
            *((Name(record.location.place),) if has_places else ()),
            instants.format_with_age(record.time_ms),
            *((text(record.key), text(record.value)) if payloads else ()),
        )
        for record in sources[:_MAX_RECORDS]
    )
    return TableBlock.from_rows(headings, rows)


def _minimal_lines(minimal: MinimalRecords) -> Iterator[Block]:
    count, replays = len(minimal.records), formats.plural(minimal.replays, "replay")
    suffice = f"{formats.plural(count, 'record')} {'suffices' if count == 1 else 'suffice'}"
    if minimal.is_smallest:
        fact = f"{suffice} for the row, and no smaller set does (proved by {replays})"
    elif minimal.is_minimal:
        fact = f"{suffice} for the row, and each is needed; a different set may be smaller ({replays})"
    else:
        fact = f"{suffice} for the row; the search for a smaller set reached its limit ({replays})"
    yield Title(fact)
    yield ", ".join(map(str, minimal.records[:_MAX_RECORDS])) or "none: the row exists without any record"


def explanation_data(explained: RowExplanation) -> dict[str, Any]:
    """Return the explanation as data for JSON; bytes are hexadecimal."""
    minimal = explained.minimal
    data = attributes(explained, "app", "table", "key", "version", "row") | {
        "whole": explained.is_whole,
        "records": [source_data(record) for record in explained.sources],
        "versions": [
            attributes(version, "stage", "version", "time_ms", "key", "before", "after")
            | {
                "records": [
                    {"record": str(record.location), "time_ms": record.time_ms, "sent_by": record.sent_by or None}
                    for record in version.records
                ],
                "unknown": version.unknown or None,
            }
            for version in explained.versions
        ],
        "minimal": {
            "records": [*map(str, minimal.records)],
            "smallest": minimal.is_smallest,
            "none_can_be_left_out": minimal.is_minimal,
            "replays": minimal.replays,
        }
        if minimal is not None
        else None,
        "unknown": explained.unknown or None,
    }
    return cast("dict[str, Any]", bytes_to_hex(data))


def source_data(record: SourceRecord) -> dict[str, Any]:
    headers = [{"name": name, "value": value} for name, value in record.headers]
    place = {"place": record.location.place} if record.location.place else {}
    return {"record": str(record.location), **place, **attributes(record, "time_ms", "key", "value", headers=headers)}


def impact_result(impact: Impact) -> Result:
    return Result(impact_data(impact), *impact_blocks(impact))


def impact_blocks(impact: Impact) -> Iterator[Block]:
    read = ", ".join(impact.readers) or "no version, as far as known"
    place = f" ({impact.record.place})" if impact.record.place else ""
    yield Title(f"{impact.record}{place} of {impact.app} was read by {read}")
    yield from (f"{taken.stage}@v{taken.version}: {taken.kind}, {taken.detail}" for taken in impact.not_taken)
    if impact.rows:
        yield ""
        yield Title(f"it reached {formats.plural(len(impact.rows), 'row')}")
        shown = impact.rows[:_MAX_RECORDS]
        lines = (
            (
                Name(f"{row.stage}@v{row.version}") if not at else "",
                _key(row.key) if not at else "",
                *line,
                ("" if at else f"v{row.until}" if row.until else "now"),
            )
            for row in shown
            for at, line in enumerate(value_lines(row.before, row.after))
        )
        yield TableBlock.from_rows(("from", "key", "column", ">before", ">after", "until"), lines)
        if (more := len(impact.rows) - len(shown)) > 0:
            yield f"and {formats.plural(more, 'more row')}; --json gives all"
    if impact.outputs:
        yield ""
        yield TableBlock.from_rows(
            ("sent by", "to", ">rows", "then"),
            (
                (Name(f"{sent.stage}@v{sent.version}"), Name(sent.output), len(sent.rows), _fate(sent))
                for sent in impact.outputs
            ),
        )
    if impact.copies:
        yield ""
        yield TableBlock.from_rows(
            ("kept in", "name", "stages", "in flight"),
            ((copy.kind, Name(copy.name), ", ".join(copy.stages), ", ".join(copy.in_flight)) for copy in impact.copies),
        )
    if impact.rows and not impact.unknown:
        row = impact.rows[-1]
        words = " ".join(formats.quote_word(str(format_key_value(value))) for value in row.key.values())
        yield "for all records of the last row: ", NextCommand(f"slackwater why {impact.app}/{row.stage} {words}")
    yield from (f"note: not known: {reason}" for reason in impact.unknown)


def _fate(sent: ReachedOutput) -> str:
    if sent.kind == "channel":
        return f"read by {', '.join(sent.readers)}" if sent.readers else "not read yet"
    return f"{sent.kind} sink, {'published' if sent.is_published else 'not published, as far as known'}"


def impact_data(impact: Impact) -> dict[str, Any]:
    """Return the impact as data for JSON; bytes are hexadecimal."""
    sent = ("stage", "version", "output", "kind", "rows", "readers", "is_published")
    data = {
        "app": impact.app,
        "record": str(impact.record),
        "readers": impact.readers,
        "not_taken": [attributes(taken, "stage", "version", "kind", "detail") for taken in impact.not_taken],
        "rows": [attributes(row, "stage", "key", "version", "until", "before", "after") for row in impact.rows],
        "sent": [attributes(output, *sent) for output in impact.outputs],
        "copies": [attributes(copy, "kind", "name", "stages", "in_flight") for copy in impact.copies],
        "unknown": impact.unknown,
    }
    return cast("dict[str, Any]", bytes_to_hex(data))


def _key(key: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {format_value(value)}" for name, value in key.items())
