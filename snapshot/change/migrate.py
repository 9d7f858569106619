"""`slackwater migrate`: a snapshot of the moment before, the decision, and a version for each stage.

What it changes is said in a line for each change: for the verb, and for `run` that refuses a changed program.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from msgspec.structs import replace
from ulid import ULID

from ...common import instants
from ...common.durations import format_ms
from ...errors import Refused
from ...state.fits import ColumnChange, Declared
from ...store.objects.protocol import ObjectStore
from ...store.versions import published
from ...store.versions.manifest import Input, Manifest, Ttl
from ..cut.kafka_topics import Topics
from ..cut.migrations import MIGRATIONS, MigratedStage, Migration
from ..cut.moments import heads_of, newest_cut, stages_of
from ..take.audit_log import why
from ..take.remove import remove
from ..take.snapshots import pin
from ..under_way.exclusion import Intent, check_exclusion, refusal
from ..under_way.signs import UnderWay, half_done
from .migrate_plan import Plan, StageChange, plan
from .migration import finish, unpin_target

PREFIX = "before-migration-"
"""What the snapshots of the moment before a migration begin with."""


@dataclass(frozen=True, slots=True)
class Migrated:
    """What a migration did, or would do."""

    plan: Plan
    number: int
    """0 when nothing was to be done, or was only looked at."""
    snapshot: str
    """Pins the moment before; empty likewise."""
    versions: Mapping[str, int]
    """The version of each stage that names the migration; empty likewise."""
    finished: int = 0
    """The number of an earlier migration that had been left half done, and was finished first; 0 for none."""


def find_plan(
    store: ObjectStore, declared: Declared, renames: Mapping[str, str], *, stages: Mapping[str, str] | None = None
) -> Plan:
    """What the program changes of the app that is stored; `renames` are of columns and `stages` of stages, old to new.

    Raises as `plan`; also `NotFound` when there is no such app, and `Refused` while an earlier migration is half done.
    """
    heads = heads_of(store, declared.app, stages_of(store, declared.app))
    after = check_done(store, declared.app, heads, Intent.MIGRATE)
    found = plan(heads, declared, renames, stages=stages or {}, after=after)
    for name in heads.keys() - declared.stages.keys():
        # Under its new name a stage begins its sinks anew, and who retires publishes nothing any more.
        if not heads[name].retired:
            published.check(store, heads[name])
    return found


def check_done(store: ObjectStore, app: str, heads: Mapping[str, Manifest], intent: Intent) -> int:
    """The number of an app's newest migration, or rewind, 0 for none. Raises `Refused` while it is half done."""
    last = MIGRATIONS.newest(store, app)
    if last is not None and (behind := last.behind(heads)):
        raise refusal(intent, half_done(last, behind))
    return last.number if last is not None else 0


def check_newest(store: ObjectStore, app: str, known: int) -> None:
    """Raise `Refused` where an app was migrated, or rewound, since this was the number of its newest migration."""
    last = MIGRATIONS.newest(store, app)
    if last is not None and last.number > known:
        program = "that it was migrated to" if last.verb == "migrate" else "that is to go on from there"
        raise Refused(
            f"app {app!r} was {last.did} by {last.by} while this run started",
            hint=f"run it again, with the program {program}",
        )


def finish_earlier(store: ObjectStore, app: str, *, now_ms: int) -> int:
    """Finish what an earlier call left half done; its number, 0 where there is nothing. Raises as `finish`."""
    last = MIGRATIONS.newest(store, app)
    return last.number if last is not None and finish(store, last, now_ms=now_ms) else 0


def migrate(
    store: ObjectStore,
    found: Plan,
    starts: Mapping[str, Mapping[str, Input]],
    *,
    by: str,
    now_ms: int,
    reader: Topics | None = None,
) -> Migrated:
    """Carry out what `find_plan` gave, all of it or nothing. No data is read or written, whatever the tables hold.

    `starts` says where stages begin to read what is new to them, by stage and declared name (`Plan.unread`); `by` is
    user@host. The `reader` keeps the records in flight with the snapshot; with None, Kafka has them as long as it does.

    Raises `Refused` where somebody else migrates the app at this moment, or a snapshot is under way that stages with
    other inputs or names could not answer (nothing was changed then), and `Unavailable`: the next call finishes it.
    """
    if not found.changes:
        return Migrated(found, 0, "", {})
    steps = {old: replace(step, inputs=dict(starts.get(step.called or old, {}))) for old, step in found.steps.items()}
    if any(step.answers_otherwise for step in steps.values()):
        check_exclusion(store, found.app, Intent.MIGRATE, UnderWay.SNAPSHOT)
    number = found.after + 1
    cut = newest_cut(store, found.app, stages_of(store, found.app))
    name = f"{PREFIX}{number}-{instants.iso(now_ms).translate(_DIGITS)}"
    pin(store, cut, name, by=by, reader=reader)
    said = ", ".join(
        f"{each.stage} {each.kind}" + (f", until now {each.formerly}" if each.formerly else "")
        for each in found.changes
    )
    return Migrated(found, number, name, carry_out(store, found.app, number, steps, name, said, by=by, now_ms=now_ms))


