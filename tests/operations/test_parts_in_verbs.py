"""Elements of stored lists and maps follow the rows of their keys, whichever verb changes the rows.

A dictionary has the expected content.
"""

import threading
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.streaming import StatefulProcessorHandle
from slackwater.errors import Refused
from slackwater.operations.erasure.family import RequestedKeys
from slackwater.operations.erasure.forget import forget
from slackwater.operations.maintenance.compact import StageCompactor
from slackwater.operations.repair.rewind import rewind
from slackwater.snapshot.change.edit import edit
from slackwater.snapshot.change.stages import rescale
from slackwater.snapshot.cut.refs import AtVersion, Ref
from slackwater.snapshot.gc.collect import collect
from slackwater.snapshot.gc.reachable import Retention
from slackwater.snapshot.verify.version_chain import version_faults
from slackwater.store.read.cache import SstCache
from slackwater.store.versions import apps, history
from slackwater.store.versions.manifest import AppInfo

from tests.models.profiles import scaled
from tests.snapshot.wide import client_over
from tests.state.event_time.falling import Stage
from tests.state.kinds.test_processor import rows_of
from tests.state.kinds.test_processor_table import N, Scripted, row, stage_of

Parts = dict[str, tuple[list[int], dict[int, int]]]


def init(handle: StatefulProcessorHandle, made: Any) -> None:
    made.words = handle.getListState("Words", N)
    made.by_n = handle.getMapState("by_n", N, N)


def apply(made: Any, _key: Any, rows: list[Any]) -> Any:
    for each in rows:
        match each.op:
            case "append":
                made.words.appendValue((each.n,))
            case "put":
                made.words.put([(each.n,), (each.n + 1,)])
            case "clear":
                made.words.clear()
                made.by_n.clear()
            case "set":
                made.by_n.updateValue((each.n % 3,), (each.n,))
            case "remove":
                made.by_n.removeKey((each.n % 3,))
    return [n for (n,) in made.words.get()], {key: n for (key,), (n,) in made.by_n.iterator()}


def apply_plainly(parts: Parts, key: str, op: str, n: int) -> None:
    words, by_n = parts.setdefault(key, ([], {}))
    match op:
        case "append":
            words.append(n)
        case "put":
            words[:] = [n, n + 1]
        case "clear":
            words.clear()
            by_n.clear()
        case "set":
            by_n[n % 3] = n
        case "remove":
            by_n.pop(n % 3, None)


OPS = st.lists(
    st.tuples(st.sampled_from("abcd"), st.sampled_from(["append", "put", "clear", "set", "remove"]), st.integers(0, 9)),
    min_size=1,
    max_size=8,
)


@dataclass
class Verbs:
    """A stage, and the expected content of its lists and maps."""

    cache: SstCache
    stage: Stage = field(default_factory=lambda: stage_of(Scripted(init, apply)))
    parts: Parts = field(default_factory=dict)
    past: dict[int, Parts] = field(default_factory=dict)

    def __post_init__(self) -> None:
        apps.ensure_app(self.stage.store, AppInfo("a", 1))

    def batch(self, ops: list[tuple[str, str, int]]) -> None:
        rows = [row(key, n) | {"op": op} for key, op, n in ops]
        emitted = {each["k"]: each["seen"] for each in self.stage.batch(rows)}
        for key, op, n in ops:
            apply_plainly(self.parts, key, op, n)
        for key, seen in emitted.items():
            words, by_n = self.parts[key]
            assert seen == str((words, dict(sorted(by_n.items()))))

    def read_head(self) -> None:
        before = self.stage.head
        self.stage.head = history.head(self.stage.store, "a", "s") or before
        numbers = range(before.version, self.stage.head.version + 1)
        for earlier, later in pairwise(history.read(self.stage.store, "a", "s", number) for number in numbers):
            assert not list(version_faults(earlier, later))
        assert self.stage.head.table is not None
        self.stage.table = self.stage.head.table

    def edit(self, key: str) -> None:
        edit(self.stage.store, self.cache, "a", "s", "e", sql=f"DELETE FROM s WHERE k = '{key}'", by="h:1", again=True)
        self.parts.pop(key, None)

    def forget(self, key: str) -> None:
        with suppress(Refused):  # no version had the key
            forget(self.stage.store, self.cache, "a", RequestedKeys.from_values({"s": [key]}), by="h:1")
        for parts in (self.parts, *self.past.values()):
            parts.pop(key, None)

    def rescale(self, key: str) -> None:
        head = self.stage.head
        rescale(self.stage.store, "a", "s", "abcd".index(key) + 2, by="h:1", now_ms=head.time_ms + 1)

    def rewind(self, key: str) -> None:
        versions = sorted(self.past)
        at = versions[min("abcd".index(key), len(versions) - 1)]
        store, now_ms = self.stage.store, self.stage.head.time_ms + 1
        rewind(store, "a", Ref("", "a", "s", AtVersion(at)), None, by="h:1", now_ms=now_ms, cache=self.cache)
        self.parts = deepcopy(self.past[at])

    def compact(self, _key: str) -> None:
        head, stop = self.stage.head, threading.Event()
        compactor = StageCompactor(
            self.stage.store, self.cache, head, by="h:1", threads=1, now_ms=lambda: head.time_ms + 1, stop=stop
        )
        for _ in compactor.merge_until_done(full=True):
            pass

    def check(self) -> None:
        words = [(each["k"], each["_position"], each["Words"]["n"]) for each in rows_of(self.stage, "words")]
        by_n = [(each["k"], each["_key"]["n"], each["by_n"]["n"]) for each in rows_of(self.stage, "by_n")]
        found: Parts = {}
        for key, _, n in sorted(words):
            found.setdefault(key, ([], {}))[0].append(n)
        for key, at, n in by_n:
            found.setdefault(key, ([], {}))[1][at] = n
        assert found == {key: parts for key, parts in self.parts.items() if any(parts)}
        counts = {each["k"]: (each["Words"] or 0, each["by_n"] or 0) for each in rows_of(self.stage)}
        assert counts == {key: tuple(map(len, parts)) for key, parts in found.items()}
        self.past[self.stage.head.version] = deepcopy(self.parts)


