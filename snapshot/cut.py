"""From a ref to a consistent cut.

Every manifest says what it consumed and what it produced, so any moment is a consistent cut after the fact:
take each stage's version of that moment and raise every sender to what its receivers had consumed (Chandy and
Lamport 1985: nothing is received that was not sent).
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from itertools import islice

from ..store import apps, boundary, history
from ..store.boundary import Boundary, Moment
from ..store.errors import Corruption, NotFound, SlackwaterError
from ..store.manifest import Manifest
from ..store.objects import ObjectStore
from .refs import AtTime, Back, Latest, Named, Ref, Version, parse
from .snapshots import of_snapshot, read_snapshot
from .timeline import newest_first, newest_where
from .topology import Cut, carries_data, consumed, descendants, order, violations

__all__ = [
    "Cut",
    "consistent",
    "cut_at",
    "first_cut",
    "lower_receivers",
    "order",
    "raise_senders",
    "resolve",
    "resolve_around",
    "stages_of",
    "telling_if_collected",
]


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
        return _as_seen(Cut(ref.app, {ref.stage: _alone(store, ref)}), ref, now_ms), error


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


def _alone(store: ObjectStore, ref: Ref) -> Manifest:
    """The version of a ref to one stage, without a look at the others."""
    match ref.moment:
        case Latest():
            found = history.head(store, ref.app, ref.stage)
        case AtTime(time_ms):
            found = history.latest_at(store, ref.app, ref.stage, time_ms)
        case Back(commits):
            found = _back(store, ref, (ref.stage,), commits)
        case Version(version):
            found = history.read(store, ref.app, ref.stage, version)
        case Named(name):
            version = read_snapshot(store, ref.app, name).stages.get(ref.stage, 0)
            found = history.find(store, ref.app, ref.stage, version)
    if found is None:
        raise _too_early(store, ref, (ref.stage,))
    return found


@contextmanager
def telling_if_collected(store: ObjectStore, cut: Cut) -> Iterator[None]:
    """Reading a cut, which garbage collection may take meanwhile: then that is said, and not that something is missing.

    Raises:
        NotFound: reading failed, and a version of the cut is collected, or about to be. Others as reading raises.
    """
    try:
        yield
    except SlackwaterError as error:
        limit = boundary.newest(store, cut.app)
        gone = [f"{stage}@v{v}" for stage, v in cut.versions.items() if limit and not limit.allows(stage, v)]
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

    Raises:
        NotFound: there is no such app, stage, snapshot or version, or the app's history begins later.
    """
    stages = stages_of(store, ref.app)
    chosen = stages_of(store, ref.app, ref.stage) if ref.stage else stages
    match ref.moment:
        case Latest():
            cut = _latest(store, ref.app, stages)
        case AtTime(time_ms):
            pinned = history.latest_at(store, ref.app, ref.stage, time_ms) if ref.stage else None
            cut = _instant(store, ref.app, stages, time_ms, pinned)
        case Back(commits):
            cut = _around(store, stages, _back(store, ref, chosen, commits))
        case Version(version):
            cut = _around(store, stages, history.read(store, ref.app, ref.stage, version))
        case Named(name):
            cut = of_snapshot(store, read_snapshot(store, ref.app, name))
    if not cut.stages or (ref.stage and ref.stage not in cut.stages):
        raise _too_early(store, ref, chosen)
    return cut


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


def consistent(cut: Cut) -> bool:
    """Whether nothing is consumed in the cut that was not sent in it."""
    return not violations(cut.stages)


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


def raise_senders(stages: Mapping[str, Manifest], read: Callable[[str, int], Manifest]) -> dict[str, Manifest]:
    """The least consistent cut with each of these versions or a later one. `read` gets a stage's version."""
    raised = dict(stages)
    settled = False
    while not settled:
        settled = True
        # Receivers first: a raised sender may itself have consumed more.
        for receiver in reversed(order(raised)):
            for sender, version in consumed(raised[receiver]).items():
                if version > (raised[sender].version if sender in raised else 0):
                    raised[sender] = read(sender, version)
                    settled = False
    return raised


