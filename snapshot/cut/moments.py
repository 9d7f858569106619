"""Consistent cuts of an app's history: the newest, that of a time, that of a commit.

A stage that was retired by then is in none of them, but in those that are asked for by one of its own versions.

A stage that was renamed (`snapshot.change.migration`) is found by each name that it has and had.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from functools import partial

from ...errors import NotFound
from ...store.objects.protocol import ObjectStore
from ...store.versions import apps, history, horizon
from ...store.versions.horizon import KeptCut
from ...store.versions.manifest import Manifest
from ...store.versions.side_tables import may_have, owner
from .graph import Cut, Thinned, lower_receivers, raise_senders
from .line import Line
from .migrations import MIGRATIONS


def stages_of(store: ObjectStore, app: str, *having: str) -> tuple[str, ...]:
    """Names of the app's stages; empty for an app that never ran.

    Raises `NotFound` when there is no such app, or no stage of a name in `having` that is not empty.
    """
    stages = history.list_stages(store, app)
    if not stages:
        apps.read_app(store, app)
    for stage in filter(None, having):
        if stage not in stages:
            raise NotFound(f"stage of app {app!r}", stage, stages)
    return stages


def retired_since(store: ObjectStore, app: str, stages: tuple[str, ...]) -> int:
    """When the last of these stages was retired, milliseconds since 1970 UTC; 0 while one is not, or none has begun."""
    found = heads_of(store, app, stages).values()
    return max((head.time_ms for head in found), default=0) if all(head.retired for head in found) else 0


def line_of(store: ObjectStore, app: str) -> Line:
    """The app's line up to now, with the versions that retire a stage. Raises `NotFound` when there is no such app."""
    return Line(store, Cut(app, newest(store, app, stages_of(store, app))), horizon.newest(store, app))


def heads_of(store: ObjectStore, app: str, stages: Iterable[str]) -> dict[str, Manifest]:
    """The newest version of each stage, one looked up after the other: of an app that runs, no cut."""
    return {stage: head for stage in stages if (head := history.head(store, app, stage)) is not None}


def newest(store: ObjectStore, app: str, stages: tuple[str, ...]) -> dict[str, Manifest]:
    """The newest versions of all stages, retired or not, made consistent; of one stage alone its own."""
    found = heads_of(store, app, stages)
    # The app may be running: a sender read before its receiver may be older than what the receiver consumed since.
    return raise_senders(found, partial(history.read, store, app)) if len(stages) > 1 else found


def newest_cut(store: ObjectStore, app: str, stages: tuple[str, ...], asked: str = "") -> Cut:
    """The newest version of every stage that is not retired, made consistent.

    If `asked`, a stage, is retired: the cut with which it ended.
    """
    found = newest(store, app, stages)
    if asked in found and found[asked].retired:
        return cut_around(store, stages, found[asked])
    return without_retired(store, app, _settled(store, found))


def newest_settled(store: ObjectStore, app: str) -> dict[str, Manifest]:
    """The newest versions of all stages, retired or not, made consistent, without half a migration."""
    return dict(_settled(store, newest(store, app, stages_of(store, app))))


def cut_of_time(store: ObjectStore, app: str, stages: tuple[str, ...], time_ms: int, asked: str) -> Cut:
    """Every stage as of `time_ms`, made consistent: the commits of the app's line with an effective time up to that.

    Where the history is not whole any more, the newest cut left that is as old; empty without one. If `asked`, a stage,
    was retired by then: the cut with which it ended.
    """
    found = {stage: version for stage in stages if (version := history.latest_at(store, app, stage, time_ms))}
    if asked in found and found[asked].retired:
        return cut_around(store, stages, found[asked])
    # After the versions: what was collected while they were searched is said there.
    limit = horizon.newest(store, app)
    if not limit.is_whole({stage: each.version for stage, each in found.items()}):
        return _of_moment(store, app, limit.at(time_ms), time_ms)
    return without_retired(store, app, _settled(store, found))


def cut_around(store: ObjectStore, stages: tuple[str, ...], commit: Manifest) -> Cut:
    """The prefix of the app's line that ends with `commit`.

    Where the history is not whole any more, a cut of another time that has this commit: of those left the nearest, else
    that in which every stage has its first version of the whole history. Empty without one.
    """
    app = commit.app
    found = Line(store, Cut(app, newest(store, app, stages))).up_to(commit)
    limit = horizon.newest(store, app)
    if limit.is_whole(found.versions):
        return without_retired(store, app, found.stages, commit)
    # No moment with this commit is earlier than the commit, so the oldest is the nearest.
    moments = (each for each in limit.moments if each.stages.get(commit.stage) == commit.version)
    if (moment := next(moments, None)) is not None:
        return _of_moment(store, app, moment, commit.time_ms)
    read, first = partial(history.read, store, app), partial(history.first_version, store, app)
    firsts = {
        stage: read(stage, version)
        for stage, version in limit.first.items()
        if stage not in found.stages or found.stages[stage].version < version
    }
    # Raised first: what a first version has consumed must be there, as far as the commit itself had sent it.
    raised = raise_senders({**found.stages, **firsts}, read)
    raised = lower_receivers({**raised, commit.stage: commit}, commit.stage, read, first)
    if not limit.is_whole(Cut(app, raised).versions):
        return Cut(app, {})
    cut = without_retired(store, app, raised, commit)
    return replace(cut, thinned=Thinned(commit.time_ms, cut.time_ms))


def with_retired(line: Line, cut: Cut) -> Cut:
    """The cut as a place on the line: with the stages that it leaves out because they were retired by then."""
    absent = (head for stage, head in line.heads.stages.items() if stage not in cut.stages)
    retired = {head.stage: then for head in absent if (then := retired_by_then(line.store, cut, head)) is not None}
    return replace(cut, stages={**cut.stages, **retired})


