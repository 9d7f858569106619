"""Kinds of versions: each is declared here once, with all that follows from it.

Whoever treats versions differently asks `Manifest.traits`. A new kind is a name in `VersionKind` and a declaration.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

VersionKind = Literal[
    "claim", "batch", "compaction", "clone", "rescale", "retire", "init", "migration", "rename", "rewind",
    "edit", "promote", "demote", "forget", "recover", "reset",
]  # fmt: skip
"""The name of a kind, as a manifest stores it."""

GO_ON = "let the newer runner go on, or stop it and start this one again"
_FROM_THERE = "start this one again: it goes on from there"


@dataclass(frozen=True, slots=True)
class Traits:
    """A kind of version: why a version exists. The defaults are what most kinds answer."""

    name: VersionKind
    noun: str
    """The version in a sentence, with its article."""
    verbs: tuple[str, ...] = ()
    """Verbs of the log of operations that commit one, the usual one first; empty for what only runners commit."""

    fences: bool = True
    """True if it takes the stage from its writer: it has the next epoch, and the writer's next commit fails."""
    beside_batches: bool = False
    """True if others commit it between two batches, under the epoch of the stage's writer, which builds on it."""
    taken: str = "taken over"
    """The fate of the stage, as its fenced writer is told."""
    then: str = GO_ON
    """The next step of whoever runs that writer; `{name}` and `{back}` are those of the promotion."""

    may_begin: bool = False
    """True if it may be a stage's version 1 with nothing before it."""
    retires: bool = False
    """True if the stage has no part in its app from this version on."""
    follows_retiring: bool = False
    """True if it may follow a version that retires the stage: it brings the stage back, or takes it back further."""
    for_next_program: bool = False
    """True if it belongs to the program whose claim comes next."""

    claims: bool = False
    """True if a runner took the stage with it. It names the program."""
    reads_records: bool = False
    """True if it is a batch, which read records of the stage's inputs and can be replayed."""
    writes_rows: bool = False
    """True if its rows have a `_seq` of their own."""
    changes_rows: bool = True
    """True if the table may hold other rows than before it, beside those that expire with time."""
    brings_rows: bool = False
    """True if the stage begins with it, with a table that no batch made."""
    begins: Literal["", "clone", "renamed"] = ""
    """Why a history begins with it under a number above 1: a clone's, or that of a stage's new name; empty if none."""
    restarts: bool = False
    """True if inputs, channels and sinks may come and go with it, and lost records be passed over."""
    sets_sinks: bool = False
    """True if sinks may come and go with it."""
    sets_offsets: bool = False
    """True if users' topics are read on from elsewhere after it."""
    ends_replays: bool = False
    """True if no batch after it is replayed upon other rows than it left."""
    shows_reading: bool = False
    """True if the log shows how many rows it read, and how long it took."""

    @property
    def by_runner(self) -> bool:
        """True if only a runner commits one: the stage had a runner then."""
        return self.claims or self.reads_records


CLAIM: Final = Traits(
    "claim",
    "a claim",
    may_begin=True,
    follows_retiring=True,
    claims=True,
    changes_rows=False,
    restarts=True,
    shows_reading=True,
)
BATCH: Final = Traits("batch", "a batch", fences=False, reads_records=True, writes_rows=True, shows_reading=True)
EDIT: Final = Traits("edit", "an edit by hand", ("edit",), fences=False, writes_rows=True, ends_replays=True)
"""Rows changed by hand: by the stage's runner, between two batches, or by the verb."""

INIT: Final = Traits(
    "init", "a table's first rows, from elsewhere", ("init", "adopt"), may_begin=True, brings_rows=True
)
CLONE: Final = Traits(
    "clone", "a clone", ("clone", "clone refresh"), brings_rows=True, begins="clone", shows_reading=True
)
RENAME: Final = Traits(
    "rename", "a stage's new name", ("migrate",), for_next_program=True, begins="renamed", ends_replays=True
)

COMPACTION: Final = Traits(
    "compaction", "a compaction", ("compact",), fences=False, beside_batches=True, changes_rows=False
)
RESCALE: Final = Traits(
    "rescale",
    "a rescale",
    ("rescale",),
    taken="rescaled",
    then="start this one again: it goes on with the new number of state partitions",
    changes_rows=False,
    restarts=True,
)
RETIRE: Final = Traits(
    "retire",
    "a retirement",
    ("retire",),
    taken="retired",
    then="take it out of the program; a program that has it brings it back where it stopped",
    retires=True,
    follows_retiring=True,
    changes_rows=False,
    ends_replays=True,
)

MIGRATION: Final = Traits(
    "migration",
    "a migration",
    ("migrate",),
    taken="migrated to another program",
    then="start that program: this one is of before",
    for_next_program=True,
    restarts=True,
    ends_replays=True,
)
REWIND: Final = Traits(
    "rewind",
    "a rewind",
    ("rewind",),
    taken="rewound to an earlier moment",
    then=_FROM_THERE,
    follows_retiring=True,
    ends_replays=True,
)
RESET: Final = Traits(
    "reset",
    "a reset",
    ("reset",),
    taken="reset to other offsets",
    then=_FROM_THERE,
    changes_rows=False,
    sets_offsets=True,
    ends_replays=True,
)
RECOVER: Final = Traits(
    "recover",
    "a recovery from a replica",
    ("recover",),
    taken="recovered from a replica",
    then=_FROM_THERE,
    follows_retiring=True,
)

PROMOTE: Final = Traits(
    "promote", "a promotion", ("promote",), fences=False, beside_batches=True, changes_rows=False, sets_sinks=True
)
DEMOTE: Final = Traits(
    "demote",
    "a promotion",
    ("promote",),
    taken="promoted over: another app has its name and its sinks",
    then="it is {name}~1 now. To have the name back, run it beside that one, silent (slackwater run FILE --app "
    "{name}~1), and then: {back}",
    changes_rows=False,
)

FORGET: Final = Traits(
    "forget", "a forget", ("forget",), fences=False, beside_batches=True, changes_rows=False, ends_replays=True
)
"""Keys forgotten in the stage, and in all versions before."""

KINDS: Final[Mapping[VersionKind, Traits]] = {
    kind.name: kind
    for kind in (
        *(CLAIM, BATCH, EDIT, INIT, CLONE, RENAME, COMPACTION, RESCALE, RETIRE, MIGRATION, REWIND, RESET),
        *(RECOVER, PROMOTE, DEMOTE, FORGET),
    )
}
