"""Plan of a trial, after all checks that need no Spark."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from ...common import instants
from ...errors import Refused, Usage
from ...pipeline.api.app import App
from ...pipeline.run.program import load_app
from ...snapshot.change.switch import furthest, left, users_inputs
from ...snapshot.cut.graph import Cut
from ...snapshot.cut.in_flight import in_flight
from ...snapshot.cut.resolve import resolve
from ...snapshot.diff.moments import check_expected_queries
from ...store.objects.protocol import ObjectStore
from ...store.versions import apps, keys
from ...store.versions.manifest import Input, Table
from .sample import Sample, up_to


@dataclass(frozen=True, slots=True)
class Release:
    """The changed program, and the span of input to run it on."""

    app: str
    code: str
    """The file of the changed program."""
    start: str
    """Start of the input, a ref of the app."""
    end: str
    """End of the input, a ref of the app."""
    before: str = ""
    """File of the program that ran; empty if not available."""
    keep: str = ""
    """Name under which the clone is kept; empty to remove it."""
    allow: tuple[str, ...] = ()
    """Queries that return the keys of expected differences, as `snapshot.diff.moments` takes them."""
    only: tuple[str, ...] = ()
    """Stages to try, with all stages upstream; empty for all stages."""
    sample: Sample | None = None
    """Share of keys to try; None for all keys."""
    renames: Mapping[str, str] = field(default_factory=dict)
    """Renamed columns, old name to new."""
    stages: Mapping[str, str] = field(default_factory=dict)
    """Renamed stages, old name to new."""


@dataclass(frozen=True, slots=True)
class TrialPlan:
    """Checked plan of a trial."""

    release: Release
    start: Cut
    end: Cut
    ends: Ends
    """Offsets that the app had read at the end."""
    new: App
    new_stages: tuple[str, ...]
    """Stages of the changed program to run, upstream first."""
    old: App | None
    """The old program, if it must run over the same input; None to compare with the app itself."""
    old_stages: tuple[str, ...]
    """Stages of the old program to run."""
    sinks: frozenset[str]
    """Sinks of the app at the end."""


def make_plan(store: ObjectStore, release: Release) -> TrialPlan:
    """Plan a trial. Starts no Spark, and changes nothing.

    Raises:
        Usage: the second moment is not after the first, a query of `allow` is wrong, or a file is no program.
        NotFound: an app, moment, stage or column does not exist.
        Refused: records are in flight at the second moment and the old program is not given, or the name for the kept
            clone is taken.
    """
    now_ms = instants.now_ms()
    if release.keep:
        _check_free(store, release)
    start, end = (resolve(store, ref, now_ms=now_ms) for ref in (release.start, release.end))
    _check_order(release, start, end)
    new = load_app(release.code, name=release.app)
    new_stages = up_to(new, release.only)
    tables: dict[str, Table | None] = {release.stages.get(name, name): head.table for name, head in end.tables.items()}
    if release.renames:
        # The program's schemas, not known yet, determine which table a renamed column belongs to.
        tables = dict.fromkeys(tables)
    stateful = {stage.name: None for stage in new.in_order() if stage.state is not None}
    check_expected_queries(release.allow, stateful | tables)
    heads = tuple(end.stages.values())
    ends = furthest(heads)
    are_uneven = any(read.offsets != ends[read.topic] for read in users_inputs(heads))
    has_in_flight = are_uneven or bool(in_flight(store, end))
    if has_in_flight and not release.before:
        raise Refused(
            f"records are in flight between the stages of {release.app} at {end.ref}, so its tables do not reflect "
            "all that it has read",
            hint="add --before FILE, the old program, to process them in a clone; or choose another moment",
        )
    sinks = frozenset(name for head in end.stages.values() for name in head.sinks)
    runs_old = bool(release.before) and (has_in_flight or bool(sinks))
    old = load_app(release.before, name=release.app) if runs_old else None
    old_stages = _counterparts(old, release) if old is not None else ()
    return TrialPlan(release, start, end, ends, new, new_stages, old, old_stages, sinks)


def _check_free(store: ObjectStore, release: Release) -> None:
    info = apps.find_app(store, keys.check_name("app", release.keep))
    if info is not None:
        is_like = info.origin is not None and info.origin.app == release.app
        raise Refused(
            f"app {info.name!r} exists already: --keep takes a name that no app has",
            hint=f"if an interrupted trial left it: slackwater clone rm {info.name}" if is_like else "",
        )


def _check_order(release: Release, start: Cut, end: Cut) -> None:
    for cut, ref in ((start, release.start), (end, release.end)):
        if cut.app != release.app:
            raise Usage(f"{ref} is a moment of {cut.app}; expected one of {release.app}")
    resets = {
        f"{stage}@v{reset.version}": name
        for stage, head in end.stages.items()
        for name, read in head.inputs.items()
        for reset in read.resets
        if reset.version > start.versions.get(stage, 0)
    }
    if resets:
        at, name = next(iter(resets.items()))
        raise Refused(
            f"{name} was reset in between, by {at}, so the input of {release.app} is not one continuous span of the "
            "topic",
            hint=f"choose both moments before the reset, or both after: see `slackwater log {release.app}`",
        )
    if start.versions == end.versions or any(end.versions.get(stage, 0) < at for stage, at in start.versions.items()):
        raise Usage(
            f"{release.end} is not after {release.start}: {release.app} read nothing between them",
            hint=f"choose an earlier --from: see `slackwater log {release.app}`",
        )


def _counterparts(old: App, release: Release) -> tuple[str, ...]:
    """Return the stages of the old program that correspond to the tried ones; new stages have none."""
    former = {new: old for old, new in release.stages.items()}
    called = [former.get(name, name) for name in release.only]
    return up_to(old, [name for name in called if name in old.stages] or called)


Ends = Mapping[str, tuple[int, ...]]
"""End offsets of users' topics, by topic and Kafka partition."""


def in_all_to_read(cut: Cut, stages: Collection[str], ends: Ends) -> int | None:
    """Return the number of offsets that these stages have to read; None if an input has no end offset."""
    read = _inputs(cut, stages)
    has_ends = {*stages} <= cut.stages.keys() and all(source.topic in ends for source in read)
    return sum(left(source, ends) for source in read) if has_ends else None


def check_reached(cut: Cut, stages: Collection[str], ends: Ends, program: str) -> None:
    """Raise `Refused` if the program stopped before its end offsets. The message begins with `program`."""
    short = [f"{more:,} of {source.topic}" for source in _inputs(cut, stages) if (more := left(source, ends))]
    if short:
        raise Refused(
            f"{program} stopped before it had read all input, so nothing is compared; unread: {', '.join(short)}",
            hint="repeat the command",
        )


def _inputs(cut: Cut, stages: Collection[str]) -> tuple[Input, ...]:
    return tuple(users_inputs(cut.stages[name] for name in cut.stages.keys() & {*stages}))
