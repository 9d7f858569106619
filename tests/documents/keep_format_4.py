"""The app of a kept store that has what came with format 4: `shop`, whose stages know event time, reject and publish.

`carts` counts what visitors put into their carts, and lets rows fall due, which its sink publishes; some records it
rejects, and one of these is retried. It is called `visits` since the program was changed. `totals` counts by country,
and the column that it got with the same change has its past, by a backfill.
"""

from collections.abc import Mapping
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

from msgspec.structs import replace
from slackwater.pipeline.api.sink import internal_topic
from slackwater.pipeline.kafka.rejects import DeadLetter
from slackwater.pipeline.reject.table import Written, row_of, table_of_rows
from slackwater.snapshot.backfill import fill
from slackwater.snapshot.backfill.scratch import sweep
from slackwater.snapshot.backfill.swap import Swap
from slackwater.snapshot.migrate.declared import Declared, DeclaredStage
from slackwater.snapshot.migrate.migrate import find_plan, migrate
from slackwater.snapshot.rejected.columns import TABLE as REJECTED_RECORDS
from slackwater.snapshot.take.audit_log import record
from slackwater.store.read.cache import SstCache
from slackwater.store.versions import apps, published
from slackwater.store.versions.aside import REJECTED
from slackwater.store.versions.commit import claim, commit, successor
from slackwater.store.versions.manifest import (
    AppInfo,
    Aside,
    Backfill,
    Column,
    EventTime,
    Input,
    Manifest,
    Sink,
    Table,
)
from slackwater.store.versions.published import Place

from tests.support.collecting import AgingStore, StoreClock
from tests.support.state_rows import Key, Values, write_version

APP, SINK = "shop", "left"
CARTS = Table(
    (Column("visitor", "string"),),
    (Column("items", "int64"), Column("until", "timestamp[us, tz=UTC]"), Column("_due_at", "int64")),
    2,
    "update(due=until)",
)
TOTALS = Table(
    (Column("country", "string"),),
    (Column("orders", "int64"), Column("cents", "int64")),
    1,
    "aggregate(orders=count(), cents=sum(cents))",
)
LARGEST = "largest=max(cents)"
LARGER = replace(
    TOTALS,
    values=(*TOTALS.values, Column("largest", "int64")),
    state=f"aggregate(orders=count(), cents=sum(cents), {LARGEST})",
)
PAST = replace(TOTALS, values=LARGER.values[-1:], state=f"aggregate({LARGEST})")
Rows = dict[str, tuple[object, ...]]