VERBS = st.tuples(st.sampled_from(["edit", "forget", "rescale", "rewind", "compact"]), st.sampled_from("abcd"))


@scaled(100)
@given(st.lists(st.tuples(OPS, VERBS), min_size=1, max_size=5))
def test_elements_of_lists_and_maps_follow_the_rows_of_their_keys(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[Any, tuple[str, str]]]
) -> None:
    verbs = Verbs(SstCache(tmp_path_factory.mktemp("cache"), 1 << 30))
    for ops, (verb, key) in steps:
        verbs.batch(ops)
        verbs.check()
        getattr(verbs, verb)(key)
        verbs.read_head()
        verbs.check()


def test_elements_of_lists_and_maps_can_be_queried_and_diffed_like_rows_of_any_table(tmp_path: Path) -> None:
    verbs = Verbs(SstCache(tmp_path / "written", 1 << 30))
    for ops in ([("a", "append", 7), ("a", "set", 4)], [("b", "append", 1)], [("a", "put", 5), ("a", "set", 1)]):
        verbs.batch(ops)
    with client_over(verbs.stage.store, tmp_path / "cache") as client:
        app = client.app("a")
        now = app.at("now")
        assert now.query(
            "SELECT k, _position, Words.n AS n FROM s_words ORDER BY ALL"
        ).to_arrow_table().to_pylist() == [
            {"k": "a", "_position": 0, "n": 5},
            {"k": "a", "_position": 1, "n": 6},
            {"k": "b", "_position": 0, "n": 1},
        ]
        assert now.get("s_words", ("a", 1)) == {"k": "a", "_position": 1, "Words": {"n": 6}}
        changes = [(each.before, each.after) for each in app.history("s_words", ("a", "0"))]
        assert [tuple(row and row["Words"]["n"] for row in pair) for pair in changes] == [(7, 5), (None, 7)]
        difference = app.at("v2", stage="s").diff(now)
        assert {name: (table.full_diff.added, table.full_diff.changed) for name, table in difference.items()} == {
            "s": (1, 1), "s_by_n": (0, 1), "s_words": (2, 1),
        }  # fmt: skip
        assert now.verify().consistent
        now.export(tmp_path / "a.parquet", table="s_by_n")
        assert pq.read_table(tmp_path / "a.parquet").num_rows == 1
        assert now.export(tmp_path / "folder/").is_dir()
        before = now.query("FROM s_words ORDER BY ALL").to_arrow_table()
        collect(verbs.stage.store, "a", Retention(all_ms=1), by="h:1", margin_ms=0)
        assert app.at("now").query("FROM s_words ORDER BY ALL").to_arrow_table() == before
        assert app.at("now").verify().consistent
