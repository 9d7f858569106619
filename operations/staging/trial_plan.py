"""What is tried, and on what, with everything checked that can be before Spark starts."""

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
    """What is tried, and on what."""

    app: str
    code: str
    """The file of the changed program."""
    start: str
    """The moment, a ref of the app, from which its input is taken."""
    end: str
    """And the one up to which."""
    before: str = ""
    """The file of the program that ran; empty where that is not here."""
    keep: str = ""
    """The name under which the clone stays; empty for none."""
    allow: tuple[str, ...] = ()
    """Queries that name the keys whose differences are meant, as `snapshot.diff.allowed` takes them."""
    only: tuple[str, ...] = ()
    """The stages that are tried, with those that they read from; all without."""
    sample: Sample | None = None
    """The keys that are tried; all without."""
    renames: Mapping[str, str] = field(default_factory=dict)
    """Columns that have another name in the changed program, old to new."""
    stages: Mapping[str, str] = field(default_factory=dict)
    """Stages that do."""


@dataclass(frozen=True, slots=True)
class TrialPlan:
    """A release whose words make sense."""

    release: Release
    start: Cut
    end: Cut
    ends: Ends
    """What the app has read at the end."""
    new: App
    new_stages: tuple[str, ...]
    """Those of the changed program that run, upstream first."""
    old: App | None
    """The program of before, where it has to run over the same input; else the app itself is compared with."""
    old_stages: tuple[str, ...]
    """Those of it that run."""
    sinks: frozenset[str]
    """Of the app, at the end."""


def make_plan(store: ObjectStore, release: Release) -> TrialPlan:
    """What is to be done for a trial. Starts no Spark, and changes nothing.

    Raises:
        Usage: the second moment is not after the first, a query of `allow` is wrong, or a file is no program.
        NotFound: there is no such app, moment, stage or column.
        Refused: rows are on the way at the second moment and the program of before is not here, or an app has the name
            under which the clone is to stay.
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
        # Which column of which table that is, the schemas of the program decide.
        tables = dict.fromkeys(tables)
    begun = {stage.name: None for stage in new.in_order() if stage.state is not None}
    check_expected_queries(release.allow, begun | tables)
    heads = tuple(end.stages.values())
    ends = furthest(heads)
    uneven = any(read.offsets != ends[read.topic] for read in users_inputs(heads))
    on_the_way = uneven or bool(in_flight(store, end))
    if on_the_way and not release.before:
        raise Refused(
            f"records are on the way between the stages of {release.app} at {end.ref}, so its tables are not those of "
            "all that it has read",
            hint="--before FILE, the program that ran, has a clone work them off; or choose a moment without",
        )
    sinks = frozenset(name for head in end.stages.values() for name in head.sinks)
    beside = bool(release.before) and (on_the_way or bool(sinks))
    old = load_app(release.before, name=release.app) if beside else None
    old_stages = _counterparts(old, release) if old is not None else ()
    return TrialPlan(release, start, end, ends, new, new_stages, old, old_stages, sinks)


def _check_free(store: ObjectStore, release: Release) -> None:
    info = apps.find_app(store, keys.check_name("app", release.keep))
    if info is not None:
        is_like = info.origin is not None and info.origin.app == release.app
        raise Refused(
            f"app {info.name!r} exists already: --keep takes a name that no app has",
            hint=f"if a trial that was interrupted left it: slackwater clone rm {info.name}" if is_like else "",
        )


def _check_order(release: Release, start: Cut, end: Cut) -> None:
    for cut, ref in ((start, release.start), (end, release.end)):
        if cut.app != release.app:
            raise Usage(f"{ref} is a moment of {cut.app}, and {release.app} is tried")
    resets = {
        f"{stage}@v{made.version}": name
        for stage, head in end.stages.items()
        for name, read in head.inputs.items()
        for made in read.resets
        if made.version > start.versions.get(stage, 0)
    }
    if resets:
        at, name = next(iter(resets.items()))
        raise Refused(
            f"{name} was reset in between, by {at}: what {release.app} has read there is no one stretch of the topic",
            hint=f"choose both moments before it, or both after: `slackwater log {release.app}` shows it",
        )
    if start.versions == end.versions or any(end.versions.get(each, 0) < at for each, at in start.versions.items()):
        raise Usage(
            f"{release.end} is not after {release.start}: expected a span in which {release.app} has read something",
            hint=f"--from an earlier moment: `slackwater log {release.app}` shows what there is",
        )


def _counterparts(old: App, release: Release) -> tuple[str, ...]:
    """The stages of the program of before that run, for those that are tried. One that is new has none."""
    former = {new: old for old, new in release.stages.items()}
    called = [former.get(name, name) for name in release.only]
    return up_to(old, [name for name in called if name in old.stages] or called)


Ends = Mapping[str, tuple[int, ...]]
"""How far users' topics are to be read, by topic and Kafka partition."""


def in_all_to_read(cut: Cut, stages: Collection[str], ends: Ends) -> int | None:
    """How many offsets these stages have to read of users' topics; None where one reads what has no end given."""
    read = _inputs(cut, stages)
    known = {*stages} <= cut.stages.keys() and all(one.topic in ends for one in read)
    return sum(left(one, ends) for one in read) if known else None


def check_reached(cut: Cut, stages: Collection[str], ends: Ends, what: str) -> None:
    """See that nothing is left to read of what has an end: else what differs would say nothing.

    Raises `Refused`, which begins with `what` program it is.
    """
    short = [f"{more:,} of {one.topic}" for one in _inputs(cut, stages) if (more := left(one, ends))]
    if short:
        raise Refused(
            f"{what} ended before it had read all that the app has read, so nothing is compared; left: "
            f"{', '.join(short)}",
            hint="the same command begins anew",
        )


def _inputs(cut: Cut, stages: Collection[str]) -> tuple[Input, ...]:
    return tuple(users_inputs(cut.stages[name] for name in cut.stages.keys() & {*stages}))