def carry_out(
    store: ObjectStore,
    app: str,
    number: int,
    steps: Mapping[str, MigratedStage],
    snapshot: str,
    said: str,
    *,
    by: str,
    now_ms: int,
    recovery: str = "",
) -> dict[str, int]:
    """Decide what becomes of an app's stages, and do it; returns the new version of each.

    `recovery` is the id of one that this is.

    `snapshot` pins the moment before, and `said` tells the log what changes. Once it is decided it will be done, by
    whoever comes by. Raises `Refused` where somebody else was faster: of this one nothing is done then, and the
    snapshot is gone; else as `finish`.
    """
    detail = f"{number}: {said}; before it {app}@{snapshot}"
    id_ = recovery or str(ULID())
    migration = Migration(app, number, id_, by, now_ms, snapshot, dict(steps), detail, why(), bool(recovery))
    # Put where there is none of its number.
    decided = MIGRATIONS.add(store, migration)
    versions = finish(store, decided, now_ms=now_ms)
    if decided.id == migration.id:
        return versions
    # Of the same moment, who was first may have the same one. Where it rewinds, that is done: so it needs no pin.
    if decided.snapshot != snapshot:
        remove(store, app, snapshot)
    unpin_target(store, app, number)
    raise Refused(
        f"app {app!r} was {decided.did} at the same moment, by {decided.by}: this one was not done",
        hint="look at what that did (`slackwater log`), and say it again where something is left to do",
    )


_DIGITS = str.maketrans({"-": "", ":": "", "T": "-", "Z": ""})


def lines(change: StageChange) -> Iterator[str]:
    """The changes of one stage, without its name."""
    if change.formerly:
        yield f"until now {change.formerly}: its history before is under that name"
    if change.kind == "retired":
        yield "retired: the program has it no more; its history and its table stay"
        if change.may_be:
            yield f"is {change.may_be} what it was? Then say --rename-stage {change.stage}={change.may_be}"
    if change.kind == "added":
        yield "new: begins with the next run"
    yield from map(of_column, change.columns)
    if change.due is not None:
        before, after = change.due
        if not before:
            yield f"+ {after}: rows fall due from here on; those from before once they are written again"
        elif not after:
            yield f"- {before}: rows fall due no more"
        else:
            yield f"~ {after}, until now {before}; rows from before fall due at the times that they have"
    elif change.others:
        yield "its columns are declared in another order or in other words; rows stay as they are"
    if change.ttl is not None:
        yield f"time to live: {_span(change.ttl[1])}, until now {_span(change.ttl[0])}"
    yield from (f"reads {name} from then on" for name in change.inputs)
    yield from (f"reads {name} no more" for name in change.gone)
    yield from (f"writes {name} from its next start on" for name in change.outputs)
    yield from (f"writes {name} no more from its next start on" for name in change.dropped)
    for old, new in change.guesses:
        yield f"is {new} what {old} was? Then say --rename {old}={new}; without that, {old} goes"


def of_column(change: ColumnChange) -> str:
    """One change of a column."""
    match change.kind:
        case "added":
            meaning = f" = {change.meaning}, from here on" if change.meaning else ""
            before = "null" if change.default is None else change.default
            return f"+ {change.column} {change.type}{meaning}; rows from before have {before}"
        case "removed":
            return f"- {change.column} {change.type}"
        case "renamed":
            return f"~ {change.before} is called {change.column}"
        case "widened":
            return f"~ {change.column} is {change.type}, until now {change.before}"


def _span(ttl: Ttl | None) -> str:
    if ttl is None or not ttl.ms:
        return "none"
    return f"{format_ms(ttl.ms)}{f' by {ttl.column}' if ttl.column else ''}"
