"""Bugs planted in the product, which the simulation must find: `python -m tests.simulation --planted`.

Each bug removes one safeguard, as if its fix were reverted.
"""

import dataclasses
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
from msgspec.structs import replace
from slackwater.errors import ObjectExists
from slackwater.pipeline.batch import committer
from slackwater.pipeline.kafka import messages
from slackwater.pipeline.publish.core import Backlog, Publisher
from slackwater.pipeline.source import readers
from slackwater.pipeline.source.planner import ChannelPlanner
from slackwater.snapshot.gc import collect, inventory
from slackwater.snapshot.take import taking
from slackwater.state import next_version
from slackwater.store.compaction import merge
from slackwater.store.read.multi_get import _Search
from slackwater.store.versions import amend, codec, commit, keys
from slackwater.store.versions.kinds import KINDS
from slackwater.testing.simulation import world


class _Everything(frozenset[str]):
    def __contains__(self, _item: object) -> bool:
        return True


def _decode_all(read: Any, _attempts: Any, schema: Any) -> Any:
    return DECODE(read, _Everything(), schema)


DECODE = readers.decode_rows
PUT_IF_ABSENT = world.SimulatedStore.put_if_absent
OPEN, INPUT_AFTER, PLAN_END = Publisher.open, next_version._input_after, ChannelPlanner.plan_end


def _overwrite(self: Any, key: str, data: bytes) -> None:
    put = self.put if "/manifests/" in key else partial(PUT_IF_ABSENT, self)
    put(key, data)


def _open_at_own_position(self: Any) -> None:
    before, had_opened = self.position, hasattr(self, "_had_opened")
    OPEN(self)
    self._had_opened = True
    if had_opened:
        self.position = before
        self._backlog.restart(before.version)


def _read_again(start: Any, end: Any, count: Any, *, own: bool) -> Any:
    after = INPUT_AFTER(start, end, count, own=own)
    return replace(after, offsets=start.offsets) if not start.upstream and after.rows % 7 == 6 else after


def _past_markers(self: Any, start: Any) -> Any:
    end = PLAN_END(self, start)
    return type(end)(**{**end.to_json(), "snapshots": (), "offsets": end.offsets, "consumed": end.consumed})


def _commit_beside(_base: Any, manifest: Any, onto: Any, _merges: Any = ()) -> Any:
    return replace(manifest, version=onto.version + 1, seq=manifest.version)


def _take_any(store: Any, manifest: Any) -> None:
    with suppress(ObjectExists):
        store.put_if_absent(keys.manifest(manifest.app, manifest.stage, manifest.version), codec.encode(manifest))


def _all_attempts(self: Any, place: Any, max_rows: int) -> Any:
    share = NEXT_RANGE(self, place, max_rows)
    return share and share._replace(attempts=_Everything())


def _keep_oldest(hashes: Any, keys: Any) -> Any:
    order, repeats = SORT_KEYS(hashes, keys)
    return order, np.append(repeats[1:], False)[: len(repeats)]


def _miss_newest(self: Any, ssts: Any) -> Any:
    return ITER_SSTS(self, sorted(ssts, key=lambda sst: sst.seq_max)[:-1])


NEXT_RANGE, SORT_KEYS, ITER_SSTS = Backlog.next_range, merge.sort_keys, _Search.iter_ssts
Plant = tuple[object, str, object]
"""Object, attribute, and the value that replaces the attribute."""
_KINDS = {**KINDS, "claim": dataclasses.replace(KINDS["claim"], fences=False)}
_NO_MARGIN = {"dry_run": False, "margin_ms": 0}
PLANTS: dict[str, tuple[Plant, ...]] = {
    "messages of all attempts count": (
        (readers, "decode_rows", _decode_all),
        (messages, "check_row_count", lambda *_: None),
    ),
    "a commit overwrites": ((world.SimulatedStore, "put_if_absent", _overwrite),),
    "epochs are not compared": ((commit, "check_epoch", lambda *_: None),),
    "a claim keeps the epoch": ((amend, "KINDS", _KINDS),),
    "a batch ignores another writer's version": ((committer, "rebase", _commit_beside),),
    "a publisher trusts its own position": ((Publisher, "open", _open_at_own_position),),
    "offsets stay behind the rows": ((next_version, "_input_after", _read_again),),
    "SSTs are not uploaded": ((committer.Committer, "_upload", lambda *_: None),),
    "a collection looks at no snapshots": ((inventory, "list_snapshots", lambda *_: ()),),
    "a collection deletes young objects": (
        (inventory, "MIN_AGE_MS", 0),
        (collect.collect, "__kwdefaults__", _NO_MARGIN),
    ),
    "a stalled writer looks at no boundary": ((commit, "_check_not_collected", lambda *_, **__: None),),
    "readers pass markers": ((ChannelPlanner, "plan_end", _past_markers),),
    "any version of the number counts as one's own": ((commit, "commit", _take_any),),
    "a request for a snapshot is not withdrawn": ((taking, "withdraw_request", lambda *_: None),),
    "a batch is built on the committed version": ((committer.Committer, "tip", property(lambda self: self.head)),),
    "a sink gets messages of all attempts": ((Backlog, "next_range", _all_attempts),),
    "a merge keeps the oldest row of a key": ((merge, "sort_keys", _keep_oldest),),
    "look-ups miss the newest SST": ((_Search, "iter_ssts", _miss_newest),),
}


@contextmanager
def planted(name: str) -> Iterator[None]:
    with ExitStack() as stack:
        for target, attribute, value in PLANTS[name]:
            stack.enter_context(patch.object(target, attribute, value))
        yield
