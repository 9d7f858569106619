"""Recreated topics: snapshots, clones, replicas and archives record the topic ids to which their offsets belong."""

import pytest
from slackwater.errors import AnotherTopic, NotFound, Refused, Unavailable
from slackwater.operations.staging.clone import clone
from slackwater.snapshot.cut.moments import newest_cut, stages_of
from slackwater.snapshot.query.log import log_entries
from slackwater.snapshot.take.snapshots import pin_cut
from slackwater.snapshot.verify.verify import Report, verify
from slackwater.state.records import TopicState
from slackwater.store.read.cache import SstCache
from slackwater.store.versions import history
from slackwater.store.versions.manifest import Manifest

from tests.operations.repair.test_reset import set_back
from tests.operations.repair.test_rewind import assert_whole, rewound, tables
from tests.support.histories import FlightsApp, flights


@pytest.fixture
def app(app: FlightsApp) -> FlightsApp:
    pin_cut(app.store, newest_cut(app.store, app.name, stages_of(app.store, app.name)), "then", by="ada@host")
    return app


def legs(app: FlightsApp, name: str = "flights") -> Manifest:
    head = history.head(app.store, name, "legs")
    assert head is not None
    return head


def looked(app: FlightsApp, ref: str = "flights", kafka: object = None) -> Report:
    return verify(app.store, ref, now_ms=2_000_000_000_000, topics=kafka or app.kafka)  # type: ignore[arg-type]


def make_again(app: FlightsApp, topic: str = "flights", partitions: int = 2) -> None:
    """Delete a topic and recreate it, empty."""
    kafka = app.kafka
    kafka.topics[topic], kafka.ids[topic] = [[] for _ in range(partitions)], f"{kafka.topic_id(topic)}+"


def made_again(app: FlightsApp, topic: str = "flights", *, feeds: int = 12) -> tuple[str, str]:
    before = app.kafka.topic_id(topic)
    make_again(app, topic)
    app.kafka.send(topic, flights(feeds)) if feeds else None
    return before, app.kafka.topic_id(topic)


def test_verify_checks_every_topic(app: FlightsApp) -> None:
    found = looked(app)
    (topics,) = (each for each in found.checks if each.check == "topics")
    # One topic that is read, and each of two channels from both of its sides.
    assert (found.differences, topics.checked) == ((), 5)
    assert not any(each.check == "topics" for each in verify(app.store, "flights", now_ms=2_000_000_000_000).checks)


def test_an_app_with_a_recreated_topic_is_inconsistent_until_it_is_reset(app: FlightsApp) -> None:
    former, now = made_again(app)
    (wrong,) = looked(app).differences
    assert wrong.check == "topics"
    message = "read another topic than the current one: topic 'flights' was deleted and created again: it had"
    assert message in wrong.message
    assert all(each in wrong.message for each in (former, now))
    set_back(app, to_earliest=True)
    assert looked(app).differences == ()
    # Records that were read earlier cannot be read again, and the report says so.
    at_then = looked(app, "flights@then")
    assert at_then.differences == ()
    assert [note for note in at_then.not_reread if f"cannot be read again: topic 'flights' {'was'}" in note]


def test_a_deleted_topic_is_an_inconsistency_and_an_unreachable_kafka_is_not(app: FlightsApp) -> None:
    class Away:
        def state(self, topic: str, /) -> TopicState | None:
            raise Unavailable(f"no answer about {topic}")

    away = looked(app, kafka=Away())
    assert away.differences == ()
    assert away.not_reread[-1].startswith("topics were not checked for being recreated: no answer")
    del app.kafka.topics["flights"]
    assert "topic 'flights', which no longer exists" in looked(app).differences[0].message


@pytest.mark.parametrize("partitions", [1, 2, 4])
def test_a_reset_continues_with_the_recreated_topic_and_says_so(app: FlightsApp, partitions: int) -> None:
    stood = legs(app).inputs["flights"]
    make_again(app, "flights", partitions)
    done = set_back(app, to_earliest=True)
    (moved,) = done.stages
    (said,) = moved.made_again
    assert said.startswith(f"topic 'flights' was deleted and created again: it had id {stood.topic_id}")
    at = legs(app).inputs["flights"]
    assert (at.offsets, at.topic_id) == ((0,) * partitions, app.kafka.topic_id("flights"))
    assert (at.resets[-1].starts, at.resets[-1].topic_id) == (stood.offsets, stood.topic_id)
    assert (moved.read_again, moved.skipped) == (0, 0)
    assert_whole(app)
    # The log shows each partition of both topics, and one of them may have more partitions.
    (reset,) = (entry.reset for entry in log_entries(app.store, "flights", stage="legs") if entry.reset)
    assert len(reset) == max(len(stood.offsets), partitions)


