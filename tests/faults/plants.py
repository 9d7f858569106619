"""Plants faults of each class among healthy records, and knows the right answers.

A history has three phases: two under the first release, with operations and some seconds between them, and one under
the second release. A plant adds records with keys of its own to some of the phases; the expected verdict follows from
these records alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from tests.faults.apps import BUG
from tests.faults.history import History, Record

HUGE = 1_000_000
PHASES = 3
MINUTE_MS = 60_000
DELAY_MS = MINUTE_MS
"""Delay of the watermark, and length of its windows."""


@dataclass
class Plant:
    """One planted fault."""

    name: str
    """Name of the class."""
    stage: str
    """Stage with the bad commit."""
    where: str
    causes: frozenset[str]
    """Right classes of causes."""
    records: list[tuple[int, Record]] = field(default_factory=list)
    """Records and their phases, in the order of sending."""
    guilty: list[Record] = field(default_factory=list)
    """Records at fault; empty if no record is."""
    good: str = ""
    """Snapshot before the fault; empty for the beginning."""
    operation: Callable[[History], object] | None = None
    """Operation to run on the app after its first phase."""
    operation_kind: str = ""
    """Kind of the version that the operation makes."""
    late: list[Record] = field(default_factory=list)
    """Records that may be late."""
    key: str = ""
    at_end: bool = False
    """True if the plant's records come last in their phase."""
    is_alone: bool = False
    """True if the plant needs a separate history, because its operation changes the results of other plants."""


def order(key: str, amount: object, **more: object) -> dict[str, object]:
    """Return the fields of an order."""
    return {"k": key, "amount": str(amount), **more}


