"""What a report tells: the sentence at its top, the keys, the record, the way to it, and what to type next."""

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING

from .. import formats
from ..document import Aside, Block, Cell, Facts, Line, Listing, Name, Page, Section, Span, Table, Time
from ..values import changes
from ..verdict import read, windows
from . import surroundings
from .masking import Mask

if TYPE_CHECKING:
    from ...moments.diff.key_changes import KeyChanges
    from ...search.evidence import Evidence
    from ...search.verdict import Guilty, Hop, SourceMessage, Verdict


@dataclass(frozen=True, slots=True)
class Case:
    """All that a report is made from."""

    verdict: "Verdict"
    guilty: "Guilty | None"
    """The record behind it; None where nothing was replayed."""
    evidence: "Evidence"
    clone: str
    """A name for a clone that no app has."""
    flags: str
    """What commands to type next need besides: ` --store ROOT`, or nothing."""
    time_ms: int
    """When the report is made."""


def document(case: Case, mask: Mask) -> Page:
    """The report."""
    from ... import __version__

    shown = "Values are shown as they are." if mask.show else "Values are hidden: their types and lengths are shown."
    verdict, keys = case.verdict, case.verdict.keys
    # A key that the predicate names may have turned bad by another row of a join.
    changed = (keys.changed() or keys) if keys else None
    return Page(
        title=f"The first bad commit of {verdict.app}",
        sentence=_sentence(case, changed, mask),
        facts=_facts(case, mask),
        sections=(
            *_keys(case, changed, mask),
            surroundings.turn(verdict, case.evidence, mask),
            _record(case, mask),
            Section("What the commit read", tuple(read(verdict.lineage))),
            surroundings.reached(verdict, case.evidence, mask),
            surroundings.snapshots(verdict, case.evidence),
            surroundings.ledger(case.evidence),
            _commands(case, mask),
        ),
        closing=Aside((f"slackwater {__version__}, ", Time(case.time_ms), f". {shown}")),
    )


def _sentence(case: Case, changed: "KeyChanges | None", mask: Mask) -> Line:
    verdict, guilty = case.verdict, case.guilty
    spans: list[Span] = [Name(verdict.bad_ref), " is the first bad commit of ", Name(verdict.app)]
    if verdict.candidates:
        one_of = ", ".join(map(str, verdict.candidates))
        spans = ["The first bad commit of ", Name(verdict.app), " is one of ", Name(one_of)]
    if guilty is not None and guilty.message is not None:
        spans += [", and ", Name(str(guilty.message.address)), " the record behind it"]
    if keys := (guilty.keys if guilty is not None and guilty.keys else changed):
        more = f" and {formats.plural(len(keys) - 1, 'other key')}" if len(keys) > 1 else ""
        turned = f"{more} turned bad" if keys.named else f"{more} changed"
        spans += [": ", *mask.key(next(iter(keys)).key), turned]
    return (*spans, ".")


def _facts(case: Case, mask: Mask) -> Facts:
    verdict, asked = case.verdict, case.verdict.predicate.text
    effort = formats.plural(verdict.evaluations, "evaluation")
    if case.guilty is not None and case.guilty.replays:
        effort += f" and {formats.plural(case.guilty.replays, 'replay')}"
    good = (Name(verdict.good_ref), ", committed ", Time(verdict.good_time_ms))
    bad = (Name(verdict.bad_ref), ", committed ", Time(verdict.bad_time_ms))
    return Facts(
        (
            # A command has its values anywhere.
            ("wrong is", Name(mask.sql(asked)) if verdict.where else mask.value(asked)),
            ("last good", good if verdict.good_ref else "before the first commit"),
            ("bad at the latest" if verdict.candidates else "first bad", bad),
            ("the whole app then", Name(verdict.bad.ref)),
            ("found with", effort),
        )
    )