def retired_by_then(store: ObjectStore, cut: Cut, head: Manifest) -> Manifest | None:
    """The version at the cut of a stage that is absent because it was retired; None when it had not begun.

    `head` is the stage's newest version: a clock that is ahead may say that the stage had begun when it had not.
    """
    then = history.latest_at(store, cut.app, head.stage, cut.time_ms)
    return then if then is not None and (then.retired or head.retired) else None


def later_stages(store: ObjectStore, cut: Cut) -> dict[str, Manifest]:
    """The newest version of each stage that has none at the cut, where its history had not begun.

    A stage that was retired by then is absent for another reason, and is none of these. One that had another name then
    is: its history had not begun under this one.
    """
    absent = (stage for stage in history.list_stages(store, cut.app) if stage not in cut.stages)
    found = heads_of(store, cut.app, absent)
    return {stage: head for stage, head in found.items() if retired_by_then(store, cut, head) is None}


def _settled(store: ObjectStore, found: Mapping[str, Manifest]) -> Mapping[str, Manifest]:
    """The versions, without what is done of a migration that is not done in all stages.

    A migration's commits bring no rows, and nothing follows them before the last: what was before is as consistent.
    """
    newest = max((each.migration for each in found.values()), default=0)
    nameless = any(each.called and each.called not in found and each.migration == newest for each in found.values())
    behind = [stage for stage, each in found.items() if each.migration < newest and not each.retired]
    if not behind and not nameless:
        return found
    decided = MIGRATIONS.find(store, newest, next(iter(found.values())).app)
    if not nameless and (decided is None or decided.stages.keys().isdisjoint(behind)):
        return found  # those that are behind began since
    earlier = {stage: _before_migration(store, each, newest) for stage, each in found.items()}
    return {stage: manifest for stage, manifest in earlier.items() if manifest is not None}


def _before_migration(store: ObjectStore, manifest: Manifest, number: int) -> Manifest | None:
    """The last version that did not go through a migration; None of a stage that has its name from that."""
    for each in history.backwards(store, manifest):
        manifest = each
        if manifest.migration != number:
            break
    return None if manifest.migration == number and manifest.former_name else manifest


def without_retired(store: ObjectStore, app: str, found: Mapping[str, Manifest], kept: Manifest | None = None) -> Cut:
    """The cut of these versions, without those at which their stage is retired; `kept` stays all the same."""
    there = {stage: manifest for stage, manifest in found.items() if not manifest.retired or manifest == kept}
    # Where clocks differ, a receiver may seem to be there still when its sender is retired.
    return Cut(app, raise_senders(there, partial(history.read, store, app)))


def _of_moment(store: ObjectStore, app: str, moment: KeptCut | None, asked_ms: int) -> Cut:
    if moment is None:
        return Cut(app, {})
    stages = {stage: history.read(store, app, stage, version) for stage, version in moment.stages.items()}
    same = moment.time_ms <= asked_ms <= moment.until_ms
    return Cut(app, stages, thinned=None if same else Thinned(asked_ms, moment.time_ms))


def called_since(store: ObjectStore, app: str, stage: str) -> str:
    """What a stage is called now that got another name; empty for one that has still its own, or never was."""
    head = history.head(store, app, stage)
    return called_since(store, app, head.called) or head.called if head is not None and head.called else ""


def read_version(store: ObjectStore, app: str, stage: str, version: int) -> Manifest:
    """One version of a stage, also by a name that it got after it. Raises as `history.read`."""
    if (found := history.find(store, app, stage, version)) is not None:
        return found
    head = history.head(store, app, stage)
    try:
        return history.read(store, app, name_at(head, version) if head is not None else stage, version)
    except NotFound as error:
        error.hint = error.hint or hint_of_missing(store, app, stage)
        raise


def name_at(head: Manifest, version: int) -> str:
    """What a stage was called at one of its versions."""
    return next((former.stage for former in head.formerly if version < former.version), head.stage)


def having(store: ObjectStore, cut: Cut, tables: Collection[str]) -> Cut:
    """The cut, in which each of these tables is: one that had another name then is there under both.

    Without such a one nothing is asked of the store. Raises `NotFound` (there is no such table; tells the nearest, and
    what became of one that there was).
    """
    missing = sorted(table for table in set(tables) if cut.table(table) is None)
    if not missing:
        return cut
    stages = history.list_stages(store, cut.app)
    heads = heads_of(store, cut.app, sorted({stage for table in missing for stage in may_have(table, stages)}))
    owners = {owner(table, heads) for table in missing}
    named = cut.under_names_of({stage: head for stage, head in heads.items() if stage in owners})
    for table in missing:
        if table not in named.tables:
            raise NotFound(f"table at {cut.ref}", table, cut.tables, hint=hint_of_missing(store, cut.app, table))
    return named


def having_table(store: ObjectStore, app: str, table: str) -> str:
    """The stage that has a table of this name now; the name itself where none has. A listing, and a head or two."""
    return owner(table, heads_of(store, app, may_have(table, history.list_stages(store, app))))


def hint_of_missing(store: ObjectStore, app: str, table: str) -> str:
    """Where the table of a stage that was renamed or retired is to be found; empty for any other."""
    head = history.head(store, app, table) if table in history.list_stages(store, app) else None
    if head is None or not head.retired:
        return ""
    moment = f"{app}/{table} is the moment when it was"
    name = called_since(store, app, table)
    return f"it is called {name} since: {moment} renamed" if name else f"its stage is retired: {moment}"
