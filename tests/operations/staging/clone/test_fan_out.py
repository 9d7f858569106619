"""Clones of clones of an app in which several stages read one channel at different positions."""

from collections.abc import Mapping

from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace
from slackwater.operations.staging.clone import clone
from slackwater.snapshot.cut.graph import Cut
from slackwater.snapshot.cut.in_flight import in_flight
from slackwater.snapshot.cut.resolve import resolve
from slackwater.snapshot.query.answers import channel_tables
from slackwater.snapshot.take.snapshots import delete_snapshot, pin_cut
from slackwater.snapshot.verify.verify import verify
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.versions import apps, history
from slackwater.store.versions.commit import commit, successor
from slackwater.store.versions.manifest import AppInfo, Input, Manifest, Output

from tests.support.histories import SCHEMA, START_MS, Flight, Kafka, Message
from tests.support.manifests import claim

READERS = ("a", "b", "c")
PARTITIONS = 2
NONE = (0,) * PARTITIONS


class FanOut:
    """An app: `sender` writes the channel `out`, which three stages read. Each record has a unique number."""

    def __init__(self) -> None:
        self.store, self.kafka, self.name, self.sent = MemoryStore(), Kafka(), "app", 0
        apps.ensure_app(self.store, AppInfo("app", START_MS))
        self.kafka.create("src", 1)
        self.kafka.create("app-out-repartition", PARTITIONS)
        output = Output("app-out-repartition", NONE, schema=SCHEMA, sent=NONE)
        self.claim("sender", inputs={"src": Input("src", (0,))}, outputs={"out": output})
        for reader in READERS:
            self.claim(reader, inputs={"out": Input(output.topic, NONE, "sender", 0, consumed=NONE)})
        self.unread: dict[str, list[set[str]]] = {reader: [set()] for reader in READERS}
        """Unread records of each reader, in one set for each of the sender's versions."""

    def claim(self, stage: str, **fields: object) -> None:
        build = lambda draft: replace(draft, **fields)  # noqa: E731
        claim(self.store, self.name, stage, writer="w", by="test:1", now_ms=START_MS, build=build)

    def head(self, stage: str) -> Manifest:
        head = history.head(self.store, self.name, stage)
        assert head is not None
        return head

    def next(self, stage: str) -> Manifest:
        head = self.head(stage)
        return successor(
            head, kind="batch", epoch=head.epoch, writer="w", by="test:1", now_ms=head.time_ms + 1, duration_ms=1
        )

    def send(self, count: int) -> None:
        draft, attempt = self.next("sender"), self.kafka.attempt()
        output = draft.outputs["out"]
        records = [Flight(str(self.sent + number), "C", 1) for number in range(count)]
        self.sent += count
        sent = list(output.sent)
        for record in records:
            partition = int(record.tail) * 2 // 3 % PARTITIONS
            log = self.kafka.topics[output.topic][partition]
            log += (Message((record,), self.name, draft.version, each) for each in ("zombie", attempt))
            sent[partition] += 1
        ends = self.kafka.ends(output.topic)
        assert ends is not None
        attempts = (attempt,) if records else ()
        output = replace(output, ends=ends, attempts=attempts, rows=count, sent=tuple(sent))
        commit(self.store, replace(draft, outputs={"out": output}))
        for waiting in self.unread.values():
            waiting.append({record.tail for record in records})

    def read(self, stage: str, versions: int) -> None:
        """Let the stage read this many of the sender's versions."""
        draft = self.next(stage)
        source = draft.inputs["out"]
        later = list(history.iter_after(self.store, self.name, "sender", source.version))[:versions]
        if later:
            last = later[-1].outputs["out"]
            rows = sum(last.sent) - sum(source.consumed)
            source = replace(source, offsets=last.ends, version=later[-1].version, rows=rows, consumed=last.sent)
            commit(self.store, replace(draft, inputs={"out": source}))
            del self.unread[stage][: len(later)]

    def clone(self, source: str) -> None:
        """Continue as a clone of this moment. In a clone, all in-flight records count as one version."""
        name = f"app{self.name.removeprefix('app')}x"
        clone(self.store, source, name, topics={}, channels=self.kafka, by="test", now_ms=START_MS)
        self.name = name
        self.unread = {reader: [whole] if (whole := set().union(*parts)) else [] for reader, parts in self.due()}

    def due(self) -> list[tuple[str, list[set[str]]]]:
        return [(reader, [part for part in parts if part]) for reader, parts in self.unread.items()]

    def check(self) -> None:
        """Check that each reader finds each of its in-flight records once, in Kafka or in the snapshot."""
        expected = {reader: sorted(set().union(*parts)) for reader, parts in self.due() if parts}
        cut = resolve(self.store, self.name, now_ms=START_MS)
        found = {
            flight.receiver: sorted(
                record.tail for log in self.kafka.between(flight) for m in log for record in m.flights
            )
            for flight in in_flight(self.store, cut)
        }
        assert found == expected
        pin_cut(self.store, cut, "kept", reader=self.kafka)
        assert self.kept(resolve(self.store, f"{self.name}@kept", now_ms=START_MS)) == expected
        report = verify(self.store, self.name, now_ms=START_MS, deep=True, reader=self.kafka)
        assert report.consistent, report.differences
        delete_snapshot(self.store, self.name, "kept")

    def kept(self, cut: Cut) -> Mapping[str, list[str]]:
        rows = channel_tables(self.store, cut, "FROM inflight('out')", None)["out"].to_pylist()
        return {
            name: sorted(row["tail"] for row in rows if row["_receiver"] == name)
            for name in {row["_receiver"] for row in rows}
        }


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(0, 5)),
        st.tuples(st.sampled_from(READERS), st.integers(1, 2)),
        st.tuples(st.just("clone"), st.just(0)),
    ),
    max_size=20,
)
BEHIND = [("send", 2), ("a", 2), ("send", 3), ("b", 3), ("send", 1), *[("clone", 0)] * 3]
"""Steps that leave each reader at another position. The second example swaps the readers."""


@given(steps=STEPS)
@example(steps=BEHIND)
@example(steps=[({"a": "c", "b": "a"}.get(verb, verb), count) for verb, count in BEHIND])
def test_in_clones_of_clones_each_reader_gets_its_unread_records_exactly_once(steps: list[tuple[str, int]]) -> None:
    app = FanOut()
    for verb, count in steps:
        match verb:
            case "send":
                app.send(count)
            case "clone":
                app.clone(app.name)
                app.check()
            case reader:
                app.read(reader, count)
    app.check()
