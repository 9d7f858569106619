"""An export that is killed at any request: no partial folder is visible, and the same call finishes it."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import TypeVar

import pyarrow.parquet as pq
import pytest
from slackwater.operations.exchange.export import DOCUMENT
from slackwater.store.read.cache import SstCache

from tests.crash.points import killed_at_each_call
from tests.operations.exchange.transfer.test_export import leave, running
from tests.support.collecting import AgingStore, store_of
from tests.support.histories import FlightsApp

T = TypeVar("T")


@contextmanager
def told_of_writes(store: AgingStore, patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Count file writes as requests in this block. Files that a killed export has written stay."""
    write_table, write_bytes = pq.write_table, Path.write_bytes

    def told(where: Path, write: Callable[[], T]) -> T:
        return write() if store.calls is None else store.calls("write", str(where), write)

    with patch.context() as changed:
        changed.setattr(
            pq, "write_table", lambda rows, where, **how: told(where, lambda: write_table(rows, where, **how))
        )
        changed.setattr(Path, "write_bytes", lambda path, data: told(path, lambda: write_bytes(path, data)))
        changed.setattr(shutil, "rmtree", lambda *_args, **_how: None)
        yield


def test_a_killed_export_leaves_no_folder_and_the_same_call_writes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = count()

    def build() -> tuple[FlightsApp, SstCache, Path]:
        number = next(numbers)
        return running(AgingStore()), SstCache(tmp_path / f"cache-{number}", 1 << 30), tmp_path / f"out-{number}"

    expected = leave(*build()).export  # what the first one reads, the process knows in all that follow
    with told_of_writes(store := store_of((world := build())[0]), monkeypatch), store.requests() as made:
        leave(*world)
    assert sum(each.startswith("write ") for each in made) == len(list(expected.files)) + 1
    assert made[-1].endswith(f"/{DOCUMENT}")

    def work(world: tuple[FlightsApp, SstCache, Path]) -> None:
        with told_of_writes(store_of(world[0]), monkeypatch):
            leave(*world)

    for (app, cache, path), ended in killed_at_each_call("export", build, work, lambda world: store_of(world[0])):
        if not ended:
            assert not path.exists()
            assert leave(app, cache, path).export == expected
        assert not list(tmp_path.glob(f".{path.name}.*"))
