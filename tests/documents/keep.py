"""Writes the store that `tests/kept` holds of this version: `python -m tests.documents.keep NAME`.

Small apps with all that a store can hold: tombstones, a rescale, a compaction, snapshots with and without markers,
records in flight with a snapshot and without one, a request under way, a thinned history with its boundary, a clone,
claims that passed over lost records of a topic and of a channel, a retired stage, a runner's sign of life, the note of
an app that was removed, a log of operations, every type that a column can have, a table that was migrated (a column
added, one removed, one renamed, one widened), an app that began with rows from elsewhere, and one with sinks, rejected
records, event time, a renamed stage and a backfilled column (`keep_format_4`). Clock and names come from here, so the
same code with the same libraries gives the same bytes.

Beside the store lie `kafka.json`, what its topics held, and `answers.json`, what the verbs answered. What they answer
of tables is compared with what was put in before it is written down.
"""

import json
import random
import sys
from contextlib import closing
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import msgspec
import ulid
from msgspec.structs import replace
from slackwater.pipeline.claim.start_positions import StartFinder, start_at
from slackwater.snapshot.clone.clone import clone
from slackwater.snapshot.cut.resolve import resolve
from slackwater.snapshot.gc.collect import collect
from slackwater.snapshot.gc.retention import Retention
from slackwater.snapshot.init.initialise import initialise
from slackwater.snapshot.init.source import Source
from slackwater.snapshot.maintain.removal import remove_app
from slackwater.snapshot.maintain.retire import retire
from slackwater.snapshot.migrate.declared import Declared, DeclaredStage
from slackwater.snapshot.migrate.migrate import find_plan, migrate
from slackwater.snapshot.query.sql import connect, run_query
from slackwater.snapshot.status.roster import Beat, beat
from slackwater.snapshot.take.audit_log import record
from slackwater.snapshot.take.snapshots import pin
from slackwater.snapshot.take.taking import request, try_complete
from slackwater.store.compaction.merge import run
from slackwater.store.compaction.picker import pick
from slackwater.store.compaction.plan import apply
from slackwater.store.read.cache import SstCache
from slackwater.store.sst import writer
from slackwater.store.sst.hashing import partition_of
from slackwater.store.versions import apps, horizon
from slackwater.store.versions.commit import claim, commit, successor
from slackwater.store.versions.manifest import AppInfo, Column, Input, Manifest, Policy, Table

from tests.documents.answering import KEPT, QUESTIONS, ask
from tests.documents.keep_format_4 import Shop
from tests.support.collecting import HOUR_MS, AgingStore, StoreClock
from tests.support.histories import STAGES, Flight, FlightsApp, Kafka, flights
from tests.support.state_rows import Key, Values, state_rows

BY = "ada@host"
_VALUES = {
    "string": ("", "\u00c5", "A\u030a", None),
    "binary": (b"", b"\0\xff", None),
    "bool": (True, False, None),
    "int8": (-128, 127, None),
    "int16": (-(2**15), 2**15 - 1, None),
    "int32": (-(2**31), 2**31 - 1, None),
    "int64": (-(2**63), 2**63 - 1, None),
    "float": (0.5, -0.0, None),
    "double": (5e-324, 1e300, None),
    "date32[day]": (date(1, 1, 1), date(2013, 1, 31), None),
    "timestamp[us]": (datetime(2013, 1, 31, 1, 2, 3, 4), None),  # noqa: DTZ001 - a type without a zone
    "timestamp[us, tz=UTC]": (datetime(2013, 1, 31, 1, 2, 3, 4, UTC), None),
    "decimal128(10, 2)": (Decimal("-0.01"), Decimal("99999999.99"), None),
    "decimal128(38, 6)": (Decimal("9" * 32 + "." + "9" * 6), None),
}
TYPES = Table(
    key=(Column("s", "string"), Column("x", "double"), Column("at", "timestamp[us, tz=UTC]")),
    values=tuple(Column(f"v{number}", name) for number, name in enumerate(_VALUES)),
    partitions=2,
    state="every type",
)
TOTALS = Table(
    key=(Column("tail", "string"),),
    values=(Column("flights", "int32"), Column("delay", "int64"), Column("note", "string")),
    partitions=2,
    state="update(totals)",
)
CHANGED = replace(
    TOTALS, values=(Column("flights", "int64"), Column("minutes", "int64"), Column("late", "int16", default="-1"))
)
"""Of a program in which `flights` is wider, `delay` is called `minutes`, `note` is gone and `late` is new."""


