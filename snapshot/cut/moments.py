"""Reader of consistent cuts of an app's history: the newest cut, the cut at a time, or the cut at a commit.

Cuts do not include retired stages, except a retired stage of which a version was requested.

A renamed stage (`snapshot.change.migration`) is found by its new name and by all its old names.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from functools import partial

from ...errors import NotFound
from ...store.objects.many import map_concurrently
from ...store.objects.protocol import ObjectStore
from ...store.versions import apps, history, horizon
from ...store.versions.horizon import KeptCut
from ...store.versions.manifest import Manifest
from ...store.versions.side_tables import find_owner, possible_owners, table_declarations
from .graph import Cut, Thinned, lower_receivers, raise_senders
from .line import Line
from .migrations import MIGRATIONS


def stages_of(store: ObjectStore, app: str, *required: str) -> tuple[str, ...]:
    """Return the names of the app's stages; empty for an app that never ran.

    Raises `NotFound` if the app or a required stage does not exist. Empty names of required stages are ignored.
    """
    stages = history.list_stages(store, app)
    if not stages:
        apps.read_app(store, app)
    for stage in filter(None, required):
        if stage not in stages:
            raise NotFound(f"stage of app {app!r}", stage, stages)
    return stages


def retired_since(store: ObjectStore, app: str, stages: tuple[str, ...]) -> int:
    """Return the time at which the last of these stages was retired, ms since 1970 UTC; 0 if one is active."""
    heads = heads_of(store, app, stages).values()
    return max((head.time_ms for head in heads), default=0) if all(head.retired for head in heads) else 0


def read_line(store: ObjectStore, app: str) -> Line:
    """Read the app's line up to now, including retired stages. Raises `NotFound` if the app does not exist."""
    return Line(store, Cut(app, newest_versions(store, app, stages_of(store, app))), horizon.newest(store, app))


def heads_of(store: ObjectStore, app: str, stages: Iterable[str]) -> dict[str, Manifest]:
    """Return the newest version of each stage.

    For a running app, this is not a consistent cut: stages are read in turn.
    """
    return {stage: head for stage in stages if (head := history.head(store, app, stage)) is not None}


def newest_versions(store: ObjectStore, app: str, stages: tuple[str, ...]) -> dict[str, Manifest]:
    """Return a consistent cut of the newest versions of these stages, retired stages included, by stage.

    A single stage is returned at its newest version.
    """
    heads = heads_of(store, app, stages)
    # The app may be running: a sender that was read before its receiver may be older than the receiver's input.
    return raise_senders(heads, partial(history.read, store, app)) if len(stages) > 1 else heads


def newest_cut(store: ObjectStore, app: str, stages: tuple[str, ...], requested: str = "") -> Cut:
    """Return a consistent cut of the newest versions of all active stages.

    If the stage `requested` is retired, returns the cut at the time of its retirement.
    """
    heads = newest_versions(store, app, stages)
    if requested in heads and heads[requested].retired:
        return cut_at_commit(store, stages, heads[requested])
    return without_retired(store, app, _without_open_migration(store, heads))


def newest_settled(store: ObjectStore, app: str) -> dict[str, Manifest]:
    """Return a consistent cut of the newest versions of all stages, without versions of an incomplete migration."""
    return dict(_without_open_migration(store, newest_versions(store, app, stages_of(store, app))))


def cut_of_time(store: ObjectStore, app: str, stages: tuple[str, ...], time_ms: int, requested: str) -> Cut:
    """Return the cut after all commits of the app with an effective time of at most `time_ms`.

    If versions were collected, returns the newest remaining cut up to that time, or an empty cut. If `requested` names
    a stage that was retired by then, returns the cut at the time of its retirement.
    """

    def latest(stage: str) -> Manifest | None:
        return history.latest_at(store, app, stage, time_ms, with_leaves=requested in ("", stage))

    newest = map_concurrently(latest, stages)
    versions = {version.stage: version for version in newest if version is not None}
    if requested in versions and versions[requested].retired:
        return cut_at_commit(store, stages, versions[requested])
    # Read after the versions, to detect versions that were collected meanwhile.
    limit = horizon.newest(store, app)
    if not limit.has_complete_history({stage: manifest.version for stage, manifest in versions.items()}):
        return _cut_of_kept(store, app, limit.kept_cut_at(time_ms), time_ms)
    return without_retired(store, app, _without_open_migration(store, versions))


