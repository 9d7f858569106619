"""Instant cuts on any graph of stages are consistent; in flight are the records that were sent but not read."""

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from slackwater.snapshot.change.stages import retire
from slackwater.snapshot.cut.graph import Cut, channels, consumed_versions, violations
from slackwater.snapshot.cut.in_flight import in_flight
from slackwater.snapshot.cut.moments import newest_cut, read_line
from slackwater.snapshot.cut.refs import AtTime, AtVersion, Ref
from slackwater.snapshot.cut.resolve import cut_of_ref, resolve
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.versions import apps, history
from slackwater.store.versions.commit import commit
from slackwater.store.versions.entries.ssts import Sst
from slackwater.store.versions.manifest import AppInfo, Column, Input, Manifest, Output, Table

from tests.models.profiles import scaled
from tests.support.histories import write_columns
from tests.support.manifests import claim

PARTITIONS = 2
NONE = (0,) * PARTITIONS
TABLE = Table((Column("key", "string"),), (Column("n", "int64"),), 1)


@dataclass
class App:
    """Stages a, b, c, …; each reads some of the earlier stages, one channel from each."""

    inputs: dict[str, tuple[str, ...]]
    skew_ms: dict[str, int]
    store: MemoryStore = field(default_factory=MemoryStore)
    heads: dict[str, Manifest] = field(default_factory=dict)
    left: set[str] = field(default_factory=set)
    """Stages that have been retired."""
    now_ms: int = 1_000_000
    tables: bool = False
    """True if the stages keep tables: a few keys, each with the version that last wrote it."""
    written: dict[tuple[str, int], tuple[str, ...]] = field(default_factory=dict)
    """Keys that each version of a stage wrote."""

    def __post_init__(self) -> None:
        apps.create_app(self.store, AppInfo("app", 1))

    def step(self, stage: str, choices: list[int]) -> None:
        """Commit once: read each input up to some version, and send some rows, or none, to both partitions."""
        self.now_ms += 10
        if stage in self.heads and self.heads[stage].retired:
            self.come_back(stage)
        head = self.heads.get(stage)
        inputs = {}
        for position, upstream in enumerate(self.inputs[stage]):
            name = f"{upstream}-{stage}"
            read = head.inputs[name] if head else Input("t", NONE, upstream, 0, consumed=NONE)
            sender = self.heads.get(upstream)
            ahead = (sender.version if sender else 0) - read.version
            if ahead and sender:
                version = read.version + choices[position % len(choices)] % (ahead + 1)
                if version > read.version:
                    sent = self.sent(upstream, name, version)
                    rows = sum(sent.sent) - sum(read.consumed)
                    read = Input("t", sent.ends, upstream, version, rows=rows, consumed=sent.sent)
            inputs[name] = read
        outputs = {}
        for reader, upstream in self.inputs.items():
            if stage in upstream:
                name = f"{stage}-{reader}"
                before = head.outputs[name] if head else Output("t", NONE, sent=NONE, schema="`n` int")
                rows = tuple(choice % 3 for choice in (choices * 2)[:PARTITIONS])
                total = tuple(old + new for old, new in zip(before.sent, rows, strict=True))
                version = head.version + 1 if head else 1
                outputs[name] = Output(
                    "t", total, total, (f"{stage}.{version}",) if sum(rows) else (), sum(rows), "`n` int"
                )
        version, time_ms = (head.version + 1, head.time_ms + 1) if head else (1, 0)
        time_ms = max(time_ms, self.now_ms + self.skew_ms[stage])
        epoch = head.epoch if head else 1
        manifest = Manifest("app", stage, version, epoch, "w", time_ms, "batch", inputs=inputs, outputs=outputs)
        if self.tables:
            keys = self.written[stage, version] = tuple(sorted({f"k{choice % 3}" for choice in choices if choice < 6}))
            ssts = (*self.write(stage, version, keys), *(head.ssts if head else ()))
            manifest = replace(manifest, table=TABLE, ssts=ssts)
        commit(self.store, manifest)
        self.heads[stage] = manifest

    def write(self, stage: str, version: int, keys: tuple[str, ...]) -> list[Sst]:
        columns = {"n": np.full(len(keys), version)}
        names = pa.array(keys, pa.string())
        return write_columns(self.store, "app", stage, version, names, columns, table=TABLE) if keys else []

    def retire(self, stage: str) -> None:
        """Retire the stage, unless another stage reads it or the app no longer has it."""
        self.now_ms += 10
        readers = [reader for reader, upstream in self.inputs.items() if stage in upstream and reader in self.heads]
        if stage not in self.heads or any(not self.heads[reader].retired for reader in readers):
            return
        if not self.heads[stage].retired:
            retire(self.store, "app", stage, by="test", now_ms=self.now_ms + self.skew_ms[stage])
            self.heads[stage] = self.head(stage)
            self.left.add(stage)

    def come_back(self, stage: str) -> None:
        now_ms = self.now_ms + self.skew_ms[stage]
        self.heads[stage] = claim(self.store, "app", stage, writer="w", by="test", now_ms=now_ms)

    def head(self, stage: str) -> Manifest:
        head = history.head(self.store, "app", stage)
        assert head is not None
        return head

    def sent(self, stage: str, channel: str, version: int) -> Output:
        return history.read(self.store, "app", stage, version).outputs[channel]


