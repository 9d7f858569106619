"""Migrations as they are stored: what became of each stage when the program was changed, the app rewound, or reset.

Migrations of an app are numbered, and each is created where there is none, as versions are. From then on it will be
done: so it is whole, or not there at all. Each stage's commit names it (`Manifest.migration`). No stage goes on before
it is done in all of them, so who finds it half done leaves out what is done: nobody sees one before, another after.
"""

from collections.abc import Iterator, Mapping

from msgspec import Struct

from ...store.versions import checks, keys, limits
from ...store.versions.kinds import KINDS, VersionKind
from ...store.versions.manifest import Input, Manifest, Output, Sink, Table
from ...store.versions.notes import Notes


class Unread(Struct, frozen=True):
    """What was on its way on a channel at the moment that an app is rewound to."""

    attempts: tuple[limits.Attempt, ...] = ()
    """The task attempts whose messages it is, of all that the reader furthest behind had not read."""
    rows: limits.Count = 0


class MigratedStage(Struct, frozen=True):
    """What becomes of one stage."""

    table: Table | None = None
    """Its table from then on, but for the number of state partitions; None where it stays as it is."""
    schema: limits.Seq = 0
    """`Table.schema` of the table that this was planned for."""
    inputs: dict[limits.Topic, Input] = {}
    """Where it begins to read what it has not read before, by declared name."""
    gone: tuple[limits.Topic, ...] = ()
    """The inputs that it reads no more."""
    retires: bool = False
    """Whether it has no part in its app from then on."""
    called: limits.NameOrNone = ""
    """Its name from then on, where that is another."""
    rewound: limits.Seq | None = None
    """The version that it is again; 0 where the stage has none then. None where it is not rewound."""
    table_only: bool = False
    """Whether it is so with its table alone, and goes on reading where it is."""
    unread: dict[limits.Topic, Unread] = {}
    """By channel that it writes, what its readers have still to read of what was sent by then."""
    outputs: dict[limits.Topic, Output] = {}
    """Of a recovery: where what was on its way lies now, by channel; `inputs` says where the stage reads on."""
    sinks: dict[limits.Topic, Sink] = {}
    """Of a recovery: the sinks that begin anew, each where its internal topic ended."""
    rests: dict[limits.Topic, Sink] = {}
    """Of a recovery: by sink what it had still to publish, behind that."""

    reset: dict[limits.Topic, limits.Offsets] = {}
    """Where it reads users' topics on from, by declared name, of those that are reset."""
    reset_ids: dict[limits.Topic, limits.Line] = {}
    """Of these, the ids of topics that have the name by now, which others had when they were read; `?` for unknown."""

    @property
    def answers_otherwise(self) -> bool:
        """Whether the stage cannot do its part in a snapshot that was asked for before."""
        return bool(self.retires or self.called or self.inputs or self.gone or self.rewound is not None)


class Migration(Struct, frozen=True):
    """What becomes of an app's stages, all of them or none."""

    app: limits.Name
    number: limits.Version
    """From 1."""
    id: limits.Ulid
    by: limits.Line
    """user@host."""
    time_ms: limits.TimeMs
    snapshot: limits.Name
    """Pins the cut before."""
    stages: dict[limits.Name, MigratedStage]
    """Every stage that the app had: also those in which nothing changes get a version that names the migration."""
    detail: limits.Text = ""
    """What it changes, in words, for the log of operations, which has it under this `id` when it is done."""
    message: limits.Line = ""
    """Why, for the same."""
    recovery: bool = False
    """Whether it makes the app of a replica: it is what that was at its cut, and has channels of its own."""

    @property
    def rewinds(self) -> bool:
        """Whether it takes the app back to an earlier moment."""
        return any(step.rewound is not None for step in self.stages.values())

    @property
    def resets(self) -> bool:
        """Whether it sets where users' topics are read on from, and nothing else."""
        return any(step.reset for step in self.stages.values())

    def is_through(self, head: Manifest) -> bool:
        """Whether a stage went through it, or has no part in it, as it is retired."""
        step = self.stages.get(head.stage)
        has_no_part = head.retired and (step is None or step.rewound is None)
        return has_no_part or head.migration >= self.number

    def behind(self, heads: Mapping[str, Manifest]) -> list[str]:
        """The stages that did not go through it, by the newest versions of an app."""
        return [
            name
            for name, step in self.stages.items()
            if name in heads and not (self.is_through(heads[name]) and (not step.called or step.called in heads))
        ]

    @property
    def did(self) -> str:
        """What became of the app, in a word."""
        return KINDS[self.kind].fate.partition(" ")[0]

    @property
    def kind(self) -> VersionKind:
        """The kind of the versions that it makes."""
        if self.recovery:
            return "recover"
        return "rewind" if self.rewinds else "reset" if self.resets else "migration"

    @property
    def verb(self) -> str:
        """The verb, as the log of operations has it."""
        return KINDS[self.kind].verbs[0]

    @property
    def what(self) -> str:
        """What it is, in words."""
        return f"{'recovery' if self.recovery else self.kind} {self.number}"


@checks.relations.register
def _(value: Migration) -> Iterator[checks.Wrong]:
    for stage, step in value.stages.items():
        if step.table is not None:
            yield from checks.table_is_wrong(f"stages[{stage!r}].table", step.table)
        for name, source in step.inputs.items():
            yield from checks.input_is_wrong(f"stages[{stage!r}].inputs[{name!r}]", source, stage)


MIGRATIONS = Notes(Migration, keys.migrations, lambda each: each.number, app=lambda each: each.app)
"""By number. `newest` is the one that counts: the others are done."""
