"""Planted faults of many kinds, in histories with expiry, compaction, rescaling and thinning."""

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from confluent_kafka import Message, Producer
from slackwater.errors import Refused
from slackwater.operations.debugging.replay.program import open_program
from slackwater.operations.debugging.replay.record import find_record
from slackwater.pipeline.dev.kafka import EmbeddedKafka
from slackwater.pipeline.run.program import load_app
from slackwater.snapshot.bisect.predicate import SqlPredicate
from slackwater.snapshot.bisect.search import bisect
from slackwater.snapshot.bisect.verdict import Verdict
from slackwater.snapshot.gc.reachable import Retention
from slackwater.store.objects.open import open_store
from slackwater.store.read.cache import SstCache

from tests.support.running import Ledger

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.usefixtures("one_spark")]

VARIANT = "latest expires"
PHASES = 3
KINDS = 7
ENTRIES = 300
"""Number of entries in each phase."""
HUGE = 10**9
HOUR_MS = 3_600_000


def hash_of(account: object) -> int:
    """Return a hash that is the same in every process."""
    return sum(str(account).encode())


@dataclass
class Fault:
    """A planted fault, with a query that shows it and its record."""

    where: str
    address: str = ""
    bad: str = ""
    """Moment at which the fault shows. Its row may expire later."""


