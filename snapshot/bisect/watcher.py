"""Asking invariants of an app when they are due, at its newest consistent moment, and remembering which have failed.

The newest moment at which every invariant was seen to hold has the tag `last-good`. It is an instant snapshot under
that name, which moves: so it is a ref like any other, `gc` keeps what it names, and all that it costs is one small
object, written anew when it moves. A put replaces an object as a whole, so whoever dies meanwhile leaves the moment
before or the new one.

An invariant says what must always hold of an app, how often it is asked, and what is called when it does not hold.
"""

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import pyarrow as pa

from ...errors import Refused, SlackwaterError, Unavailable, Usage
from ...store.objects.protocol import ObjectStore
from ...store.read.cache import SstCache
from ...store.versions.manifest import Manifest
from ..cut.graph import Cut
from ..cut.kafka_topics import Topics
from ..cut.line import Line
from ..cut.moments import later_stages
from ..cut.resolve import resolve
from ..cut.stored import Snapshot, find_snapshot
from ..query.answers import answer
from ..query.sql import names_channels
from ..take.snapshots import move, pin
from .predicate import check, where

TIMEOUT_S = 60.0
"""So long a command may take. It is to tell somebody, or to start what takes longer."""


@dataclass(frozen=True, slots=True)
class Invariant:
    """A standing invariant, as `[invariants.NAME]` of `slackwater.toml` says it."""

    name: str
    where: str
    """A query that returns rows when it does not hold, or a condition for rows; empty while it is a `check`."""
    every_ms: int
    on_failure: str = ""
    """A command line for the shell, called when it has begun to fail; empty for none."""
    app: str = ""
    """The only app of which it must hold; empty for any."""
    check: str = ""
    """The condition that must hold instead, as `bisect --check` takes it."""
    table: str = ""
    """Which table the condition is over, where its columns do not say."""

    def __post_init__(self) -> None:
        if self.every_ms <= 0:
            raise Usage(f"invariant {self.name!r}: it is asked every {self.every_ms} ms; expected a longer span")

    def of(self, store: ObjectStore, app: str) -> "Invariant":
        """The same with a query in place of a condition, which the app's tables complete. Raises as `check` does."""
        said = check(store, app, self.check, self.table) if self.check else where(store, app, self.where, self.table)
        return replace(self, where=said.sql)


def call(command: str, environment: Mapping[str, str], *, timeout_s: float = TIMEOUT_S) -> None:
    """Run a command line by the shell, and wait for it. What it prints goes to this process's standard error.

    Raises:
        Unavailable: it cannot be run, or ends with another code than 0, or not in time: then it is killed.
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
        hint = "let it start what takes longer in the background, and end"
        raise Unavailable(f"on_failure had not ended after {timeout_s:g} s", quoted=command, hint=hint) from None
    if ended.returncode:
        raise Unavailable(f"on_failure ended with exit code {ended.returncode}", quoted=command)


LAST_GOOD = "last-good"
_BY = "slackwater watch"
MAX_ROWS = 1_000
"""Rows of a failing invariant that are held."""


State = Literal["holds", "fails", "unknown"]


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What an invariant was at a moment."""

    invariant: Invariant
    rows: pa.Table | None
    """What its query returned, up to `MAX_ROWS` rows; None when it could not be asked."""
    error: SlackwaterError | None = None
    """Why it could not."""

    @property
    def state(self) -> State:
        """It holds when it could be asked, and returned no rows."""
        return "unknown" if self.rows is None else "fails" if self.rows.num_rows else "holds"


@dataclass(frozen=True, slots=True)
class Findings:
    """What was found at one moment."""

    cut: Cut
    ref: str
    """Names the moment for good."""
    results: tuple[CheckResult, ...]
    """Of the invariants that were due."""
    before: Mapping[str, State]
    """By name: what they were when they were asked before, of those that were."""
    last_good: str
    """A ref to the newest moment at which all were seen to hold; empty before there was one."""

    @property
    def is_good(self) -> bool:
        """Whether all that was asked holds."""
        return all(result.state == "holds" for result in self.results)

    @property
    def news(self) -> tuple[CheckResult, ...]:
        """The results that are others than before; before its first time, everything is taken to hold."""
        return tuple(each for each in self.results if each.state != self.before.get(each.invariant.name, "holds"))


