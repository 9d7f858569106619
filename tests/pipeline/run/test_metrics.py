"""Prometheus metrics of a running app."""

import re
import socket
from pathlib import Path
from urllib.request import urlopen

import pytest
from msgspec.structs import replace
from slackwater.errors import Refused
from slackwater.pipeline.batch.committer import CommittedVersion, batch_report
from slackwater.pipeline.listener import BatchReport, StateSizes
from slackwater.pipeline.run.monitoring import Metrics
from slackwater.snapshot.status.overview import InputLag, SinkLag, StageLag
from slackwater.state.next_version import TaskReport
from slackwater.store.objects.counting import Stats
from slackwater.store.versions.entries.ssts import Sst
from slackwater.store.versions.manifest import Input, Manifest, Output

DOCS = Path(__file__).parents[3] / "docs" / "tuning.md"


def sst(name: str, *, size: int, level: int = 0, partition: int = 0) -> Sst:
    return Sst(name, partition, level, 10, size, "", 0, 1, 1, 1, 0, "", 0)


def manifest(version: int, *ssts: Sst, offset: int) -> Manifest:
    read, written = Input("t", (offset,), rows=offset), Output("c", (offset,), (3,), rows=3)
    return Manifest(
        "a", "s", version, 4, "w", 1_000 * version, "batch", {"t": read}, {"c": written}, ssts=ssts, recorded={"x": 1}
    )


def commit() -> BatchReport:
    old, flushed, merged = sst("old", size=100), sst("new", size=7), sst("merged", size=90, level=1, partition=1)
    before, after = manifest(1, old, offset=0), manifest(2, flushed, old, merged, offset=5)
    after = replace(after, stats=Stats(gets=3, puts=2, bytes_read=70, keys=5, searched=8, filtered=2, cache_hits=1))
    return batch_report(CommittedVersion(before, after, 0.3, 0.02, 0), (TaskReport("w.2.0", 5, (flushed,)),))


def test_a_commit_reports_the_sizes_of_the_state() -> None:
    assert commit().state == StateSizes(
        files=3, bytes=197, l0_files=2, debt_bytes=0, flushed_bytes=7, compacted_bytes=90, snapshots_under_way=1
    )


def scrape(port: int) -> str:
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=180) as answer:
        return str(answer.read().decode())


def test_prometheus_gets_one_sample_per_stage() -> None:
    metrics = Metrics()
    port = metrics.serve(0)
    for _ in range(2):
        metrics.on_commit(commit())
    said = scrape(port)
    labels = '{app="a",stage="s"}'
    for line in (
        f"slackwater_rows_read_total{labels} 10.0",
        f"slackwater_flushed_bytes_total{labels} 14.0",
        f"slackwater_compaction_written_bytes_total{labels} 180.0",
        f"slackwater_l0_files{labels} 2.0",
        f"slackwater_epoch{labels} 4.0",
        f"slackwater_batch_seconds_count{labels} 2.0",
        f"slackwater_last_commit_timestamp_seconds{labels} 2.0",
        'slackwater_store_requests_total{app="a",stage="s",verb="get"} 6.0',
        'slackwater_store_requests_total{app="a",stage="s",verb="put"} 4.0',
        f"slackwater_store_read_bytes_total{labels} 140.0",
        f"slackwater_lookup_keys_total{labels} 10.0",
        f"slackwater_sst_probes_total{labels} 16.0",
        f"slackwater_filter_hits_total{labels} 4.0",
        f"slackwater_cache_hits_total{labels} 2.0",
    ):
        assert line in said


def test_lag_and_running_stages_have_samples_only_if_known() -> None:
    metrics = Metrics()
    port = metrics.serve(0)
    topic = InputLag("t", "t", "", (4,), (9,), 5, 5, None)
    channel = InputLag("c", "a-c-repartition", "up", (6,), (9,), 3, 40, 2)
    sink = SinkLag("alerts", "a-s-alerts-sink", 7, 12, 3)
    metrics.on_lags((StageLag("a", "s", (topic, channel), True, (sink,)), StageLag("a", "gone", (), False)))
    said = scrape(port)
    for line in (
        'slackwater_lag_records{app="a",stage="s",topic="t"} 5.0',
        'slackwater_lag_records{app="a",stage="s",topic="a-c-repartition"} 40.0',
        'slackwater_lag_versions{app="a",stage="s",topic="a-c-repartition"} 2.0',
        'slackwater_sink_lag_rows{app="a",sink="alerts",stage="s"} 12.0',
        'slackwater_sink_lag_versions{app="a",sink="alerts",stage="s"} 3.0',
        'slackwater_stage_running{app="a",stage="s"} 1.0',
        'slackwater_stage_running{app="a",stage="gone"} 0.0',
    ):
        assert line in said
    unknown = InputLag("t", "t", "", (4,), None, None, None, None)
    metrics.on_lags((StageLag("a", "s", (unknown,), True), StageLag("a", "gone", (), None)))
    said = scrape(port)
    assert 'topic="t"' not in said
    assert 'stage="gone"' not in said


def test_every_metric_is_documented() -> None:
    metrics = Metrics()
    metrics.on_commit(commit())
    names = set(re.findall(r"^# TYPE (slackwater_\w+)", scrape(metrics.serve(0)), re.MULTILINE))
    documented = set(re.findall(r"`(slackwater_\w+)`", DOCS.read_text()))
    assert {name for name in names if not name.endswith("_created")} == documented


def test_a_port_in_use_is_named() -> None:
    with socket.create_server(("0.0.0.0", 0)) as taken:  # noqa: S104  as the metrics' own
        port = taken.getsockname()[1]
        with pytest.raises(Refused, match=f"port {port}") as refused:
            Metrics().serve(port)
    assert "--metrics" in refused.value.hint
