"""Garbage collection from the command line, its rules in the file, and what broken writes leave in S3 and on disk."""

import json
import os
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st
from slackwater.cli.main import app as cli
from slackwater.durations import DAY_MS, HOUR_MS
from slackwater.errors import Usage
from slackwater.settings import load
from slackwater.snapshot.gc.collect import MARGIN_MS, collect
from slackwater.snapshot.gc.retention import Retention
from slackwater.store.compaction import merge
from slackwater.store.objects.local import LocalStore
from slackwater.store.objects.open import open_store
from typer.testing import CliRunner

from tests.support.histories import FlightsApp, Kafka, flights


def test_a_dry_run_of_the_command_says_what_stays_and_why(tmp_path: Path) -> None:
    FlightsApp(LocalStore(tmp_path), Kafka()).run(flights(20))
    done = CliRunner().invoke(cli, ["gc", "flights", "--dry-run", "--versions", "2", "--store", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert "would collect nothing of flights" in done.output
    assert "carriers keeps 1 newest, 1 newest versions, 1 less than an hour old" in done.output


def test_the_command_without_rules_says_so_and_speaks_json(tmp_path: Path) -> None:
    FlightsApp(LocalStore(tmp_path), Kafka()).run(flights(20))
    arguments = ["gc", "flights", "--store", str(tmp_path)]
    assert "the whole history stays" in CliRunner().invoke(cli, arguments).output
    told = json.loads(CliRunner().invoke(cli, [*arguments, "--json"]).stdout)
    assert [stage["versions"] for stage in told["stages"]] == [0, 0, 0]


def test_a_margin_in_which_a_merge_could_still_be_under_way_is_refused(tmp_path: Path) -> None:
    FlightsApp(LocalStore(tmp_path), Kafka()).run(flights(20))
    arguments = ["gc", "flights", "--store", str(tmp_path), "--margin"]
    for words in (["1s"], ["59m", "--dry-run"], ["0s", "--explain", "app.json"]):
        refused = CliRunner().invoke(cli, [*arguments, *words])
        assert refused.exit_code == 2
        assert f"--margin is {words[0]}; expected 1h or more" in refused.output
    for margin in ("1h", "60m", "2d"):
        assert CliRunner().invoke(cli, [*arguments, margin]).exit_code == 0
    assert MARGIN_MS >= 2_000 * merge._LONGEST_S


def test_the_file_has_rules_for_all_apps_and_for_one(tmp_path: Path) -> None:
    text = '[retention]\nall = "1d"\nhourly = "7d"\n[retention.flights]\nversions = 10\n'
    (tmp_path / "slackwater.toml").write_text(text)
    settings = load(environ={}, folder=tmp_path)
    assert settings.retention_of("shop") == Retention(all_ms=DAY_MS, hourly_ms=7 * DAY_MS)
    assert settings.retention_of("flights") == Retention(versions=10)
    assert settings.retention_of("flights", all_ms=2 * HOUR_MS) == Retention(all_ms=2 * HOUR_MS, versions=10)


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ('al = "1d"', "not a rule of retention; the nearest is 'all'"),
        ('all = "1 year"', "retention.all '1 year' is not a span of time"),
        ("all = 5", "retention.all 5 is not a span of time"),
        ("versions = 0", "at least 1"),
        ("[retention.shop]\nversions = true", "retention.shop.versions must be a whole number"),
    ],
)
def test_rules_that_cannot_be_understood_are_told(tmp_path: Path, rules: str, message: str) -> None:
    (tmp_path / "slackwater.toml").write_text(f"[retention]\n{rules}\n")
    with pytest.raises(Usage) as caught:
        load(environ={}, folder=tmp_path)
    assert message in caught.value.message


@given(
    now_ms=st.integers(10**12, 2 * 10**12),
    hourly=st.integers(0, 200),
    daily=st.integers(0, 400),
    ago_ms=st.integers(0, 400 * DAY_MS),
)
def test_every_time_in_a_window_has_a_moment_less_than_a_period_before_it(
    now_ms: int, hourly: int, daily: int, ago_ms: int
) -> None:
    rules = Retention(hourly_ms=hourly * HOUR_MS, daily_ms=daily * DAY_MS)
    ends = [time_ms for time_ms, _ in rules.moments(now_ms, now_ms)]
    assert ends == sorted(set(ends))
    asked = now_ms - ago_ms
    for window_ms, period_ms in ((hourly * HOUR_MS, HOUR_MS), (daily * DAY_MS, DAY_MS)):
        if ago_ms < window_ms:
            assert any(asked - period_ms <= end <= asked for end in ends)
    assert len(ends) <= hourly + daily + 4


def test_a_window_of_ages_begins_with_the_first_hour_of_computers() -> None:
    now_ms = 48 * HOUR_MS
    ends = [time_ms for time_ms, _ in Retention(hourly_ms=10**9 * DAY_MS).moments(now_ms, now_ms)]
    assert ends == [hour * HOUR_MS - 1 for hour in range(49)]


def test_temporary_files_of_puts_that_were_killed_go_once_they_are_old(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    FlightsApp(store, Kafka()).run(flights(10))
    old, new = tmp_path / ".slackwater-tmp" / "old", tmp_path / ".slackwater-tmp" / "new"
    for path in (old, new):
        path.write_bytes(b"half of it")
    os.utime(old, (1, 1))
    assert collect(store, "flights", Retention(), by="test").leftovers == 1
    assert (old.exists(), new.exists()) == (False, True)


@pytest.mark.s3
def test_uploads_in_parts_that_broke_off_are_ended(s3_url: str) -> None:
    import boto3

    store = open_store(s3_url)
    FlightsApp(store, Kafka()).run(flights(10))
    place = urlsplit(s3_url)
    s3, prefix = boto3.client("s3"), place.path.strip("/")
    for key in ("flights/stages/legs/sst/01BROKEN.parquet", "other/stages/legs/sst/01THEIRS.parquet"):
        s3.create_multipart_upload(Bucket=place.netloc, Key=f"{prefix}/{key}")
    # This server says of every upload that it began in 2010.
    assert collect(store, "flights", Retention(), by="test").leftovers == 1
    left = s3.list_multipart_uploads(Bucket=place.netloc, Prefix=prefix).get("Uploads", [])
    assert [upload["Key"] for upload in left] == [f"{prefix}/other/stages/legs/sst/01THEIRS.parquet"]
