"""Drills, as they are shown, and as an auditor gets them: which cut, how old, how long, and that it is what it was."""

from collections.abc import Iterator

from ... import instants
from ...keep.recover.drill import Drill
from ..document import Block, Cell, Facts, Listing, Name, Page, Remark, Section, TableBlock, Time, Title
from ..formats import duration, size
from ..shown import Result, fields
from ..status import verified
from .recoveries import of_plan, plan_data


def drilled(found: Drill) -> Result:
    """A drill."""
    return Result(_drill_data(found), *_drill(found), failed=not found.passed)


def _drill(found: Drill) -> Iterator[Block]:
    yield Title(_sentence(found))
    yield from of_plan(found.plan)
    yield ""
    yield _tables(found)
    if found.not_compared:
        yield f"not compared with the app itself: {found.not_compared}"
    yield ""
    yield TableBlock.of(("step", ">took"), _steps(found))
    yield ""
    yield from verified(found.recovered)
    for wrong in (*found.replica.differences, *found.recovered.differences):
        yield f"wrong: {wrong.message}"
    if found.kept:
        yield f"the clone stays: {found.clone}"


def _sentence(found: Drill) -> str:
    ready = f"ready to run after {duration(found.ready_ms)}"
    did = f"{found.app} can be recovered from {found.root}: {ready}" if found.passed else ""
    return did or f"{found.app} cannot be recovered from {found.root} as it was"


def _tables(found: Drill) -> TableBlock:
    rows = [
        (Name(each.table), f"v{each.version}", each.rows, each.ssts, size(each.bytes), each.checksums)
        for each in found.tables
    ]
    return TableBlock.of(("table", ">version", ">rows stored", ">SSTs", ">size", "checksums"), rows)


def _steps(found: Drill) -> list[tuple[Cell, ...]]:
    return [(name, duration(ms)) for name, ms in found.steps]


def _drill_data(found: Drill) -> dict[str, object]:
    replica, again = ({"consistent": each.consistent, "checks": each.checks, "differences": each.differences,
                       "bytes_read": each.bytes_read} for each in (found.replica, found.recovered))  # fmt: skip
    return {
        **fields(found, "app", "root", "clone", "kept", "passed", "not_compared", "tables", "versions", "ready_ms"),
        "plan": plan_data(found.plan),
        "steps_ms": dict(found.steps),
        "replica": replica,
        "recovered": again,
    }


def page(found: Drill) -> Page:
    """A drill, to hand on."""
    from ... import __version__

    cut = found.plan.replicated
    facts = (
        ("app", Name(found.app)),
        ("replica", Name(found.root)),
        ("where it runs", Name(found.plan.primary.root)),
        ("cut", (f"{cut.number}: ", Name(", ".join(f"{s}@v{v}" for s, v in cut.stages.items())))),
        ("newest commit in it", Time(cut.time_ms)),
        ("lacked nothing at", Time(cut.seen_ms)),
        ("ready to run after", duration(found.ready_ms)),
        ("bytes read again", size(found.replica.bytes_read + found.recovered.bytes_read)),
    )
    compared = (f"Not compared with the app itself: {found.not_compared}.",) if found.not_compared else ()
    sections = [
        Section("What would be lost, and where it would go on", tuple(of_plan(found.plan))),
        Section("Tables, by checksum", (_tables(found), *compared)),
        Section("What each step took", (TableBlock.of(("step", ">took"), _steps(found)),)),
        Section("The replica's cut, every byte read again", tuple(verified(found.replica))),
        Section("What would run, every byte read again", tuple(verified(found.recovered))),
    ]
    if found.kept:
        sections.append(Section("The clone stays", (Listing(f"slackwater status {found.clone} --store {found.root}"),)))
    return Page(
        title=f"A recovery drill of {found.app}",
        sentence=(_sentence(found), "."),
        facts=Facts(facts),
        sections=tuple(sections),
        closing=Remark((f"slackwater {__version__}, ", Time(instants.now_ms()), ".")),
    )
