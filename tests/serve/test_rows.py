"""Rows from open SSTs equal those of other look-ups: after versions, deletions, expiry and forgotten keys."""

from collections.abc import Mapping
from contextlib import closing, suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from slackwater.client import Client
from slackwater.errors import Refused
from slackwater.serve.rows import look_ups
from slackwater.serve.rows.fresh import CachedMoment
from slackwater.settings import Settings
from slackwater.store.sst.ttl import batch_clock_ms
from slackwater.store.versions import apps, commit
from slackwater.store.versions.entries.ssts import Sst
from slackwater.store.versions.manifest import AppInfo, Column, Manifest, Table, Ttl

from tests.models.profiles import scaled
from tests.support.state_rows import write_version

APP, TABLE, START_MS, LIFE_MS = "app", "t", 1_700_000_000_000, 60_000
KEYS = [str(number) for number in range(6)]
COLUMNS = Column("k", "int32"), (Column("v", "int64"), Column("w", "binary"), Column("_due", "int64"))
changes = st.dictionaries(st.sampled_from(KEYS), st.none() | st.integers(0, 99), min_size=1, max_size=4)
steps = st.lists(changes | st.sampled_from(KEYS), min_size=1, max_size=6)


class Written:
    """An app of one table, changed by batches and forgets."""

    def __init__(self, folder: Path, table: Table) -> None:
        settings = Settings(store=str(folder / "store"), cache=str(folder / "cache"), cache_max_bytes=1 << 30)
        self.client = Client(settings)
        apps.create_app(self.client.store, AppInfo(APP, 1))
        self.head = Manifest(APP, TABLE, 1, 1, "w", START_MS, "claim", table=table)
        commit.commit(self.client.store, self.head)

    def batch(self, put: Mapping[str, int | None], now_ms: int) -> None:
        head = self.client.app(APP).at().cut.stages[TABLE]
        made = commit.successor(head, kind="batch", epoch=1, writer="w", by="w", now_ms=now_ms)
        assert made.table is not None
        clock_ms = batch_clock_ms(head, now_ms)
        rows = {(int(key),): None if v is None else (v, b"\xff", v) for key, v in put.items()}
        store, cache = self.client.store, self.client.cache
        new: tuple[Sst, ...] = write_version(
            store, cache, made.table, rows, made.version, app=APP, stage=TABLE, clock_ms=clock_ms, base=head.ssts
        )
        commit.commit(store, replace(made, clock_ms=clock_ms, ssts=(*new, *head.ssts)))


@scaled(60, in_ci=500)
@given(steps, st.booleans(), st.sampled_from([1, 3]), st.sampled_from([(), ("v",), ("w", "k"), ("v", "v")]))
def test_an_answer_is_the_same_with_and_without_open_ssts(
    tmp_path_factory: pytest.TempPathFactory,
    history: list[Mapping[str, int | None] | str],
    expires: bool,
    partitions: int,
    wanted: tuple[str, ...],
) -> None:
    table = Table(COLUMNS[:1], COLUMNS[1], partitions, ttl=Ttl(LIFE_MS) if expires else None)
    app, now_ms = Written(tmp_path_factory.mktemp("served"), table), START_MS
    asked, held = [(key,) for key in (*KEYS, "3")], list[CachedMoment]()
    with closing(app.client), pytest.MonkeyPatch.context() as patch:
        for step in history:
            now_ms += LIFE_MS // 3
            for module in ("serve.rows.fresh", "serve.rows.look_ups", "common.instants"):
                patch.setattr(f"slackwater.{module}.now_ms", lambda now_ms=now_ms: now_ms)
            if isinstance(step, str):
                with suppress(Refused):  # nothing holds it
                    app.client.app(APP).forget({TABLE: [step]})
            else:
                app.batch(step, now_ms)
            held.append(CachedMoment(app.client.app(APP).at(), is_newest=True))
            held[-1].open_partitions(TABLE, range(partitions))
            for reading in held:
                # What was forgotten since is not in what was opened before.
                about = reading.answers_for(TABLE)
                found = look_ups.look_up_inline(about, asked, wanted, 0)
                assert (found is not None) == (about.open_rows is not None and wanted != ("v", "v"))
                (plain,) = look_ups._look_up_batch(reading, TABLE, [asked], wanted, now_ms, False)
                assert isinstance(plain, look_ups.LookUpResult)
                assert found is None or found.json == plain.json
            assert held[-1].is_open(TABLE, range(partitions))