@st.composite
def histories(draw: st.DrawFn, *, tables: bool = False, retiring: bool = False) -> App:
    names = "abcdefgh"[: draw(st.integers(2, 8))]
    inputs = {
        name: tuple(sorted(draw(st.sets(st.sampled_from(names[:number]), max_size=3)))) if number else ()
        for number, name in enumerate(names)
    }
    app = App(inputs, {name: draw(st.sampled_from((0, 0, 35, -35))) for name in names}, tables=tables)
    for stage in draw(st.lists(st.sampled_from(names), min_size=1, max_size=25 if tables else 40)):
        app.step(stage, draw(st.lists(st.integers(0, 7), min_size=2, max_size=3)))
        if retiring and draw(st.booleans()):
            app.retire(draw(st.sampled_from(names)))
    return app


def check(app: App, cut: Cut) -> None:
    assert violations(cut.stages) == ()
    flying = {(flight.channel, flight.receiver): flight for flight in in_flight(app.store, cut)}
    for channel in channels(cut):
        if channel.input is None and channel.name.partition("-")[2] in app.left:
            # Nobody read it yet, or nobody did any more.
            gone = app.heads[channel.name.partition("-")[2]].retired
            assert not (gone and (channel.name, "") in flying)
            continue
        sent = cut.stages[channel.sender].outputs[channel.name].sent
        consumed = channel.input.consumed if channel.input else NONE
        flight = flying.get((channel.name, channel.receiver))
        counts = tuple(to - at for to, at in zip(sent, consumed, strict=True))
        assert (flight.counts if flight else NONE) == counts
        assert (flight.rows if flight else 0) == sum(counts)


@scaled(75, in_ci=750)
@given(histories(), st.data())
def test_any_moment_of_any_graph_resolves_to_a_consistent_cut(app: App, data: st.DataObject) -> None:
    first = min(head.time_ms for head in app.heads.values())
    moment = data.draw(st.integers(min(first, 1_000_000), app.now_ms + 50))
    try:
        cut = cut_of_ref(app.store, Ref(text="app@then", app="app", stage="", moment=AtTime(moment)))
    except LookupError:
        return  # before the history begins
    check(app, cut)
    needed = {(up, version) for manifest in cut.stages.values() for up, version in consumed_versions(manifest).items()}
    for stage, manifest in cut.stages.items():
        # The version of that time, or the very one that a receiver of that time had consumed.
        then = history.latest_at(app.store, "app", stage, moment)
        assert manifest == then or (stage, manifest.version) in needed


@scaled(75, in_ci=750)
@given(histories(), st.data())
def test_any_version_of_any_stage_resolves_to_a_consistent_cut(app: App, data: st.DataObject) -> None:
    stage = data.draw(st.sampled_from(sorted(app.heads)))
    version = data.draw(st.integers(1, app.heads[stage].version))
    cut = cut_of_ref(app.store, Ref(text="app/stage@v", app="app", stage=stage, moment=AtVersion(version)))
    assert cut.stages[stage].version == version
    check(app, cut)


@scaled(60)
@given(histories(retiring=True), st.data())
def test_a_moment_lacks_stages_retired_by_then_unless_requested_or_needed(app: App, data: st.DataObject) -> None:
    moment = data.draw(st.integers(1_000_000, app.now_ms + 50))
    stage = data.draw(st.sampled_from(["", *sorted(app.heads)]))
    version = data.draw(st.integers(1, app.heads[stage].version)) if stage else 0
    ref = Ref("ref", "app", stage, AtVersion(version) if stage else AtTime(moment))
    try:
        cut = cut_of_ref(app.store, ref)
    except LookupError:
        return  # before the history begins, or after all are retired
    check(app, cut)
    needed = {(up, read) for manifest in cut.stages.values() for up, read in consumed_versions(manifest).items()}
    for name, manifest in cut.stages.items():
        assert not manifest.retired or (name, manifest.version) in {*needed, (stage, version)}
    now = newest_cut(app.store, "app", tuple(app.heads))
    assert {name for name, head in app.heads.items() if not head.retired} <= now.stages.keys()
    check(app, now)


@scaled(50)
@given(histories())
def test_the_newest_and_the_first_cut_of_any_graph_are_consistent(app: App) -> None:
    check(app, resolve(app.store, "app@now", now_ms=app.now_ms))
    check(app, read_line(app.store, "app").beginning())
