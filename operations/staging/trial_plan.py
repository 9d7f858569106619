"""Plan of a trial: checks that need no Spark, and the part of the input that the trial replays."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ...common import instants
from ...errors import Refused, Usage
from ...pipeline.api.app import App
from ...pipeline.api.stage import Stage
from ...pipeline.batch.schemas import StageSchemas
from ...pipeline.run.program import load_app
from ...pipeline.spark.plans import filter_by_share
from ...snapshot.change.switch import highest_offsets, input_lag, users_inputs
from ...snapshot.cut.graph import Cut
from ...snapshot.cut.in_flight import in_flight
from ...snapshot.cut.resolve import resolve
from ...snapshot.diff.moments import check_expected_queries
from ...store.objects.protocol import ObjectStore
from ...store.sst.hashing import SHARE_GRANULARITY, KeyShare
from ...store.versions import apps, keys
from ...store.versions.manifest import Input, Table


@dataclass(frozen=True, slots=True)
class Release:
    """Changed program, and the two moments between which a trial replays the input."""

    app: str
    code: str
    start: str
    end: str
    before: str = ""
    keep: str = ""
    allow: tuple[str, ...] = ()
    """Queries that return the keys of expected differences, in the syntax of `snapshot.diff.moments`."""
    only: tuple[str, ...] = ()
    sample: Sample | None = None
    renames: Mapping[str, str] = field(default_factory=dict)
    stages: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TrialPlan:
    """Plan of a trial that passed the checks."""

    release: Release
    start: Cut
    end: Cut
    ends: EndOffsets
    new: App
    new_stages: tuple[str, ...]
    old: App | None
    old_stages: tuple[str, ...]
    sinks: frozenset[str]


def make_plan(store: ObjectStore, release: Release) -> TrialPlan:
    """Plan a trial. Starts no Spark, and changes nothing.

    Raises:
        Usage: the second moment is not after the first, a query of `allow` is invalid, or a file is not a program.
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
    new_stages = with_upstream(new, release.only)
    tables: dict[str, Table | None] = {release.stages.get(name, name): head.table for name, head in end.tables.items()}
    if release.renames:
        # A renamed column's table depends on the program's schemas, which are not known yet.
        tables = dict.fromkeys(tables)
    stateful = {stage.name: None for stage in new.stages_in_order() if stage.state is not None}
    check_expected_queries(release.allow, stateful | tables)
    heads = tuple(end.stages.values())
    ends = highest_offsets(heads)
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
            f"{name} was reset between the two moments, by version {at}, so the input of {release.app} is not one "
            "continuous span of the topic",
            hint=f"choose both moments before the reset, or both after: see `slackwater log {release.app}`",
        )
    if start.versions == end.versions or any(end.versions.get(stage, 0) < at for stage, at in start.versions.items()):
        raise Usage(
            f"{release.end} is not after {release.start}: {release.app} read nothing between them",
            hint=f"choose an earlier --from: see `slackwater log {release.app}`",
        )


def _counterparts(old: App, release: Release) -> tuple[str, ...]:
    former = {new: old for old, new in release.stages.items()}
    called = [former.get(name, name) for name in release.only]
    return with_upstream(old, [name for name in called if name in old.stages] or called)


EndOffsets = Mapping[str, tuple[int, ...]]
"""End offsets of users' topics, by topic and Kafka partition."""


def count_unread(cut: Cut, stages: Collection[str], ends: EndOffsets) -> int | None:
    """Return the number of offsets that these stages have not read yet; None if an end offset is unknown."""
    read = _inputs(cut, stages)
    has_ends = {*stages} <= cut.stages.keys() and all(source.topic in ends for source in read)
    return sum(input_lag(source, ends) for source in read) if has_ends else None


def check_reached(cut: Cut, stages: Collection[str], ends: EndOffsets, program: str) -> None:
    """Raise `Refused` if a program stopped before its end offsets. The error message begins with `program`."""
    short = [f"{more:,} of {source.topic}" for source in _inputs(cut, stages) if (more := input_lag(source, ends))]
    if short:
        raise Refused(
            f"{program} stopped before it had read all input, so nothing is compared; unread: {', '.join(short)}",
            hint="repeat the command",
        )


