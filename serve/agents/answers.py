"""What tools answer with: documents of chosen fields, in which values are shown or hidden, and which are bounded."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ...client.show import verdict as shown
from ...client.show.shown import encoded
from ...common.instants import iso
from ...errors import TooMuch
from ...snapshot.bisect.causes import Cause
from ...snapshot.bisect.verdict import Guilty
from ...snapshot.cut.lineage import Window
from ...snapshot.diff.key_changes import KeyChanges
from ...snapshot.diff.key_history import RowChange
from ...snapshot.diff.moments import TableDiff
from ...snapshot.query.log import LogEntry
from ..acting.finding import SearchFound
from .masking import Masking

Document = dict[str, Any]
MOST_RECORDS = 20
"""Records of a cause that are named; all are counted."""


@dataclass(frozen=True, slots=True)
class Told:
    """What a tool answers."""

    document: Document
    list_: str = ""
    """The field whose list is made shorter where the document is too large."""
    rows: int = 0
    """For the audit line."""


def bounded(told: Told, most_bytes: int) -> bytes:
    """The document as JSON, its list as long as fits; what was left out is said in it. Raises `TooMuch`."""
    data = encoded(told.document)
    whole: Sequence[object] = told.document.get(told.list_, ())
    kept = len(whole)
    while len(data) > most_bytes and kept:
        kept = min(kept - 1, kept * most_bytes // len(data))
        left_out = f"{kept} of {len(whole)} in {told.list_} are here: an answer has at most {most_bytes:,} bytes"
        cut = {told.list_: whole[:kept], "cut_off": f"{left_out}; ask for fewer at once, or for less of each"}
        data = encoded(told.document | cut)
    if len(data) > most_bytes:
        raise TooMuch(
            f"the answer has {len(data):,} bytes; at most {most_bytes:,} are given", hint="ask for less: fewer columns"
        )
    return data


def time(time_ms: int) -> str:
    """When something was."""
    return iso(time_ms, "milliseconds")


def windows(found: Iterable[Window]) -> list[Document]:
    """Offsets `start` up to, not including, `end`."""
    return [{"topic": w.topic, "partition": w.partition, "start": w.start, "end": w.end} for w in found]


def commit(entry: LogEntry, app: str, masking: Masking) -> Document:
    """A commit of the log; what there is nothing of is left out."""
    found = {
        "ref": f"{app}/{entry.stage}@v{entry.version}",
        "time": time(entry.time_ms),
        "kind": entry.kind,
        "rows_in": entry.rows_in,
        "read": [*map(str, entry.windows)],
        "snapshots": entry.snapshots,
        "deployed": entry.deployed,
        "lost": [*entry.lost],
        "edited": masking.mask.sql(entry.edited),
        "thinned_out": entry.thinned,
    }
    return {name: value for name, value in found.items() if value not in ((), [], "", None)}


def changes(
    found: KeyChanges, limit: int, masking: Masking, sides: tuple[str, str] = ("before", "after")
) -> list[Document]:
    """The first keys, with their rows at both moments."""
    before, after = sides
    return [
        {
            "key": masking.row(each.key),
            "change": each.kind,
            before: masking.row(each.before),
            after: masking.row(each.after),
        }
        for each in found.head(limit)
    ]


def differing(found: Iterable[TableDiff], limit: int, masking: Masking) -> tuple[list[Document], list[Document]]:
    """How each table differs, and the first rows that do."""
    tables, rows = [], []
    for each in found:
        counts = {
            name: getattr(each, name)
            for name in ("table", "added", "removed", "changed", "rows_in_both", "unlike", "near")
        }
        columns = {one.column: one.differing for one in each.columns if one.differing}
        tables.append(counts | {"differing_by_column": columns})
        rows += [{"table": each.table} | one for one in changes(each.changes, limit, masking)]
    return tables, rows


def key_change(each: RowChange, app: str, masking: Masking) -> Document:
    """A version that changed the row of a key, and the offsets behind it."""
    ref = f"{app}/{each.stage}@v{each.version}"
    found: Document = {"ref": ref, "time": time(each.time_ms), "change": each.kind}
    found |= {name: getattr(each, name) for name in ("expired", "inherited") if getattr(each, name)}
    read = [*map(str, each.windows)]
    return found | {"read": read, "before": masking.row(each.before), "after": masking.row(each.after)}


def verdict(found: SearchFound, limit: int, masking: Masking) -> Document:
    """The first bad commit, what it read and changed, and the record behind it."""
    of = found.verdict
    keys = (of.keys.changed() or of.keys) if of.keys is not None else None
    last_good = {"ref": of.good_ref, "time": time(of.good_time_ms)} if of.good_ref else None
    return {
        "found": shown.sentence(of),
        "certain": not of.candidates,
        "candidates": [*map(str, of.candidates)],
        "first_bad": {"ref": of.bad_ref, "stage": of.stage, "version": of.bad_version, "time": time(of.bad_time_ms)},
        "last_good": last_good,
        "input": windows(of.lineage.sources),
        "read_by_the_stage": windows(of.lineage.direct),
        "wrong_rows": of.rows.num_rows,
        "keys_changed": len(keys) if keys is not None else None,
        "keys_are_those_that_turned_bad": bool(keys is not None and keys.named),
        "keys": changes(keys, limit, masking) if keys is not None else [],
        "evaluations": of.evaluations,
        "turned_more_than_once": bool(of.bad_before or of.non_monotone),
        "cause": cause(found.behind.cause, masking),
        "record": record(found.behind.guilty, masking),
        "notes": [masking.mask.reason(note.removeprefix("note: ")) for note in found.notes],
    }


def cause(found: Cause, masking: Masking) -> Document:
    """What is behind it: its class, whether that is proved, the records, and what shows it."""
    evidence: Document = dict(found.evidence)
    if "keys" in evidence:
        evidence["keys"] = [masking.row(key) for key in evidence["keys"]]
    for name in ("what", "note", "reason"):
        if name in evidence:
            evidence[name] = masking.mask.reason(masking.mask.sql(str(evidence[name])))
    return {
        "class": found.kind,
        "proved": found.proved,
        "sentence": masking.mask.reason(found.sentence) if found.kind == "unknown" else found.sentence,
        "record": str(found.record) if found.record is not None else None,
        "one_of": found.one_of,
        "records": [*map(str, found.records[:MOST_RECORDS])],
        "num_records": len(found.records),
        "evidence": evidence,
    }


def record(guilty: Guilty | None, masking: Masking) -> Document | None:
    """The record, or the part of the input that has it and why there is no more; None where nothing was replayed."""
    if guilty is None:
        return None
    found: Document = {"replays": guilty.replays}
    if (message := guilty.message) is not None:
        at = message.address
        found |= {"topic": at.topic, "partition": at.partition, "offset": at.offset, "time": time(message.time_ms)}
        found |= {"key": masking.data(message.key), "value": masking.data(message.value)}
        found["headers"] = {name: masking.data(value) for name, value in message.headers}
    if guilty.reason:
        found |= {"not_told_because": masking.mask.reason(guilty.reason), "it_is_in": windows(guilty.windows)}
    way = [f"{hop.stage} v{hop.version}: {hop.record}, of {hop.records} records" for hop in guilty.hops]
    alone = guilty.hops[0].alone if guilty.hops else None
    return found | {"way": way, "is_wrong_by_itself": alone, "others_that_would_be": guilty.others}
