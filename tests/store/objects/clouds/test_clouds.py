"""Stores in Google Cloud Storage and Azure Blob Storage, on their emulators: races, whole apps, and errors."""

from __future__ import annotations

import json
import os
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from uuid import uuid4

import pytest
from slackwater.cli import main
from slackwater.common import extras
from slackwater.errors import NotFound, ObjectExists, Refused, Unavailable, Usage
from slackwater.store.objects.open import check_root, open_store
from slackwater.store.versions import keys
from typer.testing import CliRunner

from tests.support.histories import FlightsApp, Kafka, flights

WRITERS, VERSIONS = 16, 62
"""Numbers of writers and of versions. Of 992 writes in all, each version takes one."""


@pytest.fixture(params=[pytest.param(name, marks=pytest.mark.ci) for name in ("azure_root", "google_root")])
def root(request: pytest.FixtureRequest) -> str:
    """Return a new root on each emulator in turn."""
    return f"{request.getfixturevalue(request.param)}/{uuid4().hex}"


def test_of_racing_versions_none_is_lost_or_written_twice(root: str) -> None:
    barrier = Barrier(WRITERS)

    def write(writer: int) -> list[int]:
        store, won = open_store(root), []
        barrier.wait(60)
        for version in range(1, VERSIONS + 1):
            try:
                store.put_if_absent(keys.manifest("app", "stage", version), b"%d" % writer)
            except ObjectExists:
                continue
            won.append(version)
        return won

    with ThreadPoolExecutor(WRITERS) as pool:
        won = list(pool.map(write, range(WRITERS)))
    assert Counter(version for versions in won for version in versions) == dict.fromkeys(range(1, VERSIONS + 1), 1)
    store = open_store(root)
    by_writer = {(version, writer) for writer, versions in enumerate(won) for version in versions}
    listed = [info.key for info in store.list(keys.manifests("app", "stage"))]
    assert {(keys.version_of(key), int(store.get(key))) for key in listed} == by_writer


@pytest.mark.usefixtures("isolated")
def test_verbs_work_over_a_cloud(root: str, tmp_path: Path) -> None:
    rows = flights(60)
    FlightsApp(open_store(root), Kafka()).run(rows)
    by_carrier = Counter(row.carrier for row in rows)

    def verb(*words: str) -> str:
        result = CliRunner().invoke(main.app, [*words, "--store", root])
        assert result.exit_code == 0, result.output
        return result.stdout

    sql = "SELECT carrier, flights FROM carriers ORDER BY carrier"
    expected = [{"carrier": carrier, "flights": count} for carrier, count in sorted(by_carrier.items())]
    assert json.loads(verb("query", "flights", sql, "--json"))["rows"] == expected
    assert "carriers" in verb("log", "flights")
    verb("snapshot", "list", "flights")
    verb("replicate", "flights", "--to", f"{root}-copy", "--once")
    copied = CliRunner().invoke(main.app, ["query", "flights", sql, "--json", "--store", f"{root}-copy"])
    assert json.loads(copied.stdout)["rows"] == expected
    verb("gc", "flights")
    verb("verify", "flights", "--deep")
    verb("export", "flights", str(tmp_path / "flights.duckdb"))


def test_a_missing_bucket_is_named(root: str) -> None:
    scheme = root.partition(":")[0]
    store = open_store(f"{scheme}://not-there")
    with pytest.raises(NotFound, match="'not-there'"):
        list(store.list(""))


SIGNATURE = "hush%2Bhush"


def test_an_error_has_no_signature(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("obstore")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", f"sv=2024-01-01&sig={SIGNATURE}")
    monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", "http://127.0.0.1:1")
    store = open_store("az://container/prefix", patience_s=0.2)
    with pytest.raises(Unavailable, match="the connection broke") as caught:
        store.get("a")
    assert "hush" not in "".join(
        map(str, (caught.value, caught.value.hint, caught.value.__cause__, caught.value.__context__))
    )


@pytest.mark.parametrize(
    ("root", "variables"),
    [
        ("az://container", {}),
        ("az://container", {"AZURE_STORAGE_ACCOUNT_NAME": "account", "AZURE_STORAGE_ACCOUNT_KEY": "hush!"}),
        ("az://container", {"AZURE_STORAGE_ACCOUNT_NAME": "account", "AZURE_STORAGE_SAS_TOKEN": "hush"}),
        ("az://container", {"AZURE_STORAGE_ACCOUNT_NAME": "account", "AZURE_STORAGE_ENDPOINT": "hush"}),
        ("gs://bucket", {"GOOGLE_APPLICATION_CREDENTIALS": "/no/hush.json"}),
        ("gs://bucket", {"GOOGLE_SERVICE_ACCOUNT_KEY": "hush"}),
    ],
)
def test_malformed_settings_name_the_variables_and_not_their_values(
    monkeypatch: pytest.MonkeyPatch, root: str, variables: dict[str, str]
) -> None:
    pytest.importorskip("obstore")
    for name in [name for name in os.environ if name.startswith(("AZURE_", "GOOGLE_"))]:
        monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(Usage) as caught:
        open_store(root).get("a")
    error = caught.value
    account = "AZURE_STORAGE_ACCOUNT_NAME" if root.startswith("az") else "GOOGLE_APPLICATION_CREDENTIALS"
    assert root in str(error)
    assert account in str(error)
    assert account in error.hint
    assert "hush" not in "".join(map(str, (error, error.hint, error.__cause__, error.__context__)))


def test_the_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras.importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(Refused, match=r"a store at gs:// needs obstore, which is not installed") as caught:
        open_store("gs://bucket")
    assert "[clouds]" in caught.value.hint


@pytest.mark.parametrize(
    "root", ["gs://x", "az://bucket/..", "gs:///prefix", "gs://bucket/a//b", "gcs://bucket", "az://key@bucket"]
)
def test_a_malformed_root_is_refused(root: str) -> None:
    with pytest.raises(Usage):
        open_store(root)


def test_roots_in_manifests_may_be_clouds() -> None:
    check_root("gs://bucket/prefix")
    check_root("az://container")
    with pytest.raises(Usage):
        check_root("gs://bucket/../prefix")
