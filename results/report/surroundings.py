"""What a report tells around a verdict: the turn, what it reached, snapshots, and the ledger of the bad moment."""

from typing import TYPE_CHECKING

from .. import formats
from ..document import Aside, Block, Cell, Found, Name, Section, Span, Table, Time
from .masking import Mask
from .picture import timeline

if TYPE_CHECKING:
    from ...moments.cut.stored import Snapshot
    from ...search.evidence import Evidence, Reached
    from ...search.verdict import Evaluation, Verdict

_MAX_KEYS = 3
"""Keys that are named of each later stage."""
_MAX_SNAPSHOTS = 20
"""Snapshots that are listed, the newest."""


def turn(verdict: "Verdict", evidence: "Evidence", mask: Mask) -> Section:
    """When it turned: the picture, and every evaluation in the order of the line."""
    from ...search.evidence import MAX_COUNTED, distance

    picture = timeline(verdict, evidence)
    caption = "Commits of the app's line, by how many lie between them and the turn; far away they stand closer."
    if picture.wrong:
        counted = formats.plural(len(picture.wrong), "moment")
        caption += f" Wrong rows are known of {counted}, between which the curve only leads."

    def moment(step: "Evaluation", beginning: str = "the beginning") -> Span:
        return Name(step.ref) if step.ref else beginning

    def wrong(step: "Evaluation") -> str:
        if not step.bad:
            return "0" if step.answer == "good" else ""
        rows = evidence.wrong.get(step.ref)
        return "not counted" if rows is None else formats.count(rows) + (" or more" if rows >= MAX_COUNTED else "")

    steps = Table.each(
        sorted(verdict.steps, key=lambda step: distance(verdict, step.cut.versions)),
        {
            "moment": lambda step: moment(step, "before the first commit"),
            "was": lambda step: Found(step.answer),
            ">wrong rows": wrong,
            "committed": lambda step: Time(step.cut.time_ms),
            ">asked as no.": lambda step: str(step.number or ""),
        },
    )
    blocks: list[Block] = [picture, Aside(caption), steps]
    # What the database or a program said may quote a value anywhere.
    blocks += (
        Aside((moment(step), f" could not be judged{f': {step.why}' if mask.show else ''}."))
        for step in verdict.steps
        if step.answer == "skip"
    )
    for step in verdict.non_monotone:
        what = ": it turned more than once, and this is one of the changes."
        blocks.append((moment(step), " is ", Found(step.answer), what))
    return Section("When it turned", tuple(blocks))


def reached(verdict: "Verdict", evidence: "Evidence", mask: Mask) -> Section:
    """Later stages that consumed the bad version, and what is not known of that."""
    bad = verdict.bad.stages[verdict.stage]
    title = "What it reached further on"
    if not bad.outputs:
        return Section(title, (f"Nothing: {bad.stage} sends nothing to other stages.",))
    sent = ", ".join(f"{formats.plural(output.rows, 'row')} to {name}" for name, output in bad.outputs.items())
    blocks: list[Block] = [("The bad version sent ", sent, ".")]
    if not evidence.reached:
        return Section(title, (*blocks, "No stage had consumed it when this was written."))

    def changed(each: "Reached") -> Cell:
        return "no table" if each.first.table is None else "not known" if each.keys is None else len(each.keys)

    def examples(each: "Reached") -> Cell:
        spans: list[Span] = []
        for change in each.keys.head(_MAX_KEYS) if each.keys else ():
            spans += [*(["; "] if spans else []), *mask.key(change.key)]
        return (*spans, " …") if each.keys and len(each.keys) > _MAX_KEYS else tuple(spans)

    stages = Table.each(
        evidence.reached,
        {
            "stage": lambda each: Name(each.first.stage),
            "consumed it first": lambda each: (
                Name(f"v{each.first.version}"),
                f", now at v{each.newest}" if each.newest > each.first.version else "",
            ),
            "committed": lambda each: Time(each.first.time_ms),
            ">rows it read": lambda each: each.rows,
            ">keys it changed": changed,
            "such as": examples,
        },
    )
    limits = (
        "Which of these keys are wrong because of it is not known: a version also reads what others sent. Later "
        "versions of each stage build on these, and so do later ones of the bad stage."
    )
    return Section(title, (*blocks, stages, Aside(limits)))


def snapshots(verdict: "Verdict", evidence: "Evidence") -> Section:
    """Which snapshots, and clones, hold the bad version."""

    def name(each: "Snapshot") -> Cell:
        ref = Name(f"{verdict.app}@{each.name}")
        return (ref, f", of the clone {each.clone}") if each.clone else ref

    def version(each: "Snapshot") -> int:
        return each.stages.get(verdict.stage, 0)

    def has(each: "Snapshot") -> Cell:
        return Name(f"{verdict.stage}@v{version(each)}") if version(each) else f"nothing of {verdict.stage}"

    table = Table.each(
        evidence.snapshots[-_MAX_SNAPSHOTS:],
        {
            "snapshot": name,
            "complete": lambda each: Time(each.completed_ms),
            "has": has,
            "": lambda each: "holds the bad version" if version(each) >= verdict.bad_version else "from before it",
        },
    )
    older = len(evidence.snapshots) - _MAX_SNAPSHOTS
    more = (Aside(f"And {older} older ones."),) if older > 0 else ()
    return Section("Snapshots", (table, *more) if evidence.snapshots else ("There is none.",))


def ledger(evidence: "Evidence") -> Section:
    """Whether the bad moment is whole, as `verify` says."""
    from ...keep.verify.report import CHECKS

    audit = evidence.audit
    checks = ", ".join(formats.plural(each.checked, CHECKS[each.check][0]) for each in audit.checks)
    found = "all is as it must be" if audit.consistent else formats.plural(len(audit.differences), "difference")
    blocks: list[Block] = [("What ", Name(f"verify {audit.ref}"), f" finds: {found} ({checks}).")]
    blocks += (difference.message for difference in audit.differences)
    if audit.ledger:
        table = Table.each(
            audit.ledger,
            {
                "channel": lambda each: Name(each.channel),
                "from": lambda each: Name(f"{each.sender}@v{each.sender_version}"),
                "to": lambda each: Name(f"{each.receiver}@v{each.receiver_version}") if each.receiver else "nobody",
                ">sent": lambda each: sum(each.sent) if each.sent else None,
                ">consumed": lambda each: sum(each.consumed) if each.consumed else None,
                ">lost": lambda each: sum(each.lost),
                ">in flight": lambda each: each.in_flight.rows,
                ">difference": lambda each: each.difference,
            },
        )
        blocks.append(table)
    return Section("The ledger of the bad moment", tuple(blocks))
