"""Output of a comparison with external rows, and of `why-not`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ...common import instants
from ...operations.debugging.reconcile.reasons import LABELS
from ..show import formats, values
from ..show.document import Block, Cell, Name, TableBlock, Title
from ..show.shown import Result, attributes
from ..show.values import format_key_value, tolerance_lines, value_lines

if TYPE_CHECKING:
    from ...operations.debugging.reconcile.compare import TableComparison
    from ...operations.debugging.reconcile.explain import Absence, KeyDifference, Reconciliation
    from ...operations.debugging.reconcile.reasons import MissingReason

_MAX_REASONS = 3
"""Maximum number of reasons per key in the output for people."""


def reconciliation_result(found: Reconciliation, out: Path | None) -> Result:
    """Return the result of `reconcile`. `out` is the file with all differing keys."""
    failed = found.comparison.num_different > 0
    return Result(reconciliation_data(found, out), *reconciliation_blocks(found, out), failed=failed)


def reconciliation_data(found: Reconciliation, out: Path | None = None) -> dict[str, Any]:
    compared = found.comparison
    names = ("ours_rows", "their_rows", "agree", "differ", "here_only", "there_only", "columns", "near", "left_out")
    return {
        **attributes(found, "app", "ref"),
        **attributes(compared, "table", "theirs", *names),
        "keys": [] if out is not None else values.encode_array(map(_difference_data, found.keys)),
        "gaps": found.gaps,
        "file": out,
    }


def reconciliation_blocks(found: Reconciliation, out: Path | None = None) -> Iterator[Block]:
    """Yield the counts of keys and, unless they are in `out`, the explained keys with their reasons."""
    compared = found.comparison
    counts = (
        (compared.agree, "agree"),
        (compared.differ, "differ"),
        (compared.here_only, "here only"),
        (compared.there_only, "there only"),
    )
    numbers = ", ".join(f"{count:,} {label}" for count, label in counts)
    yield Title(f"{found.app}/{compared.table} and {compared.theirs}: {numbers}")
    if compared.left_out:
        yield f"not compared: {', '.join(compared.left_out)}"
    yield from _tolerance_lines(compared)
    if compared.differ:
        rows = ((column.column, column.differing) for column in compared.columns if column.differing)
        yield TableBlock.from_rows(("column", ">differ"), rows)
    if not found.keys:
        return
    yield ""
    yield _summary(found.keys)
    yield from found.gaps
    if out is not None:
        yield f"{formats.plural(len(found.keys), 'key')} in {out}"
        return
    shown = found.keys[: formats.MAX_SHOWN]
    yield ""
    yield _keys_table(shown)
    if any(key.reasons for key in shown):
        yield ""
        yield _reasons_table(shown)
    if (more := compared.num_different - len(shown)) > 0:
        yield f"and {more:,} more; --json shows the first --limit N, --out FILE has all"


def _tolerance_lines(compared: TableComparison) -> Iterator[str]:
    if not compared.tolerance.absolute:
        yield from tolerance_lines(compared.near)
        return
    for column, rows in compared.near.items():
        yield f"  {column}: {formats.plural(rows, 'row')} equal within {compared.tolerance.absolute:g}"


def _summary(keys: Sequence[KeyDifference]) -> str:
    counts = Counter(key.reasons[0].kind for key in keys if key.reasons)
    parts = [f"{count:,} {LABELS[kind]}" for kind, count in counts.most_common()]
    if others := sum(not key.reasons for key in keys):
        parts.append(f"{others:,} without a known missing record")
    return f"{formats.plural(len(keys), 'key')}: {', '.join(parts)}"


def _keys_table(keys: Sequence[KeyDifference]) -> TableBlock:
    rows: list[tuple[Cell, ...]] = []
    for key in keys:
        first, *more = value_lines(key.theirs, key.ours)
        names = tuple(map(format_key_value, key.key.values()))
        rows.append((key.kind, *names, *first, _parted(key)))
        rows += (("", *("" for _ in names), *line, "") for line in more)
    headings: tuple[str | Name, ...] = ("", *map(Name, keys[0].key), "column", ">theirs", ">ours", "parted")
    return TableBlock.from_rows(headings, rows)


def _parted(key: KeyDifference) -> str:
    change = key.parting.change
    if change is None:
        return "-"
    at = f"v{change.version}, {instants.format_with_age(change.time_ms)}"
    return at if key.parting.had_theirs else f"{at}, never equal to theirs"


def _reasons_table(keys: Sequence[KeyDifference]) -> TableBlock:
    rows: list[tuple[Cell, ...]] = []
    for key in keys:
        names = tuple(map(format_key_value, key.key.values()))
        rows += ((*names, *_reason_cells(reason)) for reason in key.reasons[:_MAX_REASONS])
        if (more := len(key.reasons) - _MAX_REASONS) > 0:
            rows.append((*names, f"and {more:,} more", "", ""))
    return TableBlock.from_rows((*map(Name, keys[0].key), "why", "record", ""), rows)


def _reason_cells(reason: MissingReason) -> tuple[Cell, ...]:
    is_sure = reason.proved or reason.kind == "unknown"
    label = LABELS[reason.kind] if is_sure else f"{LABELS[reason.kind]}, not proved"
    return label, str(reason.record) if reason.record is not None else "-", reason.sentence


def _difference_data(key: KeyDifference) -> dict[str, Any]:
    change = key.parting.change
    return {
        **attributes(key, "key", "kind", "theirs", "ours", "counted"),
        "parted": attributes(change, "stage", "version", "time_ms", "windows") if change is not None else None,
        "had_theirs": key.parting.had_theirs,
        "reasons": [_reason_data(reason) for reason in key.reasons],
    }


def _reason_data(reason: MissingReason) -> dict[str, Any]:
    record = str(reason.record) if reason.record is not None else None
    return attributes(reason, "kind", "proved", "sentence") | {"record": record}


def differences_table(found: Reconciliation) -> pa.Table:
    """Return the explained keys as a table: their rows, the version since which each differs, and its first reason."""
    changes = found.comparison.changes.head(len(found.keys))
    names = [*changes.keys.column_names, "difference"]
    names += [f"{side}_{name}" for name in changes.before.column_names for side in ("theirs", "ours")]
    rows = changes.to_table().rename_columns(names)
    kinds = pa.array([key.kind for key in found.keys], pa.string())
    rows = rows.set_column(rows.schema.get_field_index("difference"), "difference", kinds)
    parted = [key.parting.change for key in found.keys]
    first = [key.reasons[0] if key.reasons else None for key in found.keys]
    more: dict[str, pa.Array] = {
        "parted_version": pa.array([change and change.version for change in parted], pa.int64()),
        "parted_at": pa.array([change and change.time_ms for change in parted], pa.timestamp("ms", "UTC")),
        "reason": pa.array([reason and reason.kind for reason in first], pa.string()),
        "reason_proved": pa.array([reason and reason.proved for reason in first], pa.bool_()),
        "reason_text": pa.array([reason and reason.sentence for reason in first], pa.string()),
        "record": pa.array([str(r.record) if r is not None and r.record else None for r in first], pa.string()),
    }
    for name, column in more.items():
        rows = rows.append_column(name, column)
    return rows


def absence_result(found: Absence) -> Result:
    """Return the result of `why-not`."""
    return Result(absence_data(found), *absence_blocks(found))


def absence_data(found: Absence) -> dict[str, Any]:
    return {
        **attributes(found, "app", "table", "key", "row", "gaps"),
        "reasons": [_reason_data(reason) for reason in found.reasons],
        "counted": [_reason_data(reason) for reason in found.counted],
    }


def absence_blocks(found: Absence) -> Iterator[Block]:
    """Yield the reasons why records are not in a row, and the records that are counted."""
    named = ", ".join(f"{name} {format_key_value(value)}" for name, value in found.key.items())
    row = "has a row" if found.row is not None else "has no row"
    yield Title(f"{found.app}/{found.table}, {named}: {row}")
    if found.reasons:
        yield TableBlock.from_rows(("why", "record", ""), map(_reason_cells, found.reasons[: formats.MAX_SHOWN]))
    if (more := len(found.reasons) - formats.MAX_SHOWN) > 0:
        yield f"and {more:,} more; --json shows all"
    if found.counted:
        first = ", ".join(str(reason.record) for reason in found.counted[:_MAX_REASONS])
        some = f", such as {first}" if len(found.counted) > _MAX_REASONS else f": {first}"
        yield f"counted: {formats.plural(len(found.counted), 'record')}{some}"
        if doubted := sum(not reason.proved for reason in found.counted):
            yield f"{doubted:,} of them without proof"
        if not found.reasons:
            yield found.counted[-1].sentence
    yield from found.gaps