def cut_at_commit(store: ObjectStore, stages: tuple[str, ...], commit: Manifest) -> Cut:
    """Return the prefix of the app's line that ends with `commit`.

    If versions of the prefix were collected, returns the nearest remaining cut that contains this commit, or else the
    cut with the first uncollected version of every stage. Returns the empty cut if neither exists.
    """
    app = commit.app
    prefix = Line(store, Cut(app, newest_versions(store, app, stages))).prefix_up_to(commit)
    limit = horizon.newest(store, app)
    if limit.has_complete_history(prefix.versions):
        return without_retired(store, app, prefix.stages, commit)
    # Every moment with this commit is at or after the commit, so the oldest such moment is the nearest.
    moments = (candidate for candidate in limit.moments if candidate.stages.get(commit.stage) == commit.version)
    if (moment := next(moments, None)) is not None:
        return _cut_of_kept(store, app, moment, commit.time_ms)
    read, first = partial(history.read, store, app), partial(history.first_version, store, app)
    firsts = {
        stage: read(stage, version)
        for stage, version in limit.first.items()
        if stage not in prefix.stages or prefix.stages[stage].version < version
    }
    # Raise first, so that the cut includes everything that a first version has consumed, up to what the commit has
    # sent.
    raised = raise_senders({**prefix.stages, **firsts}, read)
    raised = lower_receivers({**raised, commit.stage: commit}, commit.stage, read, first)
    if not limit.has_complete_history(Cut(app, raised).versions):
        return Cut(app, {})
    cut = without_retired(store, app, raised, commit)
    return replace(cut, thinned=Thinned(commit.time_ms, cut.time_ms))


def with_retired(line: Line, cut: Cut) -> Cut:
    absent = (head for stage, head in line.heads.stages.items() if stage not in cut.stages)
    retired = {head.stage: then for head in absent if (then := retired_version_at(line.store, cut, head)) is not None}
    return replace(cut, stages={**cut.stages, **retired})


def retired_version_at(store: ObjectStore, cut: Cut, head: Manifest) -> Manifest | None:
    """Return a stage's version at the time of the cut, if the stage was retired by then or is retired now.

    Otherwise, or if the stage had no version at that time, returns None. `head` is the stage's newest version.
    """
    then = history.latest_at(store, cut.app, head.stage, cut.time_ms)
    return then if then is not None and (then.retired or head.retired) else None


def later_stages(store: ObjectStore, cut: Cut) -> dict[str, Manifest]:
    """Return the newest version of each active stage whose history began after the cut.

    A stage that was renamed after the cut is included: the history under its new name had not started.
    """
    absent = (stage for stage in history.list_stages(store, cut.app) if stage not in cut.stages)
    heads = heads_of(store, cut.app, absent)
    return {stage: head for stage, head in heads.items() if retired_version_at(store, cut, head) is None}


def _without_open_migration(store: ObjectStore, heads: Mapping[str, Manifest]) -> Mapping[str, Manifest]:
    newest = max((head.migration for head in heads.values()), default=0)
    is_renaming = any(head.called and head.called not in heads and head.migration == newest for head in heads.values())
    missing = [stage for stage, head in heads.items() if head.migration < newest and not head.retired]
    if not missing and not is_renaming:
        return heads
    decided = MIGRATIONS.find(store, newest, next(iter(heads.values())).app)
    if not is_renaming and (decided is None or decided.stages.keys().isdisjoint(missing)):
        return heads  # the missing stages started later
    earlier = {stage: _before_migration(store, head, newest) for stage, head in heads.items()}
    return {stage: manifest for stage, manifest in earlier.items() if manifest is not None}


