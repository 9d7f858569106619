"""Evaluate the invariants of an app periodically at its newest moment, and move the tag `last-good`.

The tag `last-good` names the newest moment at which every invariant held. The tag is an instant snapshot that moves: it
works as a ref, protects its versions from `gc`, and costs one small object. Moving the tag replaces this object
atomically, so a crash leaves either the old or the new tag.
"""

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import pyarrow as pa

from ...errors import Refused, SlackwaterError, Unavailable
from ...store.objects.protocol import ObjectStore
from ...store.read.cache import SstCache
from ...store.versions.manifest import Manifest
from ..cut.graph import Cut
from ..cut.kafka_topics import KafkaTopics
from ..cut.line import Line
from ..cut.moments import later_stages
from ..cut.resolve import resolve
from ..cut.stored import Snapshot, find_snapshot
from ..query.answers import run_statement
from ..query.sql import names_channels
from ..take.snapshots import move_snapshot, pin_cut
from .invariant import Invariant

TIMEOUT_S = 60.0


def run_failure_command(command: str, environment: Mapping[str, str], *, timeout_s: float = TIMEOUT_S) -> None:
    """Run a shell command and wait for it. Its output goes to this process's standard error.

    Raises:
        Unavailable: the command cannot be run, exits with a code other than 0, or is killed after the timeout.
    """
    try:
        ended = subprocess.run(
            ["/bin/sh", "-c", command],
            env=os.environ | environment,
            stdin=subprocess.DEVNULL,
            stdout=2,
            timeout=timeout_s,
            check=False,
        )
    except OSError as error:
        raise Unavailable(f"on_failure cannot be run: {error.strerror or error}", quoted=command) from None
    except subprocess.TimeoutExpired:
        hint = "run long tasks in the background"
        raise Unavailable(
            f"on_failure did not finish within {timeout_s:g} s and was killed", quoted=command, hint=hint
        ) from None
    if ended.returncode:
        raise Unavailable(f"on_failure failed with exit code {ended.returncode}", quoted=command)


LAST_GOOD = "last-good"
_TAG_AUTHOR = "slackwater watch"
MAX_ROWS = 1_000


