"""Limits of a repair: state or watermarks that depend on more than a key's records, and too many keys."""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa

from ....errors import Refused
from ....state.event_time import EventTimeScan, later_time
from ....state.kinds.kind import kind_of
from ....store.sst.schema import DUE
from ....store.versions.limits import YEAR_1_MS
from ...debugging.replay.stage_replay import StageReplay


@dataclass(slots=True)
class KeyLimit:
    """Limit on the total number of keys, in all stages, whose past a repair changes."""

    most: int
    keys: set[tuple[str, int]] = field(default_factory=set)

    def add(self, stage: str, hashes: list[int]) -> None:
        self.keys.update((stage, value) for value in hashes)
        if len(self.keys) > self.most:
            stages = ", ".join(sorted({name for name, _ in self.keys}))
            raise Refused(
                f"the repair touches at least {len(self.keys):,} keys of {stages}; expected at most {self.most:,}",
                hint="`slackwater impact` shows which; --max-keys allows more",
            )


def check_state(replay: StageReplay) -> None:
    """Raise `Refused` if a key's row depends on more than the previous row and the key's records."""
    table, kind = replay.table, kind_of(replay.table.state)
    reason = ""
    if kind.waiting_rows:
        reason = f"its rows hold {kind.waiting_rows}"
    elif replay.due is not None or DUE in (column.name for column in table.values):
        reason = "its rows fall due"
    elif table.ttl is not None:
        reason = "its rows expire"
    elif replay.look_ups:
        reason = "its rows have parts in tables of their own"
    if reason:
        raise Refused(
            f"cannot repair keys of {replay.after.app}/{replay.after.stage}, because {reason}",
            hint=f"correct the topic, and `slackwater rewind {replay.after.app}@REF` to before the record",
        )


def check_watermark(replay: StageReplay, before: pa.Table, after: pa.Table) -> None:
    """Raise `Refused` if the changed input changes the watermark after a batch."""
    times, watermarks = replay.after.event_time, replay.shape.watermarks
    if not watermarks or times is None or times.bound_ms is None:
        return
    scan = EventTimeScan(watermarks, times.bound_ms)
    for watermark, was, now in zip(watermarks, scan.scan(before).latest_ms, scan.scan(after).latest_ms, strict=True):
        for name in watermark.inputs:
            earlier = replay.before.inputs.get(name)
            at_ms = max(YEAR_1_MS, now - watermark.delay_ms) if now is not None else None
            moved_ms = later_time(earlier.watermark_ms if earlier is not None else None, at_ms)
            if was != now and moved_ms != replay.after.inputs[name].watermark_ms:
                raise Refused(
                    f"{replay.after.stage}@v{replay.after.version}: the record moved the watermark of {name!r}, on "
                    "which later batches depend",
                    hint=f"correct the topic, and `slackwater rewind {replay.after.app}@REF` to before the record",
                )