def _before_migration(store: ObjectStore, manifest: Manifest, number: int) -> Manifest | None:
    for version in history.iter_backwards(store, manifest):
        manifest = version
        if manifest.migration != number:
            break
    return None if manifest.migration == number and manifest.former_name else manifest


def without_retired(
    store: ObjectStore, app: str, versions: Mapping[str, Manifest], exempt: Manifest | None = None
) -> Cut:
    """Return a consistent cut of these versions, without retired stages.

    The version `exempt` stays, even if its stage is retired.
    """
    active = {stage: manifest for stage, manifest in versions.items() if not manifest.retired or manifest == exempt}
    # If clocks differ, a receiver may still be active when its sender is retired.
    return Cut(app, raise_senders(active, partial(history.read, store, app)))


def _cut_of_kept(store: ObjectStore, app: str, moment: KeptCut | None, asked_ms: int) -> Cut:
    if moment is None:
        return Cut(app, {})
    stages = {stage: history.read(store, app, stage, version) for stage, version in moment.stages.items()}
    same = moment.time_ms <= asked_ms <= moment.until_ms
    return Cut(app, stages, thinned=None if same else Thinned(asked_ms, moment.time_ms))


def current_name(store: ObjectStore, app: str, stage: str) -> str:
    head = history.head(store, app, stage)
    return current_name(store, app, head.called) or head.called if head is not None and head.called else ""


def read_version(store: ObjectStore, app: str, stage: str, version: int) -> Manifest:
    if (manifest := history.find(store, app, stage, version)) is not None:
        return manifest
    head = history.head(store, app, stage)
    try:
        return history.read(store, app, name_at(head, version) if head is not None else stage, version)
    except NotFound as error:
        error.hint = error.hint or hint_of_missing(store, app, stage)
        raise


def name_at(head: Manifest, version: int) -> str:
    return next((former.stage for former in head.formerly if version < former.version), head.stage)


def require_tables(store: ObjectStore, cut: Cut, tables: Collection[str]) -> Cut:
    """Return the cut if it has all of these tables; tables that were renamed later are added under their new names.

    Makes no request if no table was renamed. Raises `NotFound` for a missing table, with the nearest name. If the table
    was renamed or its stage was retired, the hint tells where it is found.
    """
    missing = sorted(table for table in set(tables) if cut.table(table) is None)
    if not missing:
        return cut
    stages = history.list_stages(store, cut.app)
    heads = heads_of(store, cut.app, sorted({stage for table in missing for stage in possible_owners(table, stages)}))
    owners = {find_owner(table, heads) for table in missing}
    named = cut.with_renamed_stages({stage: head for stage, head in heads.items() if stage in owners})
    for table in missing:
        if table not in named.tables:
            raise NotFound(f"table at {cut.ref}", table, cut.tables, hint=hint_of_missing(store, cut.app, table))
    return named


def stage_of_table(store: ObjectStore, app: str, table: str) -> str:
    """Return the stage that has this table now; `table` if no stage has it.

    Makes one list request and reads one or two heads.
    """
    return find_owner(table, heads_of(store, app, possible_owners(table, history.list_stages(store, app))))


def existing_stage_of_table(store: ObjectStore, app: str, table: str, *, called: str = "") -> str:
    """Return the stage that has this table now.

    Raises `NotFound` if no stage has it, with `called` as the app's name, if given.
    """
    stages = stages_of(store, app)
    # A stage's own table is found without reading its newest version, which may be damaged.
    stage = table if table in stages else find_owner(table, heads_of(store, app, possible_owners(table, stages)))
    if stage not in stages:
        raise NotFound(f"table of app {(called or app)!r}", table, table_declarations(heads_of(store, app, stages)))
    return stage


def hint_of_missing(store: ObjectStore, app: str, table: str) -> str:
    """Return a hint to the last moment of a missing table, if its stage was renamed or retired; else empty."""
    head = history.head(store, app, table) if table in history.list_stages(store, app) else None
    if head is None or not head.retired:
        return ""
    moment = f"{app}/{table} is its last moment"
    name = current_name(store, app, table)
    return f"it was renamed to {name}: {moment} under the old name" if name else f"its stage is retired: {moment}"
