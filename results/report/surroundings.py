"""What a report tells around a verdict: the turn, what it reached, snapshots, and the ledger of the bad moment."""

from typing import TYPE_CHECKING

from .. import formats
from ..document import Aside, Block, Found, Line, Name, Section, Span, Table, Time
from .masking import Mask
from .picture import timeline

if TYPE_CHECKING:
    from ...snapshot.bisect.changed_keys import ChangedKeys
    from ...snapshot.bisect.evidence import Evidence, Reached
    from ...snapshot.bisect.verdict import Step, Verdict
    from ...snapshot.cut.stored import Snapshot
    from ...snapshot.verify.ledger import Entry

_MAX_KEYS = 3
"""Keys that are named of each later stage."""
_MAX_SNAPSHOTS = 20
"""Snapshots that are listed, the newest."""


def turn(verdict: "Verdict", evidence: "Evidence", mask: Mask) -> Section:
    """When it turned: the picture, and every evaluation in the order of the line."""
    from ...snapshot.bisect.evidence import distance

    picture = timeline(verdict, evidence)
    caption = "Commits of the app's line, by how many lie between them and the turn; far away they stand closer."
    if picture.wrong:
        counted = formats.plural(len(picture.wrong), "moment")
        caption += f" Wrong rows are known of {counted}, between which the curve only leads."

    def line(step: "Step") -> tuple[Span | Line, ...]:
        moment: Span = Name(step.ref) if step.ref else "before the first commit"
        rows = evidence.wrong.get(step.ref)
        wrong = ("not counted" if rows is None else _count(rows)) if step.bad else "0" if step.answer == "good" else ""
        return moment, Found(step.answer), wrong, Time(step.cut.time_ms), str(step.number or "")

    steps = sorted(verdict.steps, key=lambda step: distance(verdict, step.cut.versions))
    blocks: list[Block] = [picture, Aside(caption)]
    blocks.append(Table.of(("moment", "was", ">wrong rows", "committed", ">asked as no."), map(line, steps)))
    for step in verdict.steps:
        if step.answer == "skip":
            moment = Name(step.ref) if step.ref else "the beginning"
            # What the database or a program said may quote a value anywhere.
            why = f": {step.why}" if mask.show else ""
            blocks.append(Aside((moment, f" could not be judged{why}.")))
    for step in verdict.non_monotone:
        against = (Name(step.ref) if step.ref else "the beginning", " is ", Found(step.answer))
        blocks.append((*against, ": it turned more than once, and this is one of the changes."))
    return Section("When it turned", tuple(blocks))


def _count(rows: int) -> str:
    from ...snapshot.bisect.evidence import MAX_COUNTED

    return formats.count(rows) if rows < MAX_COUNTED else f"{formats.count(rows)} or more"


def reached(verdict: "Verdict", evidence: "Evidence", mask: Mask) -> Section:
    """Later stages that consumed the bad version, and what is not known of that."""
    bad = verdict.bad.stages[verdict.stage]
    title = "What it reached further on"
    if not bad.outputs:
        return Section(title, (f"Nothing: {bad.stage} sends nothing to other stages.",))
    sent = ", ".join(f"{formats.plural(output.rows, 'row')} to {name}" for name, output in bad.outputs.items())
    blocks: list[Block] = [("The bad version sent ", sent, ".")]
    if evidence.reached:
        headings = ("stage", "consumed it first", "committed", ">rows it read", ">keys it changed", "such as")
        blocks.append(Table.of(headings, (_later(each, mask) for each in evidence.reached)))
        limits = (
            "Which of these keys are wrong because of it is not known: a version also reads what others sent. Later "
            "versions of each stage build on these, and so do later ones of the bad stage."
        )
        blocks.append(Aside(limits))
    else:
        blocks.append("No stage had consumed it when this was written.")
    return Section(title, tuple(blocks))


def _later(each: "Reached", mask: Mask) -> tuple[Span | Line, ...]:
    first = each.first
    newer = f", now at v{each.newest}" if each.newest > first.version else ""
    changed = "no table" if first.table is None else "not known" if each.keys is None else formats.count(len(each.keys))
    return (
        Name(first.stage),
        (Name(f"v{first.version}"), newer),
        Time(first.time_ms),
        each.rows,
        changed,
        _examples(each.keys, mask) if each.keys else "",
    )


def _examples(keys: "ChangedKeys", mask: Mask) -> Line:
    spans: list[Span] = []
    for change in keys.head(_MAX_KEYS):
        spans += [*(["; "] if spans else []), *mask.key(change.key)]
    return (*spans, " …") if len(keys) > _MAX_KEYS else tuple(spans)


def snapshots(verdict: "Verdict", evidence: "Evidence") -> Section:
    """Which snapshots, and clones, hold the bad version."""
    rows = [_snapshot(verdict, snapshot) for snapshot in evidence.snapshots]
    blocks: list[Block] = []
    if rows:
        blocks.append(Table.of(("snapshot", "complete", "has", ""), rows[-_MAX_SNAPSHOTS:]))
    if len(rows) > _MAX_SNAPSHOTS:
        blocks.append(Aside(f"And {len(rows) - _MAX_SNAPSHOTS} older ones."))
    return Section("Snapshots", tuple(blocks) or ("There is none.",))


def _snapshot(verdict: "Verdict", snapshot: "Snapshot") -> tuple[Span | Line, ...]:
    version = snapshot.stages.get(verdict.stage, 0)
    name = Name(f"{verdict.app}@{snapshot.name}")
    return (
        (name, f", of the clone {snapshot.clone}") if snapshot.clone else name,
        Time(snapshot.completed_ms),
        Name(f"{verdict.stage}@v{version}") if version else f"nothing of {verdict.stage}",
        "holds the bad version" if version >= verdict.bad_version else "from before it",
    )


def ledger(evidence: "Evidence") -> Section:
    """Whether the bad moment is whole, as `verify` says."""
    from ...snapshot.verify.report import CHECKS

    audit = evidence.audit
    checks = ", ".join(formats.plural(each.checked, CHECKS[each.check][0]) for each in audit.checks)
    found = "all is as it must be" if audit.consistent else formats.plural(len(audit.differences), "difference")
    blocks: list[Block] = [("What ", Name(f"verify {audit.ref}"), f" finds: {found} ({checks}).")]
    blocks += ((difference.message,) for difference in audit.differences)
    if audit.ledger:
        headings = ("channel", "from", "to", ">sent", ">consumed", ">lost", ">in flight", ">difference")
        blocks.append(Table.of(headings, map(_entry, audit.ledger)))
    return Section("The ledger of the bad moment", tuple(blocks))


def _entry(entry: "Entry") -> tuple[Span, ...]:
    sums = (sum(each) if each else None for each in (entry.sent, entry.consumed))
    return (
        Name(entry.channel),
        Name(f"{entry.sender}@v{entry.sender_version}"),
        Name(f"{entry.receiver}@v{entry.receiver_version}") if entry.receiver else "nobody",
        *sums,
        sum(entry.lost),
        entry.in_flight.rows,
        entry.difference,
    )
