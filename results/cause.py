"""What is behind a bad commit, in words and for machines."""

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from ..search.causes import CLASSES, NOTE, Behind, Cause
from ..search.verdict import Address, Verdict
from . import formats
from .document import Block, Cell, Name, Span, TableBlock, Time
from .formats import MOST_SHOWN, plural

VALUES = ("keys", "what")
"""Fields of the evidence that may hold values of rows."""


def data(cause: Cause) -> dict[str, Any]:
    """The cause for machines."""
    return {
        "class": cause.kind,
        "proved": cause.proved,
        "sentence": cause.sentence,
        "record": str(cause.record) if cause.record is not None else None,
        "one_of": cause.one_of,
        "records": [*map(str, cause.records)],
        "evidence": dict(cause.evidence),
    }


def facts(cause: Cause) -> Iterator[Block]:
    """The evidence of causes that are no record's; nothing of others, whose record is shown."""
    rows = [(heading, value) for heading, value in facts_of(cause.evidence) if value]
    if rows and cause.kind not in ("record", "records", "unknown"):
        yield TableBlock.of(("", ""), rows)


def facts_of(evidence: Mapping[str, Any]) -> Iterator[tuple[str, Cell]]:
    """What shows a cause, with headings; keys as text."""
    for name, value in evidence.items():
        heading = name.replace("_", " ")
        if name in (NOTE, "reason", "num_keys") or value is None:
            continue
        if name == "keys":
            yield ("keys", keys(value, int(evidence.get("num_keys", len(value)))))
        elif name == "since":
            yield (heading, f"{value['stage']}@v{value['version']}, {value['time']}")
        elif name == "read_to":
            yield ("read up to", formats.windows(f"{place} ..{end}" for place, end in value.items()))
        elif isinstance(value, Mapping):
            yield (heading, f"{value['path']} (xxh3_128 {value['checksum']})")
        else:
            yield (heading, str(value))


def keys(values: list[dict[str, object]], count: int) -> str:
    """The first keys, and how many more there are."""
    shown = [", ".join(f"{name} = {value}" for name, value in key.items()) for key in values[:3]]
    more = [f"{count - len(shown):,} more"] if count > len(shown) else []
    return "; ".join([*shown, *more])


def records(behind: Behind, *, every: bool = False) -> Iterator[Block]:
    """The bad records of the batch in the app's order, where there are several."""
    found = behind.guilty.records if behind.guilty is not None else None
    if found is None or behind.cause.kind not in ("record", "records", "watermark") or found.num_rows < 2:
        return
    shown = found if every else found.slice(0, MOST_SHOWN)
    yield ""
    rows = (
        (Name(str(address)), when, "yes" if alone else "with those before") for address, when, alone in _each(shown)
    )
    yield TableBlock.of(("bad records", "sent", "by itself"), rows)
    if (more := found.num_rows - shown.num_rows) > 0:
        yield f"and {plural(more, 'more')}: --all lists them, and --all --out FILE writes them"
    if behind.guilty is not None and not behind.guilty.is_complete:
        yield "there may be more: not all records of the batch were tried by themselves"


def _each(found: pa.Table) -> Iterator[tuple[Address, Span, bool]]:
    for row in found.select(["topic", "partition", "offset", "row", "time", "alone"]).to_pylist():
        at = Address(row["topic"], row["partition"], row["offset"], row["row"])
        yield at, Time(int(row["time"].timestamp() * 1000), "milliseconds"), row["alone"]


def table(behind: Behind) -> pa.Table | None:
    """The bad records of the batch; None where they are not known."""
    return behind.guilty.records if behind.guilty is not None else None


def for_file(verdict: Verdict, behind: Behind, *, every: bool) -> tuple[pa.Table | None, str]:
    """What `--out` writes: the keys that turned bad, or with `every` the bad records; else None, and why."""
    if every:
        return table(behind), "which records are bad is not known"
    if verdict.keys is not None:
        return verdict.keys.flat(), ""
    return None, "no key is certain" if verdict.candidates else f"{verdict.stage} keeps no table, so no key turned bad"


def records_data(found: pa.Table) -> list[dict[str, object]]:
    """The bad records for machines: address, time, Kafka key as hexadecimal, and whether it is bad by itself."""
    return [
        {
            "record": str(Address(row["topic"], row["partition"], row["offset"], row["row"])),
            "time_ms": int(row["time"].timestamp() * 1000),
            "key": row["key"].hex() if row["key"] is not None else None,
            "alone": row["alone"],
        }
        for row in found.to_pylist()
    ]


def noun(cause: Cause) -> str:
    """What a cause of the class is called."""
    return CLASSES[cause.kind].noun
