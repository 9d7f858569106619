"""From a ref to a consistent cut."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice

from ... import instants
from ...errors import Corruption, NotFound, SlackwaterError
from ...store.objects.protocol import ObjectStore
from ...store.versions import history, horizon
from ...store.versions.manifest import Manifest
from . import moments
from .graph import Cut, carries_data
from .line import newest_first
from .moments import cut_around, cut_of_time, newest, newest_cut, retired_since, stages_of
from .refs import AtTime, Back, Latest, Named, Ref, Version, parse
from .stored import of_snapshot, read_snapshot


def resolve(store: ObjectStore, text: str, *, now_ms: int) -> Cut:
    """The consistent cut that a ref names, as one who looks at that moment sees it.

    `now_ms` is what relative times count from.

    Raises:
        Usage: `text` is no ref.
        NotFound: there is no such app, stage, snapshot or version, or the app's history begins later.
    """
    ref = parse(text, now_ms=now_ms)
    return _as_seen(cut_at(store, ref), ref, now_ms)


def resolve_around(store: ObjectStore, text: str, *, now_ms: int) -> tuple[Cut, Corruption | None]:
    """As `resolve`, for reading; where a manifest of another stage is damaged, a ref to one stage names just that one.

    Returns:
        The cut, and the damage that other stages were left out for, None when there is none.

    Raises:
        Corruption: a manifest that is needed is damaged. Others as of `resolve`.
    """
    ref = parse(text, now_ms=now_ms)
    try:
        return _as_seen(cut_at(store, ref), ref, now_ms), None
    except Corruption as error:
        if not ref.stage:
            others = f"stages that are whole can be read by themselves, as {ref.app}/STAGE"
            error.hint = f"{error.hint}; {others}" if error.hint else others
            raise
        commit = _commit_of(store, ref)
        if commit is None:
            raise _too_early(store, ref, (ref.stage,)) from None
        return _as_seen(Cut(ref.app, {ref.stage: commit}), ref, now_ms), error


def _as_seen(cut: Cut, ref: Ref, now_ms: int) -> Cut:
    """The cut as one who looks at the ref's moment sees it: rows go on expiring until then, but not in the future."""
    match ref.moment:
        case Latest():
            seen_ms = now_ms
        case AtTime(time_ms):
            seen_ms = min(time_ms, now_ms)
        case _:
            seen_ms = 0
    return replace(cut, seen_ms=seen_ms)


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
        raise NotFound(
            f"moment of app {cut.app!r}",
            cut.ref,
            found=f"{', '.join(gone)} went while it was read: retention does not keep it any more (slackwater gc)",
            hint=f"choose a later moment; `slackwater snapshot take {cut.app} NAME --instant` keeps one from going",
        ) from error


def cut_at(store: ObjectStore, ref: Ref) -> Cut:
    """The consistent cut of a parsed ref: always of the whole app, also for a ref to one stage.

    Of a moment before a stage was renamed, a ref under its name of now means the stage as it was called then.

    Raises:
        NotFound: there is no such app, stage, snapshot or version, or the app's history begins later.
    """
    stages = stages_of(store, ref.app, ref.stage)
    chosen = (ref.stage,) if ref.stage else stages
    match ref.moment:
        case Latest():
            cut = newest_cut(store, ref.app, stages, ref.stage)
        case AtTime(time_ms):
            cut = cut_of_time(store, ref.app, stages, time_ms, ref.stage)
        case Back(commits):
            cut = cut_around(store, stages, _back(store, ref, chosen, commits))
        case Version(version):
            cut = cut_around(store, stages, moments.read_version(store, ref.app, ref.stage, version))
        case Named(name):
            cut = of_snapshot(store, read_snapshot(store, ref.app, name))
    if not cut.stages or (ref.stage and not moments.is_there(store, cut, ref.stage)):
        raise _too_early(store, ref, chosen)
    return cut


def _commit_of(store: ObjectStore, ref: Ref) -> Manifest | None:
    """The commit of its stage that a ref names, without a look at other stages."""
    match ref.moment:
        case Latest():
            return history.head(store, ref.app, ref.stage)
        case AtTime(time_ms):
            return history.latest_at(store, ref.app, ref.stage, time_ms)
        case Back(commits):
            return _back(store, ref, (ref.stage,), commits)
        case Version(version):
            return moments.read_version(store, ref.app, ref.stage, version)
        case Named(name):
            version = read_snapshot(store, ref.app, name).stages.get(ref.stage, 0)
            return history.find(store, ref.app, ref.stage, version)


def _back(store: ObjectStore, ref: Ref, stages: tuple[str, ...], commits: int) -> Manifest:
    # A first version that brings data is where the history begins.
    line = newest_first(store, ref.app, newest(store, ref.app, stages))
    with_data = (m for m in line if carries_data(m) or m.begins_with_rows)
    found = list(islice(with_data, commits + 1))
    if len(found) <= commits:
        where = f"{ref.app}/{ref.stage}" if ref.stage else ref.app
        raise NotFound(
            "moment",
            ref.text,
            found=f"{where} has {len(found)} commits of data" + (f", ~0 to ~{len(found) - 1}" if found else " yet"),
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
    return NotFound("moment", ref.text, found=found, hint=hint)


def _shown(time_ms: int) -> str:
    """A time as a ref takes it: to the millisecond, so that the very moment is found."""
    return instants.iso(time_ms, "milliseconds")
