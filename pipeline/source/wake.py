"""A runner's messages to its planners, in files; backpressure between stages; polls for requests."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...common import runtime
from ...snapshot.cut.stored import newest_notice, open_requests
from ...snapshot.under_way import runners
from ...snapshot.under_way.runners import HOLD_LAPSE_S, Hold
from ...state.records import count_unread
from ...store.objects.protocol import ObjectStore
from ...store.sst.hashing import KeyShare
from ...store.versions.forgotten import find_journal
from ...store.versions.manifest import Manifest
from ..listener import Listener

_BUSY_S = 0.25
_IDLE_S = 1.5
"""Seconds between polls of an idle app. Long, because these reads are most of an idle app's cost."""
_LIST_S = 300.0
"""Seconds between listings if no request was announced, because a requester may crash before its announcement."""


@dataclass(frozen=True, slots=True)
class PlannerFiles:
    """A runner's messages to the planners of all its stages, in files of a folder. Thread-safe."""

    folder: Path

    def write_requests(self, snapshots: Iterable[str]) -> None:
        self._write("asked", list(snapshots))

    def requested_snapshots(self) -> tuple[str, ...]:
        return tuple(self._read("asked") or ())

    def write_committed(self, stage: str, version: int) -> None:
        self._write(f"committed/{stage}", version)

    def committed_version(self, stage: str) -> int | None:
        version: int | None = self._read(f"committed/{stage}")
        return version

    def write_needed_columns(self, stage: str, columns: Mapping[str, Collection[str]]) -> None:
        """Send the columns of users' topics that a stage needs, by input. Other inputs need all columns."""
        self._write(f"needed/{stage}", {name: sorted(names) for name, names in columns.items()})

    def needed_columns(self, stage: str, name: str) -> frozenset[str] | None:
        needed = (self._read(f"needed/{stage}") or {}).get(name)
        return None if needed is None else frozenset(needed)

    def write_key_shares(self, stage: str, shares: Mapping[str, KeyShare]) -> None:
        """Send the fraction of keys (by hash) that a stage reads from each input. Other inputs are read entirely."""
        self._write(f"chosen/{stage}", {name: [share.columns, share.parts] for name, share in shares.items()})

    def key_share(self, stage: str, name: str) -> KeyShare | None:
        chosen = (self._read(f"chosen/{stage}") or {}).get(name)
        return None if chosen is None else KeyShare(tuple(chosen[0]), chosen[1])

    def schedule_wake_up(self, stage: str, version: int, at_ms: int | None) -> None:
        """Make a stage start a batch after this version, at or after a time (ms since 1970). None cancels the plan."""
        self._write(f"wake/{stage}", None if at_ms is None else [version, at_ms])

    def due_wake_version(self, stage: str, handled: int, now_ms: int) -> int:
        """Return the version after which a batch is due now; 0 if there is none newer than `handled`."""
        version, at_ms = self._read(f"wake/{stage}") or (0, 0)
        return version if version > handled and at_ms <= self.clock_ms(now_ms) else 0

    def set_held(self, stage: str, *, held: bool) -> None:
        self._write(f"held/{stage}", True if held else None)

    def is_held(self, stage: str) -> bool:
        return (self.folder / "held" / stage).exists()

    def limit_reading(self, until: Mapping[str, Collection[int]] | None, clock_ms: int | None = None) -> None:
        """Limit reading of users' topics to these end offsets; None removes the limit.

        With `clock_ms` (ms since 1970), the clock for due rows stops at that time.
        """
        self._write("bounds", None if until is None else [{topic: [*at] for topic, at in until.items()}, clock_ms])

    def end_offsets(self, topic: str) -> tuple[int, ...] | None:
        """Return the end offsets that limit reading of a topic, by partition; None for no limit.

        Partitions without an end offset are not read.
        """
        bounds = self._read("bounds")
        return None if bounds is None else tuple(bounds[0].get(topic, ()))

    def clock_ms(self, now_ms: int) -> int:
        """Return the time of the clock for due rows: the current time, or the time at which it stopped."""
        _, held_ms = self._read("bounds") or ({}, None)
        return now_ms if held_ms is None else min(now_ms, held_ms)

    def _write(self, name: str, value: object) -> None:
        path = self.folder / name
        if value is None:
            path.unlink(missing_ok=True)
            return
        path.parent.mkdir(parents=True, exist_ok=True)  # may be called before the query starts
        whole = path.with_name(f"{path.name}.{runtime.random_hex()}")
        whole.write_text(json.dumps(value))
        whole.replace(path)

    def _read(self, name: str) -> Any:
        try:
            return json.loads((self.folder / name).read_text())
        except FileNotFoundError:
            return None


