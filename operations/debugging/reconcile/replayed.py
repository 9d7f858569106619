"""Replays that determine the fates of records if stored objects prove none.

`ImpactWalk` follows a record to the stage.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pyarrow as pa

from ....snapshot.cut.graph import upstream_stages
from ....store.versions.manifest import Manifest
from ..explain.impact import ImpactWalk, rows_of_records
from ..replay.batches import OpenBatches
from ..replay.program import LoadedProgram
from ..replay.stage_replay import filter_by_keys
from .reasons import MissingReason, ReasonKind

_REPLAYED: frozenset[ReasonKind] = frozenset({"filtered", "late", "forgotten", "counted"})
_MAX_BATCHES = 100
"""Maximum number of batches to replay for all records."""


@dataclass
class ReplayedFates:
    """Determines fates of records on their way to a stage's table, by replays with the app's program."""

    program: LoadedProgram
    heads: Mapping[str, Manifest]
    stage: str
    _batches: OpenBatches = field(init=False)

    def __post_init__(self) -> None:
        self._batches = OpenBatches(self.program, _MAX_BATCHES)

    def settle(self, fate: MissingReason, key: pa.Table) -> MissingReason:
        """Return a fate completed by a replay for a key; the same fate if it is proved or the replay adds nothing."""
        if fate.proved or fate.record is None or fate.kind not in _REPLAYED:
            return fate
        stages = (self.stage, *upstream_stages(self.heads, self.stage))
        heads = {stage: self.heads[stage] for stage in stages}
        beyond = f"slackwater impact {self.program.app.name} '{fate.record}' --limit 0 replays all"
        walk = ImpactWalk(self.program, heads, _MAX_BATCHES, beyond=beyond)
        walk.batches = self._batches
        walk.run(fate.record)
        settled = self._settled(walk, key)
        if settled is None or (walk.unknown and settled.kind != "counted"):
            why = next(iter(walk.unknown), f"it does not show what upstream stages did with it before {self.stage}")
            return fate.unless(f". A replay did not decide: {why}")
        return replace(settled, record=fate.record)

    def _settled(self, walk: ImpactWalk, key: pa.Table) -> MissingReason | None:
        """Return a record's fate for a key, from a finished walk; None if the walk does not show it."""
        reasons = list[MissingReason]()
        for batch, numbers in walk.reached_in(self.stage):
            replay = batch.replay
            rows, name = rows_of_records(replay, numbers), f"{self.stage}@v{replay.after.version}"
            kept, late = replay.step.split_late(rows)
            if filter_by_keys(kept, key).num_rows:
                return MissingReason("counted", f"in a replay of {name}, the program turns it into a row of the key")
            if filter_by_keys(late, key).num_rows:
                reasons.append(MissingReason("late", f"in a replay of {name}, its row of the key is late"))
            elif rows.num_rows:
                reasons.append(
                    MissingReason("filtered", f"in a replay of {name}, the program makes rows of other keys of it")
                )
        # What a later version of a stage did with a record that was read again is in effect.
        reasons += (
            MissingReason(taken.kind, f"in a replay of {taken.stage}@v{taken.version}: {taken.detail}")
            for taken in walk.not_taken
        )
        return reasons[0] if reasons else None
