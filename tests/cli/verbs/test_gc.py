"""`slackwater gc` on the command line."""

import json
from pathlib import Path

from slackwater.snapshot.gc.collect import MARGIN_MS
from slackwater.store.archive.extents import Extent
from slackwater.store.compaction import merge
from slackwater.store.objects.local import LocalStore

from tests.cli.verbs.calling import slackwater
from tests.store.archive.small_archives import append
from tests.support.histories import FlightsApp, Kafka, flights


def test_a_dry_run_lists_what_each_rule_keeps(tmp_path: Path) -> None:
    FlightsApp(LocalStore(tmp_path), Kafka()).run(flights(20))
    done = slackwater("gc", "flights", "--dry-run", "--versions", "2", "--store", str(tmp_path))
    assert done.exit_code == 0, done.output
    assert "would collect nothing of flights" in done.output
    assert "carriers keeps 1 newest, 1 newest versions, 1 less than an hour old" in done.output


def test_gc_without_rules_says_that_all_history_is_kept(tmp_path: Path) -> None:
    FlightsApp(LocalStore(tmp_path), Kafka()).run(flights(20))
    arguments = ["gc", "flights", "--store", str(tmp_path)]
    assert "all history is kept" in slackwater(*arguments).output
    told = json.loads(slackwater(*arguments, "--json").stdout)
    assert [stage["versions"] for stage in told["stages"]] == [0, 0, 0]


def test_gc_reports_collected_records_of_an_input_archive(tmp_path: Path) -> None:
    """The records' objects are deleted an hour later."""
    app = FlightsApp(LocalStore(tmp_path), Kafka())
    app.run(flights(20))
    append(app.store, "flights", Extent(0, 0, 10))
    arguments = ["gc", "flights", "--store", str(tmp_path), "--input", "1d"]
    assert "would collect 10 records in the input archive of flights" in slackwater(*arguments, "--dry-run").output
    assert "collected 10 records in the input archive of flights" in slackwater(*arguments).output
    assert ", 10 archived records" in slackwater("log", "flights", "--operations", "--store", str(tmp_path)).output
    refused = slackwater("gc", "flights", "--store", str(tmp_path), "--input", "0s")
    assert refused.exit_code == 2
    assert "input_ms" not in refused.output


def test_a_margin_shorter_than_a_merge_may_take_is_refused(tmp_path: Path) -> None:
    FlightsApp(LocalStore(tmp_path), Kafka()).run(flights(20))
    arguments = ["gc", "flights", "--store", str(tmp_path), "--margin"]
    for words in (["1s"], ["59m", "--dry-run"], ["0s", "--explain", "app.json"]):
        refused = slackwater(*arguments, *words)
        assert refused.exit_code == 2
        assert f"--margin is {words[0]}; expected 1h or more" in refused.output
    for margin in ("1h", "60m", "2d"):
        assert slackwater(*arguments, margin).exit_code == 0
    assert MARGIN_MS >= 2_000 * merge._MAX_MERGE_S
