"""The main job on the real thing: broker, Spark, store. Every promise is checked against SQL over the raw input."""

import json
import os
import signal
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession
from slackwater.errors import Gone, NotFound, Refused
from slackwater.pipeline.batch.meter import StageMeter
from slackwater.pipeline.dev.kafka import EmbeddedKafka
from slackwater.pipeline.dev.s3 import EmbeddedS3
from slackwater.pipeline.kafka.consumer_groups import group_of
from slackwater.pipeline.kafka.topics import offsets, partition_counts
from slackwater.pipeline.run import runner
from slackwater.snapshot.cut.requests import open_requests
from slackwater.snapshot.cut.resolve import resolve
from slackwater.snapshot.cut.stored import read_snapshot
from slackwater.snapshot.take.taking import request
from slackwater.store.objects.counting import CountingStore
from slackwater.store.objects.open import open_store
from slackwater.store.objects.stats import Stats
from slackwater.store.versions import codec, history

from tests.support.running import Ledger, eventually
from tests.support.s3_proxy import s3_proxy

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.usefixtures("one_spark")]


@pytest.fixture
def ledger(kafka: EmbeddedKafka, tmp_path: Path) -> Ledger:
    return Ledger(kafka.bootstrap, tmp_path)


def test_a_killed_app_goes_on_and_no_record_is_lost_or_counted_twice(ledger: Ledger) -> None:
    ledger.send(12_000)
    for commits in (2, 7):
        with ledger.running("--max-records", "700") as app:
            for _ in range(commits):
                app.await_commit()
            app.kill()
        ledger.send(2_000)
    ledger.catch_up(max_records=4000)
    ledger.check_tables()
    store = open_store(ledger.store)
    for stage in history.list_stages(store, ledger.app):
        versions = list(history.after(store, ledger.app, stage, 0))
        assert [one.version for one in versions] == list(range(1, len(versions) + 1))
        assert versions[-1].epoch == 3
        assert sum(one.kind == "claim" for one in versions) == 3


@pytest.mark.soak  # what it shows of a chain, test_snapshots_under_fire shows of a diamond
def test_a_snapshot_of_a_running_app_holds_the_same_entries_in_every_stage(ledger: Ledger) -> None:
    names = ("first", "second")
    with ledger.fed(), ledger.running("--max-records", "2000") as app:
        app.await_commit("branches")
        for name in names:
            ledger.slackwater("snapshot", "take", ledger.app, name)
    store = open_store(ledger.store)
    assert not list(store.list(f"{ledger.app}/requests/"))
    seen = 0
    for name in names:
        ref = f"{ledger.app}@{name}"
        in_accounts = sum(ledger.table("accounts", ref)["n"].to_pylist())
        in_branches = sum(ledger.table("branches", ref)["n"].to_pylist())
        # All of the entries up to the offsets of the first stage, and none after.
        version = read_snapshot(store, ledger.app, name).stages["entries"]
        sent = sum(history.read(store, ledger.app, "entries", version).inputs[ledger.topic].offsets)
        assert in_accounts == in_branches == sent
        assert sent > seen
        seen = sent


def test_an_idle_app_answers_a_snapshot_at_once(ledger: Ledger) -> None:
    ledger.send(500)
    with ledger.running() as app:
        app.await_commit("branches")
        ledger.slackwater("snapshot", "take", ledger.app, "idle", "--timeout", "20")
    assert sum(ledger.table("branches", f"{ledger.app}@idle")["n"].to_pylist()) == 500


