"""Several inputs of one stage on a real broker and Spark: a diamond, its snapshots, and refused declarations."""

import json
from dataclasses import replace
from pathlib import Path

import duckdb
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from slackwater.errors import Refused, Usage
from slackwater.pipeline.dev.kafka import EmbeddedKafka
from slackwater.snapshot.cut.resolve import resolve
from slackwater.store.objects.open import open_store
from slackwater.store.versions import history

from tests.support.running import DIAMOND, EXPECTED, Ledger

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.usefixtures("one_spark")]


@pytest.fixture
def diamond(kafka: EmbeddedKafka, tmp_path: Path) -> Ledger:
    return Ledger(kafka.bootstrap, tmp_path, program=DIAMOND)


@pytest.mark.parametrize(
    ("variant", "error", "said"),
    [
        ("stream-stream join", Refused, "uses a Join of two streams"),
        ("an input unused", Refused, "reads 'credited', but does not use it in what it returns"),
        ("other type", Usage, "key column 'branch' is int32 in 'debited', string in 'credited'"),
        ("other key", Usage, r"keyed differently: 'debited' by \(branch\), 'credited' by \(account\)"),
    ],
)
def test_inputs_that_do_not_fit_together_are_refused(
    diamond: Ledger, variant: str, error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        diamond.catch_up(variant=variant)
    assert not history.list_stages(open_store(diamond.store), diamond.app)


@pytest.mark.ci  # the law is operations/staging/clone/test_fan_out.py
def test_a_clone_of_a_diamond_continues_with_the_records_that_its_snapshot_kept(
    diamond: Ledger, tmp_path: Path
) -> None:
    diamond.send(2_000)
    diamond.catch_up(max_records=700)
    diamond.send(1_500)
    # The last stage lags, so the rows that the other stages send to it are in flight.
    diamond.catch_up("moves", "debits", "deposits", max_records=400)
    diamond.slackwater("snapshot", "take", diamond.app, "lagging", "--instant")
    snapshot = diamond.check_snapshot("lagging")
    assert sum(kept.rows for kept in snapshot.channels) == 1_500
    # Kafka forgets them; the snapshot does not.
    admin = AdminClient(diamond.kafka.properties)
    for kept in snapshot.channels:
        doomed = [TopicPartition(kept.topic, partition, end) for partition, end in enumerate(kept.ends)]
        for deleted in admin.delete_records(doomed).values():
            deleted.result()
    copy = replace(diamond, app=f"{diamond.app}-staging", folder=tmp_path / "staging")
    copy.folder.mkdir()
    diamond.slackwater("clone", f"{diamond.app}@lagging", copy.app)
    copy.send(700)
    copy.catch_up(max_records=400)
    copy.check_tables()
    late = diamond.slackwater("query", f"{diamond.app}@lagging", "SELECT count(*) n FROM inflight('debited')", "--json")
    assert json.loads(late.stdout)["rows"][0] in ({"n": snapshot.channels[0].rows}, [snapshot.channels[0].rows])


@pytest.mark.ci  # the law is chandy_lamport/test_laws.py
def test_a_stage_that_reads_a_topic_and_a_channel_takes_snapshots_by_markers_only(diamond: Ledger) -> None:
    # The source of a topic of such a stage must not announce the request before the marker arrives.
    diamond.variant = "topic beside channel"
    with diamond.fed(), diamond.running("--max-records", "400") as app:
        app.await_commit("branches")
        diamond.slackwater("snapshot", "take", diamond.app, "first")
    cut = resolve(open_store(diamond.store), f"{diamond.app}@first", now_ms=0)
    with duckdb.connect() as con:
        con.register("moved", diamond.raw(cut.stages["moves"].inputs[diamond.topic].offsets))
        con.register("direct", diamond.raw(cut.stages["branches"].inputs[diamond.topic].offsets))
        con.sql("CREATE VIEW raw AS FROM moved WHERE amount < 0 UNION ALL FROM direct WHERE amount >= 0")
        expected = con.sql(EXPECTED[DIAMOND]["branches"]).to_arrow_table()
    found = diamond.table("branches", f"{diamond.app}@first").select(expected.column_names)
    assert sorted(found.to_pylist(), key=str) == sorted(expected.to_pylist(), key=str)


def test_a_function_may_return_its_frames_in_another_order(diamond: Ledger) -> None:
    diamond.send(500)
    diamond.catch_up(variant="swapped")
    found = diamond.table("branches")
    assert min(found["debited"].to_pylist()) >= 0 > max(found["credited"].to_pylist())
