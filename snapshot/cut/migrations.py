"""Stored migrations: the step of each stage when a program changed, or when an app was rewound, reset or recovered.

An app's migrations are numbered. Like a version, a migration is created only if its number is free. From then on the
migration will be completed: it applies to all stages or none. Each stage's commit names the migration
(`Manifest.migration`). No stage continues before all stages have applied the migration, and readers ignore the commits
of an incomplete migration. So no reader sees one stage before the change and another stage after the change.
"""

from collections.abc import Iterator, Mapping

from msgspec import Struct

from ...store.versions import checks, keys, limits
from ...store.versions.codec import JsonFolder
from ...store.versions.kinds import KINDS, VersionKind
from ...store.versions.manifest import Input, Manifest, Output, Sink, Table


class Unread(Struct, frozen=True):
    """Records of a channel that were in flight at the target of a rewind."""

    attempts: tuple[limits.Attempt, ...] = ()
    rows: limits.Count = 0


class MigratedStage(Struct, frozen=True):
    """Step of a migration for one stage."""

    table: Table | None = None
    parts: dict[limits.Name, Table] = {}
    """Tables of parts that the stage has from now on, by side-table name. Only if `table` is set."""
    renamed_parts: dict[limits.Name, limits.Name] = {}
    """Earlier names of renamed tables of parts, by current name."""
    schema: limits.Seq = 0
    inputs: dict[limits.Topic, Input] = {}
    gone: tuple[limits.Topic, ...] = ()
    retires: bool = False
    called: limits.NameOrNone = ""
    rewound: limits.Seq | None = None
    """Version to which the stage is rewound: 0 for an empty stage, None if the step is no rewind."""
    table_only: bool = False
    """True if a rewind changes only the stage's table and keeps the stage's offsets."""
    unread: dict[limits.Topic, Unread] = {}
    outputs: dict[limits.Topic, Output] = {}
    """For a recovery: output channels with their new offsets; `inputs` has the input channels."""
    sinks: dict[limits.Topic, Sink] = {}
    rests: dict[limits.Topic, Sink] = {}

    reset: dict[limits.Topic, limits.Offsets] = {}
    reset_ids: dict[limits.Topic, limits.ShortText] = {}

    @property
    def invalidates_requests(self) -> bool:
        """True if the stage cannot answer snapshot requests made before this step."""
        return bool(self.retires or self.called or self.inputs or self.gone or self.rewound is not None)


class Migration(Struct, frozen=True):
    """Decided change of an app, applied to all stages or none."""

    app: limits.Name
    number: limits.Version
    id: limits.Ulid
    by: limits.ShortText
    time_ms: limits.TimeMs
    snapshot: limits.Name
    stages: dict[limits.Name, MigratedStage]
    """Step of each stage. An unchanged stage has an empty step, and also commits a version for the migration."""
    detail: limits.Text = ""
    message: limits.ShortText = ""
    recovery: bool = False
    """True for a recovery from a replica, which restores the replica's cut with new channels."""

    @property
    def is_rewind(self) -> bool:
        return any(step.rewound is not None for step in self.stages.values())

    @property
    def is_reset(self) -> bool:
        return any(step.reset for step in self.stages.values())

    def step_of(self, stage: str) -> MigratedStage:
        """Return a stage's step. A stage that began after a rewind was planned is emptied and retired."""
        steps = self.stages.values()
        begins_anew = self.is_rewind and not self.recovery and not any(step.table_only for step in steps)
        missing = MigratedStage(rewound=0, retires=True) if begins_anew else MigratedStage()
        return self.stages.get(stage, missing)

    def is_applied_by(self, head: Manifest) -> bool:
        """Return True if the stage of `head` applied the migration, or is retired without a step in it."""
        step = self.stages.get(head.stage)
        has_no_part = head.retired and (step is None or step.rewound is None)
        return has_no_part or head.migration >= self.number

    def missing_stages(self, heads: Mapping[str, Manifest]) -> list[str]:
        """Return the stages whose newest version, in `heads`, has not applied the migration."""
        return [
            name
            for name, step in self.stages.items()
            if name in heads and not (self.is_applied_by(heads[name]) and (not step.called or step.called in heads))
        ]

    @property
    def past_participle(self) -> str:
        return KINDS[self.kind].fate.partition(" ")[0]

    @property
    def kind(self) -> VersionKind:
        if self.recovery:
            return "recover"
        return "rewind" if self.is_rewind else "reset" if self.is_reset else "migration"

    @property
    def verb(self) -> str:
        return KINDS[self.kind].verbs[0]

    @property
    def label(self) -> str:
        return f"{'recovery' if self.recovery else self.kind} {self.number}"


@checks.find_violations.register
def _(value: Migration) -> Iterator[checks.Violation]:
    for stage, step in value.stages.items():
        if step.table is not None:
            yield from checks.table_violations(f"stages[{stage!r}].table", step.table)
        for name, source in step.inputs.items():
            yield from checks.input_violations(f"stages[{stage!r}].inputs[{name!r}]", source, stage)


MIGRATIONS = JsonFolder(
    Migration, keys.migrations, lambda migration: migration.number, owner_of=lambda migration: migration.app
)
"""Migrations by number. Only the newest one can be incomplete."""
