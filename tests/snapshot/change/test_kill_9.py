"""After `kill -9` of a migration or an init on a real disk, no partial result is visible, and the next call finishes.

Here a process is killed at any instant. Other tests (`test_migrate.py`, `test_rename.py`, `init/test_initialise.py`)
stop it between any two requests.
"""

import random
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from slackwater.operations.exchange.initialise import initialise
from slackwater.snapshot.change.migrate import find_plan, finish_earlier, migrate
from slackwater.snapshot.cut.resolve import resolve
from slackwater.snapshot.query.row_source import RowSource
from slackwater.snapshot.query.sql import connect, run_query
from slackwater.snapshot.verify.verify import verify
from slackwater.state.fits import Declared, DeclaredStage
from slackwater.store.objects.open import open_store
from slackwater.store.objects.protocol import ObjectStore
from slackwater.store.read.cache import SstCache
from slackwater.store.versions import apps, history
from slackwater.store.versions.manifest import Column, Input, Manifest, Table

from tests.operations.victims import Victims
from tests.support.histories import SCHEMA, TABLES, FlightsApp, Kafka, flights

NOW_MS = 2_000_000_000_000
CALLED = {"aircraft": "planes"}
ROWS = 60_000
LOADED = Table((Column("n", "int64"),), (Column("twice", "int64"),), 64)
FIRST = Manifest("loaded", "rows", 1, 1, "w", 1, "init", inputs={"t": Input("t", (3, 4))}, table=LOADED, by="ada@host")


def program() -> Declared:
    """Return a program with a renamed column, a new column and a renamed stage."""
    reads = {"legs": {"flights": ""}, "planes": {"by-aircraft": "legs"}, "carriers": {"by-carrier": "planes"}}
    writes = {"legs": {"by-aircraft": SCHEMA}, "planes": {"by-carrier": SCHEMA}, "carriers": {}}
    values = (Column("flights", "int64"), Column("minutes", "int64"), Column("late", "int64", default="-1"))
    tables = {
        CALLED.get(name, name): replace(table, values=(*values, Column("_squares", "int64")))
        for name, table in TABLES.items()
    }
    return Declared("flights", {n: DeclaredStage(n, reads[n], writes[n], tables.get(n)) for n in reads})


def migrating(root: str) -> None:
    store = open_store(root)
    finish_earlier(store, "flights", now_ms=NOW_MS)
    if (found := find_plan(store, program(), {"delay": "minutes"}, stages=CALLED)).changes:
        migrate(store, found, {}, by="ada@host", now_ms=NOW_MS)


def loading(root: str) -> None:
    source = RowSource(sql=f"SELECT range AS n, 2 * range AS twice FROM range({ROWS})")
    initialise(open_store(root), FIRST, source)


@pytest.fixture(scope="module")
def victims() -> Iterator[Victims]:
    with Victims(__name__) as victims:
        yield victims


def numbers(store: ObjectStore, app: str, cache: SstCache, table: str, sql: str) -> list[dict[str, Any]]:
    with closing(connect(store, cache, resolve(store, app, now_ms=NOW_MS))) as con:
        return run_query(con, sql.format(table=table)).to_pylist()


KILLS = [pytest.param(2, id="2"), pytest.param(30, id="30", marks=pytest.mark.soak)]


@pytest.mark.parametrize("kills", KILLS)
def test_a_killed_migration_is_invisible_or_complete_and_the_next_call_finishes_it(
    kills: int, victims: Victims, tmp_path: Path, cache: SstCache
) -> None:
    kept = tmp_path / "kept"
    app = FlightsApp(open_store(str(kept)), Kafka())
    app.run(flights(40))
    total = "SELECT sum(flights)::BIGINT AS n FROM {table}"
    expected = numbers(app.store, "flights", cache, "aircraft", total)
    shutil.copytree(kept, tmp_path / "whole")
    lives = victims.run("migrating", str(tmp_path / "whole"))
    chosen = random.Random(kills)
    halves = 0
    for number in range(kills):
        root = tmp_path / f"killed-{number}"
        shutil.copytree(kept, root)
        victims.run("migrating", str(root), chosen.uniform(0, lives))
        store = open_store(str(root))
        cut = resolve(store, "flights", now_ms=NOW_MS)
        is_done = {"planes", "carriers"} == set(cut.tables)
        assert is_done or set(cut.tables) == {"aircraft", "carriers"}
        assert {bool(each.table.schema) for each in cut.tables.values() if each.table} == {is_done}
        assert numbers(store, "flights", cache, "planes" if is_done else "aircraft", total) == expected
        halves += any(True for _ in store.list("flights/migrations/")) and not is_done
        migrating(str(root))
        later = open_store(str(root))
        assert (
            numbers(later, "flights", cache, "planes", total + " WHERE late = -1 AND minutes IS NOT NULL") == expected
        )
        assert not find_plan(later, program(), {}).changes
        assert verify(later, "flights", now_ms=NOW_MS, deep=True).differences == ()
        shutil.rmtree(root)
    assert kills < 30 or halves


@pytest.mark.parametrize("kills", KILLS)
def test_a_killed_init_is_invisible_or_complete_and_the_next_call_finishes_it(
    kills: int, victims: Victims, tmp_path: Path, cache: SstCache
) -> None:
    lives = victims.run("loading", str(tmp_path / "whole"))
    chosen = random.Random(kills)
    broken = 0
    total = "SELECT count(*) AS n, sum(twice)::BIGINT AS twice FROM {table}"
    for number in range(kills):
        root = tmp_path / f"killed-{number}"
        # Before, rows are read and sorted, and nothing is there.
        victims.run("loading", str(root), chosen.uniform(lives / 3, lives))
        store = open_store(str(root))
        head = history.head(store, "loaded", "rows") if apps.find_app(store, "loaded") is not None else None
        assert head is None or sum(sst.rows for sst in head.ssts) == ROWS
        broken += head is None and any(True for _ in store.list(""))
        loading(str(root))
        later = open_store(str(root))
        assert numbers(later, "loaded", cache, "rows", total) == [{"n": ROWS, "twice": ROWS * (ROWS - 1)}]
        assert verify(later, "loaded", now_ms=NOW_MS, deep=True).differences == ()
        shutil.rmtree(root)
    assert kills < 30 or broken