class _Making:
    """A store, and a clock of its own for all that asks for the time or for a name."""

    def __init__(self) -> None:
        self.store = AgingStore()
        # A root has a URL that says where it is; wherever these files lie, they came from here.
        self.store._url = "/srv/slackwater"
        self.kafka = Kafka()
        self.clock = StoreClock(self.store, 60_000)
        names = random.Random(1)
        self.names = ulid.ULIDGenerator(clock=lambda: self.store.clock_ms, randomness=lambda _: names.randbytes(10))
        self.states: dict[str, dict[str, list[tuple[object, ...]]]] = {}
        """The rows of each table, by the ref of the moment."""

    def make(self) -> None:
        with (
            patch.object(ulid, "default_generator", self.names),
            patch("time.time_ns", lambda: self.store.clock_ms * 1_000_000),
        ):
            self.flights()
            self.types()
            self.gone()
            self.lossy()
            self.changed()
            self.begun()
            self.newest()

    def flights(self) -> None:
        app = FlightsApp(self.store, self.kafka, clock=self.clock)
        app.run(flights(40))
        app.delete("aircraft", "N003", "N004")
        app.send(*flights(6))
        asked = request(self.store, app.name, "at-noon", BY)
        app.step_all()
        assert try_complete(self.store, app.name, asked) is not None
        record(self.store, app.name, "snapshot take", "at-noon", BY)
        self.note(app, "flights@at-noon")
        self.clone(app)
        app.step_all()
        app.rescale("aircraft", 3)
        app.run(flights(20, aircraft=11))
        self.merge(app, "aircraft")
        self.merge(app, "carriers")
        self.clock.wait(30 * 60_000)
        app.send(*flights(8))
        app.step("legs")
        cut = resolve(self.store, app.name, now_ms=self.clock.now_ms)
        pin(self.store, cut, "before-deploy", by=BY, reader=self.kafka)
        self.note(app, "flights@before-deploy")
        self.clock.wait(3 * HOUR_MS)
        app.run(flights(10))
        self.clock.wait(HOUR_MS)
        app.run([Flight("N001", "C1", 5000)])
        app.run(flights(10, aircraft=9))
        collect(self.store, app.name, Retention(all_ms=2 * HOUR_MS, hourly_ms=12 * HOUR_MS), by=BY)
        thinned = horizon.newest(self.store, app.name)
        assert thinned is not None
        assert any(moment.until_ms for moment in thinned.moments)
        app.step_all()
        request(self.store, app.name, "under-way", BY)
        app.send(*flights(5))
        app.step("legs")
        self.note(app, "flights")

    def gone(self) -> None:
        """An app of which only the note is left that it was removed."""
        app = FlightsApp(self.store, self.kafka, "gone", clock=self.clock)
        self.clock.wait(HOUR_MS)
        remove_app(
            self.store, app.name, by=BY, now_ms=self.clock.now_ms, pause=lambda s: self.clock.wait(round(s * 1000))
        )

    def lossy(self) -> None:
        """An app of which Kafka lost records before they were read, and of which a stage is retired."""
        app = FlightsApp(self.store, self.kafka, "lossy", clock=self.clock)
        app.step("legs", max_records=8)
        app.step("aircraft")
        app.step("carriers")
        # Of the next two versions and the marker between them a part is gone, so all of them is passed over.
        app.step("legs", max_records=4)
        request(self.store, app.name, "never", BY)
        kept_from = app.step("legs", max_records=2).outputs["by-aircraft"].ends
        app.step("legs", max_records=2)
        self.pass_over(app, "aircraft", kept_from)
        app.step("legs", max_records=2)
        app.step("aircraft")
        app.step("carriers")
        ends = self.kafka.ends(app.topic)
        assert ends is not None
        self.pass_over(app, "legs", tuple(end - 2 for end in ends))
        app.step("legs")
        cut = resolve(self.store, app.name, now_ms=self.clock.now_ms)
        pin(self.store, cut, "after-losses", by=BY, reader=self.kafka)
        self.note(app, "lossy@after-losses")
        retire(self.store, app.name, "carriers", by=BY, now_ms=self.clock.tick("carriers"))
        app.step("aircraft")
        self.states["lossy"] = {"aircraft": self.rows(app, "aircraft")}
        self.states["lossy/carriers"] = {"carriers": self.rows(app, "carriers")}
        # A runner's name in its sign of life is a ULID. It ran an app whose status nobody asks for: it goes by ages.
        beat(self.store, "types", Beat(str(ulid.ULID()), BY, {"rows": 1}))

    def pass_over(self, app: FlightsApp, stage: str, earliest: tuple[int, ...]) -> None:
        """Claim a stage whose input Kafka has only from these offsets on."""
        head = app.heads[stage]
        ((name, known),) = head.inputs.items()
        ends = self.kafka.ends(known.topic)
        assert ends is not None
        finder = StartFinder(self.store, app.name, stage, head, lambda _: (earliest, ends), accept_loss=True)
        if known.upstream:
            entry = finder.channel(name, known.topic, known.upstream)
        else:
            entry = finder.topic(name, known.topic, None)
        app.heads[stage] = claim(
            self.store,
            app.name,
            stage,
            writer=self.kafka.attempt(),
            by=BY,
            now_ms=self.clock.tick(stage),
            build=lambda draft: start_at(self.store, draft, {name: entry}, BY),
        )
        assert app.heads[stage].lost
        assert sum(app.heads[stage].inputs[name].lost)

    def clone(self, app: FlightsApp) -> None:
        clone(self.store, "flights@at-noon", "staging", topics={}, channels=self.kafka, by=BY, now_ms=app.clock.now_ms)
        record(self.store, "staging", "clone", "from flights@at-noon", BY)
        copy = FlightsApp(self.store, self.kafka, "staging", clock=self.clock)
        self.note(copy, "staging/carriers@v7")
        copy.send(*flights(9, aircraft=4))
        copy.step_all()
        self.note(copy, "staging")

    def merge(self, app: FlightsApp, stage: str) -> None:
        """Commit what the store's own compaction picks now."""
        head, table = app.heads[stage], app.table(stage)
        with closing(SstCache(Path("/nonexistent"), 0)) as cache:
            done = [
                run(self.store, cache, app.name, stage, table, one)
                for one in pick(head.ssts, table.partitions, Policy(l0_trigger=4))
            ]
        assert done
        now_ms = self.clock.tick(stage)
        draft = successor(head, kind="compaction", epoch=head.epoch, writer=head.writer, by=BY, now_ms=now_ms)
        app.commit(replace(draft, ssts=apply(head.ssts, done)))

    def note(self, app: FlightsApp, ref: str) -> None:
        self.states[ref] = {stage: self.rows(app, stage) for stage in STAGES[1:]}

    def rows(self, app: FlightsApp, stage: str) -> list[tuple[object, ...]]:
        return [(name, num, delay) for name, (num, delay, _) in app.state[stage].items()]

    def types(self) -> None:
        """A table of every type, its rows overwritten and deleted."""
        apps.ensure_app(self.store, AppInfo("types", self.clock.now_ms))
        head = self.claimed("types", "rows", TYPES)
        keys: list[Key] = [
            (text, number, moment)
            for text in ("", "\0", "\u00c5", "A\u030a", None)
            for number in (0.0, 1.5, float("inf"), None)
            for moment in (datetime(1970, 1, 1, tzinfo=UTC), None)
        ]
        held: dict[Key, Values] = {}
        for version in range(2, 5):
            changes: dict[Key, Values | None] = {
                key: None if (number + version) % 5 == 0 else _row(number + version)
                for number, key in enumerate(keys)
                if (number + version) % 3
            }
            held = {key: row for key, row in (held | changes).items() if row is not None}
            head = self.put(head, changes)
            self.states[f"types/rows@v{version}"] = {"rows": [(*key, *row) for key, row in held.items()]}

    def changed(self) -> None:
        """An app whose program was changed: some rows are in SSTs of before, some in SSTs of both."""
        apps.ensure_app(self.store, AppInfo("changed", self.clock.now_ms))
        head = self.claimed("changed", "totals", TOTALS)
        head = self.put(head, {(f"N{n}",): (n, 10 * n, f"plane {n}") for n in range(8)})
        head = self.put(head, {("N1",): None, ("N2",): (2**31 - 1, None, None)})
        held = {**{f"N{n}": (n, 10 * n, f"plane {n}") for n in (0, *range(3, 8))}, "N2": (2**31 - 1, None, None)}
        self.states[f"changed/totals@v{head.version}"] = {"totals": [(tail, *row) for tail, row in held.items()]}
        program = Declared("changed", {"totals": DeclaredStage("totals", {}, {}, CHANGED)})
        found = find_plan(self.store, program, {"delay": "minutes"})
        now = self.clock.tick("totals")
        done = migrate(self.store, found, {}, by=BY, now_ms=now)
        assert done.versions == {"totals": head.version + 1}
        head = self.claimed("changed", "totals", None)
        head = self.put(head, {("N3",): (2**40, 30, 4), ("N9",): (9, 90, None)})
        after = {tail: (*row[:2], -1) for tail, row in held.items()} | {"N3": (2**40, 30, 4), "N9": (9, 90, None)}
        self.states["changed"] = {"totals": [(tail, *row) for tail, row in after.items()]}

    def begun(self) -> None:
        """An app that began with rows from elsewhere, and went on."""
        table = replace(TOTALS, partitions=1)
        now_ms = self.clock.tick("totals")
        first = Manifest(
            "begun", "totals", 1, 1, "w", now_ms, "init", inputs={"t": Input("t", (3, 4))}, table=table, by=BY
        )
        info = AppInfo("begun", now_ms, starts={"t": (3, 4)}, initialised="totals")
        rows = Source(
            sql="SELECT 'N' || n AS tail, n AS flights, 10 * n AS delay, NULL::VARCHAR AS note FROM range(9) r(n)"
        )
        initialise(self.store, first, rows, info=info)
        head = self.put(self.claimed("begun", "totals", None), {("N1",): None, ("N2",): (7, 7, "seven")})
        assert head.version == 3
        held = {n: (n, 10 * n, None) for n in range(9)}
        self.states["begun/totals@v1"] = {"totals": [(f"N{n}", *row) for n, row in held.items()]}
        self.states["begun"] = {"totals": [*((f"N{n}", *held[n]) for n in (0, *range(3, 9))), ("N2", 7, 7, "seven")]}

    def newest(self) -> None:
        """An app with what came with format 4."""
        shop = Shop(self.store, self.clock, BY)
        shop.make()
        self.states |= shop.states

    def claimed(self, app: str, stage: str, born: Table | None) -> Manifest:
        """A stage with a writer; its table at its birth."""

        def build(draft: Manifest) -> Manifest:
            return draft if born is None else replace(draft, table=born)

        return claim(self.store, app, stage, writer="w", by=BY, now_ms=self.clock.tick(stage), build=build)

    def put(self, head: Manifest, changes: dict[Key, Values | None]) -> Manifest:
        """The version after one, which puts these rows, or deletes them."""
        now_ms = self.clock.tick(head.stage)
        draft = successor(head, kind="batch", epoch=head.epoch, writer="w", by=BY, now_ms=now_ms)
        assert head.table is not None
        parts = _parts(self.store, (head.app, head.stage), head.table, changes, draft.version)
        batch = replace(draft, ssts=(*parts, *head.ssts))
        commit(self.store, batch)
        return batch