@dataclass
class Watcher:
    """Invariants of one app, and when each was asked.

    Each is asked as often as it says. When the one that is asked least is due, so are all: at that moment it is seen
    whether the app is good. A moment that was looked at already is not asked again.

    """

    store: ObjectStore
    cache: SstCache
    app: str
    invariants: Sequence[Invariant]
    """At least one."""
    by: str = field(kw_only=True)
    """user@host, who the tag `last-good` is by."""
    reader: Topics | None = field(default=None, kw_only=True)
    """Reads records in flight, which an invariant may ask for."""
    _results: dict[Invariant, tuple[dict[str, int], CheckResult]] = field(default_factory=dict, init=False)
    """The last of each, with the versions that it was asked at."""

    def __post_init__(self) -> None:
        self._due_ms = dict.fromkeys(self.invariants, 0)

    def due_ms(self) -> int:
        """When the next is due, in milliseconds since 1970 UTC; 0 for at once."""
        return min(self._due_ms.values())

    def look(self, now_ms: int) -> Findings | None:
        """Ask what is due; None when nothing is, or nothing was committed since it was asked.

        Raises:
            NotFound: there is no such app, or it has no version yet.
            Refused: the name `last-good` is taken.
            Corruption: a manifest is damaged.
            Unavailable: storage did not answer; the same is due still.
        """
        due = [invariant for invariant, due_ms in self._due_ms.items() if due_ms <= now_ms]
        if any(invariant.every_ms == max(each.every_ms for each in self.invariants) for invariant in due):
            due = list(self.invariants)
        if not due:
            return None
        # As it was committed, whenever one looks: so bisect sees the same.
        cut = replace(resolve(self.store, self.app, now_ms=now_ms), seen_ms=0)
        new = [each for each in due if each not in self._results or self._results[each][0] != cut.versions]
        before = {each.name: self._results[each][1].state for each in new if each in self._results}
        later = later_stages(self.store, cut) if new else {}
        results = tuple(self._ask(invariant, cut, later, now_ms) for invariant in new)
        self._results |= {result.invariant: (cut.versions, result) for result in results}
        known = [self._results.get(each) for each in self.invariants]
        is_good = all(each and each[0] == cut.versions and each[1].state == "holds" for each in known)
        found = advance(self.store, cut, self.by) if is_good else last_good(self.store, self.app)
        tag = f"{self.app}@{LAST_GOOD}" if found is not None else ""
        self._due_ms |= {invariant: now_ms + invariant.every_ms for invariant in due}
        ref = Line(self.store, cut).ref(cut)
        return Findings(cut, ref, results, before, tag) if results else None

    def _ask(self, invariant: Invariant, cut: Cut, later: Mapping[str, Manifest], now_ms: int) -> CheckResult:
        sql, store, cache = invariant.where, self.store, self.cache
        reader = self.reader if names_channels(sql) else None
        try:
            rows = answer(store, cache, cut, sql, later=later, reader=reader, max_rows=MAX_ROWS, now_ms=now_ms)
        except Unavailable:
            raise
        except SlackwaterError as error:
            return CheckResult(invariant, None, error)
        return CheckResult(invariant, rows)


def last_good(store: ObjectStore, app: str) -> Snapshot | None:
    """What the tag names, None before it was set. Raises `Refused` where somebody took a snapshot of this name."""
    found = find_snapshot(store, app, LAST_GOOD)
    if found is not None and not (found.kind == "instant" and found.by.startswith(_BY)):
        by = f", taken by {found.by}" if found.by else ""
        raise Refused(
            f"{app}@{LAST_GOOD} is a snapshot of its own{by}; a watch would move it",
            hint=f"`slackwater snapshot rm {app} {LAST_GOOD}` frees the name",
        )
    return found


def advance(store: ObjectStore, cut: Cut, by: str) -> Snapshot:
    """Let the tag name this cut, unless it names a later one. Returns what it names now.

    Raises:
        NotFound: a version of the cut was collected meanwhile; the tag stays where it was.
        Refused: as `last_good`.
        Unavailable: storage did not answer.
    """
    found, author = last_good(store, cut.app), f"{_BY} by {by}"
    if found is None:
        return pin(store, cut, LAST_GOOD, by=author)
    # Another watch may have seen a newer moment meanwhile.
    is_behind = any(version < found.stages.get(stage, 0) for stage, version in cut.versions.items())
    return found if is_behind or found.stages == cut.versions else move(store, found, cut, by=author)
