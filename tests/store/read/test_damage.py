"""Every way of reading reports damage before it returns a row, and undamaged parts stay readable."""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from slackwater.errors import Corruption
from slackwater.store.compaction.merge import run_compaction
from slackwater.store.compaction.plan import Compaction
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.objects.protocol import ObjectStore
from slackwater.store.read.cache import SstCache
from slackwater.store.read.duckdb_view import register_table
from slackwater.store.read.multi_get import multi_get
from slackwater.store.sst import writer
from slackwater.store.sst.hashing import hash_keys
from slackwater.store.versions import codec, history, keys
from slackwater.store.versions.entries.ssts import Sst
from slackwater.store.versions.manifest import Column, Manifest, Table

from tests.models.profiles import scaled
from tests.support.manifests import manifest as plain
from tests.support.state_rows import manifest_of, write_version

TABLE = Table((Column("n", "int64"),), (Column("v", "int64"),), 1)
NUM_KEYS = 60
ASKED = pa.table({"n": pa.array(range(NUM_KEYS), pa.int64())})


@dataclass
class Made:
    """Three SSTs of a table with nearly the same size. Each has a third of the keys, and row groups of a few rows."""

    store: MemoryStore
    ssts: tuple[Sst, ...]
    cache: SstCache

    def rows(self, ssts: tuple[Sst, ...], store: ObjectStore | None = None) -> list[dict[str, int]]:
        with closing(duckdb.connect()) as con:
            register_table(con, "t", store or self.store, self.cache, manifest_of(TABLE, ssts))
            found: list[dict[str, int]] = con.sql("FROM t ORDER BY ALL").to_arrow_table().to_pylist()
            return found


@contextmanager
def made() -> Iterator[Made]:
    folder = Path(tempfile.mkdtemp())
    store = MemoryStore()
    ssts: tuple[Sst, ...] = ()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer, "ROW_GROUP_ROWS", 8)
        for version in (1, 2, 3):
            mine = {(n,): (n * n,) for n in range(version - 1, NUM_KEYS, 3)}
            ssts = (*write_version(store, None, TABLE, mine, version), *ssts)
    with closing(SstCache(folder, 1 << 30)) as cache:
        yield Made(store, ssts, cache)
    shutil.rmtree(folder, ignore_errors=True)


EXPECTED = [{"n": n, "v": n * n} for n in range(NUM_KEYS)]
VALUES = [row["v"] for row in EXPECTED]


def check_told(error: Corruption, key: str) -> None:
    assert error.object_key == key
    assert key in error.message
    assert error.hint


def look_up(found: Made, some: slice = slice(None)) -> list[int]:
    asked = ASKED.take(np.arange(NUM_KEYS)[some])
    values, present = multi_get(found.store, found.cache, found.ssts, TABLE, hash_keys(asked, ["n"]), asked)
    assert present.all()
    return list(values["v"].to_pylist())


def points(found: Made) -> list[int]:
    point, present = multi_get(found.store, None, found.ssts, TABLE, hash_keys(ASKED, ["n"]), ASKED)
    assert present.all()
    return list(point["v"].to_pylist())


def merge(found: Made) -> list[int]:
    compaction = Compaction(0, 1, found.ssts, drops_tombstones=True)
    done = run_compaction(found.store, found.cache, "app", "stage", TABLE, compaction)
    return look_up(Made(found.store, done.outputs, found.cache))[::7]


WHOLE: dict[str, Callable[[Made], object]] = {
    "a query": lambda found: found.rows(found.ssts),
    "a look-up of many keys": look_up,
}
"""Ways of reading that check every byte."""
BY_PIECES: dict[str, Callable[[Made], list[int]]] = {
    "a look-up of one key at a time": lambda found: [look_up(found, slice(n, n + 1))[0] for n in range(0, NUM_KEYS, 7)],
    "point look-ups": lambda found: points(found)[::7],
    "a merge, whose result looks healthy": merge,
}
"""Ways of reading a part. They need not notice damage elsewhere."""


def damaged(data: st.DataObject, whole: bytes, other: bytes) -> bytes | None:
    """Return the bytes of a damaged object, or `None` for a missing one."""
    at = data.draw(st.integers(0, len(whole) - 1), "at")
    kind = data.draw(st.sampled_from(["flipped", "flipped near its end", "cut", "empty", "longer", "swapped", "gone"]))
    if kind.startswith("flipped"):
        at = max(at, len(whole) - 600) if kind.endswith("end") else at
        return whole[:at] + bytes([whole[at] ^ data.draw(st.integers(1, 255))]) + whole[at + 1 :]
    after: dict[str, bytes | None] = {
        "cut": whole[:at],
        "empty": b"",
        "longer": whole + whole[:at] + b"x",
        "swapped": other,
        "gone": None,
    }
    return after[kind]


def put(store: ObjectStore, key: str, data: bytes | None) -> None:
    if data is None:
        store.delete(key)
    else:
        store.put(key, data)


@pytest.mark.parametrize("way", WHOLE)
@scaled(25)
@given(data=st.data())
def test_damage_to_any_sst_is_reported_before_a_row_is_returned(way: str, data: st.DataObject) -> None:
    with made() as found:
        hurt, other, _ = data.draw(st.permutations(found.ssts), "hurt, other")
        put(found.store, hurt.object, damaged(data, found.store.get(hurt.object), found.store.get(other.object)))
        with pytest.raises(Corruption, match=f"SST {hurt.object} is damaged") as error:
            WHOLE[way](found)
        check_told(error.value, hurt.object)


