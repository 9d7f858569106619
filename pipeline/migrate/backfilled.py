"""What `slackwater migrate --backfill` did, or would do. Values only."""

from collections.abc import Mapping
from dataclasses import dataclass

from ...snapshot.backfill.targets import Left, Target
from ...snapshot.migrate.migrate import Migrated


@dataclass(frozen=True, slots=True)
class Filled:
    """Columns that were computed over the past, or would be.

    Attributes:
        target: What.
        starts: Where it begins, by user's topic as declared: from there on the values are complete.
        whole: Whether nothing is missing: the stage itself began there.
        records: How many offsets were to be read.
        from_ms: The time of the earliest record, in ms since 1970; None where there is none.
        version: The stage's version that has the values; 0 for none.
        keys: For how many keys there are values, at most.
        keys_exact: False where a key is counted once for each sorted run that has it.
        ssts: Objects that were rewritten for it.
        bytes: Theirs.
        needed: The app that computed it, where that stays for now: a batch under way may need it.
    """

    target: Target
    starts: Mapping[str, tuple[int, ...]]
    whole: bool
    records: int
    from_ms: int | None
    version: int = 0
    keys: int = 0
    keys_exact: bool = True
    ssts: int = 0
    bytes: int = 0
    needed: str = ""


@dataclass(frozen=True, slots=True)
class Backfilled:
    """What a backfill did, or would do.

    Attributes:
        migrated: What the program changed before.
        filled: The columns that got their past, upstream first.
        left: Those that stay as they are, and why.
    """

    migrated: Migrated
    filled: tuple[Filled, ...]
    left: tuple[Left, ...]
