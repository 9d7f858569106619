"""Whole apps on a real broker, Spark and store, checked against SQL over the raw input."""

import os
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote

import pytest
from pyspark.sql import SparkSession
from slackwater.errors import NotFound, Refused
from slackwater.pipeline.batch.committer import StageMeter
from slackwater.pipeline.dev.kafka import EmbeddedKafka
from slackwater.pipeline.kafka.channels import consumer_group
from slackwater.pipeline.run import runner
from slackwater.store.objects.counting import CountingStore, Stats
from slackwater.store.objects.open import open_store
from slackwater.store.versions import codec, history

from tests.support.running import Ledger, committed_offsets
from tests.support.s3_proxy import s3_proxy

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.usefixtures("one_spark")]


@pytest.fixture(scope="module")
def booked(kafka: EmbeddedKafka, tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    """Return a ledger that has processed valid and invalid entries."""
    made = Ledger(kafka.bootstrap, tmp_path_factory.mktemp("booked"))
    made.send(1_500, raw=(b"not json", b"", b'["neither"]', b"\xff\xfe"))
    made.catch_up(max_records=300)
    return made


def test_entries_that_are_not_json_do_not_stop_the_app(booked: Ledger) -> None:
    booked.check_tables()


def test_a_version_costs_one_put_per_changed_partition_and_one_for_its_manifest(booked: Ledger) -> None:
    store = open_store(booked.store)
    for stage in history.list_stages(store, booked.app):
        versions = list(history.iter_after(store, booked.app, stage, 0))
        assert len(versions) > 4
        for before, after in pairwise(versions):
            written = set(after.ssts) - set(before.ssts)
            assert len(written) <= (after.table.partitions if after.table else 0)
        # Every object is put once, so the number of objects is the number of puts: SSTs and manifests, nothing else.
        named = {sst.object for version in versions for sst in version.ssts}
        assert len(list(store.list(f"{booked.app}/stages/{stage}/"))) == len(versions) + len(named)


def test_kafkas_own_tools_see_how_far_each_stage_has_read(booked: Ledger) -> None:
    booked.slackwater("clone", booked.app, f"{booked.app}-2")
    for app in (booked.app, f"{booked.app}-2"):
        committed = committed_offsets(booked.kafka, consumer_group(app, "entries"), booked.topic)
        assert committed == booked.kafka.offset_bounds(booked.topic)[1], app


@pytest.mark.soak
def test_each_stage_can_run_in_its_own_spark_application(ledger: Ledger) -> None:
    ledger.send(3_000)
    for stage in ("entries", "accounts", "latest", "branches"):
        ledger.catch_up(stage)
    ledger.check_tables()


@pytest.mark.ci  # the law is store/read/test_read_stats.py
@pytest.mark.s3
def test_manifests_report_as_many_requests_as_s3_receives(
    kafka: EmbeddedKafka, s3_server: str, s3_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sum the requests of driver, workers and planners, and compare them with those that arrive at S3."""
    meters: list[StageMeter] = []

    class Kept(StageMeter):
        """A meter that keeps its counters after the run."""

        def __init__(self, folder: Path, *stores: CountingStore) -> None:
            super().__init__(tmp_path / "counts" / folder.name, *stores)
            meters.append(self)

    monkeypatch.setattr(runner, "StageMeter", Kept)
    spark = SparkSession.getActiveSession()
    assert spark is not None
    with s3_proxy(s3_server) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        # Spark started before, so this is the way to give its Python processes variables.
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
    # After a stage's last version there are only its own put, polling, and the runner's heartbeat, which the runner
    # deletes at its end.
    signs = [came for verb, key, came, _ in asked if verb == "PUT" and "/runners/" in key]
    late = after.puts - len(heads)
    assert 0 <= late <= len(signs)
    assert after.bytes_written == sum(last) + sum(signs[len(signs) - late :])
    assert after.deletes == 1
    all_of_it = told + after
    assert (all_of_it.puts, all_of_it.deletes) == (verbs["PUT"], verbs["DELETE"])
    assert all_of_it.bytes_written == sum(came for verb, _, came, _ in asked if verb == "PUT")
    # A planner that is stopped during a request cannot count the request.
    assert 0 <= verbs["GET"] + verbs["LIST"] - all_of_it.gets - all_of_it.lists <= len(meters)
    if verbs["GET"] == all_of_it.gets:
        assert all_of_it.bytes_read == sum(back for *_, back in asked)
    accounts = heads[1]
    assert accounts.totals is not None
    assert accounts.totals.keys >= 400
    assert accounts.totals.flushed_bytes >= sum(sst.bytes for sst in accounts.ssts)
    # Puts of each worker: one SST for each SST that the version names for the first time.
    written = {unquote(path).rpartition("/")[2] for verb, path, *_ in asked if verb == "PUT" and ".parquet" in path}
    assert {named.object.rpartition("/")[2] for named in accounts.ssts} <= written


@pytest.mark.parametrize(
    ("variant", "said"),
    [
        ("changed key", "key columns are \\(branch\\)"),
        ("changed value type", "column .balance. is now double, but stored values are int64"),
        ("streaming aggregation", "streaming Aggregate"),
        ("two uses of the stream", "2 times"),
    ],
)
def test_an_incompatible_program_is_refused_before_anything_is_written(booked: Ledger, variant: str, said: str) -> None:
    store = open_store(booked.store)
    # The same program under the name of a missing app leaves neither app nor topics.
    for ledger in (booked, replace(booked, app=f"{booked.app}-new")):
        if ledger is not booked and variant.startswith("changed"):
            continue
        before = [info.key for info in store.list("")], sorted(booked.kafka.partition_counts())
        with pytest.raises(Refused, match=said) as refused:
            ledger.catch_up(variant=variant)
        assert refused.value.hint
        assert ([info.key for info in store.list("")], sorted(booked.kafka.partition_counts())) == before


def test_a_first_run_without_its_topic_creates_no_app(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    ledger = Ledger(kafka.bootstrap, tmp_path)
    ledger.topic = f"not-{ledger.topic}"
    with pytest.raises(NotFound, match=f"no Kafka topic named '{ledger.topic}'") as caught:
        ledger.catch_up()
    assert caught.value.hint == "stage 'entries' reads it"
    assert list(open_store(ledger.store).list("")) == []
    assert not [name for name in ledger.kafka.partition_counts() if ledger.app in name]


def test_a_failing_function_ends_the_run_with_its_error(booked: Ledger) -> None:
    booked.send(10)
    with pytest.raises(Refused, match="the branch is closed"):
        booked.catch_up(variant="fails on a row")
    with pytest.raises(Refused, match="stage 'accounts' stopped: a Python worker of Spark crashed: Segmentation fault"):
        booked.catch_up(variant="crashes")
    booked.catch_up()
    booked.check_tables()