@pytest.mark.parametrize("way", BY_PIECES)
@scaled(40)
@given(data=st.data(), known=st.booleans())
def test_reading_in_pieces_reports_damage_or_returns_the_right_rows(way: str, known: bool, data: st.DataObject) -> None:
    with made() as found:
        if known:
            # This process has read the footers, and reads only pages from now on.
            points(found)
        hurt, other, _ = data.draw(st.permutations(found.ssts), "hurt, other")
        put(found.store, hurt.object, damaged(data, found.store.get(hurt.object), found.store.get(other.object)))
        try:
            assert BY_PIECES[way](found) == VALUES[::7]
        except Corruption as error:
            check_told(error, hurt.object)


@scaled(25)
@given(data=st.data())
def test_pages_of_another_sst_are_not_accepted(data: st.DataObject) -> None:
    folder = Path(tempfile.mkdtemp())
    store = MemoryStore()
    with closing(SstCache(folder, 0)) as cache, pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer, "ROW_GROUP_ROWS", 8)
        first = data.draw(st.integers(1, 10**6), "first key")
        mine, others = (
            write_version(store, None, TABLE, {(n,): (n,) for n in range(start, start + NUM_KEYS)}, 1)[0]
            for start in (first, first + NUM_KEYS)
        )
        asked = pa.table({"n": pa.array(range(first, first + NUM_KEYS), pa.int64())})
        found = Made(store, (mine,), cache)
        whole = found.rows((mine,))
        multi_get(store, None, (mine,), TABLE, hash_keys(asked, ["n"]), asked)  # the footer is known from here on
        store.put(mine.object, store.get(others.object).ljust(mine.bytes, b"\0")[: mine.bytes])
        with pytest.raises(Corruption, match=mine.object):
            multi_get(store, None, (mine,), TABLE, hash_keys(asked, ["n"]), asked)
        assert len(whole) == NUM_KEYS
    shutil.rmtree(folder, ignore_errors=True)


@scaled(25)
@given(data=st.data())
def test_damage_to_the_cache_only_costs_time(data: st.DataObject) -> None:
    with made() as found:
        assert (found.rows(found.ssts), look_up(found)) == (EXPECTED, VALUES)
        found.cache.close()
        folder = found.cache._folder.path
        files = sorted(folder.iterdir())
        hurt, other = data.draw(st.sampled_from(files), "hurt"), data.draw(st.sampled_from(files), "other")
        after = damaged(data, hurt.read_bytes(), other.read_bytes())
        hurt.unlink()
        if after is not None:
            hurt.write_bytes(after)
        with closing(SstCache(folder, 1 << 30)) as cache:
            again = Made(found.store, found.ssts, cache)
            assert (again.rows(found.ssts), look_up(again)) == (EXPECTED, VALUES)


def test_a_cache_file_of_another_sst_is_not_accepted() -> None:
    with made() as found:
        assert look_up(found) == VALUES
        found.cache.close()
        folder = found.cache._folder.path
        first, second, _ = sorted(folder.glob("*.arrow"))
        content = second.read_bytes()
        first.unlink()
        first.write_bytes(content)
        with closing(SstCache(folder, 1 << 30)) as cache:
            assert look_up(Made(found.store, found.ssts, cache)) == VALUES


MANIFEST = plain(3)
KEY = keys.manifest("app", "stage", 3)


@scaled(200)
@given(data=st.data())
def test_any_damage_to_a_manifest_is_reported_with_its_name(data: st.DataObject) -> None:
    store = MemoryStore()
    store.put(KEY, damaged(data, codec.encode(MANIFEST), codec.encode(plain(4))) or b"")
    with pytest.raises(Corruption) as error:
        history.read(store, "app", "stage", 3)
    check_told(error.value, KEY)


def test_a_changed_number_in_a_manifest_is_found() -> None:
    store = MemoryStore()
    store.put(KEY, codec.encode(MANIFEST).replace(b'"time_ms":30', b'"time_ms":31'))
    with pytest.raises(Corruption, match="was changed: it does not match") as error:
        history.read(store, "app", "stage", 3)
    check_told(error.value, KEY)


def test_a_manifest_of_a_newer_format_is_refused_with_a_hint() -> None:
    store = MemoryStore()
    store.put(KEY, codec.encode(MANIFEST).replace(b'"format":1', b'"format":2', 1))
    with pytest.raises(Corruption, match=f"'{KEY}' has format 2; this slackwater reads formats up to 1") as error:
        history.head(store, "app", "stage")
    assert "upgrade" in error.value.hint


@pytest.mark.parametrize(("stage", "version"), [("other", 3), ("stage", 2)])
def test_a_manifest_of_another_stage_or_version_is_recognised_by_its_name(stage: str, version: int) -> None:
    store = MemoryStore()
    store.put(KEY, codec.encode(Manifest("app", stage, version, 1, "w", 10, "batch")))
    with pytest.raises(
        Corruption, match=f"holds the manifest of app/{stage} v{version}; expected app/stage v3"
    ) as error:
        history.read(store, "app", "stage", 3)
    assert error.value.hint