def lower_receivers(
    stages: Mapping[str, Manifest],
    pinned: str,
    read: Callable[[str, int], Manifest],
    first: Callable[[str], int],
) -> dict[str, Manifest]:
    """Take back every stage that got something of `pinned`'s that `pinned` has not sent at its version.

    Versions that were taken by time need it where the clocks of two machines differ. With `raise_senders`
    after it, the result is consistent and has `pinned` exactly as given. `first` is the lowest version a
    stage may go back to; a stage that would have to go further is left out.
    """
    lowered = dict(stages)
    bound = {pinned} | descendants(stages, pinned)
    for receiver in order(stages):
        if receiver == pinned or receiver not in bound:
            continue
        limits = {stage: lowered[stage].version if stage in lowered else 0 for stage in bound}

        def within(manifest: Manifest, limits: dict[str, int] = limits) -> bool:
            return all(version <= limits.get(stage, version) for stage, version in consumed(manifest).items())

        reached = lowered.pop(receiver)
        kept = (
            reached
            if within(reached)
            else newest_where(partial(read, receiver), first(receiver), reached.version - 1, within)
        )
        if kept is not None:
            lowered[receiver] = kept
    return lowered


def _reader(store: ObjectStore, app: str) -> Callable[[str, int], Manifest]:
    return partial(history.read, store, app)


def _latest(store: ObjectStore, app: str, stages: tuple[str, ...]) -> Cut:
    heads = {stage: head for stage in stages if (head := history.head(store, app, stage))}
    # The app may be running: a sender read before its receiver may be older than what the receiver consumed
    # since.
    return Cut(app, raise_senders(heads, _reader(store, app)))


def _instant(store: ObjectStore, app: str, stages: tuple[str, ...], time_ms: int, pinned: Manifest | None) -> Cut:
    """Every stage as of `time_ms`, made consistent; `pinned`, a version of then, is in the cut exactly as it is.

    Where the history is not whole any more, the newest cut left that is as old; empty without one.
    """
    found, limit = _as_of(store, app, stages, time_ms)
    if pinned is not None:
        found = _held(store, found, pinned)
    if limit is not None and not _whole(limit, found):
        return _of_moment(store, app, limit.at(time_ms))
    return Cut(app, raise_senders(found, _reader(store, app)))


def _around(store: ObjectStore, stages: tuple[str, ...], commit: Manifest) -> Cut:
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
    return Cut(app, raise_senders(found, _reader(store, app)))


def _as_of(
    store: ObjectStore, app: str, stages: tuple[str, ...], time_ms: int
) -> tuple[dict[str, Manifest], Boundary | None]:
    """Each stage's version of a time, where its history is whole, and what says from where on it is."""
    found = {stage: version for stage in stages if (version := history.latest_at(store, app, stage, time_ms))}
    # After the versions: what was collected while they were searched is said there.
    return found, boundary.newest(store, app)


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


def _back(store: ObjectStore, ref: Ref, stages: tuple[str, ...], commits: int) -> Manifest:
    # A clone's first versions bring its data: they are where its history begins.
    with_data = (m for m in newest_first(store, ref.app, stages) if carries_data(m) or m.kind == "clone")
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
    limit = boundary.newest(store, ref.app)
    lost = limit.first if limit else {}
    firsts = [(stage, history.first_version(store, ref.app, stage)) for stage in (lost or stages)]
    times = [history.read(store, ref.app, stage, version).time_ms for stage, version in firsts if version]
    if not times:
        return NotFound(
            "moment",
            ref.text,
            found=f"{where} has no version yet",
            hint="`slackwater run` starts it",
        )
    if limit is not None and lost:
        whole, left = _shown(max(times)), [_shown(moment.time_ms) for moment in limit.moments]
        before = f"; before that, {len(left)} moments are left, from {left[0]} to {left[-1]}" if left else ""
        return NotFound(
            "moment",
            ref.text,
            found=f"the history of {ref.app} is whole from {whole} on{before}",
            hint=f"the earliest is {where}@{left[0] if left else whole}; older versions were collected (slackwater gc)",
        )
    earliest = _shown(min(times))
    return NotFound(
        "moment",
        ref.text,
        found=f"the history of {where} begins at {earliest}",
        hint=f"the earliest is {where}@{earliest}",
    )


def _shown(time_ms: int) -> str:
    """A time as a ref takes it: to the millisecond, so that the very moment is found."""
    shown = datetime.fromtimestamp(time_ms / 1_000, UTC).isoformat(timespec="milliseconds")
    return shown.replace("+00:00", "Z")
