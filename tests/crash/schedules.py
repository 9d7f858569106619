"""Thread-safe pieces of the product, under every distinct schedule of their threads (frontrun's DPOR).

`python -m tests.crash.schedules SCHEDULES SECONDS [PIECE]` explores them in a separate process, whose locks frontrun
replaces. For each piece, it prints the number of schedules tried, and a flag that is true if these were all.
"""

import os
import sys
import threading
import time
import types
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import frontrun
from slackwater.errors import Refused
from slackwater.pipeline.batch.committer import Committer
from slackwater.pipeline.kafka.memory import MemoryKafka
from slackwater.pipeline.kafka.protocol import Record
from slackwater.pipeline.source.wake import PlannerFiles, RequestWatch
from slackwater.pipeline.upkeep.upkeep import Prefetcher
from slackwater.snapshot.cut.stored import list_snapshots, open_requests
from slackwater.snapshot.take.taking import request_snapshot, try_complete
from slackwater.snapshot.under_way.runners import Hold, put_holds, release_holds
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.objects.retry import RetryBudget
from slackwater.store.read.cache import SstCache

from tests.pipeline.batch.test_committer import Runner, assert_whole, claimed
from tests.pipeline.run.test_snapshot_completer import under_way
from tests.support.diamonds import APP, Diamond
from tests.support.state_rows import ROUTES, manifest_of, write_version


@dataclass(frozen=True)
class Piece:
    """A piece: state that threads share, each thread's action, and a condition that must hold in the end."""

    setup: Callable[[], Any]
    threads: tuple[Callable[[Any], object], ...]
    holds: Callable[[Any], bool]
    by_chance: bool = False
    """True for random schedules: for threads that wait for a condition, which frontrun's DPOR does not wake."""


class State(types.SimpleNamespace):
    """State that a piece's threads share."""


def _budget() -> State:
    budget = RetryBudget(clock=lambda: 0.0)
    budget._tokens = 1
    return State(budget=budget, taken=[])


def _take(state: State) -> None:
    if state.budget.take_token():
        state.taken.append(threading.get_ident())


def _kafka() -> State:
    kafka = MemoryKafka("memory://schedules")
    kafka.create_topics({"t": 1})
    return State(kafka=kafka)


def _send(state: State) -> None:
    state.kafka.send("t", [Record(b"1", 0), Record(b"2", 0)], patience_s=1)


def _queue() -> State:
    """Return a commit queue, which one of the piece's threads processes."""
    store = MemoryStore()
    committer = Committer(store, claimed(store))
    committer._max_unflushed = 1
    return State(store=store, committer=committer, runner=Runner(committer, _Told(committer)), refused=[])


class _Told(list[Any]):
    """List of committed versions. At the second version, it closes the committer."""

    def __init__(self, committer: Committer) -> None:
        super().__init__()
        self._committer = committer

    def append(self, committed: object) -> None:
        super().append(committed)
        if len(self) == 2:
            self._committer.close()


def _batches(state: State) -> None:
    for _ in range(2):
        state.runner.batch()


def _submit_or_hear(state: State) -> None:
    try:
        state.runner.batch()
    except Refused:
        state.refused.append(1)


def _watched() -> State:
    store, clock = Diamond().store, State(now_s=0.0)
    planners = PlannerFiles(Path(mkdtemp()))
    watch = RequestWatch(store, APP, planners, clock=lambda: clock.now_s)
    watch.poll(busy=False)
    clock.now_s = 100.0
    return State(store=store, planners=planners, watch=watch, clock=clock)


def _poll(state: State) -> None:
    state.watch.poll(busy=True)


def _poll_later(state: State) -> PlannerFiles:
    state.clock.now_s += 10.0
    state.watch.poll(busy=False)
    planners: PlannerFiles = state.planners
    return planners


def _hold_and_release(state: State) -> None:
    put_holds(state.store, [Hold(APP, APP, "other", "ada@host", 1, {"t": (1,)}, None)], wake_runners=True)
    release_holds(state.store, [APP])


def _cached() -> State:
    store = MemoryStore()
    (sst,) = write_version(store, None, ROUTES, {(str(n), "x"): (n, 0.5, None) for n in range(20)}, 1)[:1]
    head = manifest_of(ROUTES, (sst,))
    cache = SstCache(Path(mkdtemp()), 1 << 30)
    return State(store=store, sst=sst, head=head, cache=cache, rows=[])


def _open(state: State) -> None:
    state.rows.append(state.cache.open(state.store, state.sst, ROUTES).stored.num_rows)