class Planter:
    """Creates the records of one plant. The plant's number determines its key and ids."""

    def __init__(self, random: Random, number: int) -> None:
        self.random, self.number = random, number
        self.next_id = 10_000 * number

    def record(self, key: str, amount: object, *, bad: bool = False, **more: object) -> Record:
        self.next_id += 1
        return Record(order(key, amount, id=self.next_id, **more), healthy=not bad)

    def ordinary(self) -> Record:
        """Return a healthy order."""
        return self.record(f"a{self.random.randrange(30)}", self.random.randrange(1, 99))

    def key(self, letter: str = "p") -> str:
        return f"{letter}{self.number}"

    def phases(self, how_many: int, *, last: int = PHASES - 1) -> list[int]:
        """Return random phases in order.

        In half of the cases they are all equal, so that one batch has several records.
        """
        if self.random.random() < 0.5:
            return [self.random.randint(0, last)] * how_many
        return sorted(self.random.randint(0, last) for _ in range(how_many))

    def query(self, table: str, condition: str, key: str) -> str:
        """Return a predicate in one of the forms in which users write it."""
        own = f"{condition} AND (k = '{key}' OR k LIKE '{key}-%')"
        return self.random.choice(
            (
                f"SELECT k FROM {table} WHERE {own}",
                f"SELECT * FROM {table} WHERE {own}",
                f"SELECT 1 FROM {table} WHERE {own}",
                f"SELECT count(*) AS wrong FROM {table} WHERE {own} HAVING count(*) > 0",
            )
        )

    # One function for each class of the generator.

    def one_record(self, name: str = "record") -> Plant:
        key = self.key()
        how = self.random.choice(("outlier", "straw", "below"))
        if how == "straw":
            query, causes = self.query("totals", "total >= 3000", key), frozenset({"record", "records"})
            plant = Plant(name, "totals", query, causes)
            records = [self.record(key, 1000) for _ in range(6)]
            # Together with records of earlier batches, each of these records passes the limit.
            plant.guilty = records[2:]
        else:
            condition, amount = ("top > 1000000", 2 * HUGE) if how == "outlier" else ("low < 0", -5)
            plant = Plant(name, "totals", self.query("totals", condition, key), frozenset({"record"}))
            records = [self.record(key, self.random.randrange(1, 99)) for _ in range(self.random.randrange(5))]
            records.insert(self.random.randint(0, len(records)), self.record(key, amount, bad=True))
            plant.guilty = [record for record in records if not record.healthy]
        plant.records = list(zip(self.phases(len(records)), records, strict=True))
        return plant

    def three_hops(self) -> Plant:
        return self.one_record("three hops")

    def several_records(self) -> Plant:
        key = self.key()
        count = self.random.randint(2, 5)
        keys = [f"{key}-{number}" if self.random.random() < 0.7 else key for number in range(count)]
        plant = Plant(
            "several records", "totals", self.query("totals", "top > 1000000", key), frozenset({"record", "records"})
        )
        plant.guilty = [self.record(each, 2 * HUGE + self.random.randrange(9), bad=True) for each in keys]
        records = plant.guilty + [self.record(each, self.random.randrange(1, 99)) for each in keys]
        self.random.shuffle(records)
        plant.guilty.sort(key=records.index)
        plant.records = list(zip(self.phases(len(records)), records, strict=True))
        return plant

    def deploy(self) -> Plant:
        key = self.key(BUG)
        plant = Plant("deploy", "totals", self.query("totals", "fee > 100", key), frozenset({"deploy"}))
        for phase in range(PHASES):
            for _ in range(self.random.randint(1, 4)):
                plant.records.append((phase, self.record(key, self.random.randrange(200, 900))))
        return plant

    def expiry(self) -> Plant:
        key = self.key()
        where = self.random.choice(
            (
                f"SELECT 1 WHERE NOT EXISTS (FROM recent WHERE k = '{key}')",
                f"SELECT count(*) FROM recent WHERE k = '{key}' HAVING count(*) = 0",
            )
        )
        plant = Plant("expiry", "recent", where, frozenset({"time"}), good="phase-0", key=key, at_end=True)
        plant.records = [(0, self.record(key, 5))]
        return plant

    def watermark(self) -> Plant:
        key = self.key()
        where = self.random.choice(
            (
                f"SELECT k FROM win_late WHERE k = '{key}'",
                f"SELECT * FROM win_late WHERE k = '{key}'",
                f"SELECT count(*) FROM win_late WHERE k = '{key}' HAVING count(*) > 0",
            )
        )
        plant = Plant("watermark", "win_late", where, frozenset({"watermark"}), key=key)
        phase = self.random.randint(0, 1)
        if self.random.random() < 0.5:
            # A record with a later time closes the windows of all records that come after it.
            mover = self.record(f"{key}-m", 5, bad=True, ahead=40 * MINUTE_MS)
            plant.guilty = [mover]
            plant.records = [(phase, mover)]
            phase += 1
            lateness = {}
        else:
            phase = self.random.randint(1, PHASES - 1)
            lateness = {"ahead": -30 * MINUTE_MS}
        for _ in range(self.random.randint(1, 3)):
            late = self.record(key, 5, bad=bool(lateness), **lateness)
            plant.late.append(late)
            plant.records.append((phase, late))
        if lateness:
            plant.guilty = list(plant.late)
        return plant

    def absence(self) -> Plant:
        key = self.key()
        gap = self.random.randint(40, 80)
        where = self.random.choice(
            (
                f"SELECT k FROM totals WHERE k = '{key}' AND last_seq < (SELECT max(last_seq) FROM totals) - {gap}",
                f"SELECT * FROM totals WHERE k = '{key}' AND (SELECT max(last_seq) FROM totals) - last_seq > {gap}",
            )
        )
        causes = frozenset({"absence"})
        if self.random.random() < 0.3:
            # The query names no key, so the key without a record is unknown.
            causes |= {"unknown"}
            where = self.random.choice(
                (
                    f"SELECT 1 {where.partition(' ')[2].partition(' ')[2]}",
                    f"SELECT count(*) {where.partition(' ')[2].partition(' ')[2]} HAVING count(*) > 0",
                )
            )
        plant = Plant("absence", "totals", where, causes, key=key)
        plant.records = [(0, self.record(key, 5)) for _ in range(self.random.randint(2, 5))]
        return plant

    def duplicate(self) -> Plant:
        key = self.key()
        original = self.record(key, 7)
        copy = Record(original.fields, healthy=False)
        number = original.fields["id"]
        where = self.random.choice(
            (f"SELECT id FROM ids WHERE n > 1 AND id = {number}", f"SELECT * FROM ids WHERE id = {number} AND n > 1")
        )
        plant = Plant("duplicate", "ids", where, frozenset({"duplicate"}), guilty=[original, copy])
        plant.records = list(zip(self.phases(2), (original, copy), strict=True))
        return plant

    def operation(self) -> Plant:
        return self.random.choice((self._edit, self._reset))()

    def _edit(self) -> Plant:
        key = self.key()
        plant = Plant("operation", "totals", self.query("totals", "top > 1000000", key), frozenset({"operation"}))
        statement = f"UPDATE totals SET top = {5 * HUGE} WHERE k = '{key}'"
        plant.operation = lambda history: history.did("edit", f"{history.app}/totals", "--sql", statement)
        plant.operation_kind = "edit"
        plant.records = [(phase, self.record(key, 5)) for phase in sorted({0, self.random.randrange(PHASES)})]
        return plant

    def _reset(self) -> Plant:
        # Records are read twice, and count twice.
        key, count = self.key(), self.random.randint(1, 4)
        plant = Plant("operation", "totals", self.query("totals", f"n > {count}", key), frozenset({"operation"}))
        plant.operation = lambda history: history.did("reset", history.app, "--all-topics", "--to-earliest")
        plant.operation_kind, plant.is_alone = "reset", True
        plant.records = [(0, self.record(key, 5)) for _ in range(count)]
        return plant

    def two_faults(self) -> Plant:
        key = self.key()
        where = f"SELECT k FROM totals WHERE (top > 1000000 OR low < 0) AND k LIKE '{key}-%'"
        plant = Plant("two faults", "totals", where, frozenset({"record", "records"}))
        plant.guilty = [self.record(f"{key}-{n}", amount, bad=True) for n, amount in enumerate((2 * HUGE, -5))]
        self.random.shuffle(plant.guilty)
        records = [*plant.guilty, *(self.record(f"{key}-{n}", 5) for n in range(3))]
        self.random.shuffle(records)
        plant.guilty.sort(key=records.index)
        plant.records = list(zip(self.phases(len(records)), records, strict=True))
        return plant

    def good_bad_good(self) -> Plant:
        key = self.key()
        plant = Plant("good-bad-good", "totals", self.query("totals", "last > 1000000", key), frozenset({"record"}))
        phases = [0, 0, *sorted(self.random.randint(0, PHASES - 1) for _ in range(2)), PHASES - 1]
        for phase, amount in zip(phases, (5, 2 * HUGE, 6, 7, 3 * HUGE), strict=True):
            record = self.record(key, amount, bad=amount > HUGE)
            plant.records.append((phase, record))
            plant.guilty += [] if record.healthy else [record]
        return plant

    def join(self) -> Plant:
        key = self.key()
        plant = Plant("join", "settled", self.query("settled", "top > 1000000", key), frozenset({"record"}))
        first, then = self.phases(2)
        for number, amount in enumerate((5, 2 * HUGE, 6)):
            ordered = self.record(key, 5)
            refund = Record({"id": ordered.fields["id"], "refund": amount}, refund=True, healthy=amount < HUGE)
            plant.guilty += [] if refund.healthy else [refund]
            plant.records += [(first, ordered), (then if number == 1 else first, refund)]
        plant.records.sort(key=lambda each: each[0])
        return plant

    def rejected(self) -> Plant:
        key = self.key()
        poison = [self.record(f"{key}-x{n}", "five", bad=True) for n in range(self.random.randint(1, 3))]
        if self.random.random() < 0.5:
            where = self.random.choice(
                ("SELECT * FROM totals_rejected", 'SELECT topic, "offset" FROM totals_rejected', "FROM totals_rejected")
            )
            plant = Plant("rejected", "totals", where, frozenset({"record", "records"}), guilty=poison)
            records = list(poison)
        else:
            plant = Plant("rejected", "totals", self.query("totals", "top > 1000000", key), frozenset({"record"}))
            plant.guilty = [self.record(key, 2 * HUGE, bad=True)]
            records = [*poison, *plant.guilty, self.record(key, 5), self.record(key, 6)]
            self.random.shuffle(records)
        plant.records = list(zip(self.phases(len(records)), records, strict=True))
        return plant


CLASSES: dict[str, tuple[Callable[[Planter], Plant], tuple[str, ...]]] = {
    "record": (Planter.one_record, ("totals",)),
    "several records": (Planter.several_records, ("totals",)),
    "deploy": (Planter.deploy, ("totals",)),
    "expiry": (Planter.expiry, ("recent",)),
    "watermark": (Planter.watermark, ("win",)),
    "absence": (Planter.absence, ("totals",)),
    "duplicate": (Planter.duplicate, ("ids",)),
    "operation": (Planter.operation, ("totals",)),
    "two faults": (Planter.two_faults, ("totals",)),
    "good-bad-good": (Planter.good_bad_good, ("totals",)),
    "join": (Planter.join, ("settled",)),
    "three hops": (Planter.three_hops, ("totals",)),
    "rejected": (Planter.rejected, ("totals",)),
}
"""The planting function and the tables of each class."""


def fault_of(name: str, seed: int) -> Plant:
    """Return the fault of a class for a seed. Other plants do not influence it."""
    number = [*CLASSES].index(name) + 1
    return CLASSES[name][0](Planter(Random(f"{name} {seed}"), number))