def test_a_stage_that_is_gone_from_the_program_holds_up_a_snapshot_until_it_is_retired(ledger: Ledger) -> None:
    ledger.send(500)
    ledger.catch_up()
    ledger.variant = "without latest"
    ledger.send(500)
    with ledger.running() as app:
        app.await_commit("branches")
        held_up = ledger.slackwater("snapshot", "take", ledger.app, "held-up", "--timeout", "5", check=False)
        assert held_up.returncode == 1
        verb = f"slackwater retire {ledger.app}/latest"
        assert f"is latest still in the program? if it is gone for good: `{verb}`" in held_up.stderr
        ledger.slackwater(*verb.split()[1:])
        ledger.slackwater("snapshot", "take", ledger.app, "at-once", "--timeout", "20")
        said = app.errors.read_text()
        assert f"{ledger.app} has latest, which this program has not" in said
        assert verb in said
    assert read_snapshot(open_store(ledger.store), ledger.app, "at-once").stages.keys() == {
        "entries",
        "accounts",
        "branches",
    }
    ledger.verify(f"{ledger.app}@at-once")
    assert sum(ledger.table("branches", f"{ledger.app}@at-once")["n"].to_pylist()) == 1_000
    # The old program has it again: it goes on where it stopped.
    ledger.catch_up()
    ledger.check_tables()
    assert "latest" in resolve(open_store(ledger.store), ledger.app, now_ms=0).stages


def test_kafkas_own_tools_see_how_far_each_stage_has_read(ledger: Ledger) -> None:
    ledger.send(400)
    ledger.catch_up()
    ledger.slackwater("clone", ledger.app, f"{ledger.app}-2")
    admin = AdminClient(ledger.kafka)
    for app in (ledger.app, f"{ledger.app}-2"):
        asked = ConsumerGroupTopicPartitions(group_of(app, "entries"))
        (answer,) = admin.list_consumer_group_offsets([asked]).values()
        found = {place.partition: place.offset for place in answer.result().topic_partitions}
        assert found == dict(enumerate(offsets(ledger.kafka, ledger.topic)[1])), app


def test_a_second_runner_fences_the_first_and_nothing_is_lost(ledger: Ledger) -> None:
    with ledger.fed(), ledger.running("--max-records", "500") as first:
        first.await_commit("branches")
        with ledger.running("--max-records", "500") as second:
            second.await_commit("branches")
            assert first.process.wait(60) == 1
            said = first.errors.read_text()
            assert "was taken over" in said
            assert "Traceback" not in said
    ledger.catch_up()
    ledger.check_tables()


def test_a_stopped_app_is_rescaled_and_goes_on_with_the_new_numbers(ledger: Ledger) -> None:
    ledger.send(1_500)
    ledger.catch_up(max_records=500)
    for stage, partitions in (("accounts", 5), ("branches", 1)):
        ledger.slackwater("rescale", f"{ledger.app}/{stage}", "--partitions", str(partitions))
    ledger.send(1_500)
    ledger.catch_up(max_records=500)
    ledger.check_tables()
    store = open_store(ledger.store)
    for stage, partitions in (("accounts", 5), ("branches", 1), ("latest", 2)):
        found = history.head(store, ledger.app, stage)
        assert found is not None
        assert found.table is not None
        assert found.table.partitions == partitions


@pytest.mark.soak
def test_stages_may_run_in_applications_of_their_own(ledger: Ledger) -> None:
    ledger.send(3_000)
    for stage in ("entries", "accounts", "latest", "branches"):
        ledger.catch_up(stage)
    ledger.check_tables()


def test_a_version_costs_one_put_for_each_changed_partition_and_one_for_its_manifest(ledger: Ledger) -> None:
    ledger.send(1_500)
    ledger.catch_up(max_records=300)
    store = open_store(ledger.store)
    for stage in history.list_stages(store, ledger.app):
        versions = list(history.after(store, ledger.app, stage, 0))
        assert len(versions) > 4
        for before, after in pairwise(versions):
            written = set(after.ssts) - set(before.ssts)
            assert len(written) <= (after.table.partitions if after.table else 0)
        # Every object is put once, so that their number is the number of puts: SSTs and manifests, and nothing else.
        named = {sst.object for version in versions for sst in version.ssts}
        assert len(list(store.list(f"{ledger.app}/stages/{stage}/"))) == len(versions) + len(named)


