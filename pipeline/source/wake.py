"""What a runner tells the planners of its inputs, each a process of its own, in files; snapshots that are asked for."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

from ...snapshot.cut.stored import newest_notice, open_requests
from ...snapshot.under_way import hold
from ...snapshot.under_way.hold import LAPSE_S, Hold
from ...store.objects.protocol import ObjectStore
from ...store.sst.key_share import KeyShare
from ...store.versions.forgotten import under_way

_BUSY_S = 0.25
_IDLE_S = 1.5
"""Of an app that does nothing these reads are most of what it costs."""
_LIST_S = 300.0
"""Whoever asked may have died before notifying anybody."""


@dataclass(frozen=True, slots=True)
class PlannerFiles:
    """What a runner tells the planners of all its stages, in files of a folder. Any thread may tell."""

    folder: Path

    def ask(self, snapshots: Iterable[str]) -> None:
        """Snapshots of these ids are asked for now."""
        self._tell("asked", " ".join(snapshots))

    def asked(self) -> tuple[str, ...]:
        """The ids that were told last, oldest first."""
        return tuple((self._told("asked") or "").split())

    def commit(self, stage: str, version: int) -> None:
        """A version of a stage that runs here is committed."""
        self._tell(f"committed/{stage}", str(version))

    def committed(self, stage: str) -> int | None:
        """The newest version of a stage; None where it does not run here."""
        text = self._told(f"committed/{stage}")
        return None if text is None else int(text)

    def need(self, stage: str, columns: Mapping[str, Collection[str]]) -> None:
        """A stage needs these columns of its users' topics, by the input's name; all of what is not named."""
        self._tell(f"needed/{stage}", json.dumps({name: sorted(each) for name, each in columns.items()}))

    def needed(self, stage: str, name: str) -> frozenset[str] | None:
        """The columns of an input that a stage needs; None for all."""
        known = json.loads(self._told(f"needed/{stage}") or "{}").get(name)
        return None if known is None else frozenset(known)

    def choose(self, stage: str, shares: Mapping[str, KeyShare]) -> None:
        """A stage needs of these inputs no rows but those of a share, by the input's name; all of what is not named."""
        self._tell(f"chosen/{stage}", json.dumps({name: [each.columns, each.parts] for name, each in shares.items()}))

    def chosen(self, stage: str, name: str) -> KeyShare | None:
        """The share of an input that a stage needs; None for all."""
        known = json.loads(self._told(f"chosen/{stage}") or "{}").get(name)
        return None if known is None else KeyShare(tuple(known[0]), known[1])

    def wake(self, stage: str, version: int, at_ms: int | None) -> None:
        """Have a batch of a stage start after this version, at this time or later, in ms since 1970; None for none."""
        self._tell(f"wake/{stage}", None if at_ms is None else f"{version} {at_ms}")

    def woken(self, stage: str, handled: int, now_ms: int) -> int:
        """The version after which a batch is to start now; 0 for none, and up to the one that was `handled`."""
        version, at_ms = map(int, (self._told(f"wake/{stage}") or "0 0").split())
        return version if version > handled and at_ms <= self.clock_ms(now_ms) else 0

    def hold(self, stage: str, *, held: bool) -> None:
        """While a stage is held, no batch of it starts but for a snapshot."""
        self._tell(f"held/{stage}", "" if held else None)

    def held(self, stage: str) -> bool:
        """Whether a stage is held."""
        return (self.folder / "held" / stage).exists()

    def bound(self, until: Mapping[str, Collection[int]] | None, clock_ms: int | None = None) -> None:
        """Users' topics are read up to these offsets and no further; None for as far as they go.

        Likewise rows fall due by the clock up to then, in ms since 1970, where that is said.
        """
        told = None if until is None else json.dumps([{topic: [*at] for topic, at in until.items()}, clock_ms])
        self._tell("bounds", told)

    def bounds(self, topic: str) -> tuple[int, ...] | None:
        """Where a topic ends for now, by partition; one that is not there stands still. None for where it ends."""
        text = self._told("bounds")
        return None if text is None else tuple(json.loads(text)[0].get(topic, ()))

    def clock_ms(self, now_ms: int) -> int:
        """The clock by which rows fall due: now, unless it is held before that."""
        _, held_ms = json.loads(self._told("bounds") or "[{}, null]")
        return now_ms if held_ms is None else min(now_ms, held_ms)

    def _tell(self, name: str, text: str | None) -> None:
        """Write a file whole, also where several threads tell the same; None removes it."""
        path = self.folder / name
        if text is None:
            path.unlink(missing_ok=True)
            return
        path.parent.mkdir(parents=True, exist_ok=True)  # before the query has begun
        whole = path.with_name(f"{path.name}.{uuid4().hex}")
        whole.write_text(text)
        whole.replace(path)

    def _told(self, name: str) -> str | None:
        try:
            return (self.folder / name).read_text()
        except FileNotFoundError:
            return None


@dataclass(slots=True)
class RequestWatch:
    """Looks for one runner, and tells the planners of its stages which snapshots are asked for, and where to end.

    A listing costs twelve times a read: so requests are listed only where a notice says that there is something new. A
    hold is read then, and as long as it lasts. `clock` gives seconds, and never goes back.
    """

    store: ObjectStore
    app: str
    planners: PlannerFiles
    clock: Callable[[], float] = field(default=time.monotonic, kw_only=True)
    _seen: bytes | None = None
    _looked_s: float = float("-inf")
    _listed_s: float = float("-inf")
    forgetting: bool = field(default=False, init=False)
    """Whether keys are being forgotten."""
    _hold: Hold | None = None
    _renewed_s: float = 0.0

    @property
    def held(self) -> bool:
        """Whether the app is held at offsets."""
        return self._hold is not None and self.clock() - self._renewed_s < LAPSE_S

    def look(self, *, busy: bool) -> bool:
        """Look, if it is time. Whether anything may have been asked for since: a snapshot, a retry, or the stages.

        `busy`: batches were committed since the last call; beside these, more reads hardly count. Raises `Corruption`
        where a request is damaged.
        """
        now_s = self.clock()
        if now_s - self._looked_s < (_BUSY_S if busy or self.held else _IDLE_S):
            return False
        self._looked_s = now_s
        notice = newest_notice(self.store, self.app)
        is_news = notice != self._seen or now_s - self._listed_s >= _LIST_S
        if is_news or self._hold is not None:
            self._obey(hold.find(self.store, self.app), now_s)
        if is_news or self.forgetting:
            self.forgetting = under_way.find(self.store, self.app) is not None
        if not is_news:
            return False
        self.planners.ask(each.id for each in open_requests(self.store, self.app))
        # Not before: what failed is looked for again.
        self._seen, self._listed_s = notice, now_s
        return True

    def _obey(self, found: Hold | None, now_s: float) -> None:
        """Tell the planners of a hold, of another one, and that there is none any more; or that nobody renews it."""
        if found != self._hold:
            self._hold, self._renewed_s = found, now_s
        held = found is not None and now_s - self._renewed_s < LAPSE_S
        self.planners.bound(*(found.until, found.clock_ms) if found is not None and held else (None,))
