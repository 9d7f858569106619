"""Consistent cuts of an app's history: the newest, that of a time, that around a commit, the first.

A stage that was retired by then is in none of them, but in those that are asked for by one of its own versions.
"""

from collections.abc import Callable, Mapping
from functools import partial

from msgspec.structs import replace

from ..store import apps, boundary, history
from ..store.boundary import Boundary, Moment
from ..store.errors import NotFound
from ..store.manifest import Manifest
from ..store.objects import ObjectStore
from .consistency import lower_receivers, raise_senders
from .topology import Cut

__all__ = ["cut_around", "cut_of_time", "first_cut", "newest_cut", "retired_since", "stages_of"]


def stages_of(store: ObjectStore, app: str, only: str = "") -> tuple[str, ...]:
    """Names of the app's stages, or `only` that one; empty for an app that never ran.

    Raises:
        NotFound: there is no such app or stage.
    """
    stages = history.list_stages(store, app)
    if not stages:
        apps.read_app(store, app)
    if only and only not in stages:
        raise NotFound(f"stage of app {app!r}", only, stages)
    return (only,) if only else stages


def retired_since(store: ObjectStore, app: str, stages: tuple[str, ...]) -> int:
    """When the last of these stages was retired, milliseconds since 1970 UTC; 0 while one is not, or none has begun."""
    heads = [head for stage in stages if (head := history.head(store, app, stage)) is not None]
    return max((head.time_ms for head in heads), default=0) if all(head.retired for head in heads) else 0


def first_cut(store: ObjectStore, app: str) -> Cut:
    """The cut with the first kept version of every stage, senders raised as far as consistency needs it.

    Stages begin at different times, so this is no moment of the clock, yet nothing in the app's history
    precedes it.

    Raises:
        NotFound: there is no such app.
    """
    firsts = ((stage, history.first_version(store, app, stage)) for stage in stages_of(store, app))
    stages = {stage: history.read(store, app, stage, version) for stage, version in firsts if version}
    return Cut(app, raise_senders(stages, _reader(store, app)))


def newest_cut(store: ObjectStore, app: str, stages: tuple[str, ...]) -> Cut:
    """The newest version of every stage, made consistent."""
    heads = {stage: head for stage in stages if (head := history.head(store, app, stage))}
    # The app may be running: a sender read before its receiver may be older than what the receiver consumed since.
    return Cut(app, raise_senders(_active(heads), _reader(store, app)))


def cut_of_time(store: ObjectStore, app: str, stages: tuple[str, ...], time_ms: int, pinned: Manifest | None) -> Cut:
    """Every stage as of `time_ms`, made consistent; `pinned`, a version of then, is in the cut exactly as it is.

    Where the history is not whole any more, the newest cut left that is as old; empty without one.
    """
    found, limit = _as_of(store, app, stages, time_ms)
    if pinned is not None:
        found = _held(store, found, pinned)
    if limit is not None and not _whole(limit, found):
        return _of_moment(store, app, limit.at(time_ms))
    return Cut(app, raise_senders(found, _reader(store, app)))


def cut_around(store: ObjectStore, stages: tuple[str, ...], commit: Manifest) -> Cut:
    """The cut with `commit` exactly as it is, and every other stage as of its time, made consistent.

    Where the history is not whole any more, a cut of another time that has this commit: of those left the nearest, else
    that in which every stage has its first version of the whole history. Empty without one.
    """
    app = commit.app
    found, limit = _as_of(store, app, stages, commit.time_ms)
    found = _held(store, found, commit)
    if limit is not None and not _whole(limit, found):
        # No moment with this commit is earlier than the commit, so the oldest is the nearest.
        having = (each for each in limit.moments if each.stages.get(commit.stage) == commit.version)
        if (moment := next(having, None)) is not None:
            return _of_moment(store, app, moment)
        firsts = {
            stage: history.read(store, app, stage, first)
            for stage, first in limit.first.items()
            if stage not in found or found[stage].version < first
        }
        # Raised first: what a first version has consumed must be there, as far as the commit itself had sent it.
        found = _held(store, raise_senders(found | firsts, _reader(store, app)), commit)
        if not _whole(limit, found):
            return Cut(app, {})
    found = _active(found) | {commit.stage: commit}
    return Cut(app, raise_senders(found, _reader(store, app)))


def _as_of(
    store: ObjectStore, app: str, stages: tuple[str, ...], time_ms: int
) -> tuple[dict[str, Manifest], Boundary | None]:
    """Each stage's version of a time, where its history is whole, and what says from where on it is.

    Of stages that were retired by then, neither.
    """
    found = {stage: version for stage in stages if (version := history.latest_at(store, app, stage, time_ms))}
    # After the versions: what was collected while they were searched is said there.
    limit, there = boundary.newest(store, app), _active(found)
    if limit is not None:
        first = {stage: version for stage, version in limit.first.items() if stage in there or stage not in found}
        limit = replace(limit, first=first)
    return there, limit


def _active(found: Mapping[str, Manifest]) -> dict[str, Manifest]:
    """These versions without those at which their stage is retired."""
    return {stage: manifest for stage, manifest in found.items() if not manifest.retired}


def _held(store: ObjectStore, found: Mapping[str, Manifest], pinned: Manifest) -> dict[str, Manifest]:
    """These versions with `pinned` among them, and none that has consumed what it has not sent."""
    first = partial(history.first_version, store, pinned.app)
    return lower_receivers({**found, pinned.stage: pinned}, pinned.stage, _reader(store, pinned.app), first)


def _whole(limit: Boundary, stages: Mapping[str, Manifest]) -> bool:
    """Whether every stage that lost versions is there with one of its whole history."""
    return all(stage in stages and stages[stage].version >= first for stage, first in limit.first.items())


def _of_moment(store: ObjectStore, app: str, moment: Moment | None) -> Cut:
    versions = moment.stages if moment else {}
    return Cut(app, {stage: history.read(store, app, stage, version) for stage, version in versions.items()})


def _reader(store: ObjectStore, app: str) -> Callable[[str, int], Manifest]:
    return partial(history.read, store, app)
