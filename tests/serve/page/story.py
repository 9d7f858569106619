"""An app with a history: flights whose delays are in seconds, for one carrier, from some batch on."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from msgspec.structs import replace
from slackwater.common.instants import now_ms
from slackwater.store.objects.protocol import ObjectStore
from slackwater.store.sst.hashing import hash_keys
from slackwater.store.versions.apps import ensure_app
from slackwater.store.versions.commit import commit, successor
from slackwater.store.versions.entries.ssts import Sst
from slackwater.store.versions.manifest import AppInfo, Column, Input, Manifest, Output, Program, Table

from tests.serve.conftest import client_of
from tests.support.histories import STAGES, Clock, Flight, FlightsApp, Kafka, write_parts

CARRIERS = ("UA", "B6", "EV", "DL", "AA", "MQ", "US", "9E", "WN", "VX", "FL", "AS")
WRONG = "UA"
A_BATCH = 24
_PAUSE_MS = 20_000


def flights(count: int, *, aircraft: int = 90, seed: int = 1, wrong_from: int | None = None) -> list[Flight]:
    """Return flights. From a given flight on, one carrier's delays are in seconds instead of minutes."""
    random = np.random.default_rng(seed)
    tails = random.integers(aircraft, size=count).tolist()
    delays = np.round(random.normal(6, 18, size=count)).astype(int).tolist()
    found = []
    for number, (tail, delay) in enumerate(zip(tails, delays, strict=True)):
        carrier = CARRIERS[tail % len(CARRIERS)]
        is_wrong = wrong_from is not None and number >= wrong_from and carrier == WRONG
        found.append(Flight(f"N{tail:03}{carrier}", carrier, abs(delay) * 60 + 60 if is_wrong else delay))
    return found


def written(store: ObjectStore, *, batches: int = 24, wrong_from: int = 15) -> FlightsApp:
    """Return the app. It has a snapshot before the fault, and a deploy immediately before the fault."""
    # It ends about now, so that it reads as a running app does.
    began_ms = now_ms() - batches * (_PAUSE_MS + 3_000) - 15_000
    app = FlightsApp(store, Kafka(), clock=Clock(began_ms))
    deploy(app, "flights.py", "0" * 32)
    some = flights(batches * A_BATCH, wrong_from=wrong_from * A_BATCH)
    steps = [some[at : at + A_BATCH] for at in range(0, len(some), A_BATCH)]
    with client_of(app) as client:
        for number, batch in enumerate(steps):
            if number == wrong_from - 4:
                client.app(app.name).snapshot("before-release", instant=True)
                deploy(app, "flights.py", "1" * 32)
            app.send(*batch)
            app.step_all()
            app.clock.now_ms += _PAUSE_MS
    return app


HOSTILE = (
    "<img src=x onerror=alert(1)>",
    '"><script>alert(1)</script>',
    "javascript:alert(1)",
    "../../etc/passwd?#&=%2f",
    "__proto__",
    "' OR 1=1 --",
    "\u202eright to left\u2069",
    "a" * 3_000,
    "\ufeff\u0000\n\t",
)
_COLUMN = "<b onclick=alert(1)>name</b>"
_TABLE = Table((Column("constructor", "string"),), (Column(_COLUMN, "string"), Column("large", "int64")), partitions=2)


def hostile(store: ObjectStore) -> None:
    """Write an app `hostile` with a table of hostile keys, values and column names."""
    ensure_app(store, AppInfo("hostile", now_ms()))
    ssts: tuple[Sst, ...] = ()
    for version in (1, 2):
        values = {_COLUMN: [f"{each}{version}" for each in HOSTILE], "large": [2**62 + version] * len(HOSTILE)}
        names = pa.array(HOSTILE)
        hashes = hash_keys(pa.table({"constructor": names}), ["constructor"])
        filled = {"_seq": np.full(len(names), version), "_op": np.zeros(len(names), np.int8)}
        rows = pa.table({"_hash": hashes, "constructor": names, **values, **filled})
        ssts = (*write_parts(store, "hostile", "table", _TABLE, rows), *ssts)
        head = Manifest("hostile", "table", version, 1, "w", now_ms() + version, "batch", table=_TABLE, ssts=ssts)
        commit(store, head)


CHAINS = LONG = 7
_LARGE = Table((Column("order", "int64"),), (Column("seen", "int64"), Column("cents", "int64")), partitions=2)
LARGE_KEYS, JUMP_FROM, JUMP = 250, 4, 1_000_000_000_000
"""Number of orders in the large table; the version from which on each order has many more cents; and how many more."""


def step(number: int) -> str:
    """Return a stage's name in the wide app. It is as long as a realistic name."""
    return f"step_{number:02}_of_the_order_pipeline"


FILLED = step(2 * LONG - 1)
"""The only stage of the wide app whose table has rows."""


def wide(store: ObjectStore) -> None:
    """Write an app `wide` of 49 stages in seven rows of seven stages. The last stage of each row has a table.

    One of the tables has rows, more than a page in the browser shows.
    """
    ensure_app(store, AppInfo("wide", now_ms()))
    for number in range(CHAINS * LONG):
        name, (chain, place) = step(number), divmod(number, LONG)
        reads = Input(f"orders-{chain}", (0,)) if not place else Input(f"wide-ch-{number}", (0,), step(number - 1))
        sent = {} if place == LONG - 1 else {f"ch-{number + 1}": Output(f"wide-ch-{number + 1}", (0,), (0,))}
        table = None if sent else _LARGE
        ssts: tuple[Sst, ...] = ()
        for version in range(1, 7 if name == FILLED else 2):
            if name == FILLED:
                ssts = (*write_parts(store, "wide", name, _LARGE, _orders(version)), *ssts)
            inputs = {f"ch-{number}" if place else "orders": reads}
            at_ms = now_ms() - 60_000 + version * 1_000
            written = Manifest("wide", name, version, 1, "w", at_ms, "batch", inputs=inputs, outputs=sent, table=table)
            commit(store, replace(written, ssts=ssts))


def _orders(version: int) -> pa.Table:
    """Return the rows of all orders again, for another version."""
    orders = np.arange(LARGE_KEYS)
    cents = orders * 7 % LARGE_KEYS + version % 2 + (JUMP if version >= JUMP_FROM else 0)
    hashes = hash_keys(pa.table({"order": orders}), ["order"])
    filled = {"_seq": np.full(LARGE_KEYS, version), "_op": np.zeros(LARGE_KEYS, np.int8)}
    return pa.table({"_hash": hashes, "order": orders, "seen": orders * 0 + version, "cents": cents, **filled})


def deploy(app: FlightsApp, path: str, checksum: str) -> None:
    """Claim each stage with another program."""
    for stage in STAGES:
        head = app.heads[stage]
        claimed = successor(
            head, kind="claim", epoch=head.epoch + 1, writer=head.writer, by=head.by, now_ms=app.clock.tick(stage)
        )
        app.commit(replace(claimed, program=Program(path, checksum)))
