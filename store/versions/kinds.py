"""Kinds of versions, such as a batch or a claim, with all their properties.

Code that depends on the kind of a version uses `Manifest.traits`. A new kind needs a name in `VersionKind`, a
declaration, its verbs in `snapshot/take/audit_log.py`, and a line in the list in docs/design.md.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

VersionKind = Literal[
    "claim", "batch", "compaction", "clone", "rescale", "retire", "init", "migration", "rename", "rewind",
    "edit", "repair", "promote", "demote", "forget", "recover", "reset",
]  # fmt: skip

CONTINUE_HINT = "let the newer runner continue, or stop it and start this one again"
_RESTART_HINT = "start this one again: it continues from there"


@dataclass(frozen=True, slots=True)
class Traits:
    """Properties of one kind of version. The defaults fit most kinds."""

    name: VersionKind
    noun: str
    verbs: tuple[str, ...] = ()
    """CLI commands that commit this kind, most common first; empty for kinds that only runners commit."""

    fences: bool = True
    """True if the version takes the next epoch and so fences the stage's current writer."""
    beside_batches: bool = False
    """True if a process other than the runner commits the version, between two of the runner's batches.

    The version has the runner's epoch, and the runner continues.
    """
    fate: str = "taken over"
    """Past participle for the fenced writer's error: "the stage was …"."""
    next_step: str = CONTINUE_HINT
    """Hint in the fenced writer's error. `{name}` and `{back}` are filled in for a promotion."""

    may_begin: bool = False
    retires: bool = False
    follows_retiring: bool = False
    for_next_program: bool = False
    """True if the version belongs to the program of the stage's next claim."""

    claims: bool = False
    """True if a runner commits the version to take the stage over, before its first batch."""
    reads_records: bool = False
    writes_rows: bool = False
    """True if the version writes SSTs with new rows."""
    changes_rows: bool = True
    """False if readers see the same rows as at the previous version. A `forget` changes all versions equally."""
    brings_rows: bool = False
    """True if the stage's history begins at this version with rows that no batch wrote."""
    begins: Literal["", "clone", "renamed"] = ""
    """Reason why a stage's history may begin with this kind at a number above 1; empty if it may not."""
    restarts: bool = False
    """True if inputs, channels and sinks may be removed by the version, and records may be lost."""
    sets_sinks: bool = False
    sets_offsets: bool = False
    repairs_rows: bool = False
    """True if the version changes rows as if certain records, which a user took out, had never been read."""
    ends_replays: bool = False
    """True if later batches can be replayed only from the rows of this version or of a later version."""
    shows_reading: bool = False
    """True if the log shows the number of rows that the version read, and its duration."""

    @property
    def by_runner(self) -> bool:
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
REPAIR: Final = Traits(
    "repair", "a repair", ("repair",), fences=False, writes_rows=True, repairs_rows=True, ends_replays=True
)

INIT: Final = Traits("init", "an import of a table's first rows", ("init", "adopt"), may_begin=True, brings_rows=True)
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
    fate="rescaled",
    next_step="start this one again: it continues with the new number of state partitions",
    changes_rows=False,
    restarts=True,
)
RETIRE: Final = Traits(
    "retire",
    "a retirement",
    ("retire",),
    fate="retired",
    next_step="remove it from the program; a program that has it again continues where it stopped",
    retires=True,
    follows_retiring=True,
    changes_rows=False,
    ends_replays=True,
)

MIGRATION: Final = Traits(
    "migration",
    "a migration",
    ("migrate",),
    fate="migrated to another program",
    next_step="start that program: this one is outdated",
    for_next_program=True,
    restarts=True,
    ends_replays=True,
)
REWIND: Final = Traits(
    "rewind",
    "a rewind",
    ("rewind",),
    fate="rewound to an earlier moment",
    next_step=_RESTART_HINT,
    follows_retiring=True,
    ends_replays=True,
)
RESET: Final = Traits(
    "reset",
    "a reset",
    ("reset",),
    fate="reset to other offsets",
    next_step=_RESTART_HINT,
    changes_rows=False,
    sets_offsets=True,
    ends_replays=True,
)
RECOVER: Final = Traits(
    "recover",
    "a recovery from a replica",
    ("recover",),
    fate="recovered from a replica",
    next_step=_RESTART_HINT,
    follows_retiring=True,
)

PROMOTE: Final = Traits(
    "promote", "a promotion", ("promote",), fences=False, beside_batches=True, changes_rows=False, sets_sinks=True
)
DEMOTE: Final = Traits(
    "demote",
    "a promotion",
    ("promote",),
    fate="promoted over: another app has its name and its sinks",
    next_step="it is called {name}~1 now. To take the name back, run it silently beside the other "
    "(slackwater run FILE --app {name}~1), and then: {back}",
    changes_rows=False,
)

FORGET: Final = Traits(
    "forget", "a forget", ("forget",), fences=False, beside_batches=True, changes_rows=False, ends_replays=True
)

KINDS: Final[Mapping[VersionKind, Traits]] = {
    kind.name: kind
    for kind in (
        *(CLAIM, BATCH, EDIT, REPAIR, INIT, CLONE, RENAME, COMPACTION, RESCALE, RETIRE, MIGRATION, REWIND, RESET),
        *(RECOVER, PROMOTE, DEMOTE, FORGET),
    )
}
