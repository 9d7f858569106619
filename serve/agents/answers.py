"""JSON documents that tools return: selected fields, values shown or hidden, and a size limit."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...client.show import verdict as shown
from ...client.show.shown import attributes, encode_json
from ...common.instants import format_iso
from ...errors import TooMuch
from ...snapshot.bisect.causes import Cause
from ...snapshot.bisect.explained import Impact, RowExplanation
from ...snapshot.bisect.verdict import RecordPath
from ...snapshot.diff.key_changes import KeyChanges
from ...snapshot.diff.key_history import RowChange
from ...snapshot.diff.moments import TableDiff
from ...snapshot.query.log import LogEntry
from ..acting.finding import SearchResult
from .masking import Masking

if TYPE_CHECKING:
    from ...operations.debugging.reconcile.explain import Absence, Reconciliation
    from ...operations.debugging.reconcile.reasons import MissingReason

Document = dict[str, Any]
MAX_RECORDS = 20


@dataclass(frozen=True, slots=True)
class ToolAnswer:
    """Answer of a tool, before its size is limited."""

    document: Document
    list_field: str = ""
    """Name of the field with the list that is shortened if the document is too large."""
    rows: int = 0


def encode_bounded(answer: ToolAnswer, max_bytes: int) -> bytes:
    """Encode an answer as JSON. The list of a too large answer is shortened, and the field `cut_off` is set.

    Raises `TooMuch` if the document is too large even with an empty list.
    """
    data = encode_json(answer.document)
    whole: Sequence[object] = answer.document.get(answer.list_field, ())
    num_items = len(whole)
    while len(data) > max_bytes and num_items:
        num_items = min(num_items - 1, num_items * max_bytes // len(data))
        left_out = f"{num_items} of {len(whole)} {answer.list_field} fit: an answer has at most {max_bytes:,} bytes"
        cut = {
            answer.list_field: whole[:num_items],
            "cut_off": f"{left_out}; request fewer of them, or fewer fields",
        }
        data = encode_json(answer.document | cut)
    if len(data) > max_bytes:
        raise TooMuch(f"the answer has {len(data):,} bytes; the limit is {max_bytes:,}", hint="ask for fewer columns")
    return data


def iso_time(time_ms: int) -> str:
    return format_iso(time_ms, "milliseconds")


def commit_document(entry: LogEntry, app: str, masking: Masking) -> Document:
    fields = {
        "ref": f"{app}/{entry.stage}@v{entry.version}",
        "time": iso_time(entry.time_ms),
        "kind": entry.kind,
        "rows_in": entry.rows_in,
        "read": [*map(str, entry.windows)],
        "snapshots": entry.snapshots,
        "deployed": entry.deployed,
        "lost": [*entry.lost],
        "edited": masking.mask.sql(entry.edited),
        "thinned_out": entry.thinned,
    }
    return {name: value for name, value in fields.items() if value not in ((), [], "", None)}


def change_documents(
    keys: KeyChanges, limit: int, masking: Masking, sides: tuple[str, str] = ("before", "after")
) -> list[Document]:
    first_side, second_side = sides
    return [
        {
            "key": masking.row(key.key),
            "change": key.kind,
            first_side: masking.row(key.before),
            second_side: masking.row(key.after),
        }
        for key in keys.head(limit)
    ]


def diff_documents(diffs: Iterable[TableDiff], limit: int, masking: Masking) -> tuple[list[Document], list[Document]]:
    tables, rows = [], []
    for table_diff in diffs:
        columns = {column.column: column.differing for column in table_diff.columns if column.differing}
        names = ("table", "added", "removed", "changed", "rows_in_both", "unlike", "near")
        tables.append(attributes(table_diff, *names, differing_by_column=columns))
        rows += [
            {"table": table_diff.table} | change for change in change_documents(table_diff.changes, limit, masking)
        ]
    return tables, rows


def key_change_document(change: RowChange, app: str, masking: Masking) -> Document:
    ref = f"{app}/{change.stage}@v{change.version}"
    document: Document = {"ref": ref, "time": iso_time(change.time_ms), "change": change.kind}
    document |= {name: getattr(change, name) for name in ("expired", "inherited") if getattr(change, name)}
    read = [change.record] if change.record else [*map(str, change.windows)]
    return document | {"read": read, "before": masking.row(change.before), "after": masking.row(change.after)}


def verdict_document(result: SearchResult, limit: int, masking: Masking) -> Document:
    bisected = result.verdict
    keys = (bisected.keys.changed() or bisected.keys) if bisected.keys is not None else None
    last_good = {"ref": bisected.good_ref, "time": iso_time(bisected.good_time_ms)} if bisected.good_ref else None
    return {
        "found": shown.verdict_sentence(bisected),
        "certain": not bisected.candidates,
        "candidates": [*map(str, bisected.candidates)],
        "first_bad": {
            "ref": bisected.bad_ref,
            "stage": bisected.stage,
            "version": bisected.bad_version,
            "time": iso_time(bisected.bad_time_ms),
        },
        "last_good": last_good,
        "input": bisected.lineage.sources,
        "read_by_the_stage": bisected.lineage.direct,
        "wrong_rows": bisected.rows.num_rows,
        "keys_changed": len(keys) if keys is not None else None,
        "keys_are_those_that_turned_bad": bool(keys is not None and keys.from_predicate),
        "keys": change_documents(keys, limit, masking) if keys is not None else [],
        "evaluations": bisected.evaluations,
        "turned_more_than_once": bool(bisected.earlier_bad_ref or bisected.non_monotone),
        "cause": cause_document(result.explanation.cause, masking),
        "record": record_document(result.explanation.named_record_path, masking),
        "notes": [masking.mask.reason(note.removeprefix("note: ")) for note in result.notes],
    }


def cause_document(origin: Cause, masking: Masking) -> Document:
    evidence: Document = dict(origin.evidence)
    if "keys" in evidence:
        evidence["keys"] = [masking.row(key) for key in evidence["keys"]]
    for name in ("what", "note", "reason"):
        if name in evidence:
            evidence[name] = masking.mask.reason(masking.mask.sql(str(evidence[name])))
    return {
        "class": origin.kind,
        "proved": origin.proved,
        "sentence": masking.mask.reason(origin.sentence) if origin.kind == "unknown" else origin.sentence,
        "record": str(origin.record) if origin.record is not None else None,
        "one_of": origin.one_of,
        "records": [*map(str, origin.records[:MAX_RECORDS])],
        "num_records": len(origin.records),
        "evidence": evidence,
    }


def record_document(guilty: RecordPath | None, masking: Masking) -> Document | None:
    """Return the document of the record that made the state bad; None if nothing was replayed.

    If the record could not be found, the document gives the reason, and the offsets among which the record is.
    """
    if guilty is None:
        return None
    document: Document = {"replays": guilty.replays}
    if (message := guilty.source_record) is not None:
        document |= attributes(message.location, "topic", "partition", "offset", time=iso_time(message.time_ms))
        document |= {"key": masking.data(message.key), "value": masking.data(message.value)}
        document["headers"] = {name: masking.data(value) for name, value in message.headers}
    if guilty.reason:
        document |= {"not_told_because": masking.mask.reason(guilty.reason), "it_is_in": guilty.windows}
    way = [f"{hop.stage} v{hop.version}: {hop.record}, of {hop.records} records" for hop in guilty.hops]
    alone = guilty.hops[0].alone if guilty.hops else None
    return document | {"way": way, "is_wrong_by_itself": alone, "others_that_would_be": guilty.others}


def explanation_document(explained: RowExplanation, notes: Sequence[str], masking: Masking) -> Document:
    minimal = explained.minimal
    return {
        "ref": f"{explained.app}/{explained.table}@v{explained.version}",
        "key": masking.row(explained.key),
        "row": masking.row(explained.row),
        "records_are_exact": explained.is_whole,
        "records": [
            {
                "record": str(record.location),
                "time": iso_time(record.time_ms),
                "key": masking.data(record.key),
                "value": masking.data(record.value),
            }
            for record in explained.sources
        ],
        "versions": [
            {
                "ref": f"{explained.app}/{version.name}",
                "time": iso_time(version.time_ms),
                "key": masking.row(version.key),
                "before": masking.row(version.before),
                "after": masking.row(version.after),
                "read": [str(record.location) for record in version.records[:MAX_RECORDS]],
                "num_read": len(version.records),
                "unknown": _masked_reason(version.unknown, masking),
            }
            for version in explained.versions[:MAX_RECORDS]
        ],
        "num_versions": len(explained.versions),
        "smallest_set": {
            "records": [*map(str, minimal.records[:MAX_RECORDS])],
            "num_records": len(minimal.records),
            "no_smaller_set_gives_the_row": minimal.is_smallest,
            "none_can_be_left_out": minimal.is_minimal,
        }
        if minimal is not None
        else None,
        "unknown": _masked_reason(explained.unknown, masking),
        "notes": [masking.mask.reason(note.removeprefix("note: ")) for note in notes],
    }


def impact_document(impact: Impact, notes: Sequence[str], masking: Masking) -> Document:
    return {
        "record": str(impact.record),
        "read_by": impact.readers,
        "not_taken": [
            {"version": f"{taken.stage}@v{taken.version}", "kind": taken.kind}
            | {"why": _masked_reason(taken.detail, masking)}
            for taken in impact.not_taken
        ],
        "rows": [
            {
                "table": row.stage,
                "key": masking.row(row.key),
                "from": f"v{row.version}",
                "until": f"v{row.until}" if row.until else None,
                "before": masking.row(row.before),
                "after": masking.row(row.after),
            }
            for row in impact.rows
        ],
        "sent": [
            attributes(sent, "output", "kind", "readers", "is_published")
            | {"by": f"{sent.stage}@v{sent.version}", "num_rows": len(sent.rows)}
            for sent in impact.outputs[:MAX_RECORDS]
        ],
        "num_sent": len(impact.outputs),
        "kept_in": [attributes(copy, "kind", "name", "stages", "in_flight") for copy in impact.copies[:MAX_RECORDS]],
        "unknown": [_masked_reason(reason, masking) for reason in impact.unknown],
        "notes": [masking.mask.reason(note.removeprefix("note: ")) for note in notes],
    }


def reconciliation_document(compared: "Reconciliation", notes: Sequence[str], masking: Masking) -> Document:
    counts = ("theirs", "ours_rows", "their_rows", "agree", "differ", "here_only", "there_only", "left_out")
    return {
        "ref": compared.ref,
        **attributes(compared.comparison, "table", *counts),
        "keys": [
            {
                "key": masking.row(key.key),
                "kind": key.kind,
                "theirs": masking.row(key.theirs),
                "ours": masking.row(key.ours),
                "parted": f"{key.parting.change.stage}@v{key.parting.change.version}" if key.parting.change else None,
                "records_counted": key.counted,
                "reasons": [_reason_document(reason, masking) for reason in key.reasons[:MAX_RECORDS]],
            }
            for key in compared.keys
        ],
        "not_searched": [_masked_reason(gap, masking) for gap in compared.gaps],
        "notes": [masking.mask.reason(note.removeprefix("note: ")) for note in notes],
    }


def absence_document(absence: "Absence", notes: Sequence[str], masking: Masking) -> Document:
    return {
        "table": absence.table,
        "key": masking.row(absence.key),
        "row": masking.row(absence.row),
        "reasons": [_reason_document(reason, masking) for reason in absence.reasons[:MAX_RECORDS]],
        "num_reasons": len(absence.reasons),
        "counted": [_reason_document(reason, masking) for reason in absence.counted[:MAX_RECORDS]],
        "num_counted": len(absence.counted),
        "not_searched": [_masked_reason(gap, masking) for gap in absence.gaps],
        "notes": [masking.mask.reason(note.removeprefix("note: ")) for note in notes],
    }


def _reason_document(reason: "MissingReason", masking: Masking) -> Document:
    record = str(reason.record) if reason.record is not None else None
    return attributes(reason, "kind", "proved", record=record) | {"why": _masked_reason(reason.sentence, masking)}


def _masked_reason(text: str, masking: Masking) -> str | None:
    return masking.mask.reason(masking.mask.sql(text)) if text else None
