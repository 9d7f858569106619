"""Stored migrations: the change of each stage when the program was changed, or when the app was rewound or reset.

An app's migrations are numbered, and like a version, a migration is created only if its number is free. From then on
the migration will be completed: it applies to all stages or none. Each stage's commit names the migration
(`Manifest.migration`). No stage continues before all stages have applied it, and readers ignore the commits of an
incomplete migration: so nobody sees one stage before the change and another after.
"""

from collections.abc import Iterator, Mapping

from msgspec import Struct

from ...store.versions import checks, keys, limits
from ...store.versions.codec import Notes
from ...store.versions.kinds import KINDS, VersionKind
from ...store.versions.manifest import Input, Manifest, Output, Sink, Table


class Unread(Struct, frozen=True):
    """In-flight records of a channel at the target of a rewind."""

    attempts: tuple[limits.Attempt, ...] = ()
    """Task attempts whose messages the slowest reader had not read."""
    rows: limits.Count = 0


class MigratedStage(Struct, frozen=True):
    """Change of one stage."""

    table: Table | None = None
    """New declaration of the table, except for the number of state partitions; None if it does not change."""
    schema: limits.Seq = 0
    """`Table.schema` of the table for which this change was planned."""
    inputs: dict[limits.Topic, Input] = {}
    """Start positions of new inputs, by declared name."""
    gone: tuple[limits.Topic, ...] = ()
    """Inputs that the stage stops reading."""
    retires: bool = False
    called: limits.NameOrNone = ""
    """New name, if the stage is renamed."""
    rewound: limits.Seq | None = None
    """Version that the stage is rewound to; 0 if it had none; None if it is not rewound."""
    table_only: bool = False
    """True if a rewind changes only the stage's table, and the stage keeps its current offsets."""
    unread: dict[limits.Topic, Unread] = {}
    """In-flight records at the target of a rewind, by channel that the stage writes."""
    outputs: dict[limits.Topic, Output] = {}
    """For a recovery: new positions of in-flight records, by channel; `inputs` has the new input positions."""
    sinks: dict[limits.Topic, Sink] = {}
    """For a recovery: new sinks, each starting at the end of its internal topic."""
    rests: dict[limits.Topic, Sink] = {}
    """For a recovery: rows of the new sinks that were not published before, by sink."""

    reset: dict[limits.Topic, limits.Offsets] = {}
    """Offsets at which the stage continues to read users' topics, by declared name of reset inputs."""
    reset_ids: dict[limits.Topic, limits.Line] = {}
    """New topic ids of reset inputs whose topic was recreated, by declared name; `?` for unknown."""

    @property
    def answers_otherwise(self) -> bool:
        """True if the stage cannot answer a snapshot that was requested before."""
        return bool(self.retires or self.called or self.inputs or self.gone or self.rewound is not None)


class Migration(Struct, frozen=True):
    """Change of an app's stages, applied to all of them or none."""

    app: limits.Name
    number: limits.Version
    """Number of the migration, from 1."""
    id: limits.Ulid
    by: limits.Line
    """Author, as user@host."""
    time_ms: limits.TimeMs
    snapshot: limits.Name
    """Snapshot that pins the cut before the migration."""
    stages: dict[limits.Name, MigratedStage]
    """Change of each stage. An unchanged stage also gets a version that names the migration."""
    detail: limits.Text = ""
    """Description for the entry in the audit log, which is added when the migration is complete and has this `id`."""
    message: limits.Line = ""
    """Reason given by the user, for the audit log."""
    recovery: bool = False
    """True if it recovers the app from a replica: its state at the replica's cut, with new channels."""

    @property
    def rewinds(self) -> bool:
        """True if the migration moves the app back to an earlier moment."""
        return any(step.rewound is not None for step in self.stages.values())

    @property
    def resets(self) -> bool:
        """True if the migration only sets offsets of users' topics."""
        return any(step.reset for step in self.stages.values())

    def is_through(self, head: Manifest) -> bool:
        """Return True if the stage of `head` applied the migration, or is retired and has no part in it."""
        step = self.stages.get(head.stage)
        has_no_part = head.retired and (step is None or step.rewound is None)
        return has_no_part or head.migration >= self.number

    def behind(self, heads: Mapping[str, Manifest]) -> list[str]:
        """Return the stages whose newest versions, in `heads`, have not applied the migration."""
        return [
            name
            for name, step in self.stages.items()
            if name in heads and not (self.is_through(heads[name]) and (not step.called or step.called in heads))
        ]

    @property
    def did(self) -> str:
        """Past participle of the operation for messages, such as `migrated`."""
        return KINDS[self.kind].fate.partition(" ")[0]

    @property
    def kind(self) -> VersionKind:
        if self.recovery:
            return "recover"
        return "rewind" if self.rewinds else "reset" if self.resets else "migration"

    @property
    def verb(self) -> str:
        return KINDS[self.kind].verbs[0]

    @property
    def what(self) -> str:
        """Kind and number of the migration, for messages."""
        return f"{'recovery' if self.recovery else self.kind} {self.number}"


@checks.relations.register
def _(value: Migration) -> Iterator[checks.Wrong]:
    for stage, step in value.stages.items():
        if step.table is not None:
            yield from checks.table_is_wrong(f"stages[{stage!r}].table", step.table)
        for name, source in step.inputs.items():
            yield from checks.input_is_wrong(f"stages[{stage!r}].inputs[{name!r}]", source, stage)


MIGRATIONS = Notes(Migration, keys.migrations, lambda migration: migration.number, app=lambda migration: migration.app)
"""Migrations by number. Only the `newest` can be incomplete."""