def _keys(case: Case, changed: "KeyChanges | None", mask: Mask) -> Iterator[Section]:
    guilty = case.guilty
    if guilty is not None and guilty.keys:
        yield Section("The key right before the record, and with it", tuple(_changes(guilty.keys, mask)))
    if changed:
        title = "The key before the commit, and after it" if changed.named else "What the commit changed"
        note = Aside("The predicate names no key of this table: these are all that the commit changed.")
        blocks = tuple(_changes(changed, mask))
        yield Section(title, blocks if changed.named else (note, *blocks))


def _changes(keys: "KeyChanges", mask: Mask) -> Iterator[Block]:
    yield changes(keys, show=mask.value, none="no row")
    if (more := len(keys) - formats.MOST_SHOWN) > 0:
        yield Aside((f"And {formats.plural(more, 'more key')}; ", Name("bisect --out FILE"), " writes all."))


def _record(case: Case, mask: Mask) -> Section:
    guilty = case.guilty
    blocks: list[Block] = []
    if guilty is None:
        blocks.append(
            "As the commit is not certain, nothing was replayed."
            if case.verdict.candidates
            else "Nothing was replayed, so it is not known which of the records it was that the commit read."
        )
        return Section("The record", tuple(blocks))
    if guilty.message is not None:
        blocks += _message(guilty.message, mask)
    if guilty.reason:
        blocks.append(("The record cannot be told: ", mask.reason(guilty.reason)))
        blocks.append(windows("it is in", ">records", guilty.windows) if guilty.windows else "It read no record.")
    if guilty.hops:
        if not guilty.hops[0].alone:
            blocks.append("By itself it is not wrong: it is with records before it.")
        if guilty.others:
            blocks.append(f"{formats.plural(guilty.others, 'more record')} would be wrong by itself.")
        blocks += [Aside("The way to it, from the commit upwards:"), _hops(guilty.hops)]
    return Section("The record", tuple(blocks))


def _message(message: "SourceMessage", mask: Mask) -> Iterator[Block]:
    facts: list[tuple[Span, Cell]] = [
        ("address", Name(str(message.address))),
        ("sent", Time(message.time_ms, "milliseconds")),
        ("key", mask.data(message.key)),
        *((Name(f"header {name}"), mask.data(value)) for name, value in message.headers),
    ]
    value = mask.data(message.value)
    if value.hidden or message.value is None:
        yield Facts((*facts, ("value", value)))
    else:
        yield Facts((*facts, ("value", f"{formats.plural(len(message.value), 'byte')}:")))
        yield Listing(value.text)


def _hops(hops: "tuple[Hop, ...]") -> Table:
    return Table.each(
        hops,
        {
            "stage": lambda hop: Name(hop.stage),
            "version": lambda hop: f"v{hop.version}",
            "turned bad with": lambda hop: Name(str(hop.record)),
            ">of": lambda hop: formats.plural(hop.records, "record"),
            ">candidates": lambda hop: hop.candidates,
            ">replays": lambda hop: hop.replays,
        },
    )


def _commands(case: Case, mask: Mask) -> Section:
    verdict, flags = case.verdict, case.flags
    asked = verdict.where or f"FROM {verdict.stage}"
    sql, good, bad = mask.sql(asked), verdict.good_ref, verdict.bad_ref
    lines = [f"slackwater query {ref} {shlex.quote(sql)}{flags}" for ref in (good, bad) if ref]
    if verdict.where and good:
        lines.append(f"slackwater bisect {verdict.app} --good {good} --bad {bad} --where {shlex.quote(sql)}{flags}")
    ran = verdict.bad.stages[verdict.stage].program
    code = f" --code {shlex.quote(PurePath(ran.path).name)}" if ran is not None else ""
    lines.append(f"slackwater replay {bad}{code}{flags}")
    if good:
        lines.append(f"slackwater clone {good} {case.clone}{flags}")
    blocks: list[Block] = [Listing("\n".join(lines))]
    if sql != asked:
        blocks.append(Aside("The literals of the query are hidden: whoever searched has them."))
    return Section("To go on", tuple(blocks))
