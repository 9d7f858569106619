"""Topics that are deleted and recreated under a running app, on a real broker: no record is misread."""

from collections.abc import Callable
from pathlib import Path

import pytest
from slackwater.errors import AnotherTopic
from slackwater.pipeline.dev.kafka import EmbeddedKafka
from slackwater.pipeline.kafka.channels import KafkaChannels
from slackwater.pipeline.listener import BatchReport
from slackwater.snapshot.cut.moments import heads_of, stages_of
from slackwater.snapshot.verify.verify import verify
from slackwater.store.objects.open import open_store
from slackwater.store.versions import history
from slackwater.store.versions.manifest import Manifest

from tests.support.running import Ledger, eventually

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.ci, pytest.mark.usefixtures("one_spark")]


STAGES = ("entries", "accounts")


def make_again(ledger: Ledger, topic: str, partitions: int) -> tuple[str, str]:
    """Delete a topic and recreate it; return its ids before and after."""
    kafka = ledger.kafka
    before = kafka.topic_id(topic)
    kafka.delete_topics([topic])
    eventually(lambda: topic not in kafka.partition_counts(), f"{topic} is gone")
    kafka.create_topics({topic: partitions})
    return before, kafka.topic_id(topic)


def differences(ledger: Ledger) -> list[str]:
    found = verify(open_store(ledger.store), ledger.app, topics=KafkaChannels(ledger.kafka))
    assert found.not_reread == ()
    return [each.message for each in found.differences]


def test_recreating_a_topic_stops_the_app_and_no_record_is_missed_or_misread(
    kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    ledger = Ledger(kafka.bootstrap, tmp_path)
    ledger.send(60)
    ids: list[str] = []

    def while_it_runs() -> None:
        with ledger.running_here(*STAGES) as await_commit:
            await_commit("accounts")
            ids.extend(make_again(ledger, ledger.topic, 5))
            ledger.send(240)
            await_end(await_commit)

    with pytest.raises(AnotherTopic) as no:
        while_it_runs()
    assert f"it had id {ids[0]} and 3 partitions, read up to {ledger.topic}[0]@20" in no.value.message
    assert f"now it has id {ids[1]} and 5 partitions" in no.value.message
    assert f"slackwater reset {ledger.app} --topic {ledger.topic} --to-earliest" in no.value.hint
    # It does not start either, and is not reported as consistent.
    with pytest.raises(AnotherTopic) as no:
        ledger.catch_up(*STAGES)
    assert f"it had id {ids[0]} and 3 partitions" in no.value.message
    assert f"and holds {ledger.topic}[0] 0..80, {ledger.topic}[1] 0..80" in no.value.message
    (wrong,) = differences(ledger)
    assert f"read another topic than the current one: topic {ledger.topic!r} was deleted and created again" in wrong
    assert counted(ledger) == 60

    said = ledger.slackwater("reset", ledger.app, "--topic", ledger.topic, "--to-earliest").stdout
    assert f"topic {ledger.topic!r} was deleted and created again: it had id {ids[0]}" in said
    ledger.catch_up(*STAGES)
    assert counted(ledger) == 300
    assert differences(ledger) == []
    ledger.verify(ledger.app)

    # A repartition topic whose offsets nobody requests while the app runs.
    channel = f"{ledger.app}-by-account-repartition"
    was_made_again = pytest.raises(AnotherTopic, match=f"repartition topic '{channel}' was .* while the app ran")
    with was_made_again, ledger.running_here(*STAGES) as await_commit:
        await_started(ledger)
        make_again(ledger, channel, 3)
        await_end(await_commit)
    # Nothing was in flight, so nothing is lost.
    ledger.catch_up(*STAGES, accept_loss=True)
    ledger.send(30)
    ledger.catch_up("entries")
    ids = [*make_again(ledger, channel, 3)]
    for words in (STAGES, ("accounts",)):
        with pytest.raises(AnotherTopic) as no:
            ledger.catch_up(*words)
        assert all(f"id {each} and 3 partitions" in no.value.message for each in ids)
        assert "--accept-loss, which continues without them and says how many" in no.value.hint
    assert len(differences(ledger)) == 2
    ledger.catch_up(*STAGES, accept_loss=True)
    ledger.send(10)
    ledger.catch_up(*STAGES)
    assert counted(ledger) == 310
    lost = {name: sum(at.lost) for name, at in heads(ledger)["accounts"].inputs.items()}
    assert lost == {"by-account": 30}
    assert differences(ledger) == []
    ledger.verify(ledger.app)


def counted(ledger: Ledger) -> int:
    """Return the number of records in the table."""
    (row,) = ledger.sql("SELECT sum(n)::BIGINT AS n FROM accounts").to_pylist()
    return int(row["n"])


def await_end(await_commit: Callable[[str], BatchReport]) -> None:
    """Wait until an error ends the app."""
    while True:
        await_commit("accounts")


def await_started(ledger: Ledger) -> None:
    """Wait until a runner has claimed the stages."""
    store = open_store(ledger.store)
    before = {stage: head.version for stage, head in heads(ledger).items() if stage in STAGES}
    eventually(
        lambda: all(
            (head := history.head(store, ledger.app, stage)) is not None and head.version > version
            for stage, version in before.items()
        ),
        "the stages are claimed",
    )


def heads(ledger: Ledger) -> dict[str, Manifest]:
    store = open_store(ledger.store)
    return heads_of(store, ledger.app, stages_of(store, ledger.app))
