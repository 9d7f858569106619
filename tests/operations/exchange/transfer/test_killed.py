"""An export that is killed at any request: no partial folder is visible, and the same call finishes it."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from slackwater.operations.exchange.export import DOCUMENT
from slackwater.store.read.cache import SstCache

from tests.models.profiles import crash_points
from tests.operations.exchange.transfer.test_export import leave, running
from tests.support.collecting import AgingStore, Killed
from tests.support.histories import FlightsApp


@contextmanager
def told_of_writes(store: AgingStore, patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Count file writes as requests in this block; a killed export keeps its files."""
    write_table, write_bytes = pq.write_table, Path.write_bytes

    def table(rows: object, where: Path, **how: object) -> None:
        store.before("write", str(where))
        write_table(rows, where, **how)

    def data(path: Path, some: bytes) -> int:
        store.before("write", str(path))
        return write_bytes(path, some)

    with patch.context() as changed:
        changed.setattr(pq, "write_table", table)
        changed.setattr(Path, "write_bytes", data)
        changed.setattr(shutil, "rmtree", lambda *_args, **_how: None)
        yield


def test_an_export_that_is_killed_anywhere_leaves_no_folder_and_the_same_call_writes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def aging() -> tuple[FlightsApp, AgingStore]:
        store = AgingStore()
        return running(store), store

    # Counted in the second world: what the first one reads, the process knows in all that follow.
    for number in range(2):
        whole, store = aging()
        path, cache = tmp_path / f"whole-{number}", SstCache(tmp_path / f"cache-of-{number}", 1 << 30)
        with told_of_writes(store, monkeypatch), store.requests() as made:
            expected = leave(whole, cache, path).export
    assert sum(each.startswith("write ") for each in made) == len(list(expected.files)) + 1
    assert made[-1].endswith(f"/{DOCUMENT}")
    for point in crash_points(len(made) - 1):
        app, store = aging()
        path, cache = tmp_path / f"out-{point}", SstCache(tmp_path / f"cache-{point}", 1 << 30)
        with told_of_writes(store, monkeypatch), store.death_after(point), pytest.raises(Killed):
            leave(app, cache, path)
        assert not path.exists()
        assert not [*tmp_path.glob(f".{path.name}.*/{DOCUMENT}")]
        assert leave(app, cache, path).export == expected
        assert not list(tmp_path.glob(f".{path.name}.*"))
