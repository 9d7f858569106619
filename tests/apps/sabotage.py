"""Faults that the variable `SABOTAGE` injects into a runner under test.

The app's own file imports this module in the runner's process: production code has no hook for it.
"""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from slackwater.pipeline.batch.committer import spool_root
from slackwater.store.compaction import merge
from slackwater.store.objects.protocol import ObjectStore
from slackwater.store.versions import commit
from slackwater.store.versions.manifest import Manifest

_commit = commit.commit
_merge = merge.run_compaction
_stage, _, _when = os.environ["SABOTAGE"].partition(" ")


def _die_before(store: ObjectStore, manifest: Manifest) -> None:
    if _when == "held":
        if manifest.stage == _stage and manifest.kind == "batch":
            _hold()
    elif manifest.stage == _stage and _has_markers(manifest):
        if _when:
            _others_wait()
        os.kill(os.getpid(), signal.SIGKILL)
    _commit(store, manifest)


def _merge_late(store: ObjectStore, cache: Any, app: str, stage: str, *words: Any, stop: Callable[[], bool]) -> Any:
    if stage == _stage:
        _hold(stop)
    return _merge(store, cache, app, stage, *words, should_stop=stop)


def _hold(over: Callable[[], bool] = lambda: False) -> None:
    folder = Path(os.environ["SLACKWATER_CACHE"]).parent
    (folder / "held").touch()
    deadline = time.monotonic() + 60
    while not (folder / "go").exists() and not over() and time.monotonic() < deadline:
        time.sleep(0.05)


def _has_markers(manifest: Manifest) -> bool:
    return any(output.markers for output in manifest.outputs.values())


def _others_wait() -> None:
    spool = spool_root(Path(os.environ["SLACKWATER_CACHE"]))
    deadline = time.monotonic() + 60
    # An SST of this version already exists: such a small batch has one task.
    while len(list(spool.rglob(f"{_stage}/**/*.parquet"))) < 3:
        assert time.monotonic() < deadline, "nothing waits behind this version"
        time.sleep(0.05)


if _when == "merges":
    merge.run_compaction = _merge_late
else:
    commit.commit = _die_before
