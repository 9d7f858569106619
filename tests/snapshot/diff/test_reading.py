"""Versions that read a record, or a sender's rows, compared with a log that the test keeps while it runs the app."""

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from slackwater.errors import Refused
from slackwater.snapshot.diff.reading import version_that_consumed, versions_that_read
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.read.cache import SstCache

from tests.models.profiles import scaled
from tests.operations.repair.test_reset import set_back
from tests.operations.repair.test_rewind import rewound
from tests.support.histories import FlightsApp, Kafka, flights

TOPIC = "flights"
STEPS = st.one_of(
    st.tuples(st.just("batch"), st.integers(1, 9)),
    st.tuples(st.just("reset"), st.integers(1, 6)),
    st.tuples(st.just("rewind"), st.integers(0, 10**6)),
)


@scaled(40)
@given(steps=st.lists(STEPS, min_size=3, max_size=14))
def test_the_versions_that_read_a_record_are_those_of_a_log(
    steps: list[tuple[str, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    app, cache = FlightsApp(MemoryStore(), Kafka()), SstCache(tmp_path_factory.mktemp("sst"), 1 << 20)
    log: list[tuple[int, int, int]] = []
    """For each record that `legs` read and that counts: the version of `legs`, the partition and the offset."""
    for what, number in steps:
        before = app.heads["legs"]
        if what == "batch":
            app.run(flights(number))
            after = app.heads["legs"]
            assert after.version == before.version + 1
            spans = zip(before.inputs[TOPIC].offsets, after.inputs[TOPIC].offsets, strict=True)
            log += [(after.version, at, offset) for at, span in enumerate(spans) for offset in range(*span)]
        elif what == "reset":
            try:
                set_back(app, shift_by=-number)
            except Refused:  # nothing was read yet
                continue
        else:
            version = 1 + number % before.version
            rewound(app, cache, f"flights/legs@v{version}")
            undone = range(version + 1, before.version + 1)
            log = [(read, *place) for read, *place in log if read not in undone]
    expected = defaultdict[tuple[int, int], list[int]](list)
    for version, partition, offset in log:
        expected[partition, offset].append(version)
    head = app.heads["legs"]
    for partition, offset in {(at, offset) for _, at, offset in log} | {(0, 10**6)}:
        read = versions_that_read(app.store, head, TOPIC, partition, offset)
        assert read == tuple(expected.get((partition, offset), ()))


def test_rows_of_a_sender_are_read_by_the_next_batch_of_its_reader() -> None:
    app = FlightsApp(MemoryStore(), Kafka())
    read: dict[int, int] = {}
    for _ in range(4):
        app.send(*flights(5))
        app.step("legs")
        sent = app.heads["legs"].version
        app.step("aircraft")
        read[sent] = app.heads["aircraft"].version
    app.send(*flights(5))
    app.step("legs")
    reader = app.heads["aircraft"]
    (channel,) = (name for name, source in reader.inputs.items() if source.upstream == "legs")
    for sent, version in read.items():
        assert version_that_consumed(app.store, reader, channel, sent) == version
    assert version_that_consumed(app.store, reader, channel, app.heads["legs"].version) is None