def _row(number: int) -> Values:
    return tuple(some[number % len(some)] for some in _VALUES.values())


def _parts(
    store: AgingStore, names: tuple[str, str], table: Table, changes: dict[Key, Values | None], version: int
) -> list[writer.Sst]:
    app, stage = names
    rows = state_rows(table, changes, version)
    partitions = partition_of(rows["_hash"].to_numpy(), table.partitions)
    return [
        writer.write(
            store,
            None,
            app=app,
            stage=stage,
            table=table,
            partition=partition,
            rows=rows.filter(partitions == partition),
        )
        for partition in sorted(set(partitions.tolist()))
    ]


def keep(folder: Path) -> None:
    """Write store, topics and answers into a folder that is not there yet."""
    made = _Making()
    made.make()
    _check(made)
    for info in made.store.list(""):
        path = folder / "store" / info.key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(made.store.get(info.key))
    (folder / "kafka.json").write_bytes(msgspec.json.encode(made.kafka.topics))
    with TemporaryDirectory() as cache:
        answers = [{"words": words, **ask(folder / "store", words, Path(cache))} for words in QUESTIONS]
    lines = ",\n".join(json.dumps(answer, ensure_ascii=False) for answer in answers)
    (folder / "answers.json").write_text(f"[\n{lines}\n]\n", encoding="utf-8")


def _check(made: _Making) -> None:
    """See that nothing wrong is handed down: tables hold what was put in."""
    with TemporaryDirectory() as folder, closing(SstCache(Path(folder), 1 << 30)) as cache:
        for ref, tables in made.states.items():
            cut = resolve(made.store, ref, now_ms=made.clock.now_ms)
            with closing(connect(made.store, cache, cut)) as con:
                for name, expected in tables.items():
                    rows = [tuple(row.values()) for row in run_query(con, f"FROM {name}").to_pylist()]
                    assert sorted(rows, key=repr) == sorted(expected, key=repr), (ref, name)


if __name__ == "__main__":
    keep(KEPT / sys.argv[1])