@dataclass
class History:
    """Entries in the order of sending, with faults among them, each on an account of its own."""

    random: np.random.Generator
    ledger: Ledger
    faults: list[Fault] = field(default_factory=list)
    seq: int = 0
    began_ms: int = field(default_factory=lambda: time.time_ns() // 1_000_000 - 6 * HOUR_MS)

    def send(self, count: int) -> None:
        """Send ordinary entries, with one fault of each kind at a random place."""
        kinds: list[Callable[[int], Iterator[tuple[dict[str, object], Fault | None]]]] = [
            self._outlier,
            self._straw,
            self._from_here_on,
            self._future,
            self._in_the_account,
            self._twice,
            self._wrong_branch,
        ]
        entries: list[list[tuple[dict[str, object], Fault | None]]] = [[] for _ in range(count)]
        for kind in kinds:
            self.faults.append(Fault(""))
            made = list(kind(len(self.faults)))
            places = np.sort(self.random.choice(count, len(made), replace=len(made) > count))
            for place, each in zip(places.tolist(), made, strict=True):
                entries[place].append(each)
        producer = Producer(self.ledger.kafka.properties)
        for others in entries:
            amount = int(self.random.integers(-100, 100))
            for entry, fault in [
                (self._entry(f"a{self.random.integers(200)}", int(self.random.integers(7)), amount), None),
                *others,
            ]:
                entry = {**entry, "seq": entry.get("seq", self.seq)}
                self.seq += 1

                def delivered(_error: object, message: Message, fault: Fault | None = fault) -> None:
                    if fault is not None:
                        fault.address = f"{message.topic()}[{message.partition()}]@{message.offset()}"

                producer.produce(
                    self.ledger.topic,
                    json.dumps(entry).encode(),
                    # Entries of one account come in the order in which they were sent.
                    partition=hash_of(entry["account"]) % 3,
                    # Each record has a distinct time, because records of the same millisecond have no order.
                    timestamp=self.began_ms + self.seq,
                    on_delivery=delivered,
                )
                producer.poll(0)
        producer.flush()
        self.ledger.sent = self.seq
        self.began_ms += HOUR_MS

    def _entry(self, account: str, branch: int, amount: int) -> dict[str, object]:
        return {"account": account, "branch": branch, "amount": amount}

    def _outlier(self, number: int) -> Iterator[tuple[dict[str, object], Fault | None]]:
        fault = self.faults[-1]
        fault.where = f"SELECT branch FROM branches WHERE branch = {100 + number} AND total > {HUGE}"
        for _ in range(3):
            yield self._entry(f"p{number}", 100 + number, 5), None
        yield self._entry(f"p{number}", 100 + number, 2 * HUGE), fault
        yield self._entry(f"p{number}", 100 + number, 5), None

    def _straw(self, number: int) -> Iterator[tuple[dict[str, object], Fault | None]]:
        fault = self.faults[-1]
        fault.where = f"SELECT branch, total FROM branches WHERE branch = {100 + number} AND total >= 30"
        for at in range(6):
            yield self._entry(f"p{number}", 100 + number, 10), fault if at == 2 else None

    def _from_here_on(self, number: int) -> Iterator[tuple[dict[str, object], Fault | None]]:
        fault = self.faults[-1]
        fault.where = f"SELECT * FROM branches WHERE branch = {100 + number} AND low < 0"
        for at in range(12):
            yield self._entry(f"p{number}", 100 + number, 10 if at < 6 else -10), fault if at == 6 else None

    def _future(self, number: int) -> Iterator[tuple[dict[str, object], Fault | None]]:
        fault = self.faults[-1]
        fault.where = f"SELECT account FROM latest WHERE account = 'p{number}' AND seq > {HUGE}"
        yield self._entry(f"p{number}", 1, 1), None
        yield {**self._entry(f"p{number}", 1, 1), "seq": 2 * HUGE}, fault
        yield self._entry(f"p{number}", 1, 1), None

    def _in_the_account(self, number: int) -> Iterator[tuple[dict[str, object], Fault | None]]:
        fault = self.faults[-1]
        fault.where = f"SELECT account, balance FROM accounts WHERE account = 'p{number}' AND balance < 0"
        for amount in (50, 20, -500, 10):
            yield self._entry(f"p{number}", 2, amount), fault if amount == -500 else None

    def _twice(self, number: int) -> Iterator[tuple[dict[str, object], Fault | None]]:
        fault = self.faults[-1]
        fault.where = f"SELECT account FROM accounts WHERE account = 'p{number}' AND n > 1"
        yield self._entry(f"p{number}", 3, 1), None
        yield self._entry(f"p{number}", 3, 1), fault

    def _wrong_branch(self, number: int) -> Iterator[tuple[dict[str, object], Fault | None]]:
        # The predicate names no key, and asks two tables.
        fault = self.faults[-1]
        fault.where = f"SELECT 1 FROM branches b, accounts a WHERE a.account = 'p{number}' AND b.branch = {-number}"
        yield self._entry(f"p{number}", 4, 1), None
        yield self._entry(f"p{number}", -number, 1), fault


def check(
    ledger: Ledger, seed: int, *, phases: int = PHASES, thins: bool = False, empties: bool = False
) -> Counter[str]:
    """Count how the faults of a history are found: by record, by a proved span that contains it, or as expired.

    With `empties`, the app archives its input, and the records are then deleted in Kafka.
    """
    ledger.retention = Retention(input_ms=24 * HOUR_MS) if empties else Retention()
    history = History(np.random.default_rng(seed), ledger)
    for phase in range(phases):
        history.send(ENTRIES)
        ledger.catch_up(max_records=100, variant=VARIANT)
        for fault in history.faults[phase * KINDS :]:
            fault.bad = f"{ledger.app}@phase-{phase}"
        if phase == 0:
            ledger.slackwater("compact", ledger.app)
            ledger.slackwater("rescale", f"{ledger.app}/branches", "--partitions", "3")
        # Versions that a snapshot pins stay: gc leaves a gap behind them.
        ledger.slackwater("snapshot", "take", ledger.app, f"phase-{phase}", "--instant")
    before = {fault.where: commit(ledger, fault) for fault in history.faults} if thins else {}
    if thins:
        grow_older(Path(ledger.store), 2 * HOUR_MS)
        ledger.slackwater("gc", ledger.app, "--versions", "4")
    if empties:
        ledger.empty_kafka()
    store, cache = open_store(ledger.store), SstCache(ledger.folder / "cache" / "query", 1 << 30)
    app = load_app(str(ledger.program), name=ledger.app)
    led: Counter[str] = Counter()
    with open_program(app, store, cache, ledger.kafka) as program:
        for fault in history.faults:
            try:
                verdict = commit(ledger, fault)
            except Refused as error:
                if f"is left before {fault.bad}: garbage collection" not in error.message:
                    raise
                led["gone"] += 1
                continue
            if verdict.candidates:
                assert verdict.thinned
                true = before[fault.where]
                assert any(
                    one.stage == true.stage and one.first <= true.bad_version <= one.last for one in verdict.candidates
                ), (fault, verdict)
                led["span"] += 1
                continue
            found = find_record(program, verdict, SqlPredicate(fault.where))
            assert found.source_record is not None, (fault, found.reason)
            assert str(found.source_record.location) == fault.address, (fault, found)
            assert found.hops[0].replays <= 20
            led["record"] += 1
    return led


def grow_older(folder: Path, span_ms: int) -> None:
    """Set file times back by this span, so that garbage collection's margin has passed."""
    for path in folder.rglob("*"):
        written_ns = path.stat().st_mtime_ns - span_ms * 1_000_000
        os.utime(path, ns=(written_ns, written_ns))


def commit(ledger: Ledger, fault: Fault) -> Verdict:
    """Return the bad commit that bisect finds for a fault."""
    cache = SstCache(ledger.folder / "cache" / "query", 1 << 30)
    return bisect(open_store(ledger.store), cache, ledger.app, fault.where, bad=fault.bad)


@pytest.fixture
def ledger(kafka: EmbeddedKafka, tmp_path: Path) -> Ledger:
    return Ledger(kafka.bootstrap, tmp_path, variant=VARIANT)


@pytest.mark.ci
@pytest.mark.parametrize("phases", [1, 2])
def test_every_planted_fault_leads_to_its_record(ledger: Ledger, phases: int) -> None:
    assert check(ledger, 1, phases=phases) == {"record": phases * KINDS}


@pytest.mark.ci
@pytest.mark.parametrize("phases", [1, 2])
def test_every_planted_fault_leads_to_its_record_in_the_input_archive(ledger: Ledger, phases: int) -> None:
    assert check(ledger, 1, phases=phases, empties=True) == {"record": phases * KINDS}


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(20, 28))
def test_every_fault_of_a_hundred_histories_leads_to_its_record_in_the_input_archive(ledger: Ledger, seed: int) -> None:
    assert check(ledger, seed, phases=2, empties=True) == {"record": 2 * KINDS}


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(2, 8))
def test_every_fault_of_many_histories_leads_to_its_record(ledger: Ledger, seed: int) -> None:
    check(ledger, seed)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(8, 12))
def test_in_a_thinned_history_a_fault_leads_to_its_record_or_the_remaining_span_around_it(
    ledger: Ledger, seed: int
) -> None:
    led = check(ledger, seed, thins=True)
    assert led["record"]
    assert led["gone"] + led["span"] >= KINDS
