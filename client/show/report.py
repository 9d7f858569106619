"""Report of a bisect: its sections, and the masking of values in them.

A hidden value shows only its type and length: reports are equal if their values agree in type and length. Names (of
columns, topics, headers, stages, snapshots), offsets, times and counts are not values.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date, time, timedelta
from decimal import Decimal
from pathlib import PurePath

from ...snapshot.bisect.causes import NOT_REPLAYED, NOTE, TracedCause
from ...snapshot.bisect.evidence import MAX_COUNTED, VerdictEvidence, commits_from_bad
from ...snapshot.bisect.verdict import Evaluation, RecordPath, Verdict
from ...snapshot.diff.key_changes import KeyChanges
from ...snapshot.verify.verify import Report
from .document import (
    AnswerSpan,
    Block,
    Cell,
    Facts,
    Line,
    Listing,
    Name,
    Page,
    Remark,
    Section,
    Span,
    TableBlock,
    Time,
    Value,
)
from .formats import MAX_SHOWN, plural, quote_word
from .picture import search_picture
from .status import verification_blocks
from .values import format_bytes, format_value, key_changes_table, shorten
from .verdict import cause_noun, evidence_rows, lineage_blocks, ranges_table, ref_to_clone

_MAX_KEYS = 3
_NOT_REPLAYED = "Nothing was replayed, so no record is named."
_MAX_SNAPSHOTS = 20
HIDDEN_TEXT = "••••"

# Everything in SQL that may hold a value. A comment in slashes and stars may contain further comments, so it hides all
# text that follows.
_LITERAL = re.compile(
    r"""
    [eE]'(?:[^'\\]|\\.|'')*' | '(?:[^']|'')*' | \$(?P<tag>\w*)\$.*?\$(?P=tag)\$
    | (?P<kept> "(?:[^"]|"")*" | [^\W\d][\w$]* )
    | --[^\n]* | /\*.*
    | \.?\d[\w.]*
    """,
    re.VERBOSE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Mask:
    """Formatter that shows or hides values."""

    show: bool

    def value(self, value: object) -> Value:
        if self.show or value is None:
            return Value(shorten(format_value(value)))
        return Value(_describe_hidden(value), hidden=True)

    def data(self, data: bytes | None) -> Value:
        """Format a record's key, header or value: as text if it is UTF-8, otherwise as hexadecimal."""
        return Value(format_bytes(data)) if self.show and data is not None else self.value(data)

    def key(self, key: Mapping[str, object]) -> Line:
        """Format a key's columns: `carrier = UA`."""
        spans: list[Span] = []
        for name, value in key.items():
            spans += [", "] * bool(spans) + [Name(name), " = ", self.value(value)]
        return tuple(spans)

    def sql(self, sql: str) -> str:
        """Format SQL. If values are hidden, the SQL is on one line and has no literals and comments."""
        return sql if self.show else " ".join(_LITERAL.sub(lambda literal: literal["kept"] or HIDDEN_TEXT, sql).split())

    def reason(self, sentence: str) -> str:
        """Format an error. If values are hidden, the text after a colon is left out, because it may quote a value."""
        first, colon, _ = sentence.partition(": ")
        return sentence if self.show or not colon else f"{first}: {HIDDEN_TEXT}"


def _describe_hidden(value: object) -> str:
    match value:
        case str():
            return f'"{HIDDEN_TEXT}" ({plural(len(value), "character")})'
        case bytes():
            return f'"{HIDDEN_TEXT}" ({plural(len(value), "byte")})'
        case list() | tuple():
            return f"[{HIDDEN_TEXT}] ({plural(len(value), 'item')})"
        case dict():
            return f"{{{HIDDEN_TEXT}}} ({plural(len(value), 'field')})"
        case bool():
            return f"{HIDDEN_TEXT} (boolean)"
        case int() | float() | Decimal():
            return f"{HIDDEN_TEXT} (number)"
        case date() | time() | timedelta():
            return f"{HIDDEN_TEXT} (time)"
        case _:
            return HIDDEN_TEXT


@dataclass(frozen=True, slots=True)
class ReportInput:
    """Facts that a report shows."""

    verdict: Verdict
    explanation: TracedCause
    evidence: VerdictEvidence
    clone: str
    flags: str
    time_ms: int

    @property
    def guilty(self) -> RecordPath | None:
        """Record that made the state bad, with its path through the stages; None without a record or a replay."""
        return self.explanation.named_record_path


def report_page(case: ReportInput, mask: Mask) -> Page:
    from ... import __version__

    shown = "Values are shown as they are." if mask.show else "Values are hidden: their types and lengths are shown."
    verdict, keys = case.verdict, case.verdict.keys
    # The query may return keys that turned bad because of another row of a join.
    changed = (keys.changed() or keys) if keys else None
    sections: dict[str, Iterator[Block]] = {
        "When it turned": _search(case, mask),
        "The cause": _cause(case, mask),
        "The record": _record(case, mask),
        "What the commit read": lineage_blocks(verdict.lineage),
        "Downstream effects": _downstream_effects(case, mask),
        "Snapshots": _snapshots(case),
        "Verification of the bad moment": _verification(case.evidence.audit),
        "Next steps": _commands(case, mask),
    }
    return Page(
        title=f"The first bad commit of {verdict.app}",
        sentence=_sentence(case, changed, mask),
        facts=_facts(case, mask),
        sections=(
            *_keys(case, changed, mask),
            *(Section(title, tuple(section_blocks)) for title, section_blocks in sections.items()),
        ),
        closing=Remark((f"slackwater {__version__}, ", Time(case.time_ms), f". {shown}")),
    )


def _sentence(case: ReportInput, changed: KeyChanges | None, mask: Mask) -> Line:
    verdict, guilty = case.verdict, case.guilty
    app = Name(verdict.app)
    spans: list[Span] = [Name(verdict.bad_ref), " is the first bad commit of ", app]
    if verdict.earlier_bad_ref:
        earlier_bad = Name(verdict.earlier_bad_ref)
        spans = [Name(verdict.bad_ref), " is one of the commits at which ", app, " went bad (it was bad before, at "]
        spans += [earlier_bad, ")"]
    elif not verdict.is_first_known:
        spans.append(", assuming that it went from good to bad once")
    if verdict.candidates:
        one_of = ", ".join(map(str, verdict.candidates))
        spans = ["The first bad commit of ", Name(verdict.app), " is one of ", Name(one_of)]
    cause = case.explanation.cause
    if cause.record is not None:
        first = "the first of the records" if cause.kind == "records" else "the record"
        spans += [", and ", Name(str(cause.record)), f" {first} behind it"]
    elif cause.kind != "unknown":
        spans += [", and ", cause_noun(cause), " is behind it"]
    if keys := (guilty.keys if guilty is not None and guilty.keys else changed):
        more = f" and {plural(len(keys) - 1, 'other key')}" if len(keys) > 1 else ""
        spans += [": ", *mask.key(next(iter(keys)).key), f"{more} {'turned bad' if keys.from_predicate else 'changed'}"]
    return (*spans, ".")


def _facts(case: ReportInput, mask: Mask) -> Facts:
    verdict, predicate = case.verdict, case.verdict.predicate.text
    effort = plural(verdict.evaluations, "evaluation")
    if case.guilty is not None and case.guilty.replays:
        effort += f" and {plural(case.guilty.replays, 'replay')}"
    good = (Name(verdict.good_ref), ", committed ", Time(verdict.good_time_ms))
    bad = (Name(verdict.bad_ref), ", committed ", Time(verdict.bad_time_ms))
    return Facts(
        (
            # A shell command may contain values anywhere.
            ("bad if", Name(mask.sql(predicate)) if verdict.where else mask.value(predicate)),
            ("last good", good if verdict.good_ref else "before the first commit"),
            ("bad at the latest" if verdict.candidates else "first bad", bad),
            ("moment (all stages)", Name(verdict.bad.ref)),
            ("found with", effort),
        )
    )


def _keys(case: ReportInput, changed: KeyChanges | None, mask: Mask) -> Iterator[Section]:
    def blocks(keys: KeyChanges) -> Iterator[Block]:
        yield key_changes_table(keys, show=mask.value, none="no row")
        if (more := len(keys) - MAX_SHOWN) > 0:
            yield Remark((f"And {plural(more, 'more key')}; ", Name("bisect --out FILE"), " writes all."))

    if case.guilty is not None and case.guilty.keys:
        yield Section("The key right before the record, and with it", tuple(blocks(case.guilty.keys)))
    if changed and changed.from_predicate:
        yield Section("The key before the commit, and after it", tuple(blocks(changed)))
    elif changed:
        note = Remark("The predicate names no key of this table: these are all keys that the commit changed.")
        yield Section("What the commit changed", (note, *blocks(changed)))


def _search(case: ReportInput, mask: Mask) -> Iterator[Block]:
    verdict, evidence = case.verdict, case.evidence
    picture = search_picture(verdict, evidence)
    yield picture
    caption = "Commits of the app by their distance from the first bad commit, on a logarithmic scale."
    if picture.wrong:
        counted = plural(len(picture.wrong), "moment")
        caption += f" Wrong rows were counted at {counted}; the curve connects these."
    yield Remark(caption)

    def moment(step: Evaluation, beginning: str = "the beginning") -> Span:
        return Name(step.ref) if step.ref else beginning

    def wrong(step: Evaluation) -> str:
        if not step.bad:
            return "0" if step.answer == "good" else ""
        rows = evidence.wrong_row_counts.get(step.ref)
        return "not counted" if rows is None else f"{rows:,}{' or more' if rows >= MAX_COUNTED else ''}"

    rows: list[tuple[Cell, ...]] = []
    for step in sorted(verdict.steps, key=lambda step: commits_from_bad(verdict, step.cut.versions)):
        where, asked_as = moment(step, "before the first commit"), str(step.number or "")
        rows.append((where, AnswerSpan(step.answer), wrong(step), Time(step.cut.time_ms), asked_as))
    yield TableBlock.from_rows(("moment", "answer", ">wrong rows", "committed", ">evaluation"), rows)
    for step in verdict.steps:
        if step.answer == "skip":
            # An error of the database or a program may quote values anywhere.
            yield Remark((moment(step), f" could not be judged{f': {step.why}' if mask.show else ''}."))
    for step in verdict.non_monotone:
        remark = ": the app changed between good and bad more than once, and the commit above is one of the changes."
        yield (moment(step), " is ", AnswerSpan(step.answer), remark)


def _cause(case: ReportInput, mask: Mask) -> Iterator[Block]:
    cause = case.explanation.cause
    if cause.kind == "unknown":
        sentence = f"{cause.sentence}."
        yield sentence if cause.sentence.endswith(NOT_REPLAYED) else mask.reason(sentence)
        return
    proved = "proved" if cause.proved else "a guess"
    yield (f"{cause_noun(cause)}, {proved}: ".capitalize(), f"{cause.sentence.removeprefix('a guess: ')}.")
    rows: list[tuple[Span, Cell]] = []
    for heading, value in evidence_rows(cause):
        if heading == "keys":
            rows += [("key", mask.key(key)) for key in cause.evidence["keys"][:_MAX_KEYS]]
        elif heading == "what":
            rows.append((heading, Name(mask.sql(str(value)))))
        else:
            rows.append((heading, value if isinstance(value, int) else Name(str(value))))
    if rows and cause.kind not in ("record", "records"):
        yield Facts(tuple(rows))
    if (note := cause.evidence.get(NOTE)) is not None:
        yield Remark((mask.reason(str(note)),))


def _record(case: ReportInput, mask: Mask) -> Iterator[Block]:
    guilty = case.guilty
    if guilty is None:
        uncertain = "The commit is not certain, so nothing was replayed."
        another = "No record is named, because the cause is not a record."
        named = another if case.explanation.cause.kind != "unknown" else _NOT_REPLAYED
        yield uncertain if case.verdict.candidates else named
        return
    if (message := guilty.source_record) is not None:
        facts: list[tuple[Span, Cell]] = [
            ("address", Name(str(message.location))),
            *((("in", Name(place)),) if (place := message.location.place) else ()),
            ("sent", Time(message.time_ms, "milliseconds")),
            ("key", mask.data(message.key)),
            *((Name(f"header {name}"), mask.data(value)) for name, value in message.headers),
        ]
        value = mask.data(message.value)
        if value.hidden or message.value is None:
            yield Facts((*facts, ("value", value)))
        else:
            yield Facts((*facts, ("value", f"{plural(len(message.value), 'byte')}:")))
            yield Listing(value.text)
    if guilty.reason and message is None:
        yield ("The record is unknown: ", mask.reason(guilty.reason))
        yield ranges_table("it is in", ">offsets", guilty.windows) if guilty.windows else "It read no record."
    if guilty.hops:
        if not guilty.hops[0].alone:
            yield "It is wrong only together with records before it."
        if guilty.others:
            yield f"{plural(guilty.others, 'more record')} would be wrong by itself."
        yield Remark("The path to it, from the commit upstream:")
        hops = ((hop, Name(str(hop.record)), plural(hop.records, "record")) for hop in guilty.hops)
        rows = ((Name(h.stage), f"v{h.version}", name, of, h.candidates, h.replays) for h, name, of in hops)
        yield TableBlock.from_rows(("stage", "version", "turned bad with", ">of", ">candidates", ">replays"), rows)


def _downstream_effects(case: ReportInput, mask: Mask) -> Iterator[Block]:
    bad = case.verdict.bad.stages[case.verdict.stage]
    if not bad.outputs:
        yield f"Nothing: {bad.stage} sends nothing to other stages."
        return
    sent = ", ".join(f"{plural(output.rows, 'row')} to {name}" for name, output in bad.outputs.items())
    yield ("The bad version sent ", sent, ".")
    if not case.evidence.affected_stages:
        yield "No stage had consumed it when this was written."
        return
    rows: list[tuple[Cell, ...]] = []
    for reached in case.evidence.affected_stages:
        first, keys = reached.first, reached.keys
        changed = "no table" if first.table is None else "not known" if keys is None else len(keys)
        now = f", now at v{reached.newest}" if reached.newest > first.version else ""
        examples: list[Span] = []
        for change in keys.head(_MAX_KEYS) if keys else ():
            examples += [*(["; "] if examples else []), *mask.key(change.key)]
        if keys and len(keys) > _MAX_KEYS:
            examples.append(" …")
        version = (Name(f"v{first.version}"), now)
        rows.append((Name(first.stage), version, Time(first.time_ms), reached.rows, changed, tuple(examples)))
    headings = ("stage", "consumed it first", "committed", ">rows it read", ">keys it changed", "such as")
    yield TableBlock.from_rows(headings, rows)
    yield Remark(
        "It is unknown which of these keys are wrong because of it: a version also reads rows of other senders. Later "
        "versions of each stage build on these rows, and so do later versions of the bad stage."
    )


def _snapshots(case: ReportInput) -> Iterator[Block]:
    verdict, snapshots = case.verdict, case.evidence.snapshots
    if not snapshots:
        yield "There is none."
        return
    rows: list[tuple[Cell, ...]] = []
    for snapshot in snapshots[-_MAX_SNAPSHOTS:]:
        ref, version = Name(f"{verdict.app}@{snapshot.name}"), snapshot.stages.get(verdict.stage, 0)
        name = (ref, f", of the clone {snapshot.clone}") if snapshot.clone else ref
        has = Name(f"{verdict.stage}@v{version}") if version else f"nothing of {verdict.stage}"
        holds = "holds the bad version" if version >= verdict.bad_version else "from before it"
        rows.append((name, Time(snapshot.completed_ms), has, holds))
    yield TableBlock.from_rows(("snapshot", "complete", "has", ""), rows)
    if len(snapshots) > _MAX_SNAPSHOTS:
        yield Remark(f"And {len(snapshots) - _MAX_SNAPSHOTS} older ones.")


def _verification(audit: Report) -> Iterator[Block]:
    yield from verification_blocks(audit)
    yield from (difference.message for difference in audit.differences[1:])


def _commands(case: ReportInput, mask: Mask) -> Iterator[Block]:
    verdict, flags = case.verdict, case.flags
    query = verdict.where or f"FROM {verdict.stage}"
    sql, good, bad = mask.sql(query), verdict.good_ref, verdict.bad_ref
    lines = [f"slackwater query {ref} {quote_word(sql)}{flags}" for ref in (good, bad) if ref]
    if verdict.where and good:
        lines.append(f"slackwater bisect {verdict.app} --good {good} --bad {bad} --where {quote_word(sql)}{flags}")
    ran = verdict.bad.stages[verdict.stage].program
    code = f" --code {quote_word(PurePath(ran.path).name)}" if ran is not None else ""
    lines.append(f"slackwater replay {bad}{code}{flags}")
    if ref := ref_to_clone(verdict, case.explanation):
        lines.append(f"slackwater clone {ref} {case.clone}{flags}")
    yield Listing("\n".join(lines))
    if sql != query:
        yield Remark("Literals of the query are hidden here: take them from the original search.")