def _inputs(cut: Cut, stages: Collection[str]) -> tuple[Input, ...]:
    return tuple(users_inputs(cut.stages[name] for name in cut.stages.keys() & {*stages}))


if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class Sample:
    """Share of all keys, chosen by hash: the first `parts` of `SHARE_GRANULARITY` equal hash intervals."""

    parts: int

    @classmethod
    def parse(cls, text: str) -> Sample:
        """Parse a share such as `1%`. Raises `Usage` outside of 0.01% to 100%."""
        number = text.strip().removesuffix("%")
        try:
            parts = round(float(number) * SHARE_GRANULARITY / 100)
        except ValueError:
            parts = 0
        if not text.strip().endswith("%") or not 1 <= parts <= SHARE_GRANULARITY:
            raise Usage(f"--keys is {text!r}; expected a share of all keys from 0.01% to 100%, such as 1%")
        return cls(parts)


def restrict_to_sample(
    app: App, shapes: Mapping[str, StageSchemas], names: Collection[str], sample: Sample
) -> tuple[App, dict[str, KeyShare]]:
    """Restrict a program to a sample of keys. Returns the program, and the fraction of keys by stage.

    Only the stages `names` are restricted. Raises `Refused` if a stage would receive only some of the records of a key.
    Also raises `Refused` if a stage depends on a watermark, because the watermark advances with rows of all keys.
    """
    by: dict[str, tuple[str, ...]] = {}
    stages = dict(app.stages)
    for stage in app.stages_in_order():
        if stage.name not in names:
            continue
        if shapes[stage.name].watermarks or shapes[stage.name].inputs_with_watermark:
            raise _mixed_keys(stage, "depends on a watermark, which rows of all keys advance")
        parent_keys = set(_parent_keys(app, stage, by))
        if len(parent_keys) > 1:
            raise _mixed_keys(stage, "reads sampled rows together with rows of all keys")
        (parent_key,) = parent_keys
        if stage.state is None:
            by[stage.name] = parent_key
        elif not parent_key:
            by[stage.name] = key = app.key_of(stage)
            stages[stage.name] = replace(stage, transform=_sampled_transform(stage, KeyShare(key, sample.parts)))
        elif {*parent_key} <= {*app.key_of(stage)}:
            by[stage.name] = parent_key
        else:
            fact = f"has the key ({', '.join(app.key_of(stage))}), of which it would get only some records"
            raise _mixed_keys(stage, f"{fact}: rows are sampled by ({', '.join(parent_key)})")
    tables = {name: KeyShare(key, sample.parts) for name, key in by.items() if app.stages[name].state is not None}
    return App(app.name, stages, app.file), tables


def _parent_keys(app: App, stage: Stage, by: Mapping[str, tuple[str, ...]]) -> Iterator[tuple[str, ...]]:
    for writer in app.input_writers(stage).values():
        yield by[writer] if writer else ()


def _sampled_transform(stage: Stage, share: KeyShare) -> Any:
    def transform(*frames: DataFrame) -> Any:
        result = stage.transform(*frames)
        return (
            tuple(filter_by_share(frame, share) for frame in result)
            if isinstance(result, tuple)
            else filter_by_share(result, share)
        )

    return transform


def _mixed_keys(stage: Stage, why: str) -> Refused:
    return Refused(
        f"stage {stage.name!r} {why}",
        hint="use --stage NAME for an earlier stage, or leave out --keys",
    )


def with_upstream(app: App, names: Collection[str]) -> tuple[str, ...]:
    """Return the stages `names` and all stages upstream of them, upstream first.

    If `names` is empty, returns all stages. Raises the errors of `select_stages`.
    """
    selected = {stage.name for stage in app.select_stages(tuple(names))}
    for stage in reversed(app.stages_in_order()):
        if stage.name in selected:
            selected |= {writer for writer in app.input_writers(stage).values() if writer}
    return tuple(stage.name for stage in app.stages_in_order() if stage.name in selected)
