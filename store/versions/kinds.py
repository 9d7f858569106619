"""Kinds of versions, with all their properties.

Code that treats kinds differently asks `Manifest.traits`. A new kind needs a name in `VersionKind`, a declaration, its
verbs in `snapshot/take/audit_log.py`, and a place in the list of docs/design.md.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

VersionKind = Literal[
    "claim", "batch", "compaction", "clone", "rescale", "retire", "init", "migration", "rename", "rewind",
    "edit", "promote", "demote", "forget", "recover", "reset",
]  # fmt: skip

CONTINUE_HINT = "let the newer runner continue, or stop it and start this one again"
_RESTART_HINT = "start this one again: it continues from there"


@dataclass(frozen=True, slots=True)
class Traits:
    """Properties of a kind of version. The defaults hold for most kinds."""

    name: VersionKind
    noun: str
    verbs: tuple[str, ...] = ()
    """CLI verbs that commit this kind, the usual one first; empty for kinds that only runners commit."""

    fences: bool = True
    """True if the version takes the stage over with the next epoch, so that the current writer's commits fail."""
    beside_batches: bool = False
    """True if another process commits the version between two batches, under the epoch of the writer, which goes on."""
    fate: str = "taken over"
    """Past participle that ends "the stage was …" in the fenced writer's error."""
    next_step: str = CONTINUE_HINT
    """Hint for the operator of the fenced writer; `{name}` and `{back}` come from the promotion."""

    may_begin: bool = False
    retires: bool = False
    follows_retiring: bool = False
    for_next_program: bool = False
    """True if the version belongs to the program of the next claim."""

    claims: bool = False
    """True if a runner takes the stage with the version, before its first batch."""
    reads_records: bool = False
    writes_rows: bool = False
    """True if the version's own SSTs have new rows."""
    changes_rows: bool = True
    """False if readers see the same rows as at the previous version. A `forget` removes keys from all versions."""
    brings_rows: bool = False
    """True if the version begins the stage with a table that no batch wrote."""
    begins: Literal["", "clone", "renamed"] = ""
    """Reason for which a history may begin with this kind above version 1; empty if it may not."""
    restarts: bool = False
    """True if inputs, channels and sinks may vanish with the version, and records may be lost."""
    sets_sinks: bool = False
    sets_offsets: bool = False
    ends_replays: bool = False
    """True if later batches can be replayed only on this version's rows."""
    shows_reading: bool = False
    """True if the log shows how many rows the version read, and its duration."""

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
        *(CLAIM, BATCH, EDIT, INIT, CLONE, RENAME, COMPACTION, RESCALE, RETIRE, MIGRATION, REWIND, RESET),
        *(RECOVER, PROMOTE, DEMOTE, FORGET),
    )
}