def test_ctrl_c_ends_within_ten_seconds_and_leaves_whole_batches(ledger: Ledger) -> None:
    with ledger.fed(), ledger.running("--max-records", "1000") as app:
        app.await_commit("branches")
        code, seconds = app.interrupt()
        said = app.errors.read_text()
        assert code == 0, said
        assert seconds < 10
        assert "Traceback" not in said
    ledger.catch_up()
    ledger.check_tables()


def test_a_broker_that_comes_back_is_waited_for_in_one_line(kafka: EmbeddedKafka, ledger: Ledger) -> None:
    ledger.send(6_000)
    with ledger.running("--max-records", "500") as app:
        app.await_commit("branches")
        kafka.kill()
        eventually(lambda: "does not answer" in app.errors.read_text(), "the runner says that the broker is away")
        kafka.start()
        ledger.send(1_000)
        app.await_commit("branches")
        eventually(lambda: "is back" in app.errors.read_text(), "the runner says that the broker is back")
    ledger.catch_up()
    ledger.check_tables()


@pytest.mark.soak
def test_a_store_that_comes_back_is_waited_for(
    kafka: EmbeddedKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with EmbeddedS3(tmp_path / "s3") as bucket:
        for name, value in bucket.environment.items():
            monkeypatch.setenv(name, value)
        ledger = Ledger(kafka.bootstrap, tmp_path, store=bucket.store_root)
        ledger.send(6_000)
        with ledger.running("--max-records", "500") as app:
            app.await_commit("branches")
            bucket.kill()
            eventually(lambda: bucket.endpoint in app.errors.read_text(), "the runner says that the store is away")
            bucket.start()
            ledger.send(1_000)
            app.await_commit("branches")
            eventually(ledger.has_caught_up, "every stage has read everything")
        ledger.check_tables()


@pytest.mark.s3
def test_the_versions_of_a_real_run_say_what_its_s3_server_was_asked(
    kafka: EmbeddedKafka, s3_server: str, s3_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The law of test_metering.py: requests of the driver, of the workers and of the planners, seen before S3."""
    meters: list[StageMeter] = []

    class Kept(StageMeter):
        """Counts as ever, where the counters outlive the run."""

        def __init__(self, folder: Path, *stores: CountingStore) -> None:
            super().__init__(tmp_path / "counts" / folder.name, *stores)
            meters.append(self)

    monkeypatch.setattr(runner, "StageMeter", Kept)
    spark = SparkSession.getActiveSession()
    assert spark is not None
    with s3_proxy(s3_server) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        # Spark started before: this is how its Python processes get variables of their own.
        for name in ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"):
            monkeypatch.setitem(spark.sparkContext.environment, name, os.environ[name])
        ledger = Ledger(kafka.bootstrap, tmp_path, store=s3_url)
        ledger.send(600)
        ledger.catch_up("entries", "accounts", max_records=300)
        asked = list(proxy.answered)
        store = open_store(s3_url)
        heads = [head for name in ("entries", "accounts") if (head := history.head(store, ledger.app, name))]
    told = sum((head.totals for head in heads if head.totals), Stats())
    after = sum((meter.take() for meter in meters), Stats())
    verbs = Counter(verb for verb, *_ in asked)
    last = [len(codec.encode(head)) for head in heads]
    # What came after a stage's last version was written up is its own put, polling, and the runner's sign of life,
    # which it takes away at its end.
    signs = [came for verb, key, came, _ in asked if verb == "PUT" and "/runners/" in key]
    late = after.puts - len(heads)
    assert 0 <= late <= len(signs)
    assert after.bytes_written == sum(last) + sum(signs[len(signs) - late :])
    assert after.deletes == 1
    all_of_it = told + after
    assert (all_of_it.puts, all_of_it.deletes) == (verbs["PUT"], verbs["DELETE"])
    assert all_of_it.bytes_written == sum(came for verb, _, came, _ in asked if verb == "PUT")
    # A planner that is stopped in the middle of a request does not come to count it.
    assert 0 <= verbs["GET"] + verbs["LIST"] - all_of_it.gets - all_of_it.lists <= len(meters)
    if verbs["GET"] == all_of_it.gets:
        assert all_of_it.bytes_read == sum(back for *_, back in asked)
    accounts = heads[1]
    assert accounts.totals is not None
    assert accounts.totals.keys >= 400
    assert accounts.totals.flushed_bytes >= sum(sst.bytes for sst in accounts.ssts)
    # Each worker's puts: an SST for each that the version names for the first time.
    written = {unquote(path).rpartition("/")[2] for verb, path, *_ in asked if verb == "PUT" and ".parquet" in path}
    assert {named.object.rpartition("/")[2] for named in accounts.ssts} <= written


def test_an_app_that_is_killed_while_it_runs_ahead_loses_nothing_and_counts_nothing_twice(ledger: Ledger) -> None:
    ledger.send(6_000)
    with ledger.running("--max-records", "400", "--max-unflushed", "4", sabotage="accounts ahead") as app:
        assert app.process.wait(120) == -signal.SIGKILL
    left = list(ledger.folder.glob("cache-spool/*/*/stages/accounts/sst/*.parquet"))
    assert len(left) >= 7, "several versions were acknowledged and not committed"
    ledger.send(500)
    ledger.catch_up()
    ledger.check_tables()
    ledger.verify(ledger.app)


def test_a_broker_that_is_gone_for_good_ends_the_run_with_a_sentence(ledger: Ledger) -> None:
    done = ledger.slackwater("run", "tests/apps/ledger.py", "--kafka", "127.0.0.1:9", "--patience", "3", check=False)
    assert done.returncode == 1
    assert "127.0.0.1:9" in done.stderr
    assert "Traceback" not in done.stderr


def test_entries_that_are_not_json_do_not_stop_the_app(ledger: Ledger) -> None:
    ledger.send(400, raw=(b"not json", b"", b'["neither"]', b"\xff\xfe"))
    ledger.catch_up()
    ledger.check_tables()


def test_offsets_that_are_gone_are_refused_by_name_unless_accepted(ledger: Ledger) -> None:
    ledger.send(600)
    ledger.catch_up()
    ledger.send(600)
    admin = AdminClient(ledger.kafka)
    _, ends = offsets(ledger.kafka, ledger.topic)
    doomed = TopicPartition(ledger.topic, 1, ends[1] - 10)
    admin.delete_records([doomed])[doomed].result()
    with pytest.raises(Refused, match=rf"{ledger.topic}\[1\] 200\.\.{ends[1] - 10}") as refused:
        ledger.catch_up()
    assert "--accept-loss" in refused.value.hint
    ledger.catch_up(accept_loss=True)
    assert sum(ledger.table("branches")["n"].to_pylist()) == 1200 - 190


def test_what_is_gone_between_stages_is_passed_over_in_one_claim_by_old_readers_and_new(ledger: Ledger) -> None:
    ledger.send(600)
    ledger.catch_up("entries", "accounts", "branches", max_records=200)
    store = open_store(ledger.store)
    # Versions, and a snapshot's marker, that `accounts` and `latest` have not read.
    ledger.send(300)
    ledger.catch_up("entries", max_records=100)
    asked = request(store, ledger.app, "under-way", "ada@host")
    ledger.send(300)
    ledger.catch_up("entries", max_records=100)
    topic = f"{ledger.app}-by-account-repartition"
    _, ends = offsets(ledger.kafka, topic)
    # In one partition it ends within a version.
    doomed = [TopicPartition(topic, partition, end - (partition == 2)) for partition, end in enumerate(ends)]
    admin = AdminClient(ledger.kafka)
    for deleted in admin.delete_records(doomed).values():
        deleted.result()

    taken = ledger.slackwater("snapshot", "take", ledger.app, "now-and-here", "--instant", check=False)
    assert taken.returncode == 1
    assert "records in flight on 'by-account' to 'accounts' cannot be kept: offsets" in taken.stderr
    assert "start the app (`slackwater run`)" in taken.stderr
    assert "accept-loss" not in taken.stderr
    for stage, begins in (("accounts", "go on at offsets that are"), ("latest", "begin without what is")):
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
        "under-way: stage 'accounts' went on without v" in ledger.slackwater("log", ledger.app, "--operations").stdout
    )
    ledger.slackwater("snapshot", "take", ledger.app, "again", "--instant")
    ledger.verify(f"{ledger.app}@again")


@pytest.mark.parametrize(
    ("variant", "said"),
    [
        ("changed key", "key columns are \\(branch\\)"),
        ("changed value type", "column .balance. is double now, and what is stored is int64"),
        ("streaming aggregation", "streaming Aggregate"),
        ("two uses of the stream", "2 times"),
    ],
)
def test_a_program_that_does_not_fit_is_refused_before_anything_is_written(
    booked: Ledger, variant: str, said: str
) -> None:
    store = open_store(booked.store)
    # The same program as an app that there is not yet leaves neither app nor topics.
    for ledger in (booked, replace(booked, app=f"{booked.app}-new")):
        if ledger is not booked and variant.startswith("changed"):
            continue
        before = [info.key for info in store.list("")], sorted(partition_counts(booked.kafka))
        with pytest.raises(Refused, match=said) as refused:
            ledger.catch_up(variant=variant)
        assert refused.value.hint
        assert ([info.key for info in store.list("")], sorted(partition_counts(booked.kafka))) == before


def test_a_first_run_without_its_topic_leaves_no_app(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    ledger = Ledger(kafka.bootstrap, tmp_path)
    ledger.topic = f"not-{ledger.topic}"
    with pytest.raises(NotFound, match=f"no Kafka topic named '{ledger.topic}'") as caught:
        ledger.catch_up()
    assert caught.value.hint == "stage 'entries' reads it"
    assert list(open_store(ledger.store).list("")) == []
    assert not [name for name in partition_counts(ledger.kafka) if ledger.app in name]


def test_a_function_that_fails_ends_the_run_with_its_reason(booked: Ledger) -> None:
    booked.send(10)
    with pytest.raises(Refused, match="the branch is closed"):
        booked.catch_up(variant="fails on a row")
    booked.catch_up()
    booked.check_tables()


@pytest.fixture(scope="module")
def booked(kafka: EmbeddedKafka, tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    """A ledger that has run; programs that are refused leave it as it is."""
    made = Ledger(kafka.bootstrap, tmp_path_factory.mktemp("booked"))
    made.send(500)
    made.catch_up()
    return made


def test_a_fault_is_bisected_to_its_window_and_a_clone_takes_the_repair(ledger: Ledger) -> None:
    ledger.send(4_000)
    ledger.catch_up(max_records=500)
    ledger.slackwater("snapshot", "take", ledger.app, "good", "--instant")
    bad = {"seq": 10**6, "account": "a1", "branch": 1, "amount": 10**9}
    start = offsets(ledger.kafka, ledger.topic)[1][0]
    ledger.send(700, raw=(json.dumps(bad).encode(),))
    ledger.send(3_000)
    ledger.catch_up(max_records=500)
    found = ledger.slackwater(
        "bisect",
        ledger.app,
        "--where",
        "SELECT branch, total FROM branches WHERE total > 500000000",
        "--json",
    )
    verdict = json.loads(found.stdout)
    windows = json.dumps(verdict)
    assert '"branches"' in windows
    assert ledger.topic in windows
    at = offsets(ledger.kafka, ledger.topic)[1][0]
    assert start < at
    repaired = Ledger(ledger.bootstrap, ledger.folder, store=ledger.store, app=f"{ledger.app}-staging")
    for count in (4_000, 700, 3_000):
        repaired.send(count)
    ledger.slackwater("clone", f"{ledger.app}@good", repaired.app, "--topic", f"{ledger.topic}={repaired.topic}")
    # The same program, whose topic the clone knows under another name.
    topic, repaired.topic = repaired.topic, ledger.topic
    repaired.catch_up()
    repaired.topic = topic
    repaired.check_tables()
    assert max(ledger.table("branches")["total"].to_pylist()) > 500_000_000