def _prefetching() -> State:
    state = _cached()
    state.prefetcher = Prefetcher(state.store, state.cache, state.head)
    return state


def _prefetch(state: State) -> None:
    state.prefetcher._run(state.head, frozenset({state.sst.object}))


def _completing() -> State:
    diamond, request = under_way()
    diamond.step("joined")
    return State(diamond=diamond, request=request)


def _complete(state: State) -> None:
    try_complete(state.diamond.store, APP, state.request, state.diamond.logs)


PIECES = {
    "retry budget": Piece(_budget, (_take, _take, lambda s: s.budget.refill(repeated=False)), lambda s: bool(s.taken)),
    "memory Kafka": Piece(_kafka, (_send, _send), lambda s: s.kafka.topic_state("t").ends == (4,)),
    "commit queue": Piece(
        _queue, (_batches, lambda s: s.committer._flush()), lambda s: assert_whole(s.store, 2) is None, by_chance=True
    ),
    "commit queue, closed": Piece(
        _queue,
        (_submit_or_hear, lambda s: s.committer._flush(), lambda s: s.committer.close()),
        lambda s: s.committer.head.version <= 2,
        by_chance=True,
    ),
    "notices": Piece(
        _watched,
        (lambda s: request_snapshot(s.store, APP, "one", "ada@host"), _poll),
        lambda s: len(_poll_later(s).requested_snapshots()) == 1,
    ),
    "hold": Piece(_watched, (_hold_and_release, _poll), lambda s: _poll_later(s).end_offsets("t") is None),
    "cache": Piece(_cached, (_open, _open), lambda s: s.rows == [20, 20]),
    "prefetcher": Piece(
        _prefetching, (_prefetch, _open, lambda s: s.prefetcher._stopping.set()), lambda s: s.rows == [20]
    ),
    "snapshot completer": Piece(
        _completing,
        (_complete, _complete),
        lambda s: (
            [snapshot.name for snapshot in list_snapshots(s.diamond.store, APP)] == ["good"]
            and open_requests(s.diamond.store, APP) == ()
        ),
    ),
}


_KINDS = ("Lock", "RLock", "Condition", "Event")
_LOCKS = (type(threading.Lock()), type(threading.RLock()))


def _places() -> Iterator[tuple[types.ModuleType, str, str]]:
    """Yield the product's modules with the name of each of their locks (with an empty kind) and lock classes."""
    kinds = {id(getattr(threading, kind)): kind for kind in _KINDS}
    for name, module in list(sys.modules.items()):
        for attribute, value in vars(module).items() if name.startswith("slackwater.") else ():
            if isinstance(value, _LOCKS) or id(value) in kinds:
                yield module, attribute, kinds.get(id(value), "")


_PLACES = tuple(_places())


def _replace_locks() -> None:
    """Replace the locks in the product's modules by the explorer's locks."""
    for module, attribute, kind in _PLACES:
        setattr(module, attribute, getattr(threading, kind) if kind else threading.Lock())


def explore(names: Iterable[str], executions: int, seconds: float) -> bool:
    """Explore pieces, and print a line for each. Returns True if all conditions hold."""
    all_hold = True
    for name in names:
        piece = PIECES[name]

        def setup(piece: Piece = piece) -> Any:
            _replace_locks()
            return piece.setup()

        how: dict[str, Any] = {"max_executions": executions}
        if piece.by_chance:
            how = {"strategy": "random", "max_attempts": executions, "max_ops": 1_000_000, "seed": 1}
        how |= {"timeout_per_run": 30, "deadlock_timeout": 30, "total_timeout": seconds}
        began = time.monotonic()
        result = frontrun.explore(
            setup=setup,
            workers=[*piece.threads],
            invariant=piece.holds,
            detect_io=False,
            reproduce_on_failure=0,
            **how,
        )
        ended = result.num_explored < executions and time.monotonic() - began < seconds
        share = "by chance" if piece.by_chance else "all" if ended else "the first"
        verdict = "hold" if result.property_holds else "FAIL"
        sys.stdout.write(f"{name}: {share} {result.num_explored} schedules, {verdict}\n")
        if not result.property_holds:
            sys.stdout.write(f"{result.explanation or result.inconclusive_reason}\n")
            all_hold = False
    return all_hold


if __name__ == "__main__":
    os.environ["FRONTRUN_ACTIVE"] = "1"
    sys.exit(0 if explore(sys.argv[3:] or PIECES, int(sys.argv[1]), float(sys.argv[2])) else 1)
