"""Proposal of a repair: the cause of a broken invariant, the repaired rows, and the command that repairs them.

No state changes: the repair is only computed, as by `repair --dry-run`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ...errors import SlackwaterError
from ...snapshot.bisect.causes import TracedCause
from ...snapshot.bisect.invariant import Invariant
from ...snapshot.bisect.verdict import RecordLocation, Verdict
from ...snapshot.diff.key_changes import KeyChange
from ..backends import Backends
from ..repair.calls import plan_repair
from ..show.formats import plural, quote_word
from ..show.report import Mask
from ..show.verdict import verdict_sentence

_SHOWN_ROWS = 3
_SHOWN_RECORDS = 10


@dataclass(frozen=True, slots=True)
class ChangedRow:
    """Row that the repair would change: table, key, and the differing columns before and after, as text."""

    table: str
    key: str
    columns: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True, slots=True)
class Proposal:
    """Message for a person who decides on a repair. `command` is empty if no repair is proposed."""

    app: str
    invariant: str
    sentence: str
    cause: str
    records: tuple[str, ...] = ()
    reached: str = ""
    rows: tuple[ChangedRow, ...] = ()
    """The first changed rows."""
    command: str = ""
    why_no_command: str = ""
    report: str = ""

    @property
    def heading(self) -> str:
        """First line of the message, and title of an issue."""
        return f"{self.app}: {self.invariant} fails"

    @property
    def text(self) -> str:
        """The message, in the subset of Markdown that Slack and GitHub share."""
        lines = [self.sentence, self.cause]
        if self.records:
            shown = ", ".join(f"`{record}`" for record in self.records[:_SHOWN_RECORDS])
            more = len(self.records) - _SHOWN_RECORDS
            lines.append(f"{plural(len(self.records), 'record')}: {shown}{f' and {more:,} more' if more > 0 else ''}")
        if self.reached:
            lines.append(self.reached)
        if self.rows:
            lines += ["```", *(line for row in self.rows for line in _row_lines(row)), "```"]
        if self.command:
            lines.append(f"To apply it: `{self.command}`")
        elif self.why_no_command:
            lines.append(f"No repair is proposed: {self.why_no_command}")
        if self.report:
            lines.append(f"Report: {self.report}")
        return "\n".join(lines)


def propose_repair(
    client: Backends,
    verdict: Verdict,
    explanation: TracedCause,
    invariant: Invariant,
    code: str | Path | None,
    *,
    report: Path | None = None,
    mask: Mask,
    progress: Callable[[str], None] = lambda _doing: None,
) -> Proposal:
    """Return a proposal for a broken invariant. If the repair cannot be planned, the proposal has the error instead.

    Args:
        client: the store, Kafka and settings.
        verdict: the commit that broke the invariant.
        explanation: the cause of that commit, determined by replays.
        invariant: the broken invariant.
        code: the file of the program that ran; None for the program in the settings.
        report: the report's path, if there is one.
        mask: formatter that shows or hides values of keys and rows.
        progress: called with a line about the current step.
    """
    cause = explanation.cause
    about = Proposal(
        verdict.app,
        invariant.name,
        verdict_sentence(verdict),
        mask.reason(cause.sentence) if cause.kind == "unknown" else cause.sentence,
        report=str(report or ""),
        why_no_command="no record is proved to be the cause",
    )
    records = _records_at_fault(explanation)
    if not records:
        return about
    try:
        plan = plan_repair(client, verdict.app, records, code, progress)
    except SlackwaterError as error:
        why = "; ".join(filter(None, (mask.reason(error.message), error.hint)))
        return replace(about, records=tuple(map(str, records)), why_no_command=why)
    changes = [(stage, change) for stage, changed in plan.changes.items() for change in changed]
    tables = ", ".join(sorted({stage for stage, _ in changes})) or verdict.app
    num_sinks = len({(sink.stage, sink.sink) for sink in plan.sinks})
    sinks = f"; {plural(num_sinks, 'sink')} got rows that the repair would change" if num_sinks else ""
    command = " ".join(
        [
            f"slackwater repair {quote_word(verdict.app)}",
            *(f"--drop {quote_word(str(record))}" for record in records),
            *([f"--code {quote_word(str(code))}"] if code is not None else []),
            *(["--no-sinks"] if plan.uncorrected else []),
        ]
    )
    return replace(
        about,
        records=tuple(map(str, records)),
        reached=f"Without them, {plural(len(changes), 'row')} of {tables} would differ{sinks}.",
        rows=tuple(_changed_row(stage, change, mask) for stage, change in changes[:_SHOWN_ROWS]),
        command=command if changes else "",
        why_no_command="no row would change",
    )


def _records_at_fault(explanation: TracedCause) -> tuple[RecordLocation, ...]:
    """Return the records to remove: of duplicates, only the second record; none for an unproved cause."""
    cause = explanation.cause
    if not cause.proved or cause.record is None or cause.one_of is not None:
        return ()
    return (cause.record,) if cause.kind == "duplicate" else cause.records or (cause.record,)


def _changed_row(table: str, change: KeyChange, mask: Mask) -> ChangedRow:
    before, after = dict(change.before or {}), dict(change.after or {})
    names = [name for name in before | after if before.get(name) != after.get(name) or not (before and after)]
    columns = tuple((name, _text(before, name, mask), _text(after, name, mask)) for name in names)
    key = ", ".join(f"{name} {mask.value(value).text}" for name, value in change.key.items())
    return ChangedRow(table, key, columns)


def _text(row: dict[str, object], name: str, mask: Mask) -> str:
    return mask.value(row[name]).text if name in row else "-"


def _row_lines(row: ChangedRow) -> Sequence[str]:
    return [f"{row.table}, {row.key}", *(f"  {name}: {before} -> {after}" for name, before, after in row.columns)]
