"""A migration as it is stored: what becomes of each stage, decided by one put, and done by whoever comes by.

Migrations of an app are numbered, and each is created where there is none, as versions are. From then on it will be
done: all that could be refused was refused before, and what it says of a stage needs no program. So it is whole or not
there at all. Each stage's commit names it (`Manifest.migration`); who finds stages that do not (a runner, the next
migration) commits these first. No stage goes on meanwhile, so readers that find it half done leave out what is done
(`snapshot.cut.moments`): nobody sees one stage before it and another after.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

from msgspec import Struct
from msgspec.structs import replace
from ulid import ULID

from ...errors import ObjectExists, Refused
from ...store.objects.protocol import ObjectStore, documents
from ...store.sst import ttl
from ...store.versions import checks, codec, commit, history, keys
from ...store.versions import limits as fits
from ...store.versions.manifest import Input, Manifest, Table
from ..cut.graph import order
from ..cut.moments import heads_of


class Step(Struct, frozen=True):
    """What becomes of one stage."""

    table: Table | None = None
    """Its table from then on, but for the number of state partitions; None where it stays as it is."""
    schema: fits.Seq = 0
    """`Table.schema` of the table that this was planned for."""
    inputs: dict[fits.Topic, Input] = {}
    """Where it begins to read what it has not read before, by declared name."""
    gone: tuple[fits.Topic, ...] = ()
    """The inputs that it reads no more."""
    retires: bool = False
    """Whether it has no part in its app from then on."""


class Migration(Struct, frozen=True):
    """What becomes of an app's stages, all of them or none."""

    app: fits.Name
    number: fits.Version
    """From 1."""
    id: fits.Ulid
    by: fits.Line
    """user@host."""
    time_ms: fits.TimeMs
    snapshot: fits.Name
    """Pins the cut before."""
    stages: dict[fits.Name, Step]
    """Every stage that the app had: also those in which nothing changes get a version that names the migration."""


@checks.relations.register
def _(value: Migration) -> Iterator[checks.Wrong]:
    for stage, step in value.stages.items():
        if step.table is not None:
            yield from checks.table_is_wrong(f"stages[{stage!r}].table", step.table)
        for name, source in step.inputs.items():
            yield from checks.input_is_wrong(f"stages[{stage!r}].inputs[{name!r}]", source, stage)


@dataclass(frozen=True, slots=True)
class Done:
    """A migration that was done, by one call or by several."""

    migration: Migration
    versions: Mapping[str, int]
    """The version of each stage that this call committed; none of those that were there."""


def newest(store: ObjectStore, app: str) -> Migration | None:
    """The migration of the largest number, None when there never was one. One listing, and a read if there is one.

    Raises:
        Corruption: it is not readable.
        Unavailable: storage did not answer.
    """
    found = [info.key for info in documents(store, keys.migrations(app))]
    return codec.read(store, found[-1], Migration, under=_key) if found else None


def prepare(store: ObjectStore, migration: Migration) -> None:
    """Decide that a migration is done: one put, where there is none of its number.

    Raises:
        Refused: somebody else migrates the app at this moment.
        Unavailable: storage did not answer; it may be decided.
    """
    key = _key(migration)
    try:
        store.put_if_absent(key, codec.encode(migration))
    except ObjectExists:
        other = codec.read(store, key, Migration, under=_key)
        if other.id != migration.id:
            raise Refused(
                f"app {migration.app!r} was migrated at the same moment, by {other.by}: this one was not done",
                hint="look at what that did (`slackwater log`), and migrate what is left to change",
            ) from None


def finish(store: ObjectStore, migration: Migration, *, now_ms: int) -> Done:
    """Commit what is left of a migration: a version for each stage that does not name it. Done again, it does nothing.

    Receivers first: a stage that is retired is read by none that has not gone through it.

    Raises:
        CommitConflict: others kept winning the race for the next version of a stage.
        Unavailable: storage did not answer; the same call again goes on.
    """
    # Also stages that began while it was decided: they name it with nothing else changed.
    heads = heads_of(store, migration.app, history.list_stages(store, migration.app))
    versions = {}
    for stage in reversed(order(heads)):
        if not is_through(heads[stage], migration):
            with suppress(_Through):  # somebody else finishes it, too
                versions[stage] = _commit(store, migration, stage, now_ms, heads[stage].version).version
    return Done(migration, versions)


class _Through(Exception):
    """The stage went through the migration meanwhile."""


def is_through(head: Manifest, migration: Migration) -> bool:
    """Whether a stage went through this migration, or has no part in it, as it is retired."""
    return head.retired or head.migration >= migration.number


def finish_newest(store: ObjectStore, app: str, *, now_ms: int) -> int:
    """Finish the app's newest migration, if it is not done; its number, 0 when there is none. Raises as `finish`."""
    migration = newest(store, app)
    if migration is None:
        return 0
    finish(store, migration, now_ms=now_ms)
    return migration.number


def _commit(store: ObjectStore, migration: Migration, stage: str, now_ms: int, known: int) -> Manifest:
    step = migration.stages.get(stage, Step())

    def build(draft: Manifest) -> Manifest:
        if draft.migration >= migration.number:
            raise _Through
        return applied(draft, step, migration.number)

    head = history.head(store, migration.app, stage, known=known)
    if head is None or is_through(head, migration):
        raise _Through
    return commit.claim(
        store,
        migration.app,
        stage,
        writer=str(ULID()),
        by=migration.by,
        now_ms=now_ms,
        kind="retire" if step.retires else "migration",
        build=build,
        known=known,
    )


def applied(draft: Manifest, step: Step, number: int) -> Manifest:
    """The version that a step makes: `draft` has everything as it was. Pure.

    Raises:
        Refused: the table is not the one that the step was planned for.
    """
    inputs = {name: each for name, each in draft.inputs.items() if name not in step.gone} | step.inputs
    stopped = {name: each for name, each in {**draft.stopped, **draft.inputs}.items() if name not in inputs}
    changed = replace(draft, inputs=inputs, stopped=stopped, migration=number)
    if step.retires:
        return replace(changed, recorded={}, awaited={}, captured={})
    if step.table is None:
        return changed
    if draft.table is None or draft.table.schema != step.schema:
        raise Refused(f"migration {number} was planned for another table of {draft.app}/{draft.stage} than it has now")
    had = draft.table.ids
    values = (
        each if each.id in had or not each.id else replace(each, since=draft.version) for each in step.table.values
    )
    table = replace(step.table, partitions=draft.table.partitions, values=tuple(values))
    return replace(changed, table=table, clock_ms=ttl.first_clock_ms(draft.table, table, draft.clock_ms))


def _key(migration: Migration) -> str:
    return keys.migration(migration.app, migration.number)