def test_after_a_reset_no_record_of_the_new_topic_is_missed(app: FlightsApp) -> None:
    made_again(app, feeds=12)
    set_back(app, to_earliest=True)
    app.step_all()
    assert sum(number for number, _, _ in tables(app)["aircraft"].values()) == 40 + 12
    assert_whole(app)


def test_a_shift_by_0_continues_with_a_restored_topic_at_the_same_offsets(app: FlightsApp) -> None:
    stood, had = legs(app).inputs["flights"], app.kafka.topics["flights"]
    make_again(app)
    app.kafka.topics["flights"] = had
    done = set_back(app, shift_by=0)
    assert len(done.stages) == 1
    at = legs(app).inputs["flights"]
    assert (at.offsets, at.topic_id) == (stood.offsets, app.kafka.topic_id("flights"))
    assert_whole(app)


def test_a_recreated_topic_can_only_be_reset_as_a_whole(app: FlightsApp) -> None:
    made_again(app)
    with pytest.raises(Refused, match="was deleted and created again") as no:
        set_back(app, "flights:0", to_earliest=True)
    assert no.value.hint == "reset all of its partitions: --topic flights"
    with pytest.raises(Refused, match=r"would be read from \d+, and Kafka has 0\.\.\d+.* Topic 'flights' was deleted"):
        set_back(app, shift_by=0)


def test_a_rewind_and_a_clone_detect_that_a_topic_was_recreated_since_it_was_read(
    app: FlightsApp, cache: SstCache
) -> None:
    app.run(flights(10))
    made_again(app, feeds=80)
    for ref in ("flights@then", "flights"):
        with pytest.raises(AnotherTopic, match="'flights' was deleted and created again since it was read"):
            clone(app.store, ref, "staging", channels=app.kafka, by="ada@host")
    with pytest.raises(AnotherTopic, match="'flights' was deleted and created again since it was read"):
        rewound(app, cache, "flights@then")
    set_back(app, to_earliest=True)
    with pytest.raises(AnotherTopic):
        rewound(app, cache, "flights@then")


def test_a_clone_records_the_ids_of_the_topics_that_it_reads(app: FlightsApp) -> None:
    app.kafka.send("mirror", flights(40))
    clone(app.store, "flights", "same", channels=app.kafka, by="ada@host")
    clone(app.store, "flights", "other", topics={"flights": "mirror"}, channels=app.kafka, by="ada@host")
    read = {name: legs(app, name).inputs["flights"].topic_id for name in ("flights", "same", "other")}
    assert read == {
        "flights": app.kafka.topic_id("flights"),
        "same": app.kafka.topic_id("flights"),
        "other": app.kafka.topic_id("mirror"),
    }
    for stage in ("legs", "aircraft", "carriers"):
        head = history.head(app.store, "same", stage)
        assert head is not None
        for each in (*head.inputs.values(), *head.outputs.values()):
            assert each.topic_id == app.kafka.topic_id(each.topic)
    # A topic that is declared as another one may have the same name: a mirror in another Kafka.
    made_again(app, feeds=80)
    clone(app.store, "flights", "mirrored", topics={"flights": "flights"}, channels=app.kafka, by="ada@host")
    assert legs(app, "mirrored").inputs["flights"].topic_id == app.kafka.topic_id("flights")


def test_in_flight_records_of_a_recreated_repartition_topic_are_not_copied(app: FlightsApp) -> None:
    app.send(*flights(8))
    app.step("legs")
    make_again(app, "flights-by-aircraft-repartition")
    with pytest.raises((AnotherTopic, NotFound), match="deleted and created again since it was read"):
        clone(app.store, "flights", "staging", channels=app.kafka, by="ada@host")
