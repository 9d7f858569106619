"""Broker outages and deleted offsets: the app waits, names the missing offsets, or skips them if told to."""

import json

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from slackwater.errors import Gone, Refused
from slackwater.snapshot.cut.stored import open_requests
from slackwater.snapshot.take.taking import request_snapshot
from slackwater.store.objects.open import open_store

from tests.support.running import Ledger

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.usefixtures("one_spark")]


def test_an_unreachable_broker_ends_the_run_with_one_sentence(ledger: Ledger) -> None:
    done = ledger.slackwater("run", "tests/apps/ledger.py", "--kafka", "127.0.0.1:9", "--patience", "3", check=False)
    assert done.returncode == 1
    assert "127.0.0.1:9" in done.stderr
    assert "Traceback" not in done.stderr


def test_deleted_offsets_are_refused_by_name_unless_the_loss_is_accepted(ledger: Ledger) -> None:
    ledger.send(600)
    ledger.catch_up("entries", "accounts")
    ledger.send(600)
    admin = AdminClient(ledger.kafka.properties)
    _, ends = ledger.kafka.offset_bounds(ledger.topic)
    doomed = TopicPartition(ledger.topic, 1, ends[1] - 10)
    admin.delete_records([doomed])[doomed].result()
    with pytest.raises(Refused, match=rf"{ledger.topic}\[1\] 200\.\.{ends[1] - 10}") as refused:
        ledger.catch_up("entries", "accounts")
    assert "--accept-loss" in refused.value.hint
    ledger.catch_up("entries", "accounts", accept_loss=True)
    assert sum(ledger.table("accounts")["n"].to_pylist()) == 1200 - 190


@pytest.mark.ci  # the law is snapshot/cut/test_losses.py
def test_records_deleted_between_stages_are_skipped_in_one_claim_by_old_and_new_readers(ledger: Ledger) -> None:
    ledger.send(600)
    ledger.catch_up("entries", "accounts", "branches", max_records=200)
    store = open_store(ledger.store)
    # Versions and a snapshot's marker that `accounts` and `latest` have not read.
    ledger.send(300)
    ledger.catch_up("entries", max_records=100)
    asked = request_snapshot(store, ledger.app, "under-way", "ada@host")
    ledger.send(300)
    ledger.catch_up("entries", max_records=100)
    topic = f"{ledger.app}-by-account-repartition"
    _, ends = ledger.kafka.offset_bounds(topic)
    # In one partition, the gap ends within a version.
    doomed = [TopicPartition(topic, partition, end - (partition == 2)) for partition, end in enumerate(ends)]
    admin = AdminClient(ledger.kafka.properties)
    for deleted in admin.delete_records(doomed).values():
        deleted.result()

    taken = ledger.slackwater("snapshot", "take", ledger.app, "now-and-here", "--instant", check=False)
    assert taken.returncode == 1
    assert "in-flight records on 'by-account' to 'accounts' cannot be captured: offsets" in taken.stderr
    assert "start the app (`slackwater run`)" in taken.stderr
    assert "accept-loss" not in taken.stderr
    for stage, begins in (("accounts", "continue at offsets that are"), ("latest", "begin without rows that are")):
        said = rf"{begins} gone from Kafka: {topic}\[0\] \d+\.\.{ends[0]}, .* rows of entries, v"
        with pytest.raises(Gone, match=said):
            ledger.catch_up(stage)

    ledger.send(300)
    ledger.catch_up(max_records=100, accept_loss=True)
    commits = json.loads(ledger.slackwater("log", ledger.app, "--json", "--limit", "1000").stdout)
    claims = {each["stage"]: each for each in commits if each["lost"]}
    assert [each["stage"] for each in commits if each["lost"]].count("accounts") == len(claims) - 1 == 1
    lost = {stage: sum(claims[stage]["lost"]["by-account"]["rows"]) for stage in claims}
    assert lost == {"accounts": 600, "latest": 1200}
    assert {each["kind"] for each in claims.values()} == {"claim"}
    assert sum(ledger.table("accounts")["n"].to_pylist()) == 1500 - 600
    assert sum(ledger.table("branches")["n"].to_pylist()) == 1500 - 600
    report = ledger.verify(ledger.app)
    assert {each.receiver: sum(each.lost) for each in report.ledger if each.lost} == lost
    assert asked not in open_requests(store, ledger.app)
    assert (
        "under-way: stage 'accounts' continued without v" in ledger.slackwater("log", ledger.app, "--operations").stdout
    )
    ledger.slackwater("snapshot", "take", ledger.app, "again", "--instant")
    ledger.verify(f"{ledger.app}@again")
