"""Random schedules of batches, renames, collections, compactions, snapshots and clones: every row counts once."""

from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from itertools import count
from random import Random

import pytest
from slackwater.errors import NotFound, Refused
from slackwater.operations.staging.clone import clone
from slackwater.snapshot.change.migrate import find_plan, migrate
from slackwater.snapshot.cut.in_flight import in_flight
from slackwater.snapshot.cut.resolve import resolve
from slackwater.snapshot.query.sql import connect, run_query
from slackwater.snapshot.take.snapshots import pin_cut
from slackwater.snapshot.verify.verify import verify
from slackwater.store.read.cache import SstCache

from tests.snapshot.change.test_rename import program
from tests.support.collecting import FEW, HOUR_MS, aging_app, gc, wait
from tests.support.histories import STAGES, TABLES, Flight, FlightsApp, flights


@dataclass
class Schedule:
    """An app, the current names of its stages, and its history."""

    random: Random
    cache: SstCache
    app: FlightsApp = field(default_factory=aging_app)
    called: dict[str, str] = field(default_factory=lambda: dict(zip(STAGES, STAGES, strict=True)))
    more: Iterator[Flight] = field(default_factory=lambda: iter(flights(2_000)))
    numbers: Iterator[int] = field(default_factory=lambda: count(1))
    kept: dict[str, dict[str, list[tuple[object, ...]]]] = field(default_factory=dict)
    """Tables of each ref, by their original names."""

    def send(self) -> None:
        self.app.send(*(next(self.more) for _ in range(self.random.randint(1, 6))))

    def step(self) -> None:
        stage = self.called[self.random.choice(STAGES)]
        self.app.step(stage, max_versions=self.random.choice([1, 100]))

    def step_all(self) -> None:
        for stage in STAGES:
            self.app.step(self.called[stage])

    def compact(self) -> None:
        self.app.compact(self.called[self.random.choice(tuple(TABLES))])

    def wait(self) -> None:
        wait(self.app, self.random.choice([1, 60]) * HOUR_MS // 30)

    def rename(self) -> None:
        some = self.random.sample(STAGES, self.random.randint(1, 2))
        new = {stage: f"{stage}-{next(self.numbers)}" for stage in some}
        stages = {self.called[stage]: name for stage, name in new.items()}
        app = self.app
        try:
            found = find_plan(app.store, program(self.called | new), {}, stages=stages)
        except Refused:
            return  # rows wait for a stage that has not begun to read them
        done = migrate(app.store, found, {}, by="ada@host", now_ms=app.clock.tick("legs"))
        self._keep(done.snapshot)
        self.called |= new
        for stage in STAGES:
            self.app.claim(self.called[stage])

    def snapshot(self) -> None:
        name = f"s{next(self.numbers)}"
        pin_cut(self.app.store, resolve(self.app.store, self.app.name, now_ms=self.app.clock.now_ms), name, by="test")
        self._keep(name)

    def clone(self) -> None:
        name = f"clone{next(self.numbers)}"
        clone(self.app.store, self.app.name, name, topics={}, channels=self.app.kafka, by="test")
        assert self.tables(name) == self.held()
        check(self.app, name)

    def collect(self) -> None:
        gc(self.app, FEW)
        check(self.app, self.app.name)

    def held(self) -> dict[str, list[tuple[object, ...]]]:
        """Return the content of all tables, by their original names."""
        held = {stage: self.app.state[self.called[stage]] for stage in TABLES}
        return {
            stage: sorted((key, num, delay) for key, (num, delay, _) in rows.items()) for stage, rows in held.items()
        }

    def tables(self, ref: str) -> dict[str, list[tuple[object, ...]]]:
        cut = resolve(self.app.store, ref, now_ms=self.app.clock.now_ms)
        first = {name: each.formerly[0].stage if each.formerly else name for name, each in cut.tables.items()}
        with closing(connect(self.app.store, self.cache, cut)) as con:
            found = {name: run_query(con, f'FROM "{name}"').to_pylist() for name in cut.tables}
        return {first[name]: sorted(tuple(row.values()) for row in rows) for name, rows in found.items()}

    def _keep(self, snapshot: str) -> None:
        self.kept[f"{self.app.name}@{snapshot}"] = self.held()


def check(app: FlightsApp, ref: str) -> None:
    assert verify(app.store, ref, now_ms=app.clock.now_ms, deep=True).differences == ()


@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(3, 60))])
def test_after_any_operations_every_row_counts_once_and_pinned_moments_stay(seed: int, cache: SstCache) -> None:
    schedule = Schedule(Random(seed), cache)
    app = schedule.app
    likely = [schedule.send, schedule.step, schedule.step, schedule.step_all, schedule.wait]
    seldom = [schedule.compact, schedule.rename, schedule.rename, schedule.snapshot, schedule.clone, schedule.collect]
    for do in schedule.random.choices([*likely, *likely, *seldom], k=40):
        do()
    gc(app, FEW)
    for _ in STAGES:
        schedule.step_all()
    sent = sum(len(message.flights) for part in app.kafka.topics["flights"] for message in part)
    for rows in schedule.held().values():
        assert sum(num for _, num, _ in rows) == sent  # type: ignore[misc]
    assert schedule.tables(app.name) == schedule.held()
    check(app, app.name)
    for ref, tables in schedule.kept.items():
        assert schedule.tables(ref) == tables
        check(app, ref)
    for _ in range(5):
        with suppress(NotFound):  # before all that is left
            cut = resolve(app.store, f"{app.name}@-{schedule.random.randint(1, 3_000)}m", now_ms=app.clock.now_ms)
            for each in in_flight(app.store, cut):
                list(app.kafka.read(each))
