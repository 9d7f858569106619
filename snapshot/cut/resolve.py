"""From a ref to a consistent cut."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from typing import TypeVar

from ...common import instants
from ...errors import Corruption, MomentGone, NotFound, SlackwaterError
from ...store.objects.protocol import ObjectStore
from ...store.versions import history, horizon
from ...store.versions.forgotten import index as forgotten
from ...store.versions.manifest import Manifest
from .graph import Cut
from .line import newest_first
from .moments import cut_around, cut_of_time, heads_of, newest, newest_cut, read_version, retired_since, stages_of
from .refs import AtTime, Back, Latest, Named, Ref, Version, parse
from .stored import of_snapshot, read_snapshot

T = TypeVar("T")


def resolve(store: ObjectStore, text: str, *, now_ms: int) -> Cut:
    """The consistent cut that a ref names, as one who looks at that moment sees it.

    `now_ms` is what relative times count from. Raises `Usage` (`text` is no ref) and `NotFound` (there is no such app,
    stage, snapshot or version, or the app's history begins later).
    """
    ref = parse(text, now_ms=now_ms)
    return _as_seen(cut_at(store, ref), ref, now_ms)


def resolve_around(store: ObjectStore, text: str, *, now_ms: int) -> tuple[Cut, Corruption | None]:
    """The cut that a ref names, for reading: a ref to one stage names just that one where another one is damaged.

    Returns:
        The cut, and the damage that other stages were left out for, None when there is none.

    Raises `Corruption` (a manifest that is needed is damaged). Others as `resolve`.
    """
    ref, damage = parse(text, now_ms=now_ms), None
    try:
        cut = cut_at(store, ref)
    except Corruption as error:
        if not ref.stage:
            others = f"stages that are whole can be read by themselves, as {ref.app}/STAGE"
            error.hint = f"{error.hint}; {others}" if error.hint else others
            raise
        damage = error
    if damage is not None:
        cut = cut_at(store, ref, alone=True)
    return _as_seen(cut, ref, now_ms), damage


def _as_seen(cut: Cut, ref: Ref, now_ms: int) -> Cut:
    """The cut as one who looks at the ref's moment sees it: rows go on expiring until then, but not in the future."""
    match ref.moment:
        case Latest():
            return replace(cut, seen_ms=now_ms)
        case AtTime(time_ms):
            return replace(cut, seen_ms=min(time_ms, now_ms))
        case _:
            return cut


@contextmanager
def telling_if_collected(store: ObjectStore, cut: Cut) -> Iterator[None]:
    """Reading a cut, which garbage collection may take meanwhile: then that is said, and not that something is missing.

    Raises `NotFound` when reading failed, and a version of the cut is collected, or about to be; else as reading does.
    """
    try:
        yield
    except SlackwaterError as error:
        limit = horizon.newest(store, cut.app)
        read = ((each.stage, each.version) for each in cut.stages.values())
        gone = [f"{stage}@v{version}" for stage, version in read if not limit.allows(stage, version)]
        if not gone:
            raise
        raise MomentGone(
            f"moment of app {cut.app!r}",
            cut.ref,
            found=f"{', '.join(gone)} went while it was read: retention does not keep it any more (slackwater gc)",
            hint=f"choose a later moment; `slackwater snapshot take {cut.app} NAME --instant` keeps one from going",
        ) from error


def again_if_forgotten(store: ObjectStore, app: str, read: Callable[[], T]) -> T:
    """What reading an app's versions gives; once more where it failed, and keys were forgotten meanwhile.

    Then objects that it had the names of are gone, and there are others in their place. Raises as `read`.
    """
    while True:
        before = forgotten.peek(store, app).number
        try:
            return read()
        except SlackwaterError:
            if forgotten.newest(store, app).number == before:
                raise


def as_known(store: ObjectStore, cut: Cut) -> Cut:
    """A cut from before with the SSTs that have its rows now, as far as this process knows; mostly the very same."""
    index = forgotten.peek(store, cut.app)
    stages = {stage: index.of(manifest) for stage, manifest in cut.stages.items()}
    if all(stages[stage] is manifest for stage, manifest in cut.stages.items()):
        return cut
    return replace(cut, stages=stages)


def cut_at(store: ObjectStore, ref: Ref, *, alone: bool = False) -> Cut:
    """The consistent cut of a parsed ref: always of the whole app, also for a ref to one stage.

    Of a moment before a stage was renamed, a ref under its name of now means the stage as it was called then. `alone`
    gives the ref's stage only, without a look at others. Raises `NotFound` (there is no such app, stage, snapshot or
    version, or the app's history begins later).
    """
    app, stage = ref.app, ref.stage
    stages = (stage,) if alone else stages_of(store, app, stage)
    chosen = (stage,) if stage else stages
    found: Cut | Manifest | None
    match ref.moment:
        case Latest():
            found = newest(store, app, stages).get(stage) if alone else newest_cut(store, app, stages, stage)
        case AtTime(time_ms) if alone:
            found = history.latest_at(store, app, stage, time_ms)
        case AtTime(time_ms):
            found = cut_of_time(store, app, stages, time_ms, stage)
        case Back(commits):
            found = _back(store, ref, chosen, commits)
        case Version(version):
            found = read_version(store, app, stage, version)
        case Named(name):
            snapshot = read_snapshot(store, app, name)
            version = snapshot.stages.get(stage, 0)
            found = history.find(store, app, stage, version) if alone else of_snapshot(store, snapshot)
    if alone and isinstance(found, Manifest):
        return Cut(app, {stage: found})
    cut = cut_around(store, stages, found) if isinstance(found, Manifest) else found or Cut(app, {})
    there = cut.stages
    if there and stage and stage not in there:
        there = cut.under_names_of(heads_of(store, app, (stage,))).stages
    if not there or (stage and stage not in there):
        raise _too_early(store, ref, chosen)
    return cut


def _back(store: ObjectStore, ref: Ref, stages: tuple[str, ...], commits: int) -> Manifest:
    def has_data(commit: Manifest) -> bool:
        # A batch may have read nothing but a marker. A first version that brings data is where the history begins.
        return commit.has_read or commit.traits.brings_rows

    line = newest_first(store, ref.app, newest(store, ref.app, stages))
    found = list(islice(filter(has_data, line), commits + 1))
    if len(found) <= commits:
        where = f"{ref.app}/{ref.stage}" if ref.stage else ref.app
        many = f"{len(found)} commits of data, ~0 to ~{len(found) - 1}" if found[1:] else "1 commit of data, ~0"
        raise NotFound(
            "moment",
            ref.text,
            found=f"{where} has {many if found else 'no commit of data yet'}",
            hint=f"`slackwater log {ref.app}` shows them",
        )
    return found[commits]


def _too_early(store: ObjectStore, ref: Ref, stages: tuple[str, ...]) -> NotFound:
    where = f"{ref.app}/{ref.stage}" if ref.stage else ref.app
    limit = horizon.newest(store, ref.app)
    firsts = [(stage, history.first_version(store, ref.app, stage)) for stage in (limit.first or stages)]
    times = [history.read(store, ref.app, stage, version).time_ms for stage, version in firsts if version]
    if not times:
        found, hint = f"{where} has no version yet", "`slackwater run` starts it"
    elif not ref.stage and (last := retired_since(store, ref.app, stages)):
        found = f"every stage of {ref.app} was retired by {_shown(last)}"
        hint = f"{ref.app}/STAGE is the last of a stage; {ref.app}@{_shown(last - 1)} is before that"
    elif limit.first:
        whole, left = _shown(max(times)), [_shown(moment.time_ms) for moment in limit.moments]
        before = f"; before that, {len(left)} moments are left, from {left[0]} to {left[-1]}" if left else ""
        found = f"the history of {ref.app} is whole from {whole} on{before}"
        hint = f"the earliest is {where}@{left[0] if left else whole}; older versions were collected (slackwater gc)"
    else:
        found = f"the history of {where} begins at {_shown(min(times))}"
        hint = f"the earliest is {where}@{_shown(min(times))}"
    return (MomentGone if limit.first else NotFound)("moment", ref.text, found=found, hint=hint)


def _shown(time_ms: int) -> str:
    """A time as a ref takes it: to the millisecond, so that the very moment is found."""
    return instants.iso(time_ms, "milliseconds")
