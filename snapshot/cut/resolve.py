"""Resolve refs to consistent cuts, and guard reads of a cut against garbage collection and forgotten keys."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from typing import TypeVar

from ...common import instants
from ...errors import Corruption, MomentGone, NotFound, SlackwaterError
from ...store.objects.protocol import ObjectStore
from ...store.versions import forgotten, history, horizon
from ...store.versions.manifest import Manifest
from .graph import Cut
from .line import commits_newest_first
from .moments import (
    cut_at_commit,
    cut_of_time,
    heads_of,
    newest_cut,
    newest_versions,
    read_version,
    retired_since,
    stages_of,
)
from .refs import AtTime, AtVersion, CommitsBack, Latest, NamedSnapshot, Ref, parse_ref
from .stored import cut_of_snapshot, read_snapshot

T = TypeVar("T")


def resolve(store: ObjectStore, text: str, *, now_ms: int) -> Cut:
    """Return the consistent cut that a ref names; rows that expired by the ref's moment are hidden.

    Relative times count from `now_ms`. Raises `Usage` (`text` is no ref) and `NotFound` (the app, stage, snapshot or
    version does not exist, or the app's history begins later).
    """
    ref = parse_ref(text, now_ms=now_ms)
    return _with_expiry(cut_of_ref(store, ref), ref, now_ms)


def resolve_despite_damage(store: ObjectStore, text: str, *, now_ms: int) -> tuple[Cut, Corruption | None]:
    """Return the cut that a ref names. If other stages are damaged, a ref to a single stage is resolved without them.

    Returns:
        Two values: the cut, and the error because of which other stages were left out, or None.

    Raises `Corruption` if a required manifest is damaged, and the errors of `resolve`.
    """
    ref, damage = parse_ref(text, now_ms=now_ms), None
    try:
        cut = cut_of_ref(store, ref)
    except Corruption as error:
        if not ref.stage:
            advice = f"undamaged stages can be read one by one, as {ref.app}/STAGE"
            error.hint = f"{error.hint}; {advice}" if error.hint else advice
            raise
        damage = error
    if damage is not None:
        cut = cut_of_ref(store, ref, only_stage=True)
    return _with_expiry(cut, ref, now_ms), damage


def _with_expiry(cut: Cut, ref: Ref, now_ms: int) -> Cut:
    match ref.moment:
        case Latest():
            return replace(cut, seen_ms=now_ms)
        case AtTime(time_ms):
            return replace(cut, seen_ms=min(time_ms, now_ms))
        case _:
            return cut


@contextmanager
def report_if_collected(store: ObjectStore, cut: Cut) -> Iterator[None]:
    """Context manager for reading a cut: turns an error that garbage collection caused into `NotFound`.

    If no version of the cut was collected or is about to be collected, the error is raised unchanged.
    """
    try:
        yield
    except SlackwaterError as error:
        limit = horizon.newest(store, cut.app)
        read = ((manifest.stage, manifest.version) for manifest in cut.stages.values())
        gone = [f"{stage}@v{version}" for stage, version in read if not limit.allows(stage, version)]
        if not gone:
            raise
        raise MomentGone(
            f"moment of app {cut.app!r}",
            cut.ref,
            found=f"{', '.join(gone)} was garbage-collected while it was read: retention does not keep it",
            hint=f"choose a later moment; `slackwater snapshot take {cut.app} NAME --instant` keeps a moment",
        ) from error


def retry_if_forgotten(store: ObjectStore, app: str, read: Callable[[], T]) -> T:
    """Return the result of `read`. If `read` fails because keys were forgotten meanwhile, calls it again.

    Forgetting keys replaces objects, so `read` may have used names of replaced objects. Raises the errors of `read`.
    """
    while True:
        known_number = forgotten.cached_index(store, app, at_least=None).number
        try:
            return read()
        except SlackwaterError:
            if forgotten.newest(store, app).number == known_number:
                raise


def apply_known_forgets(store: ObjectStore, cut: Cut) -> Cut:
    index = forgotten.cached_index(store, cut.app, at_least=None)
    stages = {stage: index.apply_to(manifest) for stage, manifest in cut.stages.items()}
    if all(stages[stage] is manifest for stage, manifest in cut.stages.items()):
        return cut
    return replace(cut, stages=stages)


def cut_of_ref(store: ObjectStore, ref: Ref, *, only_stage: bool = False) -> Cut:
    """Return the consistent cut of a parsed ref, with all stages of the app, even if the ref names a single stage.

    A new name of a stage also works for moments before it was renamed. With `only_stage`, reads and returns only the
    stage that the ref names. Raises `NotFound` (the app, stage, snapshot or version does not exist, or the app's
    history begins later).
    """
    app, stage = ref.app, ref.stage
    stages = (stage,) if only_stage else stages_of(store, app, stage)
    selected = (stage,) if stage else stages
    target: Cut | Manifest | None
    match ref.moment:
        case Latest():
            target = (
                newest_versions(store, app, stages).get(stage) if only_stage else newest_cut(store, app, stages, stage)
            )
        case AtTime(time_ms) if only_stage:
            target = history.latest_at(store, app, stage, time_ms, with_leaves=True)
        case AtTime(time_ms):
            target = cut_of_time(store, app, stages, time_ms, stage)
        case CommitsBack(commits):
            target = _commits_back(store, ref, selected, commits)
        case AtVersion(version):
            target = read_version(store, app, stage, version)
        case NamedSnapshot(name):
            snapshot = read_snapshot(store, app, name)
            version = snapshot.stages.get(stage, 0)
            target = history.find(store, app, stage, version) if only_stage else cut_of_snapshot(store, snapshot)
    if only_stage and isinstance(target, Manifest):
        return Cut(app, {stage: target})
    cut = cut_at_commit(store, stages, target) if isinstance(target, Manifest) else target or Cut(app, {})
    present = cut.stages
    if present and stage and stage not in present:
        present = cut.with_renamed_stages(heads_of(store, app, (stage,))).stages
    if not present or (stage and stage not in present):
        raise _too_early(store, ref, selected)
    return cut


def _commits_back(store: ObjectStore, ref: Ref, stages: tuple[str, ...], commits: int) -> Manifest:
    def has_data(commit: Manifest) -> bool:
        # A batch may have read only a marker. A first version with rows counts as a data commit.
        return commit.has_read or commit.traits.brings_rows

    line = commits_newest_first(store, ref.app, newest_versions(store, ref.app, stages))
    commits_back = list(islice(filter(has_data, line), commits + 1))
    if len(commits_back) <= commits:
        where = f"{ref.app}/{ref.stage}" if ref.stage else ref.app
        many = (
            f"{len(commits_back)} data commits, ~0 to ~{len(commits_back) - 1}"
            if commits_back[1:]
            else "1 commit of data, ~0"
        )
        raise NotFound(
            "moment",
            ref.text,
            found=f"{where} has {many if commits_back else 'no commit of data yet'}",
            hint=f"`slackwater log {ref.app}` lists them",
        )
    return commits_back[commits]


def _too_early(store: ObjectStore, ref: Ref, stages: tuple[str, ...]) -> NotFound:
    where = f"{ref.app}/{ref.stage}" if ref.stage else ref.app
    limit = horizon.newest(store, ref.app)
    firsts = [(stage, history.first_version(store, ref.app, stage)) for stage in (limit.first or stages)]
    times = [history.read(store, ref.app, stage, version).time_ms for stage, version in firsts if version]
    if not times:
        reason, hint = f"{where} has no version yet", "`slackwater run` starts it"
    elif not ref.stage and (last := retired_since(store, ref.app, stages)):
        reason = f"every stage of {ref.app} was retired by {_shown(last)}"
        hint = f"{ref.app}/STAGE is the last moment of a stage; {ref.app}@{_shown(last - 1)} is before that"
    elif limit.first:
        begin, remaining = _shown(max(times)), [_shown(moment.time_ms) for moment in limit.moments]
        earlier = (
            f"; before that, {len(remaining)} moments remain, from {remaining[0]} to {remaining[-1]}"
            if remaining
            else ""
        )
        reason = f"the history of {ref.app} is complete from {begin} on{earlier}"
        earliest = remaining[0] if remaining else begin
        hint = f"the earliest is {where}@{earliest}; older versions were collected (slackwater gc)"
    else:
        reason = f"the history of {where} begins at {_shown(min(times))}"
        hint = f"the earliest is {where}@{_shown(min(times))}"
    return (MomentGone if limit.first else NotFound)("moment", ref.text, found=reason, hint=hint)


def _shown(time_ms: int) -> str:
    return instants.format_iso(time_ms, "milliseconds")
