"""What the picture of a search shows: commits, probes, snapshots and wrong rows, by their distance from the verdict."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..snapshot.bisect.verdict import Answer, Verdict
    from ..snapshot.evidence.collect import Evidence


@dataclass(frozen=True, slots=True)
class Mark:
    """Something on the line, so many commits after the first bad one; -1 is the last good one."""

    at: int
    name: str


@dataclass(frozen=True, slots=True)
class Probe(Mark):
    """An evaluation of the predicate."""

    answer: "Answer"


@dataclass(frozen=True, slots=True)
class Wrong(Mark):
    """How many rows the predicate returns there."""

    rows: int


@dataclass(frozen=True, slots=True)
class Timeline:
    """The stretch of the line that was searched."""

    lanes: tuple[tuple[str, tuple[Mark, ...]], ...]
    """By stage, upstream first, its commits near the verdict."""
    turned: str
    """The stage of the first bad commit."""
    certain: bool
    """Whether it turned there; else between the last good moment and there."""
    probes: tuple[Probe, ...]
    """In the order of the line."""
    snapshots: tuple[Mark, ...]
    """In the order of the line; of those before and after the stretch, none."""
    wrong: tuple[Wrong, ...]
    """In the order of the line; empty where nothing was counted."""


def timeline(verdict: "Verdict", evidence: "Evidence") -> Timeline:
    """What the picture shows of a search."""
    from ..snapshot.evidence.collect import distance

    bad = verdict.bad.versions
    probes = sorted(
        (Probe(distance(verdict, step.cut.versions), step.ref, step.answer) for step in verdict.steps),
        key=_at,
    )
    # A stage that a snapshot lacks was retired by then, or had not begun: it counts as at the verdict.
    named = [Mark(distance(verdict, bad | snapshot.stages), snapshot.name) for snapshot in evidence.snapshots]
    good = Probe(distance(verdict, verdict.good.versions), verdict.good_ref, "good")
    rows = {
        probe.at: Wrong(probe.at, probe.name, evidence.wrong.get(probe.name, 0))
        for probe in (good, *probes, Probe(0, verdict.bad_ref, "bad"))
        if probe.answer == "good" or probe.name in evidence.wrong
    }
    first, last = min(probes[0].at, good.at), max(probes[-1].at, 0)
    return Timeline(
        lanes=_lanes(verdict, evidence),
        turned=verdict.stage,
        certain=not verdict.candidates,
        probes=tuple(probes),
        snapshots=tuple(sorted((mark for mark in named if first <= mark.at <= last), key=_at)),
        wrong=tuple(sorted(rows.values(), key=_at)) if evidence.wrong else (),
    )


def _lanes(verdict: "Verdict", evidence: "Evidence") -> tuple[tuple[str, tuple[Mark, ...]], ...]:
    from ..snapshot.cut.graph import order

    here = evidence.commits.index(verdict.bad.stages[verdict.stage])
    stages = {commit.stage: commit for commit in evidence.commits}
    marks = [
        (commit.stage, Mark(number - here, f"v{commit.version}")) for number, commit in enumerate(evidence.commits)
    ]
    return tuple((stage, tuple(mark for of, mark in marks if of == stage)) for stage in order(stages))


def _at(mark: Mark) -> int:
    return mark.at