class Shop:
    """Its history, written straight through the store's API."""

    def __init__(self, store: AgingStore, clock: StoreClock, by: str) -> None:
        self.store, self.clock, self.by = store, clock, by
        self.states: dict[str, dict[str, list[tuple[object, ...]]]] = {}
        """The rows of each table, by the ref of the moment."""
        self.began_ms = clock.now_ms

    def make(self) -> None:
        with TemporaryDirectory() as folder, closing(SstCache(Path(folder), 1 << 30)) as cache:
            apps.ensure_app(self.store, AppInfo(APP, self.clock.now_ms))
            carts, rows = self.carts(cache)
            totals = self.totals()
            carts, totals = self.change(carts, totals, rows)
            self.backfill(totals, cache)
            self.go_on(carts, rows)

    def at(self, minutes: int) -> datetime:
        return datetime.fromtimestamp(self.began_ms / 1000, UTC) + timedelta(minutes=minutes)

    def ms(self, minutes: int) -> int:
        return self.began_ms + minutes * 60_000

    def cart(self, items: int, until: int | None) -> Values:
        """What the table holds of a visitor; `until` in minutes."""
        return (items, None, None) if until is None else (items, self.at(until), self.ms(until))

    def carts(self, cache: SstCache) -> tuple[Manifest, Rows]:
        head = self.claim(
            "carts",
            table=CARTS,
            inputs={"events": Input("events", (0, 0))},
            sinks={SINK: Sink(internal_topic(APP, "carts", SINK), 0, 1)},
            aside={REJECTED: Aside(REJECTED_RECORDS)},
            event_time=EventTime(),
        )
        rows: dict[str, Values] = {"ada": self.cart(1, 10), "bob": self.cart(2, 12), "eve": self.cart(3, 60)}
        head = self.batch(head, _keys(rows), (4, 3), EventTime(self.ms(5), next_due_ms=self.ms(10)))
        written = Written(self.store, cache, APP, "carts")
        letters = [
            DeadLetter(
                "events", 0, offset, b"N", b"no json", (("from", b"test"),), "ValueError", "bad", "Traceback: here"
            )
            for offset in (4, 5)
        ]
        bad = [
            row_of(each, "events", 0, self.ms(6), version=head.version + 1, now_ms=self.clock.now_ms)
            for each in letters
        ]
        aside = written.put(head, table_of_rows(bad), head.version + 1, added=2, waiting=2)
        head = self.batch(head, {}, (6, 3), head.event_time, aside={REJECTED: aside})
        # What ada and bob left falls due. She is gone from the table, and he waits no more.
        changes: dict[str, Values | None] = {"ada": None, "bob": (2, rows["bob"][1], None), "joe": self.cart(1, 70)}
        rows = {name: row for name, row in (rows | changes).items() if row is not None}
        times = EventTime(self.ms(20), late=1, late_total=1, due_ms=self.ms(20), next_due_ms=self.ms(60))
        sink = replace(head.sinks[SINK], end=3, attempts=("shop.4.0",), rows=2, sent=2)
        head = self.batch(head, _keys(changes), (7, 4), times, sinks={SINK: sink})
        published.note(self.store, head, SINK, Place(head.version, 3, 2), None)
        again = {**bad[0], "retried": head.version + 1, "attempts": 2}
        aside = written.put(head, table_of_rows([again]), head.version + 1, added=0, waiting=-1)
        times = replace(times, late=0)
        rows["eve"] = self.cart(4, 60)
        head = self.batch(head, _keys({"eve": rows["eve"]}), (7, 4), times, aside={REJECTED: aside})
        return head, {name: tuple(row[:2]) for name, row in rows.items()}

    def totals(self) -> Manifest:
        head = self.claim("totals", table=TOTALS, inputs={"events": Input("events", (0, 0))})
        head = self.batch(head, _keys({"BE": (2, 300), "DE": (1, 50)}), (2, 1))
        return self.batch(head, _keys({"BE": (4, 700), "NL": (1, 90)}), (4, 3))

    def change(self, carts: Manifest, totals: Manifest, rows: Rows) -> tuple[Manifest, Manifest]:
        before = {"totals": [("BE", 4, 700), ("DE", 1, 50), ("NL", 1, 90)], "carts": _listed(rows)}
        self.states[f"{APP}/carts@v{carts.version}"] = {"carts": before["carts"]}
        reads = {"events": ""}
        program = Declared(
            APP,
            {
                "visits": DeclaredStage("visits", reads, {}, CARTS),
                "totals": DeclaredStage("totals", reads, {}, LARGER),
            },
        )
        found = find_plan(self.store, program, {}, stages={"carts": "visits"})
        done = migrate(self.store, found, {}, by=self.by, now_ms=self.clock.tick("totals"))
        self.states[f"{APP}@{done.snapshot}"] = before
        carts = self.claim("visits", sinks={SINK: Sink(internal_topic(APP, "visits", SINK), 0, carts.version + 2)})
        totals = self.claim("totals")
        # Of what came later alone is the largest known.
        return carts, self.batch(totals, _keys({"BE": (5, 900, 200)}), (5, 3))

    def backfill(self, totals: Manifest, cache: SstCache) -> None:
        """As `migrate --backfill` does it: the past in an app of its own, brought in, and that is gone."""
        (added,) = [each for each in totals.table.values if each.since] if totals.table is not None else ()
        name = f"{APP}-backfill-totals-v{added.since}"
        apps.ensure_app(self.store, AppInfo(name, self.clock.now_ms, starts={"events": (0, 0)}))
        head = self.claim("totals", app=name, table=PAST, inputs={"events": Input("events", (0, 0))})
        source = self.batch(head, _keys({"BE": (400,), "DE": (50,), "NL": (90,)}), (4, 3))
        one = Backfill(
            added.since + 1,
            added.since,
            (added.id,),
            name,
            source.version,
            source.writer,
            {"events": (0, 0)},
            whole=True,
        )
        now_ms = self.clock.tick("totals")
        # One after the other, SSTs get the same names each time.
        with patch.object(fill, "_WORKERS", 1):
            swapping = Swap(self.store, cache, (APP, "totals"), writer="w", by=self.by, now_ms=lambda: now_ms)
            done = swapping.bring_in(one)
        record(self.store, APP, "backfill", f"totals v{done.manifest.version}: largest", self.by)
        assert tuple(sweep(self.store, done.manifest, self.clock.now_ms)) == ()
        self.batch(done.manifest, _keys({"NL": (2, 100, 90)}), (6, 3))

    def go_on(self, visits: Manifest, rows: Rows) -> None:
        assert visits.event_time is not None
        times = replace(visits.event_time, watermark_ms=self.ms(30), due_ms=self.ms(30))
        sink = replace(visits.sinks[SINK], end=1, attempts=("shop.8.0",), rows=1, sent=1)
        later = {"ada": self.cart(9, 80)}
        self.batch(visits, _keys(later), (8, 4), times, sinks={SINK: sink})
        self.states[APP] = {
            "totals": [("BE", 5, 900, 400), ("DE", 1, 50, 50), ("NL", 2, 100, 90)],
            "visits": _listed({**rows, **{name: tuple(row[:2]) for name, row in later.items()}}),
        }

    def claim(self, stage: str, app: str = APP, **born: Any) -> Manifest:
        """A writer of a stage, and what it is born with, or begins anew."""
        return claim(
            self.store,
            app,
            stage,
            writer="w",
            by=self.by,
            now_ms=self.clock.tick(stage),
            build=lambda draft: replace(draft, **born),
        )

    def batch(
        self,
        head: Manifest,
        changes: Mapping[Key, Values | None],
        offsets: tuple[int, ...],
        event_time: EventTime | None = None,
        **more: Any,
    ) -> Manifest:
        """The version after one, which has read up to these offsets."""
        now_ms = self.clock.tick(head.stage)
        draft = successor(head, kind="batch", epoch=head.epoch, writer="w", by=self.by, now_ms=now_ms, duration_ms=85)
        assert head.table is not None
        read = sum(offsets) - sum(head.inputs["events"].offsets)
        source = replace(
            head.inputs["events"],
            offsets=offsets,
            rows=read,
            watermark_ms=event_time.watermark_ms if event_time is not None else None,
        )
        parts = (
            write_version(
                self.store, None, head.table, changes, draft.version, app=head.app, base=head.ssts, stage=head.stage
            )
            if changes
            else ()
        )
        made = replace(draft, inputs={"events": source}, event_time=event_time, ssts=(*parts, *head.ssts), **more)
        commit(self.store, made)
        return made


def _keys(rows: Mapping[str, Values | None]) -> dict[Key, Values | None]:
    return {(key,): row for key, row in rows.items()}


def _listed(rows: Rows) -> list[tuple[object, ...]]:
    return [(name, *row) for name, row in rows.items()]