@dataclass(slots=True)
class Backpressure(Listener):
    """Keeps a stage from running far ahead of its readers in the same runner. Thread-safe.

    A reader must read a channel's backlog before it reaches a marker. So a backlog delays every snapshot; in an instant
    snapshot, the backlog is in flight. A reader with a limited batch size lags if its unread rows exceed one batch. The
    stage that writes these rows then starts no batch. Readers without a limit read all rows at once.
    """

    planners: PlannerFiles
    max_records: Mapping[str, int]
    """Maximum records of each input per batch, by stage; only for stages of this runner that have a limit."""
    slow_readers: Mapping[str, tuple[str, ...]] = field(default_factory=dict, init=False)
    """Lagging readers, by the stage that waits for them."""
    _heads: dict[str, Manifest] = field(default_factory=dict)
    _tips: dict[str, Manifest] = field(default_factory=dict)
    _lock: runtime.Lock = field(default_factory=runtime.lock)

    def on_version(self, head: Manifest, tip: Manifest) -> None:
        """Record a stage's versions, and notify its readers.

        Stages whose readers lag are held; all remaining stages are released.

        `head` is the newest committed version, which readers may read. `tip` is the newest acknowledged version, whose
        input counts as read.
        """
        with self._lock:
            self._heads[head.stage], self._tips[tip.stage] = head, tip
            self.slow_readers = self._find_slow_readers()
            for stage in self._heads:
                self.planners.set_held(stage, held=stage in self.slow_readers)
        self.planners.write_committed(head.stage, head.version)

    def _find_slow_readers(self) -> dict[str, tuple[str, ...]]:
        slow: dict[str, tuple[str, ...]] = {}
        for reader, max_records in self.max_records.items():
            inputs = self._tips[reader].inputs if reader in self._tips else {}
            for name, at in inputs.items():
                writer = self._heads.get(at.upstream)
                # A stage may no longer write a channel that it wrote before.
                output = writer.outputs.get(name) if writer is not None else None
                if output is not None and (count_unread(output, at) or 0) > max_records:
                    slow[at.upstream] = (*slow.get(at.upstream, ()), reader)
        return slow


@dataclass(slots=True)
class RequestWatch:
    """Polls the store for requests to one runner, and informs its planners about snapshots and holds.

    A hold stops reading at given end offsets during a promotion. The hold is read after an announcement, and repeatedly
    until it ends. A listing costs twelve times as much as a read, so requests are listed only after an announcement of
    new requests. `clock` is a function that returns monotonic seconds.
    """

    store: ObjectStore
    app: str
    planners: PlannerFiles
    clock: Callable[[], float] = field(default=runtime.monotonic, kw_only=True)
    _seen: bytes | None = None
    _polled_s: float = float("-inf")
    _listed_s: float = float("-inf")
    forgetting: bool = field(default=False, init=False)
    _hold: Hold | None = None
    _renewed_s: float = 0.0

    @property
    def is_held(self) -> bool:
        return self._hold is not None and self.clock() - self._renewed_s < HOLD_LAPSE_S

    def poll(self, *, busy: bool) -> bool:
        """Poll if due; return True if there may be new requests to take a snapshot, retry records or edit rows.

        `busy` is True if batches were committed since the last call; additional reads then hardly add to the cost.
        Raises `Corruption` for a damaged request.
        """
        now_s = self.clock()
        if now_s - self._polled_s < (_BUSY_S if busy or self.is_held else _IDLE_S):
            return False
        self._polled_s = now_s
        notice = newest_notice(self.store, self.app)
        is_news = notice != self._seen or now_s - self._listed_s >= _LIST_S
        if is_news or self._hold is not None:
            self._apply_hold(runners.find_hold(self.store, self.app), now_s)
        if is_news or self.forgetting:
            self.forgetting = find_journal(self.store, self.app) is not None
        if not is_news:
            return False
        self.planners.write_requests(request.id for request in open_requests(self.store, self.app))
        # Only after success, so that a failed poll is repeated.
        self._seen, self._listed_s = notice, now_s
        return True

    def _apply_hold(self, current: Hold | None, now_s: float) -> None:
        if current != self._hold:
            self._hold, self._renewed_s = current, now_s
        is_held = current is not None and now_s - self._renewed_s < HOLD_LAPSE_S
        self.planners.limit_reading(*(current.until, current.clock_ms) if current is not None and is_held else (None,))