InvariantState = Literal["holds", "fails", "unknown"]


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Result of an invariant at one moment."""

    invariant: Invariant
    rows: pa.Table | None
    error: SlackwaterError | None = None

    @property
    def state(self) -> InvariantState:
        """State of the invariant: "holds" if no row is wrong, "fails" if some are, "unknown" if the query failed."""
        return "unknown" if self.rows is None else "fails" if self.rows.num_rows else "holds"


@dataclass(frozen=True, slots=True)
class Findings:
    """Results of the due invariants at one moment."""

    cut: Cut
    ref: str
    results: tuple[CheckResult, ...]
    previous_states: Mapping[str, InvariantState]
    last_good: str

    @property
    def is_good(self) -> bool:
        return all(result.state == "holds" for result in self.results)

    @property
    def changed_results(self) -> tuple[CheckResult, ...]:
        """Results of invariants whose state changed since their last evaluation. The initial state is "holds"."""
        return tuple(
            result
            for result in self.results
            if result.state != self.previous_states.get(result.invariant.name, "holds")
        )


@dataclass
class Watcher:
    """Schedule of the invariants of one app.

    Each invariant is evaluated at its own interval. When the invariant with the longest interval is due, all
    invariants are evaluated at one moment, which may then become `last-good`. An unchanged moment is not evaluated
    again.
    """

    store: ObjectStore
    cache: SstCache
    app: str
    invariants: Sequence[Invariant]
    by: str = field(kw_only=True)
    reader: KafkaTopics | None = field(default=None, kw_only=True)
    _results: dict[Invariant, tuple[dict[str, int], CheckResult]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._due_ms = dict.fromkeys(self.invariants, 0)

    def due_ms(self) -> int:
        """Return the time at which the next invariant is due, in milliseconds since 1970 UTC; 0 for immediately."""
        return min(self._due_ms.values())

    def evaluate_due(self, now_ms: int) -> Findings | None:
        """Evaluate the due invariants. Returns None if none is due, or if there is no newer commit.

        Raises:
            NotFound: the app does not exist, or has no version yet.
            Refused: the name `last-good` is taken.
            Corruption: a manifest is damaged.
            Unavailable: storage did not answer; the invariants remain due.
        """
        due = self._due_invariants(now_ms)
        if not due:
            return None
        # Rows are read as committed, regardless of the clock, so that bisect sees the same rows.
        cut = replace(resolve(self.store, self.app, now_ms=now_ms), seen_ms=0)
        to_evaluate = [invariant for invariant in due if not self._is_evaluated(invariant, cut)]
        previous = {
            invariant.name: self._results[invariant][1].state for invariant in to_evaluate if invariant in self._results
        }
        later = later_stages(self.store, cut) if to_evaluate else {}
        results = tuple(self._evaluate(invariant, cut, later, now_ms) for invariant in to_evaluate)
        self._results |= {result.invariant: (cut.versions, result) for result in results}
        is_good = all(
            self._is_evaluated(invariant, cut) and self._results[invariant][1].state == "holds"
            for invariant in self.invariants
        )
        tag_snapshot = advance_last_good(self.store, cut, self.by) if is_good else find_last_good(self.store, self.app)
        tag = f"{self.app}@{LAST_GOOD}" if tag_snapshot is not None else ""
        self._due_ms |= {invariant: now_ms + invariant.every_ms for invariant in due}
        ref = Line(self.store, cut).ref(cut)
        return Findings(cut, ref, results, previous, tag) if results else None

    def _due_invariants(self, now_ms: int) -> list[Invariant]:
        due = [invariant for invariant, due_ms in self._due_ms.items() if due_ms <= now_ms]
        longest_ms = max(invariant.every_ms for invariant in self.invariants)
        return list(self.invariants) if any(invariant.every_ms == longest_ms for invariant in due) else due

    def _is_evaluated(self, invariant: Invariant, cut: Cut) -> bool:
        return invariant in self._results and self._results[invariant][0] == cut.versions

    def _evaluate(self, invariant: Invariant, cut: Cut, later: Mapping[str, Manifest], now_ms: int) -> CheckResult:
        sql, store, cache = invariant.where, self.store, self.cache
        reader = self.reader if names_channels(sql) else None
        try:
            rows = run_statement(store, cache, cut, sql, later=later, reader=reader, max_rows=MAX_ROWS, now_ms=now_ms)
        except Unavailable:
            raise
        except SlackwaterError as error:
            return CheckResult(invariant, None, error)
        return CheckResult(invariant, rows)


def find_last_good(store: ObjectStore, app: str) -> Snapshot | None:
    """Return the snapshot of the tag `last-good`; None if never set. Raises `Refused` if a user took the name."""
    snapshot = find_snapshot(store, app, LAST_GOOD)
    if snapshot is not None and not (snapshot.kind == "instant" and snapshot.by.startswith(_TAG_AUTHOR)):
        by = f", taken by {snapshot.by}" if snapshot.by else ""
        raise Refused(
            f"{app}@{LAST_GOOD} is an ordinary snapshot{by}, and `slackwater watch` needs the name for its tag",
            hint=f"`slackwater snapshot rm {app} {LAST_GOOD}` frees the name",
        )
    return snapshot


def advance_last_good(store: ObjectStore, cut: Cut, by: str) -> Snapshot:
    """Move the tag `last-good` to this cut, unless the tag names a later cut. Returns the tag's snapshot.

    Raises:
        NotFound: a version of the cut was collected meanwhile; the tag did not move.
        Refused: a user took a snapshot named `last-good`.
        Unavailable: storage did not answer.
    """
    tagged, author = find_last_good(store, cut.app), f"{_TAG_AUTHOR} by {by}"
    if tagged is None:
        return pin_cut(store, cut, LAST_GOOD, by=author)
    # Another watcher may have moved the tag further meanwhile.
    is_behind = any(version < tagged.stages.get(stage, 0) for stage, version in cut.versions.items())
    return tagged if is_behind or tagged.stages == cut.versions else move_snapshot(store, tagged, cut, by=author)
